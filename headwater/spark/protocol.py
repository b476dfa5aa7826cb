"""Calls of a session to its Python worker: one frozen struct each, decoded once when its frame arrives.

The jar writes these calls (`java/headwater/spark`), tests/spark/golden holds one of each, and both languages read it. A
field that is unknown, missing or of another type is refused: the jar and the package are then of different versions.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from headwater.spark.wire_values import (
    Json,
    Message,
    Offset,
    Options,
    PartitionedBy,
    Range,
    Search,
    WireScan,
    WireTable,
)
from headwater.tables.scan.parts import AnyPart, Keys

# ALTER TABLE ---------------------------------------------------------------------------------------------------------


class TableChange(Message, frozen=True, tag_field="action"):
    """One change of ALTER TABLE. A path is the names from the top-level column down."""


class SetProperty(TableChange, frozen=True, tag="set_property"):
    key: str
    value: str


class RemoveProperty(TableChange, frozen=True, tag="remove_property"):
    key: str


class AddColumn(TableChange, frozen=True, tag="add_column"):
    path: list[str]
    type: Any
    nullable: bool
    position: bool
    comment: str | None = None


class DropColumn(TableChange, frozen=True, tag="drop_column"):
    path: list[str]
    if_exists: bool


class RenameColumn(TableChange, frozen=True, tag="rename_column"):
    path: list[str]
    name: str


class ColumnType(TableChange, frozen=True, tag="column_type"):
    path: list[str]
    type: Any


class ColumnNullable(TableChange, frozen=True, tag="column_nullable"):
    path: list[str]
    nullable: bool


class ColumnComment(TableChange, frozen=True, tag="column_comment"):
    path: list[str]
    comment: str | None = None


AnyTableChange = (
    SetProperty | RemoveProperty | AddColumn | DropColumn | RenameColumn | ColumnType | ColumnNullable | ColumnComment
)


# Calls ---------------------------------------------------------------------------------------------------------------


class WorkerCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="op"):
    """One call. `op` is its name."""


class CatalogCall(WorkerCall, frozen=True):
    """A call of a driver, through the catalog whose options it carries."""

    catalog: Options


class ListNamespaces(CatalogCall, frozen=True, tag="list_namespaces"):
    id: list[str]


class DescribeNamespace(CatalogCall, frozen=True, tag="describe_namespace"):
    id: list[str]


class CreateNamespace(CatalogCall, frozen=True, tag="create_namespace"):
    id: list[str]
    properties: dict[str, str]


class AlterNamespace(CatalogCall, frozen=True, tag="alter_namespace"):
    id: list[str]
    properties: dict[str, str]
    removed: list[str]


class DropNamespace(CatalogCall, frozen=True, tag="drop_namespace"):
    id: list[str]
    cascade: bool


class ListTables(CatalogCall, frozen=True, tag="list_tables"):
    id: list[str]


class LoadTable(CatalogCall, frozen=True, tag="load_table"):
    id: list[str]
    version: str | None = None
    micros: int | None = None


class NewTable(CatalogCall, frozen=True):
    """A new table: its schema in Spark's JSON form."""

    id: list[str]
    schema: Json
    properties: dict[str, str]
    partitioning: list[PartitionedBy] = []


class CreateTable(NewTable, frozen=True, tag="create_table"): ...


class StageCreate(NewTable, frozen=True, tag="stage_create"): ...


class StageReplace(NewTable, frozen=True, tag="stage_replace"): ...


class Commit(CatalogCall, frozen=True, kw_only=True):
    """The end of a statement that writes. `reads`: the tables that it has read, as they were then."""

    table: WireTable
    reads: list[WireTable] = []


class CommitStaged(Commit, frozen=True, tag="commit_staged"):
    arrow: str
    fragments: list[Json]


class DropTable(CatalogCall, frozen=True, tag="drop_table"):
    id: list[str]


class RenameTable(CatalogCall, frozen=True, tag="rename_table"):
    id: list[str]
    new_id: list[str]


class AlterTable(CatalogCall, frozen=True, tag="alter_table"):
    id: list[str]
    changes: list[AnyTableChange]


class PlanScan(CatalogCall, frozen=True, tag="plan"):
    """`by_partition`: each part is to be of one partition, if that can be."""

    scan: WireScan
    parallelism: int
    by_partition: bool = False


class MatchingRows(CatalogCall, frozen=True, tag="matching_rows"):
    """`used`: the top-level columns that the filter names."""

    scan: WireScan
    used: tuple[str, ...] = ()


class Count(CatalogCall, frozen=True, tag="count"):
    scan: WireScan


class Partitions(CatalogCall, frozen=True, tag="partitions"):
    table: WireTable


class CheckSearch(CatalogCall, frozen=True, tag="check_search"):
    table: WireTable
    search: Search


class Append(Commit, frozen=True, tag="append"):
    fragments: list[Json]


class Overwrite(Commit, frozen=True, tag="overwrite"):
    fragments: list[Json]
    filter: str
    prune: Json | None = None


class OverwritePartitions(Commit, frozen=True, tag="overwrite_partitions"):
    fragments: list[Json]


class DeleteWhere(Commit, frozen=True, tag="delete_where"):
    filter: str
    prune: Json | None = None


class CommitDelta(Commit, frozen=True, tag="commit_delta"):
    """`deleted`: addresses of rows, 8 bytes each in base64, one text per task."""

    deleted: list[str]
    added: list[Json]


class CommitEvents(Commit, frozen=True, tag="commit_events"):
    """Events of a statement on a stream table: deletes, replaced rows, rows with new keys."""

    command: Literal["insert", "update", "delete", "merge"]
    deleted: list[Json] = []
    upserted: list[Json] = []
    inserted: list[Json] = []
    has_read: bool = False


class CommitBatch(CatalogCall, frozen=True, tag="commit_batch"):
    table: WireTable
    fragments: list[Json]
    stream: str
    batch: int
    truncate: bool


class StreamCall(CatalogCall, frozen=True):
    """A call of a streaming query, which its checkpoint names."""

    table: WireTable
    checkpoint: str
    options: dict[str, str]
    changes: bool = False


class StreamInitial(StreamCall, frozen=True, tag="stream_initial"): ...


class StreamNewest(StreamCall, frozen=True, tag="stream_newest"): ...


class StreamLatest(StreamCall, frozen=True, tag="stream_latest", kw_only=True):
    start: Offset
    last: int | None = None
    max_versions: int | None = None
    max_rows: int | None = None


class StreamPlan(StreamCall, frozen=True, tag="stream_plan", kw_only=True):
    start: Offset
    end: Offset
    scan: WireScan
    parallelism: int


class StreamDone(StreamCall, frozen=True, tag="stream_done", kw_only=True):
    end: Offset


class ChangesPlan(CatalogCall, frozen=True, tag="changes_plan"):
    table: WireTable
    range: Range
    parallelism: int


JobName = Literal[
    "compact", "create_index", "backfill", "cleanup", "rollback", "drop_index", "publish", "ingest", "undo", "collect"
]


class JobPlan(CatalogCall, frozen=True, tag="job_plan"):
    id: list[str]
    job: JobName
    arguments: Json
    parallelism: int


class JobRun(WorkerCall, frozen=True, tag="job_run"):
    """On an executor: no catalog."""

    table: WireTable
    job: JobName
    task: Json


class JobCommit(CatalogCall, frozen=True, tag="job_commit"):
    """The last call of a job, or of one of stream tables the only one: it may ask for tasks before it answers."""

    table: WireTable
    job: JobName
    arguments: Json
    results: list[object]
    parallelism: int = 1


class TaskRun(WorkerCall, frozen=True, tag="task_run"):
    """On an executor: a task of the driver's worker, packed."""

    task: str


class Read(WorkerCall, frozen=True, tag="read"):
    """On an executor: the rows of one part follow the answer. `keys`: what a join found that it needs."""

    scan: WireScan
    part: AnyPart
    keys: tuple[Keys, ...] = ()


class Write(WorkerCall, frozen=True, tag="write"):
    """On an executor: the rows follow the call. `arrow`: the schema of a table that has no version yet, in hex.

    `query`: the streaming query that the rows are of.
    Into a stream table: `given` are the columns that the statement names, `deletes` says that rows are to go.
    """

    table: WireTable
    arrow: str | None = None
    row_ids: bool = False
    query: str | None = None
    given: list[str] | None = None
    deletes: bool = False


class TakeRows(WorkerCall, frozen=True, tag="take_rows"):
    """On an executor: the rows of a frame follow the call, and a packed task takes them."""

    task: str


AnyCall = (
    ListNamespaces | DescribeNamespace | CreateNamespace | AlterNamespace | DropNamespace | ListTables | LoadTable
    | CreateTable | StageCreate | StageReplace | CommitStaged | DropTable | RenameTable | AlterTable | PlanScan
    | MatchingRows | Count | Partitions | CheckSearch | Append | Overwrite | OverwritePartitions | DeleteWhere
    | CommitDelta | CommitEvents | CommitBatch | StreamInitial | StreamNewest | StreamLatest | StreamPlan | StreamDone
    | ChangesPlan | JobPlan | JobRun | JobCommit | TaskRun | Read | Write | TakeRows
)  # fmt: skip

_DECODER: msgspec.json.Decoder[AnyCall] = msgspec.json.Decoder(AnyCall)


def decode(frame: bytes) -> AnyCall:
    """Return the call of a frame; msgspec.ValidationError when it is none."""
    return _DECODER.decode(frame)


def encode(value: object) -> bytes:
    return msgspec.json.encode(value)
