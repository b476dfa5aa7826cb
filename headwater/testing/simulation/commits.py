"""The profile `commits`: writers, readers, followers and collectors of one metastore, which holds no data files.

A list of the checker is a property of a table (`p0`, `p1`: read, and written back longer) or the deltas of its change
log (`d0`, `d1`: appended without a look).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headwater.errors import CommitStateUnknownError, LanceNamespaceError
from headwater.metastore import Metastore
from headwater.metastore.commit import log, slot_rebuild
from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.state import history, index, index_maps, layers
from headwater.metastore.state.snapshot import Snapshot
from headwater.testing.simulation.checker import (
    FAILED,
    OK,
    UNKNOWN,
    Operation,
    Value,
    check_feed,
    check_lists,
    check_positions,
    check_snapshots,
)

if TYPE_CHECKING:
    from headwater.testing.simulation.simulated_run import Member, SimulatedRun

TABLES = 2
MOVES = (
    ("transaction", 12),
    ("append", 6),
    ("read", 6),
    ("at", 3),
    ("follow", 3),
    ("checkpoint", 1),
    ("collect", 2),
    ("snapshot", 1),
)
"""What a client does, and how often of 34."""


@contextmanager
def note_outcome(run: SimulatedRun, operation: Operation) -> Iterator[None]:
    """Note how an operation ends: an error of the catalog says that it had no effect, or that nobody knows."""
    try:
        yield
        run.answer(operation, OK)
    except CommitStateUnknownError:
        run.answer(operation, UNKNOWN)
    except LanceNamespaceError as error:
        run.answer(operation, FAILED, type(error).__name__)


def table(key: str) -> tuple[str]:
    return (f"t{key[1:]}",)


def read_list(view: Transaction | Snapshot, key: str) -> list[Value]:
    if key.startswith("p"):
        return list(view.get(table(key)).properties["values"])
    return [delta.properties["value"] for delta in view.deltas(table(key))]


def read_all(view: Snapshot) -> dict[str, list[Value]]:
    return {f"{kind}{number}": read_list(view, f"{kind}{number}") for kind in "pd" for number in range(TABLES)}


class Commits:
    """One run of the profile: what clients do, and what is checked in the end."""

    native = False

    def __init__(self, run: SimulatedRun) -> None:
        self.run = run
        self._forgets = run.disk.forgets
        self.past: list[tuple[object, object]] = []
        self.feeds: dict[str, list[tuple[int, int]]] = {}

    def close(self) -> None:
        return None

    def open(self, member: Member) -> Metastore:
        return Metastore(member.store, clock=member.clock, author=member.process.name)

    def prepare(self, catalog: Metastore) -> None:
        with catalog.transaction("begin") as tx:
            for number in range(TABLES):
                tx.create_table((f"t{number}",), {"values": []})

    def plan(self, chance: random.Random, steps: int) -> list[str]:
        """Return the moves of one client."""
        moves, weights = zip(*MOVES, strict=True)
        return chance.choices(moves, weights, k=steps)

    def act(self, catalog: Metastore, client: str, move: str, chance: random.Random) -> None:
        """Make one move. Errors of the storage are noted: nothing more is asked of a catalog then."""
        operation = self.run.call(client, move)
        with note_outcome(self.run, operation):
            getattr(self, f"_{move}")(catalog, client, chance, operation)

    def _transaction(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Read some lists and append to some, in one transaction. One that writes may begin with an old state."""
        keys = [f"{chance.choice('ppd')}{chance.randrange(TABLES)}" for _ in range(chance.randint(1, 3))]
        appends = [chance.random() < 0.7 for _ in keys]
        tx = catalog.transaction(str(operation.id), refresh=not any(appends) or chance.random() < 0.7)
        operation.reads, operation.appended = [], []
        for key, is_append in zip(keys, appends, strict=True):
            values = read_list(tx, key) if key.startswith("p") or not is_append else None
            if values is not None:
                operation.reads.append((key, values))
            if is_append:
                value = self.run.fresh()
                operation.appended.append((key, value))
                if values is not None:
                    tx.update(table(key), {"values": [*values, value]})
                else:
                    tx.append_delta(table(key), [], properties={"value": value})
        self.run.note(operation)
        if operation.appended:
            tx.commit()

    def _append(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        """Append a delta by `run`, which may take several tries and must land once."""
        key, value = f"d{chance.randrange(TABLES)}", self.run.fresh()
        operation.appended = [(key, value)]
        self.run.note(operation)
        catalog.run(lambda tx: tx.append_delta(table(key), [], properties={"value": value}), str(operation.id))

    def _read(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        operation.reads = list(read_all(catalog.now()).items())
        self.run.note(operation)

    def _at(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        slot = chance.randint(1, max(catalog.now(refresh=False).slot, 1))
        self.past.append((slot, read_all(catalog.at(slot))))

    def _snapshot(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        name = f"s{operation.id}"
        made = catalog.snapshot(name)
        self.past.append((made.slot, read_all(catalog.at(name))))

    def _follow(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        seen = self.feeds.setdefault(client, [])
        after = seen[-1][0] if seen else None
        entries = [(entry.slot, entry.ordinal) for entry in catalog.log(after)]
        seen += [entry for entry in entries if not seen or entry > seen[-1]]

    def _checkpoint(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        catalog.checkpoint()

    def _collect(self, catalog: Metastore, client: str, chance: random.Random, operation: Operation) -> None:
        catalog.collect(keep=chance.choice((0, 2, 5)))

    def check(self, catalog: Metastore, history: Sequence[Operation]) -> Iterator[str]:
        """Check the history against the catalog, opened again by a process that meets no faults."""
        final = read_all(catalog.now())
        yield from check_lists([each for each in history if each.appended or each.reads], final)
        entries = list(catalog.log())
        yield from check_snapshots([*self.past, *self._replayed(catalog)])
        for who, seen in self.feeds.items():
            yield from check_feed(who, seen, [(entry.slot, entry.ordinal) for entry in entries])
        for number in range(TABLES):
            yield from check_positions(f"d{number}", [each.position for each in catalog.deltas((f"t{number}",))])
        yield from (
            f"snapshot {each.name} cannot be read" for each in catalog.snapshots() if not self._reads(catalog, each)
        )
        if self._forgets:  # a power cut may take published files that were marked as written
            catalog.repair()
        yield from (f"verify: {problem}" for problem in catalog.verify())

    def _reads(self, catalog: Metastore, snapshot: Any) -> bool:
        try:
            self.past.append((snapshot.slot, read_all(catalog.at(snapshot.name))))
        except LanceNamespaceError:
            return False
        return True

    def _replayed(self, catalog: Metastore) -> Iterator[tuple[object, object]]:
        """Yield what every slot that can still be read shows now."""
        for slot in range(max(catalog.boundary, 1), catalog.slot + 1):
            yield slot, read_all(catalog.at(slot))


SMALL = (
    (index, "CHECKPOINT_CHANGES", 6),
    (index_maps, "RECENT", 3),
    (layers, "PAGE", 200),
    (layers, "FILE", 1000),
    (layers, "READ_WHOLE", 500),
    (layers, "READ_AHEAD", 400),
    (log, "MAX_READ_AHEAD", 3),
    (slot_rebuild, "READ_AT_ONCE", 2),
    (history, "READ_AT_ONCE", 2),
)
"""Limits that a catalog of a short run would never reach, each with its module."""


class SmallLimits(Commits):
    """The profile `segments`: as `commits`, with segments, pages and layers so small that a run has many of each."""

    def prepare(self, catalog: Metastore) -> None:
        super().prepare(catalog)  # by the usual limits: before the run begins nobody can make a checkpoint beside
        self._limits = [(module, name, getattr(module, name)) for module, name, _ in SMALL]
        for module, name, limit in SMALL:
            setattr(module, name, limit)

    def close(self) -> None:
        for module, name, limit in self._limits:
            setattr(module, name, limit)
