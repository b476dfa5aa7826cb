"""Change data taken in: read, parsed, checked and written by tasks of a runner, and committed by the driver in order.

A file that makes the table evolve is committed with the change of the table. Tasks prepare the files after it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from headwater.catalog.streams import CatalogStream
from headwater.errors import ConcurrentModificationError, error_for, many
from headwater.metastore import Transaction
from headwater.pipeline.progress import NOBODY, Teller
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, Landed, Landing, LandingReport, rows_so_far
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding
from headwater.streams.reading.position_views import view_at
from headwater.streams.sources.files import SourceFile, naming
from headwater.streams.sources.formats import SNAPSHOT, in_batches, total
from headwater.streams.sources.intake import Intake, gathered, prepare_chunk
from headwater.streams.stream_lookup import no_deletes, open_in
from headwater.work import Json, Runner, Task, guarded, runner_of

ROW_BYTES = 200
"""A row of a file takes about this many bytes."""
TASKS_PER_CORE = 4
ATTEMPTS = 20
"""The number of times that a call prepares its files again because other writers changed the table."""
BATCH = "batch"
"""In place of a digest: a batch of a stream is known by its query and number alone, as Spark repeats it exactly."""


def ingest_files(runner: Runner, stream: CatalogStream, intake: Intake, tell: Teller = NOBODY) -> list[LandingReport]:
    """Take files in their order, each in a transaction of its own; on a table with a lateness all in one."""
    size = sum(file.size for file in intake.files)
    tell.stage(f"take {many(len(intake.files), 'file')} into {stream.name}", len(intake.files), size)
    if runner.in_driver(-(-size // ROW_BYTES)) or intake.truncates:
        return _here(stream, intake, tell)
    if len(in_batches(stream, intake.files, intake.format)) < len(intake.files):
        return _together(runner, stream, intake, tell)
    reports: list[LandingReport] = []
    for _ in range(ATTEMPTS + len(intake.files)):
        left = intake.files[len(reports) :]
        if not left:
            return reports
        reports += _in_order(runner, stream, replace(intake, files=left), tell)
    raise ConcurrentModificationError(f"Others change {stream.name} all the time: take the files again.")


def _here(stream: CatalogStream, intake: Intake, tell: Teller) -> list[LandingReport]:
    """Take files in this process."""
    options: Any = {"strict": intake.strict, "checks": intake.checks, **intake.options}
    reports: list[LandingReport] = []
    for files in in_batches(stream, intake.files, intake.format):
        landed = stream.ingest_files(files, intake.format, intake.source, **options)
        reports += [_told(tell, file, report) for file, report in zip(files, landed, strict=True)]
    return reports


def _in_order(runner: Runner, stream: CatalogStream, intake: Intake, tell: Teller) -> list[LandingReport]:
    """Prepare files by tasks and commit them until one does not fit the table any more; return the reports so far."""
    reports: list[LandingReport] = []
    files = intake.files[:1] if intake.needs_state else intake.files
    prepared, position = _prepared(runner, stream, intake, files, intake.needs_state)
    for file, each in zip(files, prepared, strict=True):
        if each is None:  # it is compared with the rows that the files before it have made
            (each,), position = _prepared(runner, stream, intake, [file], True)
        landing = _landing(stream, intake, file, each)
        compared = intake.format == SNAPSHOT and not stream.definition.sequence
        work = partial(_land_compared, landing, stream, position) if compared else landing
        verb = UPSERT if stream.definition.keys else APPEND
        try:
            with naming(file):
                report = stream.report(stream.run(work, f"{verb} {stream.name}"))
        except EvolvedError:
            break
        reports.append(_told(tell, file, report))
    return reports


def _land_compared(landing: Landing, stream: CatalogStream, position: int, tx: Transaction) -> Landed:
    """Land what was compared with the state at a position, if the log still ends there."""
    found = open_in(tx, stream.path)
    if tx.last_position(found.path, version=found.version) != position:
        raise EvolvedError
    return landing(tx)


def _together(runner: Runner, stream: CatalogStream, intake: Intake, tell: Teller) -> list[LandingReport]:
    """Prepare the files by tasks and commit them as one batch; in this process if only some make the table evolve."""
    prepared, _ = _prepared(runner, stream, intake, intake.files, False)
    landings: list[Landing] = []
    if any(each is None for each in prepared):  # it is compared with the rows that are there
        return _here(stream, intake, tell)
    for file, each in zip(intake.files, prepared, strict=True):
        landings.append(_landing(stream, intake, file, each, landings[0] if landings else None))
    try:
        reports = stream.land_together(landings, intake.files)
    except EvolvedError:
        return _here(stream, intake, tell)
    return [_told(tell, file, report) for file, report in zip(intake.files, reports, strict=True)]


def _told(tell: Teller, file: SourceFile, report: LandingReport) -> LandingReport:
    tell.step(1, report.rows, file.size)
    return report


def _landing(
    stream: CatalogStream, intake: Intake, file: SourceFile, prepared: Json | None, joins: Landing | None = None
) -> PreparedLanding:
    assert prepared is not None
    if "error" in prepared:
        raise error_for(*prepared["error"])
    return _prepared_landing(stream, intake, prepared, intake.origin(file), joins)


def _prepared_landing(
    stream: CatalogStream, intake: Intake, prepared: Json, origin: BatchOrigin, joins: Landing | None
) -> PreparedLanding:
    verb = UPSERT if stream.definition.keys else APPEND
    if verb == APPEND and prepared["deletes"]:
        raise no_deletes(stream.name)
    return PreparedLanding(stream.namespace.metastore, stream.path, prepared, verb, intake.strict, origin, joins)


def _prepared(
    runner: Runner, stream: CatalogStream, intake: Intake, files: Sequence[SourceFile], with_state: bool
) -> tuple[list[Json | None], int]:
    """Return what tasks made of files, in the order of the files, and the position of the state they were given."""
    opened, snapshot = stream.opened()
    view = view_at(snapshot, opened) if with_state else None
    known, at = rows_so_far(snapshot, opened), stream.namespace.location()
    size = max(1, -(-len(files) // (TASKS_PER_CORE * runner.cores)))
    groups = [files[start : start + size] for start in range(0, len(files), size)]
    one, own = "headwater.streams.sources.intake:prepare_files", replace(intake, files=())
    tasks = [Task(one, (at, opened, own, tuple(group), known, view)) for group in groups]
    answers = runner.run(tasks, f"take {many(len(files), 'file')} into {stream.name}")
    position = view.position if view is not None else 0
    return [each for answer in answers for each in answer["files"]], position


def ingest_frame(frame: Any, stream: CatalogStream, intake: Intake, runner: Runner | None = None) -> LandingReport:
    """Take a data frame: a partition by each task, about a million rows in a file, all of them in one transaction.

    The rows of a frame have no order: where two have the same key and sequence, either may win. The driver collects
    formats that need the state, and frames of which only some parts make the table evolve.
    """
    runner = runner_of(frame.sparkSession) if runner is None else runner
    if intake.needs_state or intake.format == "debezium":
        return _by_driver(frame, stream, intake)
    opened, snapshot = stream.opened()
    place, known = stream.namespace.location(), rows_so_far(snapshot, opened)
    arguments = (place, opened, intake, known, runner.in_driver(1))
    made = runner.map(frame, Task("headwater.streams.sources.intake:prepare_rows", arguments))
    found = list(gathered(made, partial(guarded, prepare_chunk, place.lake(), opened, intake, known)))
    failed = next((each["error"] for each in found if "error" in each), None)
    if failed is not None:
        raise error_for(*failed)
    origins = [BatchOrigin(intake.source)] * len(found)
    if found and intake.token is not None:
        origins[0] = BatchOrigin(intake.source, intake.token, None, BATCH)  # the first stands for all of them
    landings: list[PreparedLanding] = []
    for each, origin in zip(found, origins, strict=True):
        landings.append(_prepared_landing(stream, intake, each, origin, landings[0] if landings else None))

    def work(tx: Transaction) -> list[Landed]:
        first = [landing(tx) for landing in landings[:1]]
        if first and first[0].duplicate is not None:
            return first
        return first + [landing(tx) for landing in landings[1:]]

    try:
        landed = stream.run(work, f"{UPSERT if opened.definition.keys else APPEND} {stream.name}")
    except EvolvedError:
        return _by_driver(frame, stream, intake)
    return total([stream.report(each) for each in landed]) if landed else LandingReport(stream.position)


def _by_driver(frame: Any, stream: CatalogStream, intake: Intake) -> LandingReport:
    options = {"strict": intake.strict, "checks": intake.checks, **intake.options}
    return stream.ingest(frame.toArrow(), intake.format, intake.source, intake.token, **options)
