"""Change data taken in: read, parsed, checked and written by tasks of a runner, and committed by the driver in order.

A file that makes the table evolve is committed with the change of the table. Tasks prepare the files after it again. If
a part of a batch does, tasks prepare the other parts again with the columns that it adds.

A batch of a streaming DataFrame is taken once. It is known by its query and its number, which Spark keeps in the
checkpoint and repeats after a failure. The table records the batch in the transaction that lands its rows.

A display of progress that shows nothing. The command line has others (cli/pipeline.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headwater.catalog.streams import CatalogStream
from headwater.errors import ConcurrentModificationError, InvalidInputError, error_for
from headwater.metastore import Transaction
from headwater.streams.definition import from_properties
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, Landed, Landing, LandingReport, rows_so_far
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding
from headwater.streams.reading.position_views import PositionView, view_at
from headwater.streams.sources.files import SourceFile, naming
from headwater.streams.sources.format_output import StateNeededError
from headwater.streams.sources.formats import SNAPSHOT, in_batches, total
from headwater.streams.sources.intake import Intake, gathered, prepare_chunk
from headwater.streams.stream_lookup import Stream, no_deletes, open_in
from headwater.wording import landing_message, many
from headwater.work import Json, Runner, Task, guarded, runner_of
from headwater.work.runners import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class NoProgress:
    """A display that shows nothing."""

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        """Do nothing."""

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        """Do nothing."""

    def at(self, done: int, of: int) -> None:
        """Do nothing."""


NO_PROGRESS = NoProgress()


ROW_BYTES = 200
"""A row of a file takes about this many bytes."""
TASKS_PER_CORE = 4
ATTEMPTS = 20
"""The number of times that a call prepares its files again because other writers changed the table."""
T = TypeVar("T")
INTAKE = "headwater.streams.sources.intake"
"""The module whose functions tasks run."""
BATCH = "batch"
"""In place of a digest: a batch of a stream is known by its query and number alone, as Spark repeats it exactly."""


def ingest_files(
    runner: Runner, stream: CatalogStream, intake: Intake, tell: Progress = NO_PROGRESS
) -> list[LandingReport]:
    """Take files in their order, each in a transaction of its own; on a table with a lateness all in one."""
    size = sum(file.size for file in intake.files)
    tell.stage(f"take {many(len(intake.files), 'file')} into {stream.name}", len(intake.files), size)
    if runner.in_driver(-(-size // ROW_BYTES)):
        return _here(stream, intake, tell)
    if len(in_batches(stream, intake.files, intake.format)) < len(intake.files):
        return _together(runner, stream, intake, tell)
    reports: list[LandingReport] = []
    for _ in range(ATTEMPTS + len(intake.files)):
        left = intake.files[len(reports) :]
        if not left:
            return reports
        reports += _in_order(runner, stream, replace(intake, files=left), tell)
    raise _changed(stream)


def _changed(stream: CatalogStream) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Others change {stream.name} all the time: take the data again.")


def _here(stream: CatalogStream, intake: Intake, tell: Progress) -> list[LandingReport]:
    """Take files in this process."""
    options: Any = {"strict": intake.strict, "checks": intake.checks, **intake.options}
    reports: list[LandingReport] = []
    for files in in_batches(stream, intake.files, intake.format):
        landed = stream.ingest_files(files, intake.format, intake.source, **options)
        reports += [_with_progress(tell, file, report) for file, report in zip(files, landed, strict=True)]
    return reports


def _in_order(runner: Runner, stream: CatalogStream, intake: Intake, tell: Progress) -> list[LandingReport]:
    """Prepare files by tasks and commit them until one does not fit the table any more; return the reports so far."""
    reports: list[LandingReport] = []
    is_snapshot = intake.format == SNAPSHOT
    files = intake.files[:1] if is_snapshot else intake.files
    prepared, position = _prepared(runner, stream, intake, files, is_snapshot)
    for file, each in zip(files, prepared, strict=True):
        if each is None:  # it is compared with the rows that the files before it have made
            (each,), position = _prepared(runner, stream, intake, [file], True)
        landing = _landing(stream, intake, file, each)
        try:
            with naming(file):
                report = stream.report(_landed(stream, intake, landing, position))
        except EvolvedError:
            break
        reports.append(_with_progress(tell, file, report))
    return reports


def _landed(stream: CatalogStream, intake: Intake, work: Callable[[Transaction], T], position: int) -> T:
    """Commit a landing. What was compared with a state that nothing orders lands only if the log still ends there.

    `position`: that of the state. Raises EvolvedError if the data has to be prepared again.
    """
    is_compared = intake.format == SNAPSHOT and not stream.definition.sequence

    def act(tx: Transaction) -> T:
        found = open_in(tx, stream.path)
        if is_compared and tx.last_position(found.path, version=found.version) != position:
            raise EvolvedError
        done = work(tx)
        landed = done if isinstance(done, list) else [done]
        rows = sum(each.rows for each in landed if isinstance(each, Landed))
        tx.restate(planned, landing_message(verb, rows, stream.name))
        return done

    verb = UPSERT if stream.definition.keys else APPEND
    planned = f"{verb} {stream.name}"
    return stream.run(act, planned)


def _together(runner: Runner, stream: CatalogStream, intake: Intake, tell: Progress) -> list[LandingReport]:
    """Prepare the files by tasks and commit them as one batch."""

    def prepared(intake: Intake) -> list[Json]:
        made, _ = _prepared(runner, stream, intake, intake.files, False)
        unread = [file for file, each in zip(intake.files, made, strict=True) if each is None]
        more = iter(_prepared(runner, stream, intake, unread, True)[0] if unread else ())
        return [_checked(each if each is not None else next(more)) for each in made]

    for _ in range(ATTEMPTS):
        found, landings = _agreed(prepared, intake), list[Landing]()
        for file, each in zip(intake.files, found, strict=True):
            landings.append(_landing(stream, intake, file, each, landings[0] if landings else None))
        try:
            reports = stream.land_together(landings, intake.files)
        except EvolvedError:
            continue
        return [_with_progress(tell, file, report) for file, report in zip(intake.files, reports, strict=True)]
    raise _changed(stream)


def _agreed(prepare: Callable[[Intake], list[Json]], intake: Intake) -> list[Json]:
    """Prepare the parts of a batch until all have the columns that any of them makes the table evolve to."""
    known = None
    while True:
        found = prepare(intake)
        evolved = [each["evolved"] for each in found]
        if all(each == evolved[0] for each in evolved):
            return found
        known = next(each for each in evolved if each not in (None, known))
        intake = replace(intake, evolved=from_properties(known))


def _checked(prepared: Json | None) -> Json:
    """Return what a task prepared, or raise its error."""
    assert prepared is not None
    if "error" in prepared:
        raise error_for(*prepared["error"])
    return prepared


def _with_progress(tell: Progress, file: SourceFile, report: LandingReport) -> LandingReport:
    tell.step(1, report.rows, file.size)
    return report


def _landing(
    stream: CatalogStream, intake: Intake, file: SourceFile, prepared: Json | None, joins: Landing | None = None
) -> PreparedLanding:
    return _prepared_landing(stream, intake, _checked(prepared), intake.origin(file), joins)


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
    own = replace(intake, files=())
    tasks = [Task(f"{INTAKE}:prepare_files", (at, opened, own, tuple(group), known, view)) for group in groups]
    answers = runner.run(tasks, f"take {many(len(files), 'file')} into {stream.name}")
    position = view.position if view is not None else 0
    return [each for answer in answers for each in answer["files"]], position


def ingest_frame(
    frame: DataFrame, stream: CatalogStream, intake: Intake, runner: Runner | None = None
) -> LandingReport:
    """Take a data frame: a partition by each task, about a million rows in a file, all of them in one transaction.

    The rows of a frame have no order: where two have the same key and sequence, either may win. One task takes all of a
    frame that is compared with the state of the table.
    """
    runner = runner_of(frame.sparkSession) if runner is None else runner
    for _ in range(ATTEMPTS):
        found, position = _of_frame(frame, stream, intake, runner)
        origins = [BatchOrigin(intake.source)] * len(found)
        if found and intake.token is not None:
            origins[0] = BatchOrigin(intake.source, intake.token, None, BATCH)  # the first stands for all of them
        landings: list[PreparedLanding] = []
        for each, origin in zip(found, origins, strict=True):
            landings.append(_prepared_landing(stream, intake, each, origin, landings[0] if landings else None))
        try:
            landed = _landed(stream, intake, partial(_land_all, landings), position)
        except EvolvedError:
            continue
        return total([stream.report(each) for each in landed]) if landed else LandingReport(stream.position)
    raise _changed(stream)


Prepare = Callable[[Sequence[T], Stream, Intake, int, PositionView | None], list[Json | None]]
"""Has tasks prepare parts of a batch, in order: the parts, the table, the call, the rows of the table so far, and the
state that rows are compared with. None in place of a part: it needs the state."""


def ingest_parts(stream: CatalogStream, intake: Intake, parts: Sequence[T], prepare: Prepare[T]) -> LandingReport:
    """Take parts of a batch, such as ranges of offsets, in one transaction: that which is open, or one of their own.

    If a part needs the state of the table, each part is prepared after the ones before it have landed.
    """

    def prepared(some: Sequence[T], with_state: bool) -> tuple[list[Json], int]:
        opened, snapshot = stream.opened()
        known, view = rows_so_far(snapshot, opened), view_at(snapshot, opened) if with_state else None

        def made(intake: Intake) -> list[Json]:
            found = prepare(some, opened, intake, known, view)
            if None in found:
                raise StateNeededError
            return [_checked(each) for each in found]

        return _agreed(made, intake) if len(some) else [], 0 if view is None else view.position

    def landed(some: Sequence[T], with_state: bool) -> list[Landed]:
        for _ in range(ATTEMPTS):
            found, position = prepared(some, with_state)
            landings: list[PreparedLanding] = []
            for each in found:
                first = landings[0] if landings else None
                landings.append(_prepared_landing(stream, intake, each, BatchOrigin(intake.source), first))
            try:
                return _landed(stream, intake, partial(_land_all, landings), position)
            except EvolvedError:
                continue
        raise _changed(stream)

    try:
        done = landed(parts, False)
    except StateNeededError:
        done = [each for part in parts for each in landed([part], True)]
    return total([stream.report(each) for each in done]) if done else LandingReport(stream.position)


def _land_all(landings: Sequence[Landing], tx: Transaction) -> list[Landed]:
    """Land the parts of a frame, unless the first of them finds that the batch was taken before."""
    landed: list[Landed] = []
    for landing in landings:
        landed.append(landing(tx))
        if landed[0].duplicate is not None:
            break
    return landed


def _of_frame(frame: DataFrame, stream: CatalogStream, intake: Intake, runner: Runner) -> tuple[list[Json], int]:
    """Return what tasks made of the rows of a frame, and the position of the state that these were compared with."""
    opened, snapshot = stream.opened()
    place, known = stream.namespace.location(), rows_so_far(snapshot, opened)

    def prepared(intake: Intake, view: PositionView | None = None) -> list[Json]:
        whole = frame if view is None else frame.coalesce(1)
        about = (opened, intake, known, view)
        made = runner.map(whole, Task(f"{INTAKE}:prepare_rows", (place, *about, view is None and runner.in_driver(1))))
        if not made and view is not None:  # a snapshot without rows deletes all
            made = runner.run([Task(f"{INTAKE}:prepare_table", (place, *about, frame.limit(0).toArrow()))])
        found = list(gathered(made, partial(guarded, prepare_chunk, place.lake(), *about)))
        if None in found:
            raise StateNeededError
        return [_checked(each) for each in found]

    with suppress(StateNeededError):
        if intake.format != SNAPSHOT:
            return _agreed(prepared, intake), 0
    view = view_at(snapshot, opened)
    return prepared(intake, view), view.position


QUERY = "sql.streaming.queryId"
"""The property of a job that names the streaming query it is of."""


def ingest_stream(
    frame: DataFrame, stream: CatalogStream, intake: Intake, checkpoint: str | None, runner: Runner
) -> tuple[LandingReport, int]:
    """Take what a stream has now; the report, and how many batches that were."""
    if checkpoint is None:
        raise InvalidInputError("A streaming DataFrame needs checkpoint=..., where Spark keeps how far it has read.")
    reports: list[LandingReport] = []

    def take(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY)
        reports.append(ingest_frame(batch, stream, replace(intake, token=f"{query}:{number}"), runner))

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    new = [report for report in reports if not report.duplicate]
    return (total(new) if new else LandingReport(stream.position)), len(new)
