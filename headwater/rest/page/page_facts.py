"""Answers to the questions of the page: plain values for JSON. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from headwater.metastore.records.objects import Delta, HistoryEntry, LogEntry, Object, PinnedTable


class LogFacts(Struct, frozen=True):
    """Some of the log, oldest first, and which of the names in it lead to something now."""

    entries: list[LogEntry]
    newest: int
    first: int
    oldest: int
    there: set[tuple[str, ...]]


class TableState(Struct, frozen=True):
    """A stream table: rows and deltas of its log that are not published, and all rows of its log."""

    path: tuple[str, ...]
    rows: int
    deltas: int
    total: int


class OverviewFacts(Struct, frozen=True):
    """The catalog as a whole. `size`: namespaces, tables, and stream tables of them; None for a caller with a scope.

    `unread`: objects that were not looked at yet. `waiting`: stream tables with rows to publish, `waiting_total` of
    them. `quarantined`: quarantine tables that hold rows. `runs`: the table of pipeline runs.
    """

    size: tuple[int, int, int] | None
    unread: int
    waiting: list[TableState]
    waiting_total: int
    quarantined: list[TableState]
    runs: tuple[str, ...] | None
    log: LogFacts


class NameFacts(Struct, frozen=True):
    """The names in a namespace of one kind, sorted."""

    names: list[str]


class DroppedFact(Struct, frozen=True):
    """A dropped object that can be brought back until a collection, and who dropped it."""

    kind: str
    path: tuple[str, ...]
    time_ms: int
    until_ms: int
    author: str


class DroppedFacts(Struct, frozen=True):
    """Dropped objects, newest first."""

    objects: list[DroppedFact]


class PinnedFact(Struct, frozen=True):
    """A table of a snapshot, and whether it is still called so."""

    table: PinnedTable
    there: bool


class SnapshotFact(Struct, frozen=True):
    """A named snapshot with its tables."""

    name: str
    slot: int
    time: datetime
    tables: list[PinnedFact]


class SnapshotFacts(Struct, frozen=True):
    """The named snapshots."""

    snapshots: list[SnapshotFact]


class HistoryFacts(Struct, frozen=True):
    """The newest transactions that touched an object, oldest first, and its properties after each that changed them."""

    entries: list[HistoryEntry]
    total: int
    properties: list[tuple[str, dict[str, Any]]]


class Unpublished(Struct, frozen=True):
    """A stream table: how far its log is ahead of its serving copy, and what it is declared to be."""

    position: int
    published: int
    version: int | None
    deltas: int
    rows: int
    arrow_schema: str
    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    total: int


class TableFacts(Struct, frozen=True):
    """The kind of a table. `unpublished`: of a stream table, if the page asked for it."""

    has_version: bool
    is_stream: bool
    unpublished: Unpublished | None = None


class PartitionFacts(Struct, frozen=True):
    """A partition, its values as a text, and its newest deltas, newest first."""

    object: Object
    values: str
    deltas: list[Delta]


class StreamView(Struct, frozen=True):
    """One stream of a table."""

    format: str
    object: Object
    partitions: list[PartitionFacts]
    last: int


class StreamFacts(Struct, frozen=True):
    """The streams of a table version that hold rows."""

    streams: list[StreamView]
    version: Object


class VersionSize(Struct, frozen=True):
    """One version and how much it holds."""

    version: int
    time_ms: int | None
    rows: int
    bytes: int
    fragments: int
    added: int
    change: str | None


class VersionFacts(Struct, frozen=True):
    """The newest versions of a table, oldest first, and how many there are."""

    items: list[VersionSize]
    total: int


class FragmentFact(Struct, frozen=True):
    """A fragment with its files, each a path and its bytes."""

    id: int
    rows: int
    deleted: int
    bytes: int
    files: list[tuple[str, int | None]]


class FragmentFacts(Struct, frozen=True):
    """Fragments of the newest version."""

    fragments: list[FragmentFact]
    total: int
    largest: int
    version: int


class Box(Struct):
    """A table or a source of a lineage; `step` is negative for what comes before, `path` leads to what is there."""

    label: str
    about: str
    step: int
    path: tuple[str, ...] = ()
    is_here: bool = False


class LineageFacts(Struct):
    """Boxes by their key, and which leads to which. Not `complete` when there is more than is told. `noted` is what the
    newest publish says of itself."""

    boxes: dict[str, Box] = {}
    arrows: set[tuple[str, str]] = set()
    complete: bool = True
    noted: dict[str, Any] = {}


class Hit(Struct, frozen=True):
    """One object that was found, and where in it."""

    path: tuple[str, ...]
    kind: str
    where: str


class SearchFacts(Struct):
    """Results of a search. `looked`: objects that it has seen; `described`: those whose properties it has read,
    when that was not all; `unread` is how many tables have columns that were not."""

    hits: list[Hit] = []
    more: bool = False
    looked: int | None = None
    described: int | None = None
    unread: int = 0


class ServerFacts(Struct, frozen=True):
    """The health of the catalog: True if it answers, and its newest slot if it has one."""

    ready: bool
    slot: int | None


def holds(word: str, *texts: object) -> bool:
    """Return True if the texts of a list's line match a filter box."""
    low = word.casefold()
    return not low or any(low in str(text).casefold() for text in texts)
