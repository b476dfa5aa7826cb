"""Random histories of table versions, of a stream table and a Lance table, against a small model of their rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import MetastoreNamespace
from headwater.errors import LanceNamespaceError
from headwater.rest.server import start_in_thread
from tests.metastore.published_reader import read

NOW = timedelta(0)
STREAM, LANCE = "n.t", "n.p"
Seen = dict[str, dict[str, Any]]


def rows_of(table: Any) -> list[str]:
    return sorted(str(row) for row in table.to_arrow().to_pylist())


def seen(catalog: headwater.Catalog) -> Seen:
    """The lifecycle and the rows of every version of every table, and the rows that the name shows."""
    found: Seen = {}
    for name in (STREAM, LANCE):
        table = catalog[name]
        shown: dict[str, Any] = {"by name": rows_of(table)}
        for version in table.table_versions.list():
            handle = table.table_versions[version.id]
            published = handle.published is not None if handle.is_stream else False
            shown[version.id] = (version.lifecycle, rows_of(handle), rows_of(handle.serving) if published else None)
        found[name] = shown
    return found


class History:
    """A catalog with two tables, and a source of changes to their versions."""

    def __init__(self, catalog: headwater.Catalog, seed: int) -> None:
        self.catalog = catalog
        self.random = random.Random(seed)
        self.count = 1
        self.rows: dict[tuple[str, str], dict[int, str]] = {(STREAM, "1"): {}, (LANCE, "1"): {0: "first"}}
        self.active = {STREAM: "1", LANCE: "1"}
        catalog.create_stream_table(STREAM, {"id": "int64", "v": "text"}, keys="id")
        catalog.create_table(LANCE, [{"id": 0, "v": "first"}])

    def step(self) -> None:
        """Make one change, and compare each version with the model. A refused change changes nothing."""
        works: list[Callable[[str], None]] = [
            self.write, self.write, self.write, self.publish, self.create, self.create, self.activate, self.activate,
            self.drop, self.rename, self.index, self.together, self.undo,
        ]  # fmt: skip
        self.count += 1
        name, work = self.random.choice([STREAM, LANCE]), self.random.choice(works)
        before = self.catalog.slot
        try:
            work(name)
        except LanceNamespaceError:
            assert self.catalog.slot == before, work
        self.check()

    def check(self) -> None:
        found = seen(self.catalog)
        for name, shown in found.items():
            ids = {id for table, id in self.rows if table == name}
            assert set(shown) == {"by name", *ids}
            assert [id for id in ids if shown[id][0] == "active"] == [self.active[name]]
            assert shown["by name"] == shown[self.active[name]][1]
            for id in ids:
                expected = [self.row(id, key, value) for key, value in self.rows[name, id].items()]
                assert shown[id][1] == sorted(str(row) for row in expected)

    def row(self, id: str, key: int, value: str) -> dict[str, Any]:
        """A row as a version has it: each version beyond the first has a column of its own."""
        return {"id": key, "v": value} if id == "1" else {"id": key, "v": value, f"w{id}": key * 0.5}

    def any_version(self, name: str) -> str:
        return self.random.choice(sorted(id for table, id in self.rows if table == name))

    def write(self, name: str, catalog: Any = None, id: str | None = None) -> None:
        chosen = id or self.any_version(name)
        opened = (catalog or self.catalog)[name]
        handle = opened if chosen == self.active[name] else opened.table_versions[chosen]
        key = self.random.randrange(5) if name == STREAM else self.count
        row = self.row(chosen, key, f"w{self.count}")
        handle.upsert([row]) if name == STREAM else handle.append([row])
        self.rows[name, chosen][key] = row["v"]

    def publish(self, name: str) -> None:
        self.catalog[STREAM].table_versions[self.any_version(STREAM)].publish()

    def create(self, name: str) -> None:
        id = str(self.count)
        first = self.row(id, 0, "made")
        versions = self.catalog[name].table_versions
        if name == LANCE:
            versions.create(id, [first])
        else:
            versions.create(id, schema={"id": "int64", "v": "text", f"w{id}": "double"}, keys="id").upsert([first])
        self.rows[name, id] = {0: "made"}

    def activate(self, name: str) -> None:
        id = self.any_version(name)
        self.catalog[name].table_versions.activate(id)
        self.active[name] = id

    def drop(self, name: str) -> None:
        id = self.any_version(name)
        self.catalog[name].table_versions.drop(id)
        assert id != self.active[name]
        del self.rows[name, id]

    def rename(self, name: str) -> None:
        self.catalog.rename_table(name, f"n.r{self.count}")
        self.catalog.rename_table(f"n.r{self.count}", name)

    def index(self, name: str) -> None:
        if name == LANCE and not list(self.catalog[name].indices):
            self.catalog[name].create_index("v")

    def together(self, name: str) -> None:
        """Activate a version and write by the name in one transaction, which an error leaves in part of the time."""
        id, rows, active = self.any_version(name), {k: dict(v) for k, v in self.rows.items()}, dict(self.active)
        try:
            with self.catalog.transaction(f"together {self.count}") as tx:
                tx[name].table_versions.activate(id)
                self.active[name] = id
                self.write(name, tx, id)
                if self.random.random() < 0.3:
                    raise KeyError("left")
        except (KeyError, LanceNamespaceError):
            self.rows, self.active = rows, active

    def undo(self, name: str) -> None:
        """Undo an activation that was the last change: the version of before is active again."""
        before = self.active[name]
        id = self.any_version(name)
        if id == before:
            return
        self.catalog[name].table_versions.activate(id)
        self.catalog.undo(list(self.catalog.log())[-1])


def run(catalog: headwater.Catalog, root: Path, seed: int, steps: int) -> None:
    history = History(catalog, seed)
    past: dict[int, Seen] = {}
    for _ in range(steps):
        history.step()
        past[catalog.slot] = seen(catalog)
    for slot, state in past.items():
        assert seen(catalog.at(slot)) == state
    assert catalog.verify() == []
    now = seen(catalog)
    headwater.Catalog(MetastoreNamespace(root=str(root))).collect(keep=NOW, grace=NOW)
    for again in (catalog, headwater.Catalog(MetastoreNamespace(root=str(root)))):
        assert seen(again) == now
        assert again.verify() == []
    told = read(str(root))[("n", "t")][3]
    assert told == tuple(delta.files[0].path for delta in headwater.Metastore(root).deltas(["n", "t"]))


def test_versions_of_tables_hold_their_own_rows_now_and_in_the_past(tmp_path: Path) -> None:
    run(headwater.Catalog(MetastoreNamespace(root=str(tmp_path / "lake"))), tmp_path / "lake", seed=1, steps=12)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_versions_of_tables_hold_their_own_rows_in_long_histories(tmp_path: Path, seed: int) -> None:
    run(headwater.Catalog(MetastoreNamespace(root=str(tmp_path / "lake"))), tmp_path / "lake", seed, steps=60)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_versions_of_tables_hold_their_own_rows_behind_a_server(tmp_path: Path, seed: int) -> None:
    server = start_in_thread(MetastoreNamespace(root=str(tmp_path / "lake")))
    try:
        run(headwater.Catalog(server.url), tmp_path / "lake", seed, steps=30)
    finally:
        server.stop()
