"""Answers to the questions of the front page and of the page of commits: plain values for JSON. Pure.

Growth of a catalog over time for the front page: commits, rows and bytes in equal spans.

Sizes are those of the tables that are there now, by the manifests of the versions that ended each span. A version whose
manifest was cleaned up counts as the next one that is kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from msgspec import Struct

from headwater.errors import LanceNamespaceError
from headwater.metastore import Delta, Metastore, Object
from headwater.metastore.records.objects import LogEntry
from headwater.metastore.records.serving_copy import newest_version


class CommitFact(Struct, frozen=True):
    """A committed transaction with the first of its changes. `total`: how many there are."""

    entry: LogEntry
    total: int


class LogFacts(Struct, frozen=True):
    """Some of the log, oldest first, and which of the names in it lead to something now."""

    commits: list[CommitFact]
    newest: int
    first: int
    oldest: int
    there: set[tuple[str, ...]]


class TableState(Struct, frozen=True):
    """A stream table: rows and deltas of its log that are not published, and all rows of its log.

    `stale`: derived columns with values of an older function, in `stale_rows` rows.
    """

    path: tuple[str, ...]
    rows: int
    deltas: int
    total: int
    stale: list[str] = []
    stale_rows: int = 0


class TableUpkeep(Struct, frozen=True):
    """A table that a compaction would help: small fragments, and fragments of which many rows are deleted."""

    path: tuple[str, ...]
    small: int
    worn: int


class CatalogSize(Struct, frozen=True):
    """Figures of the whole catalog. `unmeasured`: tables whose manifests were not read, so rows and bytes lack them."""

    namespaces: int
    tables: int
    streams: int
    rows: int
    bytes: int
    unmeasured: int


class Growth(Struct, frozen=True):
    """Commits in equal spans of time, and the rows and bytes at their ends. `starts`: the time at which each begins.

    `unsampled`: tables whose older versions were not read, so rows and bytes lack these tables.
    """

    span_ms: int
    starts: list[int]
    commits: list[int]
    rows: list[int] = []
    bytes: list[int] = []
    unsampled: int = 0


class OverviewFacts(Struct, frozen=True):
    """The catalog as a whole. `size` and `growth`: None for a caller with a scope.

    `unread`: objects that were not looked at yet. `waiting`: stream tables with rows to publish, `waiting_total` of
    them. `quarantined`: quarantine tables that hold rows. `stale`: stream tables with derived columns to compute again.
    `upkeep`: tables to compact. Each list is cut, and its total beside it. `runs`: the table of pipeline runs.
    """

    size: CatalogSize | None
    growth: Growth | None
    unread: int
    waiting: list[TableState]
    waiting_total: int
    quarantined: list[TableState]
    quarantined_total: int
    stale: list[TableState]
    stale_total: int
    upkeep: list[TableUpkeep]
    upkeep_total: int
    runs: tuple[str, ...] | None
    log: LogFacts


SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SPANS = (SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
MAX_SPANS = 40
"""Most spans of time in a drawing."""


@dataclass(frozen=True)
class Spans:
    """Equal spans of time from the oldest to the newest commit that is kept.

    `starts`: the time at which each begins. `slots`: the newest commit before the first, and that of each span.
    """

    span_ms: int
    starts: Sequence[int]
    slots: Sequence[int]


@dataclass(frozen=True)
class Sample:
    """The size of a table from a time on."""

    time_ms: int
    rows: int
    bytes: int


def spans_of(metastore: Metastore) -> Spans | None:
    """Return at most MAX_SPANS spans, of whole seconds, minutes, hours or days; None where one would be enough."""
    first, last = metastore.activity.span()
    span = next((each for each in SPANS if last // each - first // each < MAX_SPANS), SPANS[-1])
    starts = [number * span for number in range(first // span, last // span + 1)][-MAX_SPANS:]
    if not last or len(starts) < 2:
        return None
    return Spans(span, starts, metastore.activity.slots_at([starts[0] - 1, *(start + span - 1 for start in starts)]))


def versions_at(metastore: Metastore, spans: Spans, key: str) -> list[Delta]:
    """Return the versions that were the newest of a table at the end of a span, oldest first."""
    found = dict[str, Delta]()
    for slot in spans.slots:
        with suppress(LanceNamespaceError):  # not there yet, or no longer kept
            then = metastore.at(slot)
            table = then.by_id(key)
            version = newest_version(then, table.path) if isinstance(table, Object) else None
            if version is not None:
                found[version.key] = version
    return list(found.values())


def samples_of(older: Sequence[Delta], newest: Sample, read: Callable[[Delta], Sample | None]) -> tuple[Sample, ...]:
    """Return the sizes of a table over time. A version that `read` finds no size of has that of the next one."""
    found = [newest]
    for version in reversed(older):
        found.append(read(version) or replace(found[-1], time_ms=version.time_ms))
    return tuple(reversed(found))


def growth_of(spans: Spans, tables: Iterable[Sequence[Sample]]) -> Growth:
    """Return commits in each span, and the rows and bytes of all tables at its end. Pure."""
    rows, size = [0] * len(spans.starts), [0] * len(spans.starts)
    for samples in tables:
        before = Sample(0, 0, 0)
        for now in samples:
            place = max(0, bisect_right(spans.starts, now.time_ms) - 1)
            rows[place] += now.rows - before.rows
            size[place] += now.bytes - before.bytes
            before = now
    commits = [after - before for before, after in pairwise(spans.slots)]
    return Growth(spans.span_ms, list(spans.starts), commits, list(accumulate(rows)), list(accumulate(size)))
