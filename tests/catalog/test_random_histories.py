"""Random histories of Lance and stream tables, by their rows: snapshots stay, and an undo is exact or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.errors import InvalidTableStateError, LanceNamespaceError

Rows = dict[str, list[str]]
COLUMNS = pa.table({"id": [0], "v": [""]}).schema
NOW = timedelta(0)


def contents(catalog: Catalog) -> Rows:
    """The rows of every table; of a stream table fresh, and as published."""
    found: Rows = {}
    for name in catalog:
        table = catalog[name]
        found[name] = sorted(str(row) for row in table.to_arrow().to_pylist())
        if table.is_stream and table.published is not None:
            found[f"{name} as published"] = sorted(str(row) for row in table.serving.to_arrow().to_pylist())
    return found


class History:
    """A catalog and a source of changes to it."""

    def __init__(self, root: str, seed: int) -> None:
        self.catalog = Catalog(MetastoreNamespace(root=root))
        self.random = random.Random(seed)
        self.count = 0
        for name in ("a.t", "a.u", "b.t"):
            self.catalog.create_table(name, [{"id": number, "v": "first"} for number in range(4)])
        self.catalog.create_stream_table("log", COLUMNS, keys="id").upsert([{"id": 0, "v": "first"}])

    def step(self) -> None:
        """One change, if it can be made: a change that is refused changes nothing."""
        works: list[Callable[[Catalog], object]] = [
            self.append, self.append, self.delete, self.update, self.upsert, self.upsert, self.publish, self.rename,
            self.drop, self.create, self.undrop, self.columns, self.move, self.together, self.optimize,
        ]  # fmt: skip
        self.count += 1
        work, before = self.random.choice(works), self.catalog.slot
        try:
            work(self.catalog)
        except LanceNamespaceError:
            assert self.catalog.slot == before

    def table(self, catalog: Catalog) -> str:
        return self.random.choice([name for name in catalog if name != "log"])

    def append(self, catalog: Catalog) -> None:
        catalog[self.table(catalog)].append([{"id": 100 + self.count, "v": "appended"}])

    def delete(self, catalog: Catalog) -> None:
        catalog[self.table(catalog)].delete(f"id % 5 = {self.random.randrange(5)}")

    def update(self, catalog: Catalog) -> None:
        catalog[self.table(catalog)].update(
            {"v": f"updated {self.count}"}, where=f"id % 3 = {self.random.randrange(3)}"
        )

    def upsert(self, catalog: Catalog) -> None:
        ids = self.random.sample(range(6), 2)
        catalog["log"].upsert([{"id": number, "v": f"upserted {self.count}"} for number in ids])

    def publish(self, catalog: Catalog) -> None:
        catalog["log"].publish()

    def rename(self, catalog: Catalog) -> None:
        catalog.rename_table(self.table(catalog), f"{self.random.choice('ab')}.r{self.count}")

    def move(self, catalog: Catalog) -> None:
        old = self.random.choice(catalog.namespaces())
        catalog.rename_namespace(old, f"n{self.count}")
        catalog.rename_namespace(f"n{self.count}", old)

    def drop(self, catalog: Catalog) -> None:
        if len(catalog) > 2:
            catalog.drop_table(self.table(catalog))

    def create(self, catalog: Catalog) -> None:
        catalog.create_table(f"{self.random.choice('ab')}.{self.random.choice('tuv')}", [{"id": 1, "v": "created"}])

    def undrop(self, catalog: Catalog) -> None:
        catalog.undrop(f"{self.random.choice('ab')}.{self.random.choice('tuv')}")

    def columns(self, catalog: Catalog) -> None:
        catalog[self.table(catalog)].add_columns({f"c{self.count}": "id * 2"})

    def optimize(self, catalog: Catalog) -> None:
        catalog[self.table(catalog)].optimize()

    def together(self, catalog: Catalog) -> None:
        with catalog.transaction(f"together {self.count}") as tx:
            for work in self.random.sample([self.append, self.delete, self.upsert, self.rename, self.create], 2):
                work(tx)


def undo_everything(root: str, seed: int, steps: int) -> int:
    """Undo any transaction after any history, and then the undo: exactly as before, or refused, and nothing changed."""
    history = History(root, seed)
    catalog = history.catalog
    states: dict[int, Rows] = {catalog.slot: contents(catalog)}
    for _ in range(steps):
        history.step()
        states[catalog.slot] = contents(catalog)
    done = 0
    entries = [entry for entry in catalog.log() if entry.slot - 1 in states]
    history.random.shuffle(entries)
    for entry in entries:
        before, newest = contents(catalog), catalog.slot
        try:
            catalog.undo(entry)
        except InvalidTableStateError:
            assert (catalog.slot, contents(catalog)) == (newest, before)
            continue
        done += 1
        after = contents(catalog)
        if entry.slot == newest:
            fresh = {name: rows for name, rows in states[entry.slot - 1].items() if "published" not in name}
            assert {name: rows for name, rows in after.items() if "published" not in name} == fresh
        undone = list(catalog.log())[-1]
        try:
            catalog.undo(undone)
        except InvalidTableStateError:
            assert contents(catalog) == after, "the rows of a log are ingested again, and not redone"
        else:
            assert contents(catalog) == before
    for slot, state in states.items():
        assert contents(catalog.at(slot)) == state, "what is undone stays in the past"
    assert catalog.namespace.verify() == []  # type: ignore[attr-defined]
    return done


def snapshots_stay(root: str, seed: int, steps: int, collections: int = 2) -> None:
    history = History(root, seed)
    catalog = history.catalog
    pinned: dict[str, Rows] = {}
    for number in range(steps):
        if number % (steps // 3) == 0:
            catalog.snapshot(f"s{number}")
            pinned[f"s{number}"] = contents(catalog)
        history.step()
        if number % (steps // collections) == steps // collections - 1:
            catalog["log"].publish()
            catalog.collect(keep=NOW, grace=NOW)
    catalog.collect(keep=NOW, grace=NOW)
    for found in (catalog, Catalog(MetastoreNamespace(root=root))):
        for name, state in pinned.items():
            assert contents(found.at(name)) == state
    assert catalog.namespace.verify() == []  # type: ignore[attr-defined]


def test_an_undo_is_exact_or_refused(tmp_path: Path) -> None:
    assert undo_everything(str(tmp_path / "lake"), seed=1, steps=6) > 0


def test_snapshots_read_the_same_rows_whatever_comes_later(tmp_path: Path) -> None:
    snapshots_stay(str(tmp_path / "lake"), seed=1, steps=9)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(25))
def test_an_undo_in_long_histories_is_exact_or_refused(tmp_path: Path, seed: int) -> None:
    undo_everything(str(tmp_path / "lake"), seed, steps=30)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_snapshots_read_the_same_rows_after_long_histories(tmp_path: Path, seed: int) -> None:
    snapshots_stay(str(tmp_path / "lake"), seed, steps=120)


@pytest.mark.long
def test_snapshots_read_the_same_rows_after_thousands_of_changes(tmp_path: Path) -> None:
    snapshots_stay(str(tmp_path / "lake"), seed=1000, steps=3000, collections=12)
