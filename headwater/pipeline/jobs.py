"""Jobs: each a function of a session, a catalog and a table that answers a report.

`spark` may be None: small work is done in this process anyway, and then so is large work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.streams import publish as publish_streams
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError
from headwater.pipeline.executors import Intake, ingest_files, ingest_frame
from headwater.pipeline.facts import is_taken, known_files
from headwater.pipeline.hands import SparkCrew, SparkHands, storehouse_of
from headwater.streams.checks import Check
from headwater.streams.landing import Report as Landed
from headwater.streams.layout import HISTORY
from headwater.streams.sources.files import SourceFile, find_files, is_files
from headwater.streams.sources.formats import check_format, total


@dataclass(frozen=True)
class Report:
    """What a job did. `parts`: the same for each table, where there are several."""

    job: str
    table: str = ""
    rows: int = 0
    files: int = 0
    quarantined: int = 0
    late: int = 0
    skipped: int = 0
    position: int = 0
    version: int = 0
    seconds: float = 0.0
    checks: Mapping[str, int] = field(default_factory=dict)
    parts: tuple[Report, ...] = ()


def ingest(
    spark: Any,
    catalog: str | Catalog,
    table: str,
    source: Any,
    format: str = "rows",
    name: str | None = None,
    strict: bool = False,
    checks: Sequence[Check] = (),
    **options: Any,
) -> Report:
    """Take change data into a stream table: files by path or glob, Arrow data, rows, or a Spark DataFrame.

    `name` is the source's; what was taken of a file is kept under it, and it can be undone by it. Files that were
    taken before are skipped. With a session, large files are read, parsed and written by executors.
    """
    began = time.perf_counter()
    check_format(format, options)
    stream = stream_of(open_lake(spark, catalog), table)
    if is_files(source):
        return ingest_found(spark, stream, find_files(source), format, name, strict, checks, options, began)
    intake = Intake((), format, name, strict, tuple(checks), options)
    if hasattr(source, "mapInArrow"):
        return _landed(stream, ingest_frame(source, stream, intake), 0, 0, began)
    done = stream.ingest(source, format, name, strict=strict, checks=checks, **options)
    return _landed(stream, done, 0, 0, began)


def ingest_found(
    spark: Any,
    stream: CatalogStream,
    files: Sequence[SourceFile],
    format: str,
    name: str | None,
    strict: bool,
    checks: Sequence[Check],
    options: Mapping[str, Any],
    began: float,
) -> Report:
    """Take files whose digests are known, those that are new, in their order."""
    taken = known_files(stream, name or "")
    new = [file for file in files if not is_taken(taken, file)]
    intake = Intake(tuple(new), format, name, strict, tuple(checks), options)
    reports = ingest_files(spark, stream, intake)
    done = total(reports) if reports else Landed(stream.position)
    return _landed(stream, done, len(new), len(files) - len(new), began)


def _landed(stream: CatalogStream, done: Landed, files: int, skipped: int, began: float) -> Report:
    return Report(
        "ingest",
        stream.name,
        done.rows,
        files,
        done.quarantined,
        skipped=skipped,
        position=done.position,
        seconds=time.perf_counter() - began,
        checks=done.checks,
    )


def publish(
    spark: Any, catalog: str | Catalog, *tables: str, lineage: Mapping[str, Mapping[str, Any]] | None = None
) -> Report:
    """Publish stream tables at one slot. `lineage` by name is kept in the commit beside what the log knows.

    With a session a large first load or increment is folded and written by executors, in shares by the key's bucket.
    """
    began = time.perf_counter()
    lake = open_lake(spark, catalog)
    streams = [stream_of(lake, name) for name in tables]
    before = {stream.name: stream.published for stream in streams}
    namespace = metastore_of(lake.namespace)
    hands = SparkHands(spark, storehouse_of(namespace)) if spark is not None else None
    done = publish_streams(namespace, [stream.id for stream in streams], lineage, hands)
    parts = []
    for stream, published in zip(streams, done, strict=True):
        known = before[stream.name]
        is_new = known is None or known.version != published.version
        start = known.position if known is not None else 0
        rows = sum(file.rows or 0 for delta in stream.deltas(start) for file in delta.files) if is_new else 0
        late = published.late + published.too_late if is_new else 0
        parts.append(
            Report("publish", stream.name, rows, late=late, position=published.position, version=published.version)
        )
    return _sum("publish", parts, began)


def undo(spark: Any, catalog: str | Catalog, table: str, source: str | None = None, file: str | None = None) -> Report:
    """Take out again what came from a source, or from one of its files (all its generations), and publish that.

    Rows that it did not touch stay as they are, with their derived values.
    """
    began = time.perf_counter()
    lake = open_lake(spark, catalog)
    stream = stream_of(lake, table)
    stream.undo(source=source, file=os.path.abspath(file) if file is not None else None)
    done = publish(spark, lake, table)
    return replace(done, job="undo", seconds=time.perf_counter() - began)


def backfill(
    spark: Any, catalog: str | Catalog, table: str, rows: int | None = None, batch: int | None = None
) -> Report:
    """Compute stale derived values again: all, or about so many rows in one version.

    With a session batches of so many rows are computed by executors, and one that was killed goes on after the last
    batch that was done.
    """
    began = time.perf_counter()
    stream = stream_of(open_lake(spark, catalog), table)
    stale = max(stream.stale().values(), default=0)
    crew = None if spark is None else SparkCrew(spark, storehouse_of(stream.namespace), batch)
    if stale:
        stream.backfill(rows, crew if stale > (batch or 0) else None)
    left = max(stream.stale().values(), default=0)
    published = stream.published
    version = published.version if published is not None else 0
    return Report("backfill", stream.name, stale - left, version=version, seconds=time.perf_counter() - began)


def maintain(spark: Any, catalog: str | Catalog, *tables: str, keep: timedelta | None = None) -> Report:
    """Keep tables fast and small: worn fragments are written anew, then what is past retention is collected.

    `files` counts what the collection removed; `keep` is its retention (seven days).
    """
    began = time.perf_counter()
    lake = open_lake(spark, catalog)
    parts = []
    for name in tables or tuple(lake):
        table = lake[name]
        if isinstance(table, CatalogStream):
            rewritten = table.compact()
            table.collect()
            published = table.published
            version = published.version if published is not None else 0
            parts.append(Report("maintain", name, version=version, files=int(rewritten), position=table.position))
        elif not name.endswith(HISTORY):  # a history is kept by its table's publishes
            table.optimize()
            parts.append(Report("maintain", name))
    removed = metastore_of(lake.namespace).metastore.collect(keep)
    report = _sum("maintain", parts, began)
    return Report("maintain", files=removed.data + removed.published, seconds=report.seconds, parts=report.parts)


def _sum(job: str, parts: Sequence[Report], began: float) -> Report:
    seconds = time.perf_counter() - began
    if len(parts) == 1:
        only = parts[0]
        return Report(
            job, only.table, only.rows, late=only.late, position=only.position, version=only.version, seconds=seconds
        )
    rows, late = sum(part.rows for part in parts), sum(part.late for part in parts)
    return Report(job, rows=rows, late=late, seconds=seconds, parts=tuple(parts))


def open_lake(spark: Any, catalog: str | Catalog) -> Catalog:
    """A catalog that is open, or one by the name that the session was configured with."""
    if isinstance(catalog, Catalog):
        return catalog
    if spark is None:
        raise InvalidInputError(f"Without a Spark session {catalog!r} is no catalog: give a headwater.Catalog.")
    from headwater.spark.session import configured

    found = configured(catalog)
    return Catalog(found.shown, **{"impl": found.impl, **found.properties})


def stream_of(catalog: Catalog, name: str) -> CatalogStream:
    table = catalog[name]
    if not isinstance(table, CatalogStream):
        raise InvalidInputError(f"{name} is a plain table and has no change log: write to it as to any Lance table.")
    return table
