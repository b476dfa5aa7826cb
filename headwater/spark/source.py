"""The data source `headwater` in Python alone: what `format("headwater")` is in a session that has no jar.

Options: `catalog` (a name given to `configure`) or `uri` and `token`; the table's name is the path. `columns` is a
comma-separated list of the columns to read. `versionAsOf` reads an older version. pylance is not fork-safe and
Spark's Python workers are forked, so `calls`, which imports it, is imported when a method first needs it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

from headwater.errors import TableNotFoundError
from headwater.imports import when_used
from headwater.names import format_name, parse_name
from headwater.spark.access_file import ACCESS_FILE, ENVIRONMENT
from headwater.spark.wire_values import Json

if TYPE_CHECKING:
    import pyarrow as pa

calls = when_used("headwater.spark.calls")
expressions = when_used("headwater.tables.expressions")


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
        return list(parse_name(str(path)))

    def _call(self, operation: str, **arguments: object) -> Any:
        return calls.ask(operation, catalog=catalog_options(self._options), **arguments)

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
        return [SourcePart(part) for part in parts] or [SourcePart(calls.NO_ROWS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from calls.read_part(self._scan, partition.value, to_arrow_schema(self._schema, timezone="UTC"))


class TableWriter(DataSourceArrowWriter):
    """Executors write data files, the driver makes one commit."""

    def __init__(self, source: HeadwaterSource, table: Json, overwrite: bool) -> None:
        self._source, self._table, self._overwrite = source, table, overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]  # of an Arrow writer
        return Written(calls.write_rows(self._table, iterator))

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

    def _call(self, operation: str, **arguments: object) -> Any:
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
        yield from calls.read_part(self._scan, partition.value, to_arrow_schema(self._schema, timezone="UTC"))

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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]  # of an Arrow writer
        return Written(calls.write_rows(self._table, iterator))

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


# Filters of Spark's Python data source API in Lance's SQL; None: Spark applies the filter ----------------------------

_COMPARE = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "EqualNullSafe": "IS NOT DISTINCT FROM",
}
_TEXT = {"StringStartsWith": "starts_with", "StringEndsWith": "ends_with", "StringContains": "contains"}


def filter_sql(filter: Any, filterable: Mapping[str, str]) -> str | None:
    """Return one filter, or None when Spark has to apply it."""
    kind = type(filter).__name__
    if kind == "Not":
        inner = filter_sql(filter.child, filterable)
        return f"(NOT {inner})" if inner is not None else None
    column = _column(filter.attribute, filterable)
    if column is None:
        return None
    if kind == "IsNull" or kind == "IsNotNull":
        return f"({column} IS {'NOT ' if kind == 'IsNotNull' else ''}NULL)"
    if kind == "In":
        items = [_literal(value) for value in filter.value]
        return None if not items or None in items else f"({column} IN ({', '.join(map(str, items))}))"
    value = _literal(filter.value)
    if value is None:
        return None
    if kind in _TEXT:
        return f"{_TEXT[kind]}({column}, {value})"
    return f"({column} {_COMPARE[kind]} {value})" if kind in _COMPARE else None


def _column(path: tuple[str, ...], filterable: Mapping[str, str]) -> str | None:
    return "`" + "`.`".join(path) + "`" if ".".join(path) in filterable else None


def _literal(value: object) -> str | None:
    """Return a value as Spark hands it over. Zero and NaN floats compare otherwise in Arrow than in Spark."""
    if isinstance(value, float) and (value == 0 or not math.isfinite(value)):
        return None
    text: str | None = expressions.literal(value)
    return text
