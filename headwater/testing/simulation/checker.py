"""Checks of histories: each returns what is violated, in words. Pure; histories of real processes are taken as well.

Transactions are those of Elle's list-append test: each appends values, which are never used twice, to lists, and reads
lists whole. What a read returned tells which transactions came before it, so the order of all of them must have no
cycle: not by what they read, not by what they overwrote, not by the time at which they were called and answered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import msgspec

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
