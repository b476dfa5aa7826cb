"""Values inside the calls of a session to its Python worker: a table, its fold, a scan, a search, a range."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.errors import InvalidInputError
from headwater.names import ObjectId, format_name
from headwater.tables.handle import TableHandle, shared_session
from headwater.tables.scan.table_scan import Scan

Json = dict[str, Any]
Offset = dict[str, int]
Options = dict[str, str]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value inside a call."""


class NewStream(Message, frozen=True):
    """A stream table that a statement creates: its definition, and the id that it will have."""

    id: str
    home: str
    version: str
    properties: Json


SERVER = "uri"


def is_server(lake: str) -> bool:
    """Return True if a stream table is folded by a server: what `Fold.lake` then says is how to reach it."""
    return SERVER in json.loads(lake)


class Fold(Message, frozen=True):
    """A stream table at a slot of its catalog and a position of its log. `fresh`: the log after the base counts.

    `lake` says where the metastore is, or the server that folds for who cannot reach it. `id` is what the table is,
    whoever has its name later.
    """

    lake: str
    slot: int
    position: int
    rows: int
    fresh: bool
    keyed: bool
    new: NewStream | None = None
    id: str = ""


class WireTable(Message, frozen=True):
    """A table at one version, as `TableHandle.to_json` writes it: an executor can read and write its files by it."""

    id: tuple[str, ...]
    uri: str
    managed: bool
    storage_options: dict[str, str]
    version: int | None = None
    fold: Fold | None = None

    @property
    def is_stream(self) -> bool:
        """True for a stream table, whose rows are those of a log; False for a Lance table."""
        return self.fold is not None

    @property
    def log(self) -> Fold:
        """The log of a stream table. A Lance table has none: ask `is_stream` first."""
        assert self.fold is not None
        return self.fold

    @property
    def is_served(self) -> bool:
        """True for a stream table that a server folds and writes."""
        return self.fold is not None and is_server(self.fold.lake)

    @property
    def is_new_stream(self) -> bool:
        """True for a stream table that the statement creates."""
        return self.fold is not None and self.fold.new is not None

    @property
    def is_folded(self) -> bool:
        """True if its rows come from a fold, and not from the Lance dataset alone."""
        return self.fold is not None and self.fold.fresh

    def refused(self) -> InvalidInputError:
        name = format_name(self.id)
        if self.is_stream and self.log.keyed:
            return InvalidInputError(
                f"{name} is a stream table: its rows come from its change log, which nothing may replace. Change them "
                "with INSERT, UPDATE, DELETE and MERGE, or land changes with headwater.pipeline.ingest(spark, catalog, "
                "table, rows, format)."
            )
        return InvalidInputError(
            f"{name} is a stream table without keys, an append-only log: INSERT appends to it, and its rows cannot be "
            "changed or replaced. Take out what was ingested with system.undo, or create a table with keys."
        )

    def writable(self) -> TableHandle:
        """Return the handle of a table whose rows a statement may change: error 13 for a stream table."""
        if self.is_stream:
            raise self.refused()
        return self.handle()

    def handle(self) -> TableHandle:
        options = dict(self.storage_options)
        return TableHandle(
            ObjectId(self.id), self.uri, options, version=self.version, managed=self.managed, session=shared_session()
        )


class Search(Message, frozen=True):
    """A vector search (`query` is numbers) or a full-text search (`query` is text)."""

    column: str
    query: str | list[float]
    k: int
    filter: str | None = None


class WireScan(Message, frozen=True):
    """A scan request; see `headwater.tables.scan.table_scan.Scan`."""

    table: WireTable
    columns: tuple[str, ...]
    filter: str | None = None
    limit: int | None = None
    search: Search | None = None
    changes: bool = False
    fields: Json | None = None
    prune: Json | None = None
    schema: Json | None = None
    ordered: bool = False
    """Of a stream table: the rows of a part come in the order of the key."""

    @property
    def is_folded(self) -> bool:
        """True if rows come from a fold, and not from the Lance dataset as they are there."""
        return self.search is None and (self.ordered or self.table.is_folded)

    def engine(self) -> Scan:
        search = None if self.search is None else msgspec.to_builtins(self.search)
        return Scan(
            self.table.handle(),
            self.columns,
            self.filter,
            self.limit,
            search,
            self.changes,
            self.fields or {},
            self.prune,
            self.schema,
        )


class PartitionedBy(Message, frozen=True):
    """One field of PARTITIONED BY."""

    column: str
    transform: str
    width: int | None = None


class Range(Message, frozen=True):
    """CHANGES FROM ... TO ..., by versions or by times in microseconds."""

    start_inclusive: bool
    end_inclusive: bool
    start: str | None = None
    end: str | None = None
    start_micros: int | None = None
    end_micros: int | None = None


def table_of(value: Mapping[str, object]) -> TableHandle:
    """Return a table as an answer told it, to write to."""
    return msgspec.convert(value, WireTable).writable()
