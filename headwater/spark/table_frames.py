"""Tables of a catalog at one moment as DataFrames: parts are planned here and read by executors. No jar is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from headwater.catalog.streams import CatalogStream
from headwater.catalog.table import CatalogTable
from headwater.spark import fresh
from headwater.spark.protocol import Fold, WireScan, WireTable
from headwater.streams.opening import open_stream
from headwater.streams.position_views import view_at
from headwater.tables import scan as scans
from headwater.tables.handle import TableHandle
from headwater.types import spark_schema


@dataclass(frozen=True)
class Readable:
    """A table at one version or position, its columns, and about how many rows it has."""

    scan: WireScan
    schema: pa.Schema
    rows: int


def readable(table: CatalogStream | CatalogTable, slot: int) -> Readable:
    """A table as it is at a slot of its catalog; of a plain one `table` itself stands there."""
    if isinstance(table, CatalogStream):
        return _stream(table, slot)
    dataset = table.dataset()
    handle = TableHandle(table.id, dataset.uri, dict(table.namespace.properties.storage), version=dataset.version)  # type: ignore[attr-defined]
    told = msgspec.convert(handle.to_json(), WireTable)
    return Readable(WireScan(told, tuple(dataset.schema.names)), dataset.schema, dataset.count_rows())


def _stream(table: CatalogStream, slot: int) -> Readable:
    from headwater.pipeline.hands import storehouse_of

    house = storehouse_of(table.namespace)
    option = fresh.lake_option(house.root, house.storage)
    snapshot = fresh.opened(option).metastore.at(slot)
    stream = open_stream(snapshot, table.path)
    view = view_at(snapshot, stream)
    rows = sum(file.rows or 0 for delta in view.tail for file in delta.files)
    rows += view.base.rows if view.base is not None else 0
    fold = Fold(option, slot, view.position, rows, True, bool(stream.definition.keys))
    told = WireTable(tuple(table.path), f"{house.root}/{stream.serving}", True, dict(house.storage), fold=fold)
    schema = fresh.schema_of(stream.definition)
    return Readable(WireScan(told, tuple(schema.names)), schema, rows)


def frame_of(spark: Any, found: Readable, parallelism: int) -> Any:
    """The rows of a table as a DataFrame; a part of it is read by each task."""
    from pyspark.sql.types import StructType

    folded = found.scan.table.is_folded
    planned = fresh.plan(found.scan, parallelism) if folded else scans.plan(found.scan.engine(), parallelism)
    kind = StructType.fromJson(spark_schema(found.schema))
    parts, scan = msgspec.to_builtins(list(planned)), msgspec.to_builtins(found.scan)
    if not parts:
        return spark.createDataFrame([], kind)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headwater.spark.source import read_part

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(scan, parts[number], kind)

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(work, kind)
