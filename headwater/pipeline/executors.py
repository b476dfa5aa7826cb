"""Files taken in: one after another in this process, or, when they are many bytes, prepared by executors.

Executors read, parse, check and write the files of the log, a source file each; the driver commits them in order, each
as a transaction of its own. A file that makes the table evolve is taken by the driver, and the rest prepared anew.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from headwater.catalog.streams import CatalogStream
from headwater.errors import error_for
from headwater.metastore import Transaction
from headwater.pipeline.hands import Storehouse, cores, guarded, storehouse_of, task_at
from headwater.pipeline.progress import NOBODY, Teller
from headwater.streams.checks import Check
from headwater.streams.definition import to_properties
from headwater.streams.landing import APPEND, UPSERT, BatchOrigin, Landed, Landing, LandingReport, rows_so_far
from headwater.streams.opening import Stream, no_deletes
from headwater.streams.preparing import EvolvedError, Json, PreparedLanding, prepare
from headwater.streams.serving_copy import Lake
from headwater.streams.sources.files import SourceFile, naming
from headwater.streams.sources.formats import SNAPSHOT, take_alone, total
from headwater.streams.sources.moved_rows import StateNeededError
from headwater.wording import many

LARGE_ROWS = 50_000
LARGE_BYTES = LARGE_ROWS * 200
"""Below about so many rows no Spark job is started: it would take longer than the work."""
TASKS_PER_CORE = 4
BATCH = "batch"
"""In place of a digest: a batch of a stream is known by its query and number alone, as Spark repeats it exactly."""


@dataclass(frozen=True)
class Intake:
    """Which files, of which format and source, judged by which checks. `token`: of a batch that is taken once."""

    files: tuple[SourceFile, ...]
    format: str
    source: str | None
    strict: bool
    checks: tuple[Check, ...]
    options: Mapping[str, Any]
    token: str | None = None

    def origin(self, file: SourceFile) -> BatchOrigin:
        return BatchOrigin(self.source, None, file.path, file.digest)

    @property
    def needs_state(self) -> bool:
        """Whether what a file means depends on the rows that are there: then one file goes after another."""
        return self.format == SNAPSHOT or bool(self.options.get("apply_as_truncates"))


def ingest_files(spark: Any, stream: CatalogStream, intake: Intake, tell: Teller = NOBODY) -> list[LandingReport]:
    """Take files in their order, by executors if there is a session and they are large."""
    size = sum(file.size for file in intake.files)
    tell.stage(f"take {many(len(intake.files), 'file')} into {stream.name}", len(intake.files), size)
    one_batch = stream.definition.rules.lateness is not None
    if spark is None or intake.needs_state or size < LARGE_BYTES:
        if one_batch:
            return _here_together(stream, intake, tell)
        return [_told(tell, file, _take(stream, intake, file)) for file in intake.files]
    if one_batch:
        return _together(spark, stream, intake, tell)
    reports: list[LandingReport] = []
    left = list(intake.files)
    while left:
        definition = stream.definition
        prepared = _prepared(spark, stream, intake, left, tell)
        fitting = 0
        for file, each in zip(left, prepared, strict=True):
            report = _commit(stream, intake, file, each)
            fitting += 1
            reports.append(_told(tell, file, report if report is not None else _take(stream, intake, file)))
            if report is None and stream.definition != definition:
                break
        left = left[fitting:]
    return reports


def _here_together(stream: CatalogStream, intake: Intake, tell: Teller) -> list[LandingReport]:
    """Take files in this process: on a table with a lateness they are one batch, in one transaction."""
    reports = stream.ingest_files(
        intake.files, intake.format, intake.source, intake.strict, intake.checks, **intake.options
    )
    return [_told(tell, file, report) for file, report in zip(intake.files, reports, strict=True)]


def _together(spark: Any, stream: CatalogStream, intake: Intake, tell: Teller) -> list[LandingReport]:
    """Prepare the files on executors, unless a file makes the table evolve."""
    prepared = _prepared(spark, stream, intake, intake.files, tell)
    if any(each is None for each in prepared):
        return _here_together(stream, intake, tell)
    landings: list[Landing] = []
    for file, each in zip(intake.files, prepared, strict=True):
        assert each is not None
        landings.append(_landing(stream, intake, file, each, landings[0] if landings else None))
    try:
        reports = stream.land_together(landings, intake.files)
    except EvolvedError:
        return _here_together(stream, intake, tell)
    return [_told(tell, file, report) for file, report in zip(intake.files, reports, strict=True)]


def _told(tell: Teller, file: SourceFile, report: LandingReport) -> LandingReport:
    tell.step(1, report.rows, file.size)
    return report


def ingest_frame(frame: Any, stream: CatalogStream, intake: Intake) -> LandingReport:
    """Take a data frame: a partition by each task, about a million rows in a file, all of them in one transaction.

    The rows of a frame have no order: where two have the same key and sequence, either may win. Frames whose columns
    the table lacks, and formats that need the state, are collected by the driver.
    """
    opened, snapshot = stream.opened()
    if intake.needs_state or intake.format == "debezium":
        return _by_driver(frame, stream, intake)
    prepared = _made_of(frame, stream, intake, opened, rows_so_far(snapshot, opened))
    if any(each is None for each in prepared):
        return _by_driver(frame, stream, intake)
    failed = next((each["error"] for each in prepared if each is not None and "error" in each), None)
    if failed is not None:
        raise error_for(*failed)
    verb = UPSERT if opened.definition.keys else APPEND
    found = [each for each in prepared if each is not None]
    if verb == APPEND and any(each["deletes"] for each in found):
        raise no_deletes(stream.name)
    metastore, origins = stream.namespace.metastore, [BatchOrigin(intake.source)] * len(found)
    if found and intake.token is not None:
        origins[0] = BatchOrigin(intake.source, intake.token, None, BATCH)  # the first stands for all of them
    landings: list[PreparedLanding] = []
    for each, origin in zip(found, origins, strict=True):
        first = landings[0] if landings else None
        landings.append(PreparedLanding(metastore, stream.path, each, verb, intake.strict, origin, first))

    def work(tx: Transaction) -> list[Landed]:
        first = [landing(tx) for landing in landings[:1]]
        if first and first[0].duplicate is not None:
            return first
        return first + [landing(tx) for landing in landings[1:]]

    try:
        landed = stream.run(work, f"{verb} {stream.name}")
    except EvolvedError:
        return _by_driver(frame, stream, intake)
    return total([stream.report(each) for each in landed]) if landed else LandingReport(stream.position)


def _by_driver(frame: Any, stream: CatalogStream, intake: Intake) -> LandingReport:
    options = {"strict": intake.strict, "checks": intake.checks, **intake.options}
    return stream.ingest(frame.toArrow(), intake.format, intake.source, intake.token, **options)


def _made_of(frame: Any, stream: CatalogStream, intake: Intake, opened: Stream, rows: int) -> list[Json | None]:
    """What executors made of the rows of a frame, and the driver of those that they handed to it."""
    from headwater.spark.handed_rows import gathered

    work = partial(_prepare_rows, storehouse_of(stream.namespace).lake(), opened, intake, rows)
    return list(gathered(_prepared_frame(frame, stream, intake, opened, rows), partial(guarded, work)))


def _prepared_frame(frame: Any, stream: CatalogStream, intake: Intake, opened: Stream, rows: int) -> list[Json | None]:
    """What executors made of the rows of a frame: our own workers if the session has the jar, else Spark's."""
    from headwater.spark.frame_rows import send_frame

    house = storehouse_of(stream.namespace)
    answered = send_frame(frame, _rows_call(house, opened, intake, rows))
    return answered if answered is not None else _mapped(frame, house, opened, intake, rows)


def _rows_call(house: Storehouse, stream: Stream, intake: Intake, rows: int) -> Any:
    from headwater.spark.fresh import lake_option
    from headwater.spark.protocol import TakeRows

    return TakeRows(
        lake_option(house.root, house.storage),
        tuple(stream.path),
        stream.home,
        stream.version,
        to_properties(stream.definition),
        intake.format,
        intake.source,
        [(check.name, check.sql, check.action) for check in intake.checks],
        dict(intake.options),
        rows,
    )


def _mapped(frame: Any, house: Storehouse, stream: Stream, intake: Intake, rows: int) -> list[Json | None]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is not None:
            reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
            answer = prepare_rows(house, stream, intake, rows, reader)
            yield pa.RecordBatch.from_pydict({"result": [json.dumps(answer)]})

    with warnings.catch_warnings():  # of PySpark's about the version of pandas, which no batch here goes through
        warnings.simplefilter("ignore", FutureWarning)
        answers = frame.mapInArrow(work, "result string").collect()
    return [each for row in answers for each in json.loads(row[0])]


def prepare_rows(
    house: Storehouse, stream: Stream, intake: Intake, rows: int, reader: pa.RecordBatchReader
) -> list[Json | None]:
    """What a task makes of its rows, a file of the log after another, few rows left as they are; the last one may be
    None, or an error of ours."""
    from headwater.spark.handed_rows import are_few, packed
    from headwater.spark.stream_writes import chunks

    made: list[Json | None] = []
    prepare_chunk = partial(guarded, partial(_prepare_rows, house.lake(), stream, intake, rows))
    for data in chunks(reader):  # a task holds the rows of one file of the log, however many it gets
        made.append(packed(data) if are_few(data) else prepare_chunk(data))
        if made[-1] is None or "error" in made[-1]:
            break
    for _ in reader:  # who sends them waits until they are read
        pass
    return made


def _prepare_rows(lake: Lake, stream: Stream, intake: Intake, rows: int, data: pa.Table) -> Json | None:
    taken = take_alone(stream.definition, data, intake.format, intake.options)
    return prepare(lake.store, lake.clock, stream, taken, BatchOrigin(intake.source), intake.checks, rows)


def _take(stream: CatalogStream, intake: Intake, file: SourceFile) -> LandingReport:
    return stream.ingest_file(file, intake.format, intake.source, intake.strict, intake.checks, **intake.options)


def _commit(stream: CatalogStream, intake: Intake, file: SourceFile, prepared: Json | None) -> LandingReport | None:
    """Commit one prepared file; None: the table must evolve for it, or has."""
    if prepared is None:
        return None
    landing = _landing(stream, intake, file, prepared)
    verb = UPSERT if stream.definition.keys else APPEND
    try:
        with naming(file):
            return stream.report(stream.run(landing, f"{verb} {stream.name}"))
    except EvolvedError:
        return None


def _landing(
    stream: CatalogStream, intake: Intake, file: SourceFile, prepared: Json, joins: Landing | None = None
) -> PreparedLanding:
    if "error" in prepared:
        raise error_for(*prepared["error"])
    verb = UPSERT if stream.definition.keys else APPEND
    if verb == APPEND and prepared["deletes"]:
        raise no_deletes(stream.name)
    metastore = stream.namespace.metastore
    return PreparedLanding(metastore, stream.path, prepared, verb, intake.strict, intake.origin(file), joins)


def _prepared(
    spark: Any, stream: CatalogStream, intake: Intake, files: Sequence[SourceFile], tell: Teller
) -> list[Json | None]:
    """What executors made of files, in the order of the files."""
    from headwater.spark.procedures import take_task
    from headwater.spark.python_jobs import distribute

    opened, snapshot = stream.opened()
    house, known = storehouse_of(stream.namespace), rows_so_far(snapshot, opened)
    run = preparer(house, opened, intake, known)
    groups = _groups(files, TASKS_PER_CORE * cores(spark))

    def told(number: int) -> Any:
        return task_at(house, opened, snapshot.slot, take_task(groups[number], intake, known))

    answers = distribute(spark, len(groups), partial(_group, groups, run), told)
    return [each for answer in answers for each in answer["files"]]


def _group(groups: Sequence[Sequence[SourceFile]], run: Callable[[SourceFile], Json | None], number: int) -> Json:
    return {"files": [run(file) for file in groups[number]]}


def _groups(files: Sequence[SourceFile], tasks: int) -> list[list[SourceFile]]:
    """Files that stand beside each other, in about equally many groups as tasks."""
    size = max(1, -(-len(files) // tasks))
    return [list(files[start : start + size]) for start in range(0, len(files), size)]


def preparer(house: Storehouse, stream: Stream, intake: Intake, rows: int) -> Callable[[SourceFile], Json | None]:
    """What a task does with a file; it travels to executors."""
    return partial(guarded, partial(prepare_file, house, stream, intake, rows))


def prepare_file(house: Storehouse, stream: Stream, intake: Intake, rows: int, file: SourceFile) -> Json | None:
    lake = house.lake()
    with naming(file):
        try:
            taken = take_alone(stream.definition, None, intake.format, intake.options, file)
        except StateNeededError:  # the driver reads the rows that were there
            return None
        return prepare(lake.store, lake.clock, stream, taken, intake.origin(file), intake.checks, rows)
