"""Answers to the questions of the page: plain values for JSON. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from headwater.metastore.records.objects import Delta, HistoryEntry, Object, PinnedTable
from headwater.names import ObjectId
from headwater.streams import layout

QUARANTINE = layout.QUARANTINE
RUNS = ObjectId(layout.RUNS)
"""The table of pipeline runs."""


class NameFacts(Struct, frozen=True):
    """Some names of a namespace, sorted: namespaces, then tables. `found`: how many of each match a filter.

    `total`: how many of both kinds there are.
    """

    namespaces: list[str]
    tables: list[str]
    found: tuple[int, int]
    total: int


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
    """A stream table: how far its log is ahead of its serving copy, and what it is declared to be.

    `stale`: derived columns with values of an older function, in `stale_rows` rows.
    """

    position: int
    published: int
    version: int | None
    deltas: int
    rows: int
    arrow_schema: str
    keys: tuple[str, ...]
    sequence: tuple[str, ...]
    total: int
    stale: list[str] = []
    stale_rows: int = 0


class TableFacts(Struct, frozen=True):
    """The kind of a table. `unpublished` and `text_vectors`: of a stream table, if the page asked for them.

    `text_vectors`: derived columns whose functions make a vector of one text.
    """

    has_version: bool
    is_stream: bool
    unpublished: Unpublished | None = None
    has_quarantine: bool = False
    text_vectors: list[str] = []


class EmbedFacts(Struct, frozen=True):
    """The vector of a text."""

    vector: list[float]


class RejectedRow(Struct, frozen=True):
    """A row of a quarantine. `row`: its values as JSON, cut to a length."""

    row: str
    reason: str
    column: str | None
    source: str | None
    time: datetime | None


class RejectedGroup(Struct, frozen=True):
    """Rows of a quarantine that share a reason and a source: how many there are, and the newest of them."""

    reason: str
    source: str | None
    total: int
    rows: list[RejectedRow]


class QuarantineFacts(Struct, frozen=True):
    """The rows of a quarantine by reason and source, the largest groups first, and how many rows there are."""

    groups: list[RejectedGroup]
    total: int


class RunStep(Struct, frozen=True):
    """One table of one step of a pipeline run. `version`: the table version that the step published."""

    job: str
    table: str | None = None
    rows: int = 0
    quarantined: int = 0
    late: int = 0
    seconds: float | None = None
    version: int | None = None


class RunFact(Struct, frozen=True):
    """A pipeline run. A run without `ended` has not recorded its end."""

    run: str
    pipeline: str
    state: str
    began: datetime
    ended: datetime | None
    seconds: float | None
    rows: int
    quarantined: int
    late: int
    error: str | None
    who: str | None
    where: str | None
    steps: list[RunStep]


class RunFacts(Struct, frozen=True):
    """The newest runs, newest first, and how many there are."""

    runs: list[RunFact]
    total: int


class ColumnChange(Struct, frozen=True):
    """A column of two table versions with its type in each; None where a version lacks the column."""

    name: str
    before: str | None
    after: str | None


class ComparedRows(Struct, frozen=True):
    """Rows of a comparison as an Arrow file in hexadecimal digits, cut to a limit, and how many there are."""

    total: int
    arrow: str


class Moment(Struct, frozen=True):
    """A version that a comparison can begin or end with; of a stream table, one that a publish ended with."""

    version: int
    time_ms: int | None


class CompareFacts(Struct, frozen=True):
    """Differences between two versions of a table. `by`: the columns that identify a row; empty for all its values.

    `old` and `new` are the two states of changed rows, in the same order. `columns`: those that differ.
    All four are None where more rows differ than a comparison reads.
    """

    since: int
    until: int
    columns: list[ColumnChange]
    by: list[str]
    read: int
    moments: list[Moment]
    added: ComparedRows | None = None
    removed: ComparedRows | None = None
    old: ComparedRows | None = None
    new: ComparedRows | None = None


class KeyFact(Struct, frozen=True):
    """An API key without its secret. `state`: valid, expired or revoked. `may_revoke`: the caller may."""

    id: str
    name: str
    role: str
    scope: list[str]
    state: str
    created_ms: int
    expires_ms: int | None
    may_revoke: bool


class RoleFact(Struct, frozen=True):
    """A role and its permissions. `may_give`: the caller has them all, and may give keys this role."""

    name: str
    permissions: list[str]
    is_built_in: bool
    may_give: bool


class AccessFacts(Struct, frozen=True):
    """API keys of a server, newest first, and the roles that a key can have."""

    keys: list[KeyFact]
    roles: list[RoleFact]


class MadeKey(Struct, frozen=True):
    """A new key with its text, which cannot be had again."""

    id: str
    text: str
    role: str
    name: str


class QueryTables(Struct, frozen=True):
    """The tables that a query reads."""

    tables: list[tuple[str, ...]]


class QueryFacts(Struct, frozen=True):
    """The first rows of a query as an Arrow file in hexadecimal digits, or its plan. `slot`: the commit it read."""

    arrow: str = ""
    more: bool = False
    plan: str = ""
    slot: int | None = None


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
    """A table, a column or a source of a lineage.

    `step`: its column in the drawing, negative for what comes before. `path`: the table. `column`: the column of it.
    `state`: `stale` for a table with rows to publish, otherwise empty. `pipeline`: the one that published the table.
    `published_ms`: when that was.
    """

    label: str
    about: str
    step: int
    path: tuple[str, ...] = ()
    is_here: bool = False
    state: str = ""
    pipeline: str = ""
    column: str = ""
    published_ms: int | None = None


class LineageFacts(Struct):
    """Boxes by their key, and which leads to which. Not `complete` when there is more than is told.

    `noted`: the lineage of the newest publish. `columns`: the columns of the table. `total`: how many tables have
    lineage, in a graph of the whole catalog. `unread`: objects that were not looked at yet.
    """

    boxes: dict[str, Box] = {}
    arrows: set[tuple[str, str]] = set()
    complete: bool = True
    noted: dict[str, Any] = {}
    columns: list[str] = []
    total: int = 0
    unread: int = 0


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
