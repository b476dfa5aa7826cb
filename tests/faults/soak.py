"""What the processes of the soak do."""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
    TransactionNotFoundError,
)

PAIR = ("pair.x", "pair.y", "pair.log")
KEPT_SECONDS = 2


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
    catalog.create_namespace("hall")
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
        self.place = f"{self.home}.t"
        self.is_there = True
        self.rows = 1

    def work_until(self, end: float) -> None:
        works: list[Callable[[], None]] = [
            self.append_by_lance, self.append_by_lance, self.land, self.land, self.pairs, self.pairs, self.publish,
            self.rename_table, self.move_table, self.rename_namespace, self.drop, self.undrop, self.grow, self.undo,
        ]  # fmt: skip
        while time.monotonic() < end:
            self.turn += 1
            self.random.choice(works)()

    def changes(self, kind: str, work: Callable[[], object]) -> bool:
        """Change what is one's own; whether it was done. What conflicted was not."""
        try:
            work()
        except ConcurrentModificationError:
            return False
        self.notes.write(json.dumps(["done", kind, self.id]) + "\n")
        return True

    def noting(self, what: str, id: int, work: Callable[[], object]) -> None:
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
            for name in PAIR:
                tx[name].append([{"id": self.id}])

        def once() -> None:
            with self.catalog.transaction("a pair") as tx:
                work(tx)

        self.noting("pair", self.id, once)

    def publish(self) -> None:
        self.noting("published", self.id, lambda: self.catalog.publish(["a.log", "pair.log"]))

    def rename_table(self) -> None:
        folder, _, name = self.place.rpartition(".")
        self._to(f"{folder}.{name}x" if len(name) < 6 else f"{folder}.t{self.number}", "rename of a table")

    def move_table(self) -> None:
        self._to(f"{self.home}.t" if self.place.startswith("hall.") else f"hall.own{self.number}", "move of a table")

    def _to(self, place: str, kind: str) -> None:
        if self.is_there and self.changes(kind, lambda: self.catalog.rename_table(self.place, place)):
            self.place = place

    def rename_namespace(self) -> None:
        new = f"own{self.number}" if self.home.startswith("a.") else f"a.own{self.number}"
        if self.changes("rename of a namespace", lambda: self.catalog.rename_namespace(self.home, new)):
            if self.place.startswith(f"{self.home}."):
                self.place = new + self.place[len(self.home) :]
            self.home = new

    def drop(self) -> None:
        if self.is_there and self.changes("drop", lambda: self.catalog.drop_table(self.place)):
            self.is_there = False

    def undrop(self) -> None:
        """Or make it anew, if a collection beside has ended the time in which it comes back."""
        if self.is_there:
            return
        try:
            self.is_there = self.changes("undrop", lambda: self.catalog.undrop(self.place))
        except TableNotFoundError:
            self.place = f"{self.home}.t"
            self.is_there = self.changes("create", lambda: self.catalog.create_table(self.place, [{"id": -1}]))
            self.rows = 1

    def grow(self) -> None:
        if self.is_there and self.changes("grow", lambda: self.catalog[self.place].append([{"id": self.turn}])):
            self.rows += 1

    def undo(self) -> None:
        """Take back rows of one's own. A collection may have forgotten how: then it is refused, and they stay."""
        before = self.rows
        self.grow()
        if self.rows == before:
            return
        try:
            newest = self.catalog.history(self.place)[-1]
            if self.changes("undo", lambda: self.catalog.undo(newest)):
                self.rows -= 1
        except (InvalidTableStateError, TransactionNotFoundError):
            assert len(self.catalog[self.place]) == self.rows

    def last_words(self) -> None:
        self.notes.write(json.dumps(["own", self.place, self.is_there, self.rows]) + "\n")


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
    x, y, log = (ids(catalog, name) for name in PAIR)
    return x == y == log


def is_collected(catalog: Any, moment: int) -> bool:
    """Whether the log cannot be read on from there any more."""
    try:
        next(iter(catalog.log(after=moment)), None)
    except InvalidInputError:
        return True
    return False


def read(target: str, file: str, seconds: float) -> None:
    """Looks at a moment, or inside a transaction, and never sees half of a pair."""
    with open(file, "w", buffering=1) as notes:
        try:
            catalog, end, looks = open_at(target), time.monotonic() + seconds, 0
            while time.monotonic() < end or not looks:
                moment = catalog.slot
                try:
                    found = {name: ids(catalog.at(moment), name) for name in PAIR}
                except LanceNamespaceError:
                    if not is_collected(catalog, moment):
                        raise
                    continue  # while it was read
                if found["pair.x"] != found["pair.y"] or found["pair.x"] != found["pair.log"]:
                    notes.write(json.dumps(["half", moment, found]) + "\n")
                with suppress(ConcurrentModificationError), catalog.transaction() as tx:
                    if not is_whole(tx):
                        notes.write(json.dumps(["half", "in a transaction"]) + "\n")
                looks += 1
            notes.write(json.dumps(["looked", looks]) + "\n")
        except BaseException:
            notes.write(json.dumps(["failed", traceback.format_exc()]) + "\n")
            raise


def collect(target: str, file: str, seconds: float) -> None:
    """Frees all the while what is older than a moment, and what dead writers left: here nobody is dead."""
    with open(file, "w", buffering=1) as notes:
        try:
            catalog, end = open_at(target), time.monotonic() + seconds
            while True:
                freed = catalog.collect(keep=timedelta(seconds=KEPT_SECONDS), grace=timedelta(minutes=10))
                notes.write(json.dumps(["done", "collection", freed.boundary]) + "\n")
                if time.monotonic() > end:
                    return
        except BaseException:
            notes.write(json.dumps(["failed", traceback.format_exc()]) + "\n")
            raise
