"""Jobs: each a function of a session, a catalog and a table that answers a report.

`spark`: a Spark session, a `Runner` of one with its own `driver_rows`, or None, which does all work in this process.

Opening what a run works with: the catalog of a pipeline, and the session of its engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headwater import moving
from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.transactions import metastore_of
from headwater.catalog.transport import Remote
from headwater.config import load_profile
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.pipeline.executors import NO_PROGRESS, ingest_files, ingest_frame, ingest_stream
from headwater.pipeline.facts import is_taken
from headwater.pipeline.grammar import Pipeline
from headwater.pipeline.views import Say
from headwater.rest.remote_streams import RemoteStream
from headwater.streams.log.checks import Check
from headwater.streams.log.landing import LandingReport as Landed
from headwater.streams.reading.position_views import Published
from headwater.streams.sources.files import SourceFile, find_files, is_files
from headwater.streams.sources.formats import check_format, in_batches, total
from headwater.streams.sources.intake import Intake
from headwater.streams.table import StreamTable
from headwater.verbs.stream_requests import RemotePublished
from headwater.wording import many
from headwater.work import Runner, Where, runner_of
from headwater.work.runners import Progress


def import_files(
    spark: object,
    catalog: str | Catalog,
    table: str,
    source: str | os.PathLike[str],
    mode: str = "create",
    hive: bool = True,
    tell: Progress = NO_PROGRESS,
) -> Report:
    """Make a plain table of the Parquet files in a folder, or of one, in one commit; `mode` as of `create_table`."""
    began = time.perf_counter()
    tell.stage(f"import {table}", 1)
    made = moving.import_parquet(open_lake(spark, catalog), table, source, mode, hive)
    rows, version = made.count(), made.versions()[-1].version
    tell.step(1, rows)
    return Report("import", table, rows, version=version, seconds=time.perf_counter() - began)


def export(
    spark: object,
    catalog: str | Catalog,
    to: str | os.PathLike[str],
    all_versions: bool = False,
    tell: Progress = NO_PROGRESS,
    **properties: object,
) -> Report:
    """Make a plain directory catalog at `to`: current rows, stream tables as last published. `files` counts tables."""
    began = time.perf_counter()
    tell.stage(f"export to {os.fspath(to)}", 1)
    done = moving.export(open_lake(spark, catalog), os.fspath(to), all_versions, properties)
    tell.step()
    return Report("export", files=done.tables, position=done.slot or 0, seconds=time.perf_counter() - began)


session = when_used("headwater.spark.session")
MANY_LATE = 0.05
"""A run warns of a table that had a larger part of late rows, or of too late ones."""


@dataclass(frozen=True)
class Report:
    """Report of a job. `parts`: the reports of single tables, if there are several.

    `skipped` files were taken before; `undone` ones were taken, undone, and left out since they are as they were.
    """

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
    undone: int = 0
    coverage: Mapping[str, float] = field(default_factory=dict)
    """For each index the part of the rows that it covers."""
    too_late: int = 0
    """Of the rows, those below the line of a table with a lateness: a publish quarantines them."""
    stale: int = 0
    """Published rows that wait for a backfill: a derived column has a value of an older function in them, or none."""
    where: Where | None = None
    """The place where the job ran, with its Spark jobs and tasks; None: nobody counted them."""


def late_warnings(report: Report) -> list[str]:
    """Return a warning for each table that had many late or too late rows."""
    found = [text for part in report.parts for text in late_warnings(part)]
    passed = report.late - report.too_late if report.job == "publish" else 0
    for count, what in (
        (report.too_late, "too late: below what its lateness allows, so they are quarantined"),
        (passed, "late: older than what the table has, so they changed nothing"),
    ):
        if not report.parts and count > MANY_LATE * report.rows:
            found.append(f"warning: {report.table}: {count:,} of {many(report.rows, 'row')} were {what}")
    return found


def ingest(
    spark: Any,
    catalog: str | Catalog,
    table: str,
    source: Any,
    format: str = "rows",
    name: str | None = None,
    strict: bool = False,
    checks: Sequence[Check] = (),
    again: bool = False,
    storage: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
    tell: Progress = NO_PROGRESS,
    **options: Any,
) -> Report:
    """Take change data into a stream table: files by path, address or glob, Arrow data, rows, a DataFrame or a stream.

    `name` is the source's; what was taken of a file is kept under it, and it can be undone by it. Files that were
    taken before are skipped, and so are those that were undone, unless `again`. With a session, large files are read,
    parsed and written by executors. `storage` opens the object store of the files, if the catalog's options do not.
    A streaming DataFrame is taken up to what is there now, batch by batch, and needs a `checkpoint` of its own.
    """
    began = time.perf_counter()
    check_format(format, options)
    runner = runner_for(spark, tell)
    so_far = runner.done
    lake = open_lake(spark, catalog)
    stream = log_of(lake, table)
    intake = Intake((), format, name, strict, tuple(checks), options)
    if isinstance(stream, RemoteStream):
        return _landed(stream, *taken_by_server(stream, source, intake, again, tell), began)
    if is_files(source):
        files = find_files(source, storage if storage is not None else dict(stream.namespace.properties.storage))
        return ingest_found(runner, stream, files, intake, again, tell, began)
    if getattr(source, "isStreaming", False):
        runner = runner_for(source.sparkSession, tell) if spark is None else runner
        so_far = runner.done
        done, batches = ingest_stream(source, stream, intake, checkpoint, runner)
        return _landed(stream, done, batches, 0, 0, began, runner.done - so_far)
    if hasattr(source, "mapInArrow"):
        runner = runner_for(source.sparkSession, tell) if spark is None else runner
        so_far = runner.done
        landed = ingest_frame(source, stream, intake, runner)
        return _landed(stream, landed, 0, 0, 0, began, runner.done - so_far)
    landed = stream.ingest(source, format, name, strict=strict, checks=checks, **options)
    return _landed(stream, landed, 0, 0, 0, began)


def ingest_found(
    spark: object,
    stream: CatalogStream,
    files: Sequence[SourceFile],
    intake: Intake,
    again: bool = False,
    tell: Progress = NO_PROGRESS,
    began: float | None = None,
) -> Report:
    """Take files whose digests are known, those that are new, in their order."""
    began = time.perf_counter() if began is None else began
    runner = runner_for(spark, tell)
    so_far = runner.done
    new, skipped, undone = sorted_out(stream, files, intake.source or "", again)
    reports = ingest_files(runner, stream, replace(intake, files=tuple(new)), tell) if new else []
    done = total(reports) if reports else Landed(stream.position)
    return _landed(stream, done, len(new), skipped, undone, began, runner.done - so_far)


def runner_for(spark: object, tell: Progress = NO_PROGRESS) -> Runner:
    """Return the runner for a session, which reports its tasks to `tell`."""
    return runner_of(spark, None if tell is NO_PROGRESS else tell)


def _landed(
    stream: CatalogStream | RemoteStream,
    done: Landed,
    files: int,
    skipped: int,
    undone: int,
    began: float,
    where: Where | None = None,
) -> Report:
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
        undone=undone,
        too_late=done.too_late,
        where=where,
    )


def publish(
    spark: object,
    catalog: str | Catalog,
    *tables: str,
    lineage: Mapping[str, Mapping[str, object]] | None = None,
    tell: Progress = NO_PROGRESS,
) -> Report:
    """Publish stream tables at one slot. `lineage` by name is kept in the commit beside what the log knows.

    With a session executors fold and write the rows, in tasks by rows and by the key's bucket.
    """
    began = time.perf_counter()
    runner = runner_for(spark, tell)
    so_far = runner.done
    lake = open_lake(spark, catalog)
    streams = [log_of(lake, name) for name in tables]
    before = {stream.name: stream.published for stream in streams}
    tell.stage(f"publish {', '.join(tables)}", 1)
    done: list[Published] | list[RemotePublished]
    if is_served(lake):
        done = published_by_server(lake, streams, lineage)
    else:
        namespace = metastore_of(lake.namespace)
        done = namespace.publish([stream.id for stream in streams], lineage, runner)
    tell.step()
    parts = []
    for place, stream in enumerate(streams):
        published = done[place]
        known = before[stream.name]
        is_new = known is None or known.version != published.version
        start = known.position if known is not None else 0
        report = Report("publish", stream.name, position=published.position, version=published.version)
        report = replace(report, stale=published.stale)
        if is_new:
            taken = [delta for delta in stream.deltas(start) if delta.position <= published.position]
            rows = sum(file.rows or 0 for delta in taken for file in delta.files)
            kept = published.late if stream.definition.quarantines_late else 0
            late = published.late + published.too_late
            too_late = published.too_late
            report = replace(report, rows=rows, late=late, quarantined=kept + too_late, too_late=too_late)
        parts.append(report)
    return replace(summed("publish", parts, began), where=runner.done - so_far)


def backfill(
    spark: object,
    catalog: str | Catalog,
    table: str,
    rows: int | None = None,
    batch: int | None = None,
    tell: Progress = NO_PROGRESS,
) -> Report:
    """Compute stale derived values again: all, or about so many rows in one version.

    With a session executors compute batches of `batch` rows, and a job that was killed goes on after the last batch
    that was done.
    """
    began = time.perf_counter()
    runner = runner_for(spark, tell)
    so_far = runner.done
    stream = stream_of(open_lake(spark, catalog), table)
    stale = max(stream.stale(now=True).values(), default=0)
    if stale:
        stream.backfill(rows, runner, batch)
    left = max(stream.stale().values(), default=0)
    published = stream.published
    report = Report("backfill", stream.name, stale - left)
    if published is not None:
        report = replace(report, position=published.position, version=published.version)
    return replace(report, seconds=time.perf_counter() - began, where=runner.done - so_far)


def summed(job: str, parts: Sequence[Report], began: float) -> Report:
    """Return one report of several tables."""
    seconds = time.perf_counter() - began
    if len(parts) == 1:
        return replace(parts[0], job=job, seconds=seconds)
    counts = ("rows", "files", "quarantined", "late", "skipped", "too_late")
    totals: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in counts}
    return Report(job, **totals, seconds=seconds, parts=tuple(parts))


def open_lake(spark: object, catalog: str | Catalog) -> Catalog:
    """Return a catalog that is open, or one by the name that the session was configured with."""
    if isinstance(catalog, Catalog):
        return catalog
    if spark is None:
        raise InvalidInputError(f"Without a Spark session {catalog!r} is not a catalog: give a headwater.Catalog.")
    found = session.configured(catalog)
    return Catalog(found.shown, **{"impl": found.impl, **found.properties})


def check_here(catalog: Catalog) -> None:
    """Unsupported (0) through a server."""
    if is_served(catalog):
        raise UnsupportedOperationError("This job reads and writes files: it runs where the catalog's root is opened.")


def stream_of(catalog: Catalog, name: str) -> CatalogStream:
    """Return a stream table whose files can be reached; errors 0, 4, 13."""
    check_here(catalog)
    stream = log_of(catalog, name)
    assert isinstance(stream, CatalogStream)
    return stream


def log_of(catalog: Catalog, name: str) -> CatalogStream | RemoteStream:
    """Return a stream table, here or of a server."""
    table: object = catalog[name]
    if not isinstance(table, (CatalogStream, RemoteStream)):
        raise InvalidInputError(f"{name} is a plain table and has no change log: write to it as to any Lance table.")
    return table


def is_served(lake: Catalog) -> bool:
    return isinstance(lake.namespace, Remote)


def sorted_out(
    stream: StreamTable | RemoteStream, files: Sequence[SourceFile], source: str, again: bool
) -> tuple[list[SourceFile], int, int]:
    """Return the files that are to be taken, how many were taken before, and how many were undone; those only if
    `again`."""
    taken = stream.files(source)
    undone = {} if again else stream.files(source, undone=True)
    left = [file for file in files if not is_taken(taken, file)]
    new = [file for file in left if not is_taken(undone, file)]
    return new, len(files) - len(left), len(left) - len(new)


def taken_by_server(
    stream: RemoteStream, source: Any, intake: Intake, again: bool, tell: Progress
) -> tuple[Landed, int, int, int]:
    """Return the report of a landing, and the numbers of files taken, known before, and left out as undone."""
    if intake.checks:
        raise UnsupportedOperationError(f"{stream.name} is reached through a server: its checks are properties of it.")
    how = {"source": intake.source, "strict": intake.strict, **intake.options}
    if not is_files(source):
        if getattr(source, "isStreaming", False):
            raise UnsupportedOperationError(
                f"{stream.name} is reached through a server: write a stream into it with writeStream.toTable(...)."
            )
        rows = source.toArrow() if hasattr(source, "mapInArrow") else source
        return stream.ingest(rows, intake.format, **how), 0, 0, 0
    new, skipped, undone = sorted_out(stream, find_files(source), intake.source or "", again)
    tell.stage(f"send {many(len(new), 'file')} to {stream.name}", len(new), sum(file.size for file in new))
    reports = []
    for batch in in_batches(stream, new, intake.format):
        reports.append(stream.ingest_files(batch, intake.format, **how))
        tell.step(len(batch), reports[-1].rows, sum(file.size for file in batch))
    return total(reports) if reports else Landed(stream.position), len(new), skipped, undone


def published_by_server(
    lake: Catalog, streams: Sequence[Any], lineage: Mapping[str, Mapping[str, Any]] | None
) -> list[RemotePublished]:
    if lineage:
        raise UnsupportedOperationError("Lineage of one's own is recorded where the catalog's root is opened.")
    return list(lake.publish([stream.id.names for stream in streams]))


engine_session = when_used("headwater.spark.engine_session")


def open_catalog(pipeline: Pipeline) -> tuple[Catalog, bool]:
    """Return the catalog of a pipeline, and whether it is there: a profile, or a metastore at a path relative to the
    file."""
    name = pipeline.catalog
    if "://" not in name and load_profile(name) is None:
        name = str(pipeline.folder / Path(name).expanduser())
    catalog = Catalog(name)
    check_here(catalog)
    metastore_of(catalog.namespace)
    return catalog, catalog.is_there


@contextmanager
def opened_engine(
    pipeline: Pipeline, catalog: Catalog, spark: object, say: Say, needed: Collection[object] = (True,)
) -> Iterator[object]:
    """Yield the session that a run works in; None: it works in this process, or nothing is `needed`."""
    engine = pipeline.engine.chosen(None, None, os.environ)
    if not needed or (spark is None and not engine.is_spark):
        yield None
        return
    with engine_session.engine_session(engine, spark, metastore_of(catalog.namespace).location(), say) as session:
        yield session
