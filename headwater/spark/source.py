"""The data source `headwater` in Python alone: what `format("headwater")` is in a session that has no jar.

Options: `catalog` (a name given to `configure`) or `uri` and `token`; the table's name is the path. `columns` is a
comma-separated list of the columns to read. `versionAsOf` reads an older version. pylance is not fork-safe and
Spark's Python workers are forked, so everything that imports it is imported inside the methods that need it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    import pyarrow as pa

Json = dict[str, Any]


@dataclass
class SourcePart(InputPartition):
    """A serializable scan task."""

    value: Json


@dataclass
class Written(WriterCommitMessage):
    """Fragments that one task has written; no version holds them yet."""

    fragments: list[Json]


def catalog_options(options: Json) -> Json:
    """Return the catalog's options, from the caller or from the file that `configure` named in the environment."""
    from headwater.spark.access_file import ACCESS_FILE, ENVIRONMENT

    if "uri" in options:
        return {key: options[key] for key in ("uri", "token") if key in options}
    name = options.get("catalog")
    known = os.environ.get(ENVIRONMENT + str(name))
    if known is None:
        raise ValueError(
            f"The catalog {name!r} is not known here. Prepare the session with headwater.spark.configure(), or give "
            '.option("uri", ...) and .option("token", ...).'
        )
    return {ACCESS_FILE: known}


class HeadwaterSource(DataSource):
    """Tables of a Headwater catalog as DataFrames and streams."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._options: Json = {key.lower(): value for key, value in options.items()}

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def _id(self) -> list[str]:
        path = self._options.get("path") or self._options.get("table")
        if not path:
            raise ValueError('Give the table\'s name: .load("namespace.table").')
        from headwater.names import parse_name

        return list(parse_name(str(path)))

    def _call(self, operation: str, **arguments: Any) -> Any:
        from headwater.spark.calls import ask

        return ask(operation, catalog=catalog_options(self._options), **arguments)

    def _load(self) -> Json:
        loaded: Json = self._call("load_table", id=self._id(), version=self._options.get("versionasof"))
        return loaded

    def schema(self) -> StructType:
        found = StructType.fromJson(self._load()["schema"])
        columns = self._options.get("columns")
        if columns is None:
            return found
        wanted = [name.strip() for name in columns.split(",")]
        missing = next((name for name in wanted if name not in found.names), None)
        if missing is not None:
            from headwater.names import format_name

            told = f"The table {format_name(self._id())} has no column {missing!r}, which the option columns names."
            raise ValueError(f"{told} It has {', '.join(found.names)}.")
        return StructType([found[name] for name in wanted])

    def reader(self, schema: StructType) -> TableReader:
        return TableReader(self, self._load(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        return TableWriter(self, self._target(schema, create=overwrite), overwrite)

    def streamReader(self, schema: StructType) -> TableStreamReader:
        return TableStreamReader(self, self._load(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        return TableStreamWriter(self, self._target(schema, create=False), overwrite)

    def _target(self, schema: StructType, create: bool) -> Json:
        from headwater.errors import TableNotFoundError

        try:
            target: Json = self._load()["table"]
        except TableNotFoundError:
            if not create:
                raise
            nullable = StructType(
                [StructField(field.name, field.dataType) for field in schema]
            )  # as CREATE ... AS does
            made = self._call("create_table", id=self._id(), schema=json.loads(nullable.json()), properties={})
            target = made["table"]
        return target


class TableReader(DataSourceReader):
    """Reads one version, pinned when the query is planned."""

    def __init__(self, source: HeadwaterSource, loaded: Json, schema: StructType) -> None:
        self._source = source
        self._filterable = loaded["filterable"]
        self._schema = schema
        self._scan: Json = {"table": loaded["table"], "columns": schema.names, "filter": None}

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        from headwater.spark.filters import filter_sql

        taken = []
        for each in filters:
            sql = filter_sql(each, self._filterable)
            if sql is None:
                yield each
            else:
                taken.append(sql)
        self._scan["filter"] = " AND ".join(taken) or None

    def partitions(self) -> Sequence[SourcePart]:
        parts = self._source._call("plan", scan=self._scan, parallelism=os.cpu_count() or 2)
        return [SourcePart(part) for part in parts] or [SourcePart({"kind": "fragments", "fragments": []})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_part(self._scan, partition.value, self._schema)


def read_part(scan: Json, part: Json, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a part, on an executor."""
    from headwater.spark import following, fresh
    from headwater.spark.protocol import WireScan, part_of, scan_of
    from headwater.tables.scan.parts import Appended, Piece, Positions, Rewritten, Tail
    from headwater.tables.scan.table_scan import read

    found = part_of(part)
    asked = msgspec.convert(scan, WireScan)
    sent = to_arrow_schema(schema, timezone="UTC")
    if isinstance(found, Piece | Positions):
        yield from following.read_rows(asked, found, sent)
    elif asked.table.is_folded or isinstance(found, Tail):
        yield from fresh.read_rows(asked, found, sent)
    elif part.get("fragments") != [] and not isinstance(found, Appended | Rewritten):
        yield from read(scan_of(scan), found, sent)


class TableWriter(DataSourceArrowWriter):
    """Executors write data files, the driver makes one commit."""

    def __init__(self, source: HeadwaterSource, table: Json, overwrite: bool) -> None:
        self._source, self._table, self._overwrite = source, table, overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from headwater.spark.protocol import table_of
        from headwater.tables.write.data_files import write

        return Written(write(table_of(self._table), iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        fragments = _fragments(messages)
        if self._overwrite:
            self._source._call("overwrite", table=self._table, fragments=fragments, filter="true")
        else:
            self._source._call("append", table=self._table, fragments=fragments)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Files of a failed job belong to no version; cleanup collects them."""


def _fragments(messages: Sequence[WriterCommitMessage | None]) -> list[Json]:
    return [fragment for message in messages if isinstance(message, Written) for fragment in message.fragments]


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Appended rows, version by version. The option `consumer` names the query, to protect what it has not read."""

    def __init__(self, source: HeadwaterSource, loaded: Json, schema: StructType) -> None:
        self._source, self._schema = source, schema
        consumer = source._options.get("consumer")
        options = {**source._options, **({} if consumer else {"protect": "false"})}
        self._request: Json = {"table": loaded["table"], "options": options, "checkpoint": consumer or ""}
        self._scan: Json = {"table": loaded["table"], "columns": schema.names, "filter": None}
        self._last: int | None = None

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self._source._call(operation, **self._request, **arguments)

    def initialOffset(self) -> Json:
        offset: Json = self._call("stream_initial")
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._source._options
        if "maxrowspertrigger" in options:
            return ReadMaxRows(int(options["maxrowspertrigger"]))
        versions = options.get("maxversionspertrigger")
        return ReadMaxFiles(int(versions)) if versions else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = int(self._call("stream_newest"))

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        limits: Json = {"last": self._last}
        if isinstance(limit, ReadMaxRows):
            limits["max_rows"] = limit.max_rows
        elif isinstance(limit, ReadMaxFiles):
            limits["max_versions"] = limit.max_files
        offset: Json = self._call("stream_latest", start=start, **limits)
        return offset

    def partitions(self, start: Json, end: Json) -> Sequence[SourcePart]:
        parts = self._call("stream_plan", start=start, end=end, scan=self._scan, parallelism=os.cpu_count() or 2)
        return [SourcePart(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_part(self._scan, partition.value, self._schema)

    def commit(self, end: Json) -> None:
        self._call("stream_done", end=end)


class TableStreamWriter(DataSourceStreamArrowWriter):
    """One commit per batch, which carries the batch's number; a replayed batch is passed over."""

    def __init__(self, source: HeadwaterSource, table: Json, overwrite: bool) -> None:
        options = source._options
        self._stream = options.get("stream") or options.get("checkpointlocation")
        if not self._stream:
            raise ValueError('Name the stream, so that a replayed batch is known: .option("stream", "a-unique-name").')
        self._source, self._table, self._overwrite = source, table, overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        from headwater.spark.protocol import table_of
        from headwater.tables.write.data_files import write

        return Written(write(table_of(self._table), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._source._call(
            "commit_batch",
            table=self._table,
            fragments=_fragments(messages),
            stream=self._stream,
            batch=batchId,
            truncate=self._overwrite,
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Files of a failed batch belong to no version; cleanup collects them."""
