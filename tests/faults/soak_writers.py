"""What the processes of the soak do, and what they note of it: what they are about to do, and what was acknowledged.

Any of them may be killed at any moment. What a process notes first was perhaps done; what it notes last was.
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from headwater.errors import (
    ConcurrentModificationError,
    ErrorCode,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
    TransactionNotFoundError,
)

UNSURE = (ErrorCode.CONCURRENT_MODIFICATION, ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.THROTTLING)
PAIR = ("pair.x", "pair.y", "pair.log")
APPENDED = ("a.t", "a.db", "a.rest")
"""Tables that rows are appended to by pylance, by LanceDB and over REST."""
LISTS = (*APPENDED, "a.log", *PAIR)
KEPT_SECONDS = 2
NOTED_NS = 250_000_000
"""A reader notes what it read this often, as a note is as long as all lists."""
SOURCE = "soak"
Target = str | Mapping[str, str]
"""The URL of a server, or the properties of a metastore."""


def open_at(target: Target) -> Any:
    from headwater import Catalog, MetastoreNamespace

    return Catalog(target) if isinstance(target, str) else Catalog(MetastoreNamespace(**target))


def prepare(target: Target) -> None:
    import pyarrow as pa

    catalog = open_at(target)
    for name in (*APPENDED, "pair.x", "pair.y"):
        catalog.create_table(name, [{"id": -1}])
    columns = pa.table({"id": [0]}).schema
    for name in ("a.log", "pair.log"):
        catalog.create_stream_table(name, columns).append([{"id": -1}])
    catalog.create_namespace("hall")
    catalog.close()


def is_unsure(error: BaseException) -> bool:
    """Return True for an error of a change that others kept from being made, or that may have been made.

    The error's code decides. An error of pylance or LanceDB has none: it has the code that the product gives it.
    """
    from headwater.tables.translate import is_unanswered, kind_of

    code = error.code if isinstance(error, LanceNamespaceError) else kind_of(error).code
    return code in UNSURE or is_unanswered(error)


class Writer:
    """One process: does what comes, and notes what it tried and what was acknowledged.

    `number` is of this process alone; another that takes its place has another, and tables of its own.
    """

    def __init__(self, target: Target, number: int, notes: Any) -> None:
        self.target = target
        self.catalog = open_at(target)
        self.number = number
        self.notes = notes
        self.random = random.Random(number)
        self.turn = 0
        self.home = f"own{number}"
        self.place = f"{self.home}.t"
        self.is_there = True
        self.rows = 1
        self._database: Any = None

    def begin(self) -> None:
        self.note("own", self.place, False, 0)
        self.note("own?", self.place, True, 1)
        self.catalog.create_table(self.place, [{"id": -1}])
        self.note("own", self.place, True, 1)

    def note(self, *values: Any) -> None:
        self.notes.write(json.dumps(values) + "\n")

    def work_until(self, end: float) -> None:
        works: list[Callable[[], None]] = [
            self.append_by_lance, self.append_by_lance, self.append_by_lancedb, self.append_over_rest, self.land,
            self.land, self.pairs, self.pairs, self.publish, self.rename_table, self.move_table, self.rename_namespace,
            self.drop, self.undrop, self.grow, self.undo,
        ]  # fmt: skip
        while time.monotonic() < end:
            self.turn += 1
            self.random.choice(works)()

    def changes(self, kind: str, work: Callable[[], object], **after: Any) -> bool:
        """Change what is one's own; whether it was done. `after`: how it is then.

        What conflicted was not done. Of what was not answered nothing is known: the process ends there, as if killed.
        """
        then = {"place": self.place, "is_there": self.is_there, "rows": self.rows} | after
        self.note("own?", *then.values())
        try:
            work()
        except ConcurrentModificationError:
            self.note("own", self.place, self.is_there, self.rows)
            return False
        except LanceNamespaceError as error:
            if is_unsure(error):
                raise Ended from error
            self.note("own", self.place, self.is_there, self.rows)
            raise
        for name, value in then.items():
            setattr(self, name, value)
        self.note("own", *then.values())
        self.note("done", kind, self.id)
        return True

    def noting(self, what: str, id: int, work: Callable[[], object]) -> None:
        self.note("tried", what, id, time.monotonic_ns())
        try:
            work()
        except Exception as error:
            if not is_unsure(error):
                raise
            return  # not acknowledged: it may be there once, and no more
        self.note("done", what, id, time.monotonic_ns())

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

    def append_by_lancedb(self) -> None:
        self.noting(
            "a.db", self.id, lambda: self._lancedb().open_table("db", namespace_path=["a"]).add([{"id": self.id}])
        )

    def _lancedb(self) -> Any:
        if self._database is None:
            import lancedb

            how = ("rest", {"uri": self.target}) if isinstance(self.target, str) else (METASTORE, dict(self.target))
            self._database = lancedb.connect_namespace(*how)
        return self._database

    def append_over_rest(self) -> None:
        """With a key, and again with the same one after an answer that was lost: it is there once at the most."""
        import httpx
        import pyarrow as pa

        if not isinstance(self.target, str):
            return
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("id", pa.int64())])) as writer:
            writer.write_table(pa.table({"id": pa.array([self.id], pa.int64())}))
        url, keys = f"{self.target}/v1/table/a$rest/insert", {"idempotency-key": str(self.id)}

        def insert() -> None:
            for attempt in range(3):
                with suppress(httpx.TransportError):
                    answer = httpx.post(url, content=bytes(sink.getvalue()), headers=keys, timeout=60)
                    if answer.status_code == 200:
                        return
                    if answer.status_code not in (409, 500, 503):
                        raise AssertionError(answer.text)
                time.sleep(0.2 * attempt)
            raise ServiceUnavailableError("No answer.")

        self.noting("a.rest", self.id, insert)

    def land(self) -> None:
        """With a token: what is not acknowledged is landed again by whoever checks, and is there once."""
        self.noting("a.log", self.id, lambda: land(self.catalog, self.id))

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
        if self.is_there:
            self.changes(kind, lambda: self.catalog.rename_table(self.place, place), place=place)

    def rename_namespace(self) -> None:
        new = f"own{self.number}" if self.home.startswith("a.") else f"a.own{self.number}"
        is_inside = self.place.startswith(f"{self.home}.")
        place = new + self.place[len(self.home) :] if is_inside else self.place
        if self.changes("rename of a namespace", lambda: self.catalog.rename_namespace(self.home, new), place=place):
            self.home = new

    def drop(self) -> None:
        if self.is_there:
            self.changes("drop", lambda: self.catalog.drop_table(self.place), is_there=False)

    def undrop(self) -> None:
        """Or make it anew, if a collection beside has ended the time in which it comes back."""
        if self.is_there:
            return
        try:
            self.changes("undrop", lambda: self.catalog.undrop(self.place), is_there=True)
        except TableNotFoundError:
            place = f"{self.home}.t"
            new = {"place": place, "is_there": True, "rows": 1}
            self.changes("create", lambda: self.catalog.create_table(place, [{"id": -1}]), **new)

    def grow(self) -> None:
        if self.is_there:
            rows = self.rows + 1
            self.changes("grow", lambda: self.catalog[self.place].append([{"id": self.turn}]), rows=rows)

    def undo(self) -> None:
        """Take back rows of one's own. A collection may have forgotten how: then it is refused, and they stay."""
        before = self.rows
        self.grow()
        if self.rows == before:
            return
        try:
            newest = self.catalog.history(self.place)[-1]
            self.changes("undo", lambda: self.catalog.undo(newest), rows=self.rows - 1)
        except (InvalidTableStateError, TransactionNotFoundError):
            assert len(self.catalog[self.place]) == self.rows


class Ended(Exception):
    """A change of what is one's own was not answered: another process goes on in this one's place."""


METASTORE = "headwater.MetastoreNamespace"


def land(catalog: Any, id: int) -> None:
    """One batch, by its token."""
    catalog["a.log"].append([{"id": id}], source=SOURCE, token=str(id))


def noted(file: str, work: Callable[[Any], None]) -> None:
    """Do what a process does, and note if it fails."""
    with open(file, "w", buffering=1) as notes:
        try:
            work(notes)
        except Ended:
            return
        except BaseException as error:
            if not is_unsure(error):
                notes.write(json.dumps(["failed", traceback.format_exc()]) + "\n")
                raise


def write(target: Target, number: int, file: str, seconds: float) -> None:
    def work(notes: Any) -> None:
        writer = Writer(target, number, notes)
        writer.begin()
        writer.work_until(time.monotonic() + seconds)
        writer.catalog.close()

    noted(file, work)


def serve(target: Mapping[str, str], port: int, file: str, seconds: float) -> None:
    """A server of the catalog, until somebody ends it."""
    from headwater import MetastoreNamespace
    from headwater.rest.server import start_in_thread
    from headwater.rest.settings import Settings

    def work(notes: Any) -> None:
        start_in_thread(MetastoreNamespace(**target), port=port, settings=Settings(vend_credentials=True))
        time.sleep(seconds * 100)

    noted(file, work)


def ids(catalog: Any, name: str) -> list[int]:
    """Return the rows of a table in the order in which they were appended."""
    found: list[int] = catalog[name].to_arrow(columns=["id"]).column("id").to_pylist()
    return found


def is_whole(catalog: Any) -> bool:
    x, y, log = (sorted(ids(catalog, name)) for name in PAIR)
    return x == y == log


def is_collected(catalog: Any, moment: int) -> bool:
    """Whether the log cannot be read on from there any more."""
    try:
        next(iter(catalog.log(after=moment)), None)
    except InvalidInputError:
        return True
    return False


def read(target: Target, number: int, file: str, seconds: float) -> None:
    """Look at a moment, or inside a transaction: never at half of a pair. The checker gets what it read, and when."""

    def work(notes: Any) -> None:
        catalog, end, looks, noted_ns = open_at(target), time.monotonic() + seconds, 0, 0
        while time.monotonic() < end or not looks:
            began_ns = time.monotonic_ns()
            moment = catalog.slot
            try:
                then = catalog.at(moment)
                found = {name: ids(then, name) for name in LISTS}
            except LanceNamespaceError:
                if not is_collected(catalog, moment):
                    raise
                continue  # while it was read
            if not sorted(found["pair.x"]) == sorted(found["pair.y"]) == sorted(found["pair.log"]):
                notes.write(json.dumps(["half", moment, found]) + "\n")
            if began_ns - noted_ns > NOTED_NS:
                noted_ns = began_ns
                notes.write(json.dumps(["read", moment, began_ns, time.monotonic_ns(), found]) + "\n")
            with suppress(ConcurrentModificationError), catalog.transaction() as tx:
                if not is_whole(tx):
                    notes.write(json.dumps(["half", "in a transaction"]) + "\n")
            looks += 1
        notes.write(json.dumps(["looked", looks]) + "\n")

    noted(file, work)


def collect(target: Target, number: int, file: str, seconds: float) -> None:
    """Frees all the while what is older than a moment. What dead writers left is not old enough."""

    def work(notes: Any) -> None:
        catalog, end = open_at(target), time.monotonic() + seconds
        while True:
            freed = catalog.collect(keep=timedelta(seconds=KEPT_SECONDS), grace=timedelta(hours=10))
            notes.write(json.dumps(["done", "collection", freed.boundary]) + "\n")
            if time.monotonic() > end:
                return

    noted(file, work)
