"""Answers to the questions of the front page and of the page of commits: plain values for JSON. Pure."""

from __future__ import annotations

from msgspec import Struct

from headwater.metastore.records.objects import LogEntry


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
