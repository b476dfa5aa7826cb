"""What the processes of the soak do. Light to import: each process starts anew and imports this."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
import traceback
from collections.abc import Callable
from typing import Any

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
SCHEMA = {"id": "int64"}


def open_at(target: str) -> Any:
    from headwater import Catalog, MetastoreNamespace

    return Catalog(target) if target.startswith("http") else Catalog(MetastoreNamespace(root=target))


def prepare(root: str, writers: int) -> None:
    import pyarrow as pa

    catalog = open_at(root)
    for name in ("a.t", "pair.x", "pair.y"):
        catalog.create_table(name, [{"id": -1}])
    columns = pa.table({"id": [0]}).schema
    for name in ("a.log", "pair.log"):
        catalog.create_stream_table(name, columns).append([{"id": -1}])
    for number in range(writers):
        catalog.create_table(f"own{number}.t", [{"id": -1}])
    catalog.close()


class Writer:
    """One process: does what comes, and notes what it tried and what was acknowledged."""

    def __init__(self, target: str, number: int, notes: Any) -> None:
        self.catalog = open_at(target)
        self.number = number
        self.notes = notes
        self.random = random.Random(number)
        self.turn = 0
        self.home = f"own{number}"
        self.is_there = True
        self.rows = 1

    def work_until(self, end: float) -> None:
        works: list[Callable[[], None]] = [
            self.append_by_lance, self.append_by_lance, self.land, self.land, self.pairs, self.pairs, self.publish,
            self.move, self.rename, self.drop_or_undrop, self.grow,
        ]  # fmt: skip
        while time.monotonic() < end:
            self.turn += 1
            self.random.choice(works)()

    def noting(self, what: str, id: int, work: Callable[[], object]) -> None:
        from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, ServiceUnavailableError
        from headwater.tables.translate import kind_of

        self.notes.write(json.dumps(["tried", what, id]) + "\n")
        try:
            work()
        except Exception as error:
            unsure = (ConcurrentModificationError, CommitStateUnknownError, ServiceUnavailableError)
            if not isinstance(error, unsure) and kind_of(error) not in unsure:
                raise
            return  # not acknowledged: it may be there once, and no more
        self.notes.write(json.dumps(["done", what, id]) + "\n")

    @property
    def id(self) -> int:
        return self.number * 1_000_000 + self.turn

    def append_by_lance(self) -> None:
        import lance
        import pyarrow as pa

        rows, there = pa.table({"id": [self.id]}), self.catalog.namespace
        self.noting(
            "a.t",
            self.id,
            lambda: lance.write_dataset(rows, namespace_client=there, table_id=["a", "t"], mode="append"),
        )

    def land(self) -> None:
        self.noting("a.log", self.id, lambda: self.catalog["a.log"].append([{"id": self.id}]))

    def pairs(self) -> None:
        def work(tx: Any) -> None:
            for name in ("pair.x", "pair.y", "pair.log"):
                tx[name].append([{"id": self.id}])

        def once() -> None:
            with self.catalog.transaction("a pair") as tx:
                work(tx)

        self.noting("pair", self.id, once)

    def publish(self) -> None:
        self.noting("published", self.id, lambda: self.catalog.publish(["a.log", "pair.log"]))

    def move(self) -> None:
        if self.is_there:
            self.catalog.rename_table(f"{self.home}.t", f"{self.home}.u")
            self.catalog.rename_table(f"{self.home}.u", f"{self.home}.t")

    def rename(self) -> None:
        new = f"own{self.number}" if self.home.startswith("a.") else f"a.own{self.number}"
        self.catalog.rename_namespace(self.home, new)
        self.home = new

    def drop_or_undrop(self) -> None:
        if self.is_there:
            self.catalog.drop_table(f"{self.home}.t")
        else:
            self.catalog.undrop(f"{self.home}.t")
        self.is_there = not self.is_there

    def grow(self) -> None:
        if self.is_there:
            self.catalog[f"{self.home}.t"].append([{"id": self.turn}])
            self.rows += 1

    def last_words(self) -> None:
        self.notes.write(json.dumps(["own", f"{self.home}.t", self.is_there, self.rows]) + "\n")


def write(target: str, number: int, file: str, seconds: float) -> None:
    with open(file, "w", buffering=1) as notes:
        try:
            writer = Writer(target, number, notes)
            notes.write(json.dumps(["ready"]) + "\n")
            writer.work_until(time.monotonic() + seconds)
            writer.last_words()
            writer.catalog.close()
        except BaseException:
            notes.write(json.dumps(["failed", traceback.format_exc()]) + "\n")
            raise


def ids(catalog: Any, name: str) -> list[int]:
    table = catalog[name]
    return sorted(table.to_arrow(columns=["id"]).column("id").to_pylist())


def is_whole(catalog: Any) -> bool:
    return ids(catalog, "pair.x") == ids(catalog, "pair.y") == ids(catalog, "pair.log")


def read(target: str, file: str, seconds: float) -> None:
    """The ninth: looks at a moment, or inside a transaction, and never sees half of a pair."""
    with open(file, "w", buffering=1) as notes:
        try:
            catalog, end, looks = open_at(target), time.monotonic() + seconds, 0
            while time.monotonic() < end or not looks:
                moment = catalog.slot
                found = {name: ids(catalog.at(moment), name) for name in ("pair.x", "pair.y", "pair.log")}
                if found["pair.x"] != found["pair.y"] or found["pair.x"] != found["pair.log"]:
                    notes.write(json.dumps(["half", moment, found]) + "\n")
                with catalog.transaction() as tx:
                    if not is_whole(tx):
                        notes.write(json.dumps(["half", "in a transaction"]) + "\n")
                looks += 1
            notes.write(json.dumps(["looked", looks]) + "\n")
        except BaseException:
            notes.write(json.dumps(["failed", traceback.format_exc()]) + "\n")
            raise
