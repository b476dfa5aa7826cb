"""Tables of a catalog at one moment as DataFrames, in any session.

By the jar they are tables as those of SQL: only the columns and rows that a query needs are read, by our own workers.
Without it parts are planned here, and Spark's Python workers read all columns of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headwater.catalog.streams import CatalogStream
from headwater.catalog.table import CatalogTable
from headwater.imports import when_used
from headwater.spark import fresh
from headwater.spark.calls import read_part
from headwater.spark.catalog import describe, describe_folded, describe_log
from headwater.spark.wire_values import Fold, Json, WireScan, WireTable
from headwater.streams.log.stored_events import LogShard
from headwater.streams.reading.position_views import view_at
from headwater.streams.stream_lookup import open_stream
from headwater.tables.handle import TableHandle
from headwater.tables.scan import table_scan as scans
from headwater.types import spark_schema
from headwater.work.runners import of_jar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

sql_types = when_used("pyspark.sql.types")
arrow_types = when_used("pyspark.sql.pandas.types")
classic = when_used("pyspark.sql.classic.dataframe")


@dataclass(frozen=True)
class Readable:
    """A table at one version or position, its columns, about how many rows it has, and what a catalog tells of it."""

    scan: WireScan
    schema: pa.Schema
    rows: int
    loaded: Json


def readable(table: CatalogStream | CatalogTable, slot: int) -> Readable:
    """Return a table as it is at a slot of its catalog; of a plain one `table` itself stands there."""
    if isinstance(table, CatalogStream):
        return _stream(table, slot)
    dataset = table.dataset()
    handle = TableHandle(table.id, dataset.uri, dict(table.namespace.properties.storage), version=dataset.version)  # type: ignore[attr-defined]
    told = msgspec.convert(handle.to_json(), WireTable)
    scan = WireScan(told, tuple(dataset.schema.names))
    return Readable(scan, dataset.schema, dataset.count_rows(), describe(handle, dataset))


def _stream(table: CatalogStream, slot: int) -> Readable:
    house = table.namespace.location()
    option = fresh.lake_option(house.root, house.storage)
    snapshot = fresh.opened(option).metastore.at(slot)
    stream = open_stream(snapshot, table.path)
    view = view_at(snapshot, stream)
    rows = sum(file.rows or 0 for delta in view.tail for file in delta.files)
    rows += view.base.rows if view.base is not None else 0
    fold = Fold(option, slot, view.position, rows, True, bool(stream.definition.keys), id=stream.id)
    place = TableHandle(table.id, f"{house.root}/{stream.serving}", dict(house.storage), managed=True)
    loaded = describe_log(describe_folded(place, stream.definition, fold), stream.definition, fold, near=True)
    schema = fresh.schema_of(stream.definition)
    scan = WireScan(msgspec.convert(loaded["table"], WireTable), tuple(schema.names))
    return Readable(scan, schema, rows, loaded)


def frame_of(spark: SparkSession, found: Readable, parallelism: int) -> DataFrame:
    """Return the rows of a table as a DataFrame; a part of it is read by each task."""
    jar = of_jar(spark, "PinnedFrame")
    return _mapped(spark, found, parallelism) if jar is None else _pinned(spark, jar, found)


def changes_frame(
    spark: SparkSession, table: CatalogStream, slot: int, after: int, columns: Sequence[str], shares: int
) -> DataFrame:
    """Return the rows of a table that changed after a position, as they were and as they are, as a DataFrame.

    Each task reads the changes of a share of the keys. 11: they are collected.
    """
    house, path = table.namespace.location(), tuple(table.path)
    option = fresh.lake_option(house.root, house.storage)
    fresh.check_changes(option, slot, path, after)
    schema = pa.schema([table.definition.schema.field(name) for name in columns])
    kind = sql_types.StructType.fromJson(spark_schema(schema))
    sent = arrow_types.to_arrow_schema(kind, timezone="UTC")

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy().tolist():
                share = LogShard(number, shares) if shares > 1 else None
                yield from fresh.sent(fresh.changed_rows(option, slot, path, after, share).select(columns), sent)

    return spark.range(0, shares, 1, shares).mapInArrow(work, kind)


def _pinned(spark: SparkSession, jar: Any, readable: Readable) -> DataFrame:
    found: DataFrame = classic.DataFrame(
        jar.of(spark._jsparkSession, msgspec.json.encode(readable.loaded).decode()), spark
    )
    return found


def _mapped(spark: SparkSession, found: Readable, parallelism: int) -> DataFrame:
    folded = found.scan.table.is_folded
    planned = fresh.plan(found.scan, parallelism) if folded else scans.plan(found.scan.engine(), parallelism)
    kind = sql_types.StructType.fromJson(spark_schema(found.schema))
    parts, scan = msgspec.to_builtins(list(planned)), msgspec.to_builtins(found.scan)
    sent = arrow_types.to_arrow_schema(kind, timezone="UTC")
    if not parts:
        return spark.createDataFrame([], kind)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(scan, parts[number], sent)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, kind)
