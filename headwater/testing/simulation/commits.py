"""The profile `commits`: writers, readers, followers and collectors of one metastore, which holds no data files.

A list of the checker is a property of a table (`p0`, `p1`: read, and written back longer) or the deltas of its change
log (`d0`, `d1`: appended without a look).

Checks of histories: each returns what is violated, in words. Pure; histories of real processes are taken as well.

Transactions are those of Elle's list-append test: each appends values, which are never used twice, to lists, and reads
lists whole. What a read returned tells which transactions came before it, so the order of all of them must have no
cycle: not by what they read, not by what they overwrote, not by the time at which they were called and answered.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.errors import CommitStateUnknownError, LanceNamespaceError
from headwater.metastore import Metastore
from headwater.metastore.commit import log, slot_rebuild
from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.state import history, index, index_maps, layers
from headwater.metastore.state.snapshot import Snapshot

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


OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
NEVER = 1 << 62
Value = int | str
Edges = dict[int, dict[int, str]]


class Operation(msgspec.Struct):
    """A transaction of a history: what it appended and read, when it was called and answered, and how it ended.

    `appended` and `reads` are by list. `outcome`: ok, failed (it must have had no effect) or unknown (it may have).
    """

    id: int
    client: str
    called: int
    appended: list[tuple[str, Value]] = msgspec.field(default_factory=list)
    reads: list[tuple[str, list[Value]]] = msgspec.field(default_factory=list)
    answered: int = NEVER
    outcome: str = UNKNOWN


def check_lists(history: Sequence[Operation], final: Mapping[str, Sequence[Value]]) -> Iterator[str]:
    """Check that transactions are serializable in the order of real time, and that the lists are what they left.

    `final`: the lists after the last operation, read without faults.
    """
    by_value = {value: operation for operation in history for value in operation.appended}
    for key, values in final.items():
        yield from _check_final(key, values, by_value)
    there = {(key, value) for key, values in final.items() for value in values}
    for operation in history:
        if operation.outcome == OK:
            for value in operation.appended:
                if value not in there:
                    yield f"lost: {_name(operation)} was acknowledged, and {value[1]} is not in {value[0]}"
        some = [value for value in operation.appended if value in there]
        if some and len(some) < len(operation.appended):
            yield f"torn: of {_name(operation)} only {some} are there"
        for key, values in operation.reads:
            seen = [value for value in values if (key, value) not in operation.appended]
            if list(final.get(key, ()))[: len(seen)] != seen:
                yield f"order: {_name(operation)} read {seen} in {key}, which is no beginning of {final.get(key)}"
    cycle = _cycle(_dependencies(history, final, by_value))
    if cycle:
        yield "cycle: " + ", ".join(f"{_name(history[before])} {why}" for before, why in cycle)


def _check_final(key: str, values: Sequence[Value], by_value: Mapping[tuple[str, Value], Operation]) -> Iterator[str]:
    if len(set(values)) < len(values):
        twice = sorted({value for value in values if list(values).count(value) > 1}, key=str)
        yield f"twice: {twice} in {key}"
    for value in values:
        maker = by_value.get((key, value))
        if maker is None:
            yield f"unknown value: {value} in {key} was appended by nobody"
        elif maker.outcome == FAILED:
            yield f"refused, but there: {_name(maker)} ended in an error, and {value} is in {key}"


def _dependencies(
    history: Sequence[Operation], final: Mapping[str, Sequence[Value]], by_value: Mapping[tuple[str, Value], Operation]
) -> Edges:
    """Return who must come before whom: by values that were read, overwritten or not yet seen, and by real time."""
    place = {operation.id: number for number, operation in enumerate(history)}
    there = {(key, value) for key, values in final.items() for value in values}
    edges: Edges = defaultdict(dict)

    def before(first: int, second: int, why: str) -> None:
        if first != second:
            edges[first].setdefault(second, why)

    for key, values in final.items():
        makers = [place[by_value[key, value].id] for value in values if (key, value) in by_value]
        for first, second in pairwise(makers):
            before(first, second, f"appended to {key} before")
    took_place = [
        operation
        for operation in history
        if operation.outcome == OK or any(value in there for value in operation.appended)
    ]
    for operation in took_place:
        me = place[operation.id]
        for key, values in operation.reads if operation.outcome == OK else ():
            others = [value for value in values if (key, value) not in operation.appended]
            order = list(final.get(key, ()))
            if others and (key, others[-1]) in by_value:
                before(place[by_value[key, others[-1]].id], me, f"appended {others[-1]} to {key}, read by")
            following = [value for value in order[len(others) :] if (key, value) not in operation.appended]
            if following and (key, following[0]) in by_value:
                before(me, place[by_value[key, following[0]].id], f"read {key} without {following[0]} of")
    for first, second in _in_real_time(took_place):
        before(place[first], place[second], "was answered before the call of")
    return edges


def _in_real_time(history: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """Yield who was answered before whose call, but for pairs with a third operation wholly between them."""
    answered = sorted((each for each in history if each.outcome == OK), key=lambda each: each.answered)
    last: list[Operation] = []
    """Those answered by now that end after the newest call among them: what comes later follows these."""
    number, newest = 0, -1
    for later in sorted(history, key=lambda each: each.called):
        while number < len(answered) and answered[number].answered < later.called:
            last.append(answered[number])
            newest = max(newest, answered[number].called)
            number += 1
        last = [each for each in last if each.answered >= newest]
        yield from ((each.id, later.id) for each in last)


def _cycle(edges: Edges) -> list[tuple[int, str]]:
    """Return a cycle, each member with its reason to come before the next; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return [(first, edges[first][second]) for first, second in pairwise(reversed(error.args[1]))]
    return []


def check_snapshots(reads: Iterable[tuple[Hashable, object]]) -> Iterator[str]:
    """Check that one moment of the past always reads the same."""
    known: dict[Hashable, object] = {}
    for moment, state in reads:
        if known.setdefault(moment, state) != state:
            yield f"past changed: {moment} read {known[moment]}, and later {state}"


def check_feed(who: str, seen: Sequence[tuple[int, int]], log: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Check that a follower of the log got every entry once and in order, from its first one on.

    `log`: the entries that can still be read. What was collected meanwhile is not judged.
    """
    if any(first >= second for first, second in pairwise(seen)):
        yield f"feed: {who} got entries twice or out of order: {seen}"
    got = set(seen)
    if seen and log:
        missed = [entry for entry in log if seen[0] <= entry <= seen[-1] and entry not in got]
        if missed:
            yield f"feed: {who} missed {missed}"


def check_positions(stream: str, positions: Sequence[int]) -> Iterator[str]:
    """Check that the deltas of a stream are numbered from 1 without a gap."""
    if list(positions) != list(range(1, len(positions) + 1)):
        yield f"positions of {stream}: {positions}"


def _name(operation: Operation) -> str:
    return f"T{operation.id} ({operation.client})"
