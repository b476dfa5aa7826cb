"""The profile `streams`: writers, publishers, readers, undo and collection of two stream tables.

Everything but Lance's own files is in the simulated store. Those of the serving copies are files of a temporary folder,
written by Lance for real, so there are no power cuts. What the catalog does with them are steps of the scheduler,
unless Lance calls the catalog from a thread of its own.

The oracle is written apart from the fold: of the events of all batches that count, the highest sequence of a key wins.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import CommitStateUnknownError, LanceNamespaceError, TableVersionNotFoundError
from headwater.metastore import Metastore
from headwater.metastore.sessions import TransactionSession
from headwater.streams.log.source_ledger import batches_with
from headwater.streams.reading.position_views import counted
from headwater.streams.table import StreamTable
from headwater.testing.simulation.commits import FAILED, OK, UNKNOWN, Operation, check_snapshots, note_outcome
from headwater.testing.simulation.storage import Disk, StoredObject
from headwater.testing.simulation.versions import no_rows

if TYPE_CHECKING:
    from headwater.testing.simulation.simulated_run import Member, SimulatedRun

TABLES = ("a", "b")
KEYS = 4
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("seq", pa.int64()), pa.field("value", pa.int64())]
)
PRIME = 10_007
"""Sequences are the values shuffled by a factor modulo a prime: events arrive out of order, and no two are equal."""
TRIES = 3
DAY_MS = 86_400_000
MOVES = (
    ("upsert", 10),
    ("delete", 2),
    ("both", 3),
    ("again", 3),
    ("read", 6),
    ("past", 3),
    ("undo", 2),
    ("publish", 4),
    ("follow", 3),
    ("checkpoint", 1),
    ("collect", 1),
    ("collect_log", 1),
)
"""What a client does, and how often of 39."""

Event = tuple[int, int, int | None]
"""A key, a sequence and a value; None: the row is deleted."""
Rows = dict[int, tuple[int, int]]
"""By key: the sequence and the value of its row."""


class LanceFiles(MutableMapping[str, StoredObject]):
    """The files of a disk: those below a folder of Lance's are real, all others are in memory."""

    def __init__(self, folder: str, disk: Disk) -> None:
        self.folder = Path(folder)
        self._disk = disk
        self._memory: dict[str, StoredObject] = {}
        self._seen: dict[str, int] = {}

    def is_real(self, key: str) -> bool:
        return ".lance/" in key

    def __getitem__(self, key: str) -> StoredObject:
        if not self.is_real(key):
            return self._memory[key]
        try:
            data = (self.folder / key).read_bytes()
        except OSError:
            raise KeyError(key) from None
        seen_ms = self._seen.setdefault(key, self._disk.scheduler.now_ms)
        return StoredObject(data, seen_ms, md5(data).hexdigest())

    def __setitem__(self, key: str, stored: StoredObject) -> None:
        if not self.is_real(key):
            self._memory[key] = stored
            return
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(stored.data)
        self._seen[key] = stored.modified_ms

    def __delitem__(self, key: str) -> None:
        if not self.is_real(key):
            del self._memory[key]
            return
        (self.folder / key).unlink()

    def __iter__(self) -> Iterator[str]:
        yield from self._memory
        yield from sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def fold(events: Sequence[Event]) -> Rows:
    """Return the rows that events leave, in whatever order they came."""
    newest: dict[int, Event] = {}
    for event in events:
        if event[0] not in newest or event[1] > newest[event[0]][1]:
            newest[event[0]] = event
    return {key: (seq, value) for key, seq, value in newest.values() if value is not None}


def rows_of(table: pa.Table) -> Rows:
    return {row["id"]: (row["seq"], row["value"]) for row in table.to_pylist()}


def applied(rows: Rows, changes: pa.Table, after: int) -> Rows:
    """Return a copy of rows with the changes after a position."""
    copied = dict(rows)
    for row in changes.to_pylist():
        if row["_position"] <= after:
            continue
        if row["_change_type"] in ("delete", "update_preimage"):
            copied.pop(row["id"], None)
        else:
            copied[row["id"]] = (row["seq"], row["value"])
    return copied


class StreamTables:
    """One run of the profile."""

    native = True

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run
        run.disk.path = None  # turns of writers on a local disk are files of that disk
        run.disk.faults.rates.pop("power", None)
        self.folder = tempfile.mkdtemp(prefix="headwater-simulation-")
        run.disk.files = LanceFiles(self.folder, run.disk)
        self.batches: dict[str, dict[str, list[Event]]] = {}
        """By token: the events of each table."""
        self.sources: dict[str, str | None] = {}
        self.outcomes: dict[str, str] = {}
        self.undos: dict[str, dict[int, str]] = {}
        """By token: how each undo of the batch ended that was not refused."""
        self.again: dict[str, set[str]] = {}
        """By token: how the batch ended when somebody sent it once more. Such a batch is not undone."""
        self.past: list[tuple[object, object]] = []
        self.least: dict[str, int] = dict.fromkeys(TABLES, 0)
        """The highest position of each table that was acknowledged."""
        self.overtaken: list[str] = []
        self.taken: dict[str, set[str]] = {name: set() for name in TABLES}
        """The batches that each table has a record of in the end."""
        self.followers: dict[str, tuple[int, Rows]] = {}
        self.readers: dict[str, tuple[int, Rows]] = {}
        """By the name of a reader: up to where it has stored changes, and its copy of the rows."""

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def open(self, member: Member) -> Metastore:
        return Metastore(member.store, clock=member.clock, author=member.process.name)

    def prepare(self, catalog: Metastore) -> None:
        for name in TABLES:
            StreamTable.create(catalog, (name,), SCHEMA, keys="id", sequence="seq", uri=self.folder)

    def plan(self, chance: random.Random, steps: int) -> list[str]:
        moves, weights = zip(*MOVES, strict=True)
        return chance.choices(moves, weights, k=steps)

    def act(self, catalog: Metastore, client: str, move: str, chance: random.Random) -> None:
        operation = self.run.call(client, move)
        with note_outcome(self.run, operation):
            getattr(self, f"_{move}")(catalog, client, chance, operation)

    def _table(self, catalog: Metastore, name: str, session: Any = None) -> StreamTable:
        return StreamTable(catalog, (name,), self.folder, session=session)

    # Writers

    def _events(self, chance: random.Random, deletes: bool = False) -> list[Event]:
        keys = chance.sample(range(KEYS), chance.randint(1, 2))
        values = [self.run.fresh() for _ in keys]
        return [
            (key, value * 7_919 % PRIME, None if deletes else value) for key, value in zip(keys, values, strict=True)
        ]

    def _upsert(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        self._land(catalog, chance, operation, self._events(chance))

    def _delete(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        self._land(catalog, chance, operation, self._events(chance, deletes=True))

    def _land(self, catalog: Metastore, chance: random.Random, operation: Operation, events: list[Event]) -> None:
        """Land a batch with a token; some clients try again after an error, with the same token."""
        name, token = chance.choice(TABLES), f"T{operation.id}"
        source = self.sources[token] = chance.choice((None, "s"))
        self._begin(token, {name: events})
        with self._noted(token):
            for attempt in range(tries := chance.choice((1, TRIES))):
                try:
                    position = self._send(self._table(catalog, name), events, token, source)
                    self.least[name] = max(self.least[name], position)
                    return
                except LanceNamespaceError as error:
                    self._doubt(token, error)
                    if attempt == tries - 1:
                        raise

    def _send(self, table: StreamTable, events: Sequence[Event], token: str, source: str | None) -> int:
        rows = [{"id": key, "seq": seq, "value": value} for key, seq, value in events]
        if events[0][2] is None:
            return table.delete([{"id": row["id"], "seq": row["seq"]} for row in rows], token, source).position
        return table.upsert(rows, token, source).position

    def _both(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Land in both tables in one transaction."""
        token = f"T{operation.id}"
        self._begin(token, {name: self._events(chance) for name in TABLES})
        with self._noted(token):
            tx = catalog.transaction(token)
            session = TransactionSession(tx, no_rows)
            for name in TABLES:
                self._send(self._table(catalog, name, session), self.batches[token][name], token, None)
            tx.commit()

    def _again(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Send a batch once more, as a source does that was killed or was not answered; the first may be on its way."""
        known = [token for token, events in self.batches.items() if len(events) == 1 and token not in self.undos]
        if not known:
            return
        token = chance.choice(known[-3:])
        ((name, events),) = self.batches[token].items()
        outcomes = self.again.setdefault(token, set())
        self.run.say("", f"  {token} again")
        outcome = UNKNOWN
        try:
            self._send(self._table(catalog, name), events, token, self.sources[token])
            outcome = OK
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError:
            outcome = FAILED
            raise
        finally:
            outcomes.add(outcome)

    def _begin(self, token: str, events: dict[str, list[Event]]) -> None:
        self.batches[token] = events
        self.outcomes[token] = UNKNOWN  # as long as nobody was answered
        self.run.say("", f"  {token} {events}")

    def _noted(self, token: str) -> Any:
        return _Noted(self.outcomes, token)

    def _doubt(self, token: str, error: LanceNamespaceError) -> None:
        if isinstance(error, CommitStateUnknownError):
            self.outcomes[token] = "doubtful"

    def _undo(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Undo a batch that was acknowledged."""
        known = [
            token
            for token, outcome in self.outcomes.items()
            if outcome == OK and len(self.batches[token]) == 1 and token not in self.again
        ]
        if not known:
            return
        token = chance.choice(known)
        (name,) = self.batches[token]
        undos = self.undos.setdefault(token, {})
        undos[operation.id] = UNKNOWN
        self.run.say("", f"  undo {token} in {name}")
        try:
            report = self._table(catalog, name).undo(token=token)
            undos[operation.id] = OK
            self.least[name] = max(self.least[name], report.position)
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError:
            del undos[operation.id]
            raise

    # Readers

    def _read(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        name = chance.choice(TABLES)
        least, table = self.least[name], self._table(catalog, name)
        position = table.position
        if position < least:
            self.overtaken.append(f"stale: {client} read {name} at {position}, and {least} was acknowledged before")
        self.past.append(((name, position), rows_of(table.to_arrow(position=position))))

    def _past(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        name = chance.choice(TABLES)
        table = self._table(catalog, name)
        position = chance.randint(0, table.position)
        self.past.append(((name, position), rows_of(table.to_arrow(position=position))))

    def _follow(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Apply the changes since the last time to a copy of the rows."""
        name = TABLES[int(client[-1]) % len(TABLES)]
        table = self._table(catalog, name)
        after, rows = self.followers.get(client, (0, {}))
        until = table.position
        copied = applied(rows, table.changes(after, until), after)
        self.followers[client] = (until, copied)
        self.past.append(((name, until), copied))

    def _named(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Store what a named reader gets: every change at least once, also after a crash. It passes over known ones."""
        name, reader = TABLES[int(client[-1]) % len(TABLES)], f"reader-{client}"
        table = self._table(catalog, name)
        after, rows = self.readers.get(reader, (0, {}))
        known, until = table.readers(kept=True).get(reader), table.position
        if known is not None and known > after:
            self.overtaken.append(f"gap: {reader} stored changes up to {after}, and {name} has it at {known}")
        try:
            found = table.changes(until=until, reader=reader)
        except TableVersionNotFoundError:
            if known is not None:
                self.overtaken.append(f"collected: {reader} of {name} is at {known}, and its changes are gone")
            raise
        if until < after:
            self.overtaken.append(f"stale: {reader} read {name} at {until}, and before at {after}")
            return
        copied = applied(rows, found, after)
        self.readers[reader] = (until, copied)
        self.past.append(((name, until), copied))

    # Upkeep

    def _publish(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        self._table(catalog, chance.choice(TABLES)).publish()

    def _checkpoint(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        catalog.checkpoint()

    def _collect(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        catalog.collect(keep=chance.choice((0, 3)))

    def _collect_log(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        self._table(catalog, chance.choice(TABLES)).collect(catalog.clock.now_ms() + 40 * DAY_MS)

    # The check

    def check(self, catalog: Metastore, history: Sequence[Operation]) -> Iterator[str]:
        """Check rows, batches and every position that can be read against the oracle, and the catalog's own proofs."""
        yield from self.overtaken
        for name in TABLES:
            table = self._table(catalog, name)
            yield from self._check_records(table, name)
            yield from self._check_rows(table, name)
            yield from self._check_positions(table, name)
            yield from (f"verify {name}: {problem}" for problem in table.verify())
        yield from check_snapshots(self.past)
        yield from self._check_whole()
        catalog.repair()
        yield from (f"verify: {problem}" for problem in catalog.verify())

    def _check_records(self, table: StreamTable, name: str) -> Iterator[str]:
        """Check that each batch was taken once, or not at all, by the record of its token; an undo takes it back."""
        stream, snapshot = table.opened()
        streams, kept = snapshot.streams(stream.path, stream.version), counted(table.deltas())
        for token in [token for token, events in self.batches.items() if name in events]:
            landed = [delta for delta in kept if delta.properties.get("token") == token]
            times = max(len(batches_with(streams, token)), len(landed))
            outcome, undos = self._outcome(token), self.undos.get(token, {}).values()
            if times:
                self.taken[name].add(token)
            if times > 1:
                yield f"twice: {token} was taken {times} times by {name}"
            if outcome == OK and not times and not undos:
                yield f"lost: {token} was acknowledged, and {name} has no record of it"
            if outcome == FAILED and times:
                yield f"refused, but there: {token} ended in an error, and {name} has a record of it"
            if OK in undos and times:
                yield f"undone, but there: {name} still has a record of {token}"

    def _outcome(self, token: str) -> str:
        """Return how a batch ended, by all who sent it."""
        every = {self.outcomes[token], *self.again.get(token, ())}
        return OK if OK in every else UNKNOWN if UNKNOWN in every else FAILED

    def _check_rows(self, table: StreamTable, name: str) -> Iterator[str]:
        found = rows_of(table.to_arrow())
        expected = fold([event for token in self.taken[name] for event in self.batches[token][name]])
        if found != expected:
            yield f"rows: {name} has {found}, not {expected}"

    def _check_positions(self, table: StreamTable, name: str) -> Iterator[str]:
        positions = [delta.position for delta in table.deltas()]
        if positions and positions != list(range(positions[0], positions[0] + len(positions))):
            yield f"positions of {name}: {positions}"
        for position in positions:
            try:
                self.past.append(((name, position), rows_of(table.to_arrow(position=position))))
            except TableVersionNotFoundError:  # deltas before it were collected
                continue
            except LanceNamespaceError as error:
                yield f"position {position} of {name} cannot be read: {error}"

    def _check_whole(self) -> Iterator[str]:
        for token, events in self.batches.items():
            places = [token in self.taken[name] for name in events]
            if any(places) and not all(places):
                yield f"torn: {token} is in one table and not in the other"


class _Noted:
    """The outcome of a batch: ok, failed (every try was refused) or unknown."""

    def __init__(self, outcomes: dict[str, str], token: str) -> None:
        self._outcomes = outcomes
        self._token = token

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None:
            self._outcomes[self._token] = OK
        elif isinstance(error, CommitStateUnknownError) or self._outcomes[self._token] == "doubtful":
            self._outcomes[self._token] = UNKNOWN
        elif isinstance(error, LanceNamespaceError):
            self._outcomes[self._token] = FAILED
