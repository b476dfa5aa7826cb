"""Requests of the verbs of stream tables, each with the fields that are its arguments (docs/streams.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import field

from headwater.streams.reading.position_views import AtPosition
from headwater.verbs.verb import ObjectRequest, RowsRequest, VerbRequest


class StreamRequest(ObjectRequest, frozen=True, kw_only=True):
    """Arguments of a verb about one stream table. `of`: the id of the table that the client means."""

    of: str | None = None


class LandingRequest(RowsRequest, frozen=True, kw_only=True):
    """Arguments of a verb that lands rows. A batch with the same `source` and `token` lands once."""

    token: str | None = None
    source: str | None = None


class CreateStreamTable(RowsRequest, frozen=True, kw_only=True):
    """Arguments of CreateStreamTable. `partition_by`: columns, or JSON lists of column, transform and width."""

    keys: list[str] = field(default_factory=list)
    sequence: list[str] = field(default_factory=list)
    partition_by: list[str] = field(default_factory=list)
    properties: dict[str, str | None] = field(default_factory=dict)


class DescribeStreamTable(StreamRequest, frozen=True, kw_only=True):
    """Arguments of DescribeStreamTable. `fields`: the fields of the answer; all by default."""

    fields: list[str] | None = None


class AppendToStreamTable(LandingRequest, frozen=True, kw_only=True):
    """Arguments of AppendToStreamTable."""


class UpsertIntoStreamTable(LandingRequest, frozen=True, kw_only=True):
    """Arguments of UpsertIntoStreamTable."""


class DeleteFromStreamTable(LandingRequest, frozen=True, kw_only=True):
    """Arguments of DeleteFromStreamTable."""


class IngestIntoStreamTable(LandingRequest, frozen=True, kw_only=True):
    """Arguments of IngestIntoStreamTable. `digest`: what a batch with a token is known by, if not by its rows."""

    format: str = "rows"
    strict: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    digest: str | None = None


class ApplyToStreamTable(RowsRequest, frozen=True, kw_only=True):
    """Arguments of ApplyToStreamTable. `position`: where the statement has read the table."""

    position: int | None = None
    of: str | None = None


class QueryStreamTable(StreamRequest, frozen=True, kw_only=True):
    """Arguments of QueryStreamTable."""

    columns: list[str] | None = None
    filter: str | None = None
    limit: int | None = None
    position: int | None = None


class CountStreamTable(StreamRequest, frozen=True, kw_only=True):
    """Arguments of CountStreamTable."""

    position: int | None = None


class ReadStreamChanges(StreamRequest, frozen=True, kw_only=True):
    """Arguments of ReadStreamChanges. `read`: the position up to which the client has read, of the table `read_of`."""

    after: int = 0
    until: int | None = None
    reader: str | None = None
    read: int | None = None
    read_of: str | None = None


class ListStreamDeltas(StreamRequest, frozen=True, kw_only=True):
    """Arguments of ListStreamDeltas."""

    after: int = 0


class ListStreamFiles(StreamRequest, frozen=True, kw_only=True):
    """Arguments of ListStreamFiles. `undone`: the files that were taken out again instead."""

    source: str | None = None
    undone: bool = False


class PublishStreamTable(StreamRequest, frozen=True, kw_only=True):
    """Arguments of PublishStreamTable."""


class PublishStreamTables(VerbRequest, frozen=True, kw_only=True):
    """Arguments of PublishStreamTables: the names of the tables that are published in one commit."""

    tables: list[list[str]]


class EvolveStreamTable(StreamRequest, frozen=True, kw_only=True):
    """Arguments of EvolveStreamTable. `add` and `widen`: types by column, packed by `streams/rows/input_rows.py`."""

    add: dict[str, str] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)
    widen: dict[str, str] = field(default_factory=dict)
    drop: list[str] = field(default_factory=list)


class SetStreamProperties(StreamRequest, frozen=True, kw_only=True):
    """Arguments of SetStreamProperties. None removes a property."""

    properties: dict[str, str | None] = field(default_factory=dict)


class QueryStreamQuarantine(StreamRequest, frozen=True, kw_only=True):
    """Arguments of QueryStreamQuarantine."""


class RetryStreamQuarantine(StreamRequest, frozen=True, kw_only=True):
    """Arguments of RetryStreamQuarantine: of the rows, those of a reason, and of a source or file (all)."""

    reason: str | None = None
    source: str | None = None


class DropStreamQuarantine(RetryStreamQuarantine, frozen=True, kw_only=True):
    """Arguments of DropStreamQuarantine."""


class CommitStreamReader(StreamRequest, frozen=True, kw_only=True):
    """Arguments of CommitStreamReader."""

    reader: str
    position: int


class DropStreamReader(StreamRequest, frozen=True, kw_only=True):
    """Arguments of DropStreamReader."""

    reader: str


class UndoStreamIngest(StreamRequest, frozen=True, kw_only=True):
    """Arguments of UndoStreamIngest: what came from these is taken out of the table."""

    source: str | None = None
    file: str | None = None
    token: str | None = None
    txn: str | None = None
    digest: str | None = None


@dataclass(frozen=True)
class RemotePublished(AtPosition):
    """The last publish of a stream table, as a server returns it."""

    version: int
    position: int
    rows: int = 0
    late: int = 0
    too_late: int = 0
    schema_id: int = 0
    stale: int = 0
