"""Runs a pipeline: facts, plan, steps. Every step can be done again, so a run that was killed is simply run again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError
from headwater.pipeline.children import expand, publish_families
from headwater.pipeline.executors import NO_PROGRESS
from headwater.pipeline.facts import gather, inferred, moment_of, schema_of, storage_of, view_input, wanted_properties
from headwater.pipeline.file_values import naming_section
from headwater.pipeline.grammar import Pipeline, TableSpec, ViewSpec
from headwater.pipeline.jobs import (
    Report,
    backfill,
    ingest_found,
    late_warnings,
    open_catalog,
    opened_engine,
    publish,
    stream_of,
)
from headwater.pipeline.keeping import index
from headwater.pipeline.live.live_runs import LiveReaders, begin_again, take_live, where_next, with_live_tables
from headwater.pipeline.planning import (
    ALTER,
    BACKFILL,
    CREATE,
    EXPAND,
    INDEX,
    INGEST,
    PUBLISH,
    REFRESH,
    TAKE,
    VIEW,
    WAITS,
    Plan,
    Step,
    inputs_of,
    make_plan,
)
from headwater.pipeline.run_records import RunRecord, record_failure, recorded
from headwater.pipeline.view_tables import MadeView, make_anew, remember
from headwater.pipeline.views import Say, ViewMoment, check_view, make_view
from headwater.spark.failures import naming_failures
from headwater.streams.definition import Definition, Derived, define, derived_of
from headwater.streams.log.checks import try_checks
from headwater.streams.rows.column_types import common
from headwater.streams.serving.derived_columns import beside, planned_identity
from headwater.streams.sources.files import find_files
from headwater.streams.sources.intake import Intake
from headwater.wording import many
from headwater.work import Runner, runner_of
from headwater.work.runners import Progress, step_jobs


@dataclass(frozen=True)
class Run:
    """A run of a pipeline: its id, the plan it carried out, and what each step did."""

    id: str
    pipeline: str
    plan: Plan
    reports: tuple[Report, ...] = ()
    seconds: float = 0.0


Failed = Callable[[str, LanceNamespaceError], None]


@dataclass
class _Running:
    """State that the steps of a run share.

    `failed`: takes the name and the error of a step that failed, and the run goes on; None: the run raises it.
    `left_out`: the same for a step that takes from a source, which the other sources do not wait for.
    `is_ended`: returns True when the run is to end before its next step.
    """

    pipeline: Pipeline
    catalog: Catalog
    spark: Runner
    run: dict[str, str]
    say: Say
    tell: Progress = NO_PROGRESS
    failed: Failed | None = None
    left_out: Failed | None = None
    is_ended: Callable[[], bool] = lambda: False
    reports: list[Report] = field(default_factory=list)

    def step(self, about: str, act: Callable[[], None], failed: Failed | None = None) -> bool:
        """Do a step, and note where it ran; False if it failed and the run goes on."""
        failed = failed or self.failed
        self.say(about)
        before = len(self.reports)
        try:
            with naming_failures(), step_jobs(self.spark.spark, f"headwater: {about}", self.spark) as jobs:
                act()
        except LanceNamespaceError as error:
            if failed is None:
                raise
            failed(about, error)
            return False
        self.reports[before:] = [replace(report, where=jobs.where) for report in self.reports[before:]]
        return True

    def left_out_by(self, step: Step) -> Failed | None:
        """Return what takes the error of a step that only concerns a source."""
        return self.left_out if step.do in (CREATE, INGEST) else None


def plan_pipeline(
    pipeline: Pipeline,
    select: Sequence[str] = (),
    full_refresh: Sequence[str] = (),
    again: bool = False,
    say: Say = lambda text: None,
    takes: bool = True,
) -> tuple[Catalog, Plan]:
    """Return the plan of a run now. Changes nothing. `again`: take files again that were undone.

    No code of the pipeline's folder is run: functions are known by their text. `say` names what had to be imported.
    `takes`: plan the live sources too, which a run takes from before it plans the rest.
    """
    catalog, there = open_catalog(pipeline)
    pipeline = with_live_tables(pipeline, catalog)
    facts = gather(catalog, pipeline, there, identified(pipeline, say))
    facts = replace(facts, live=where_next(pipeline, catalog, (*select, *full_refresh)) if takes else {})
    return catalog, make_plan(pipeline, facts, select, full_refresh, again)


def run_pipeline(
    pipeline: Pipeline,
    spark: object = None,
    select: Sequence[str] = (),
    full_refresh: Sequence[str] = (),
    plan_id: str | None = None,
    say: Say = lambda text: None,
    again: bool = False,
    tell: Progress = NO_PROGRESS,
) -> Run:
    """Plan and carry out. With `plan_id` exactly the plan of that id, or ConcurrentModification (14) if it differs.

    `spark`: a session of the caller's; without one the pipeline's engine is started if there is something to do, and
    ended with the run.
    """
    began = time.perf_counter()
    catalog, _ = open_catalog(pipeline)
    try:
        catalog, plan = plan_pipeline(pipeline, select, full_refresh, again)
        if plan_id is not None and plan.id != plan_id:
            raise ConcurrentModificationError(
                f"The plan {plan_id} does not hold any more: something changed since, and the plan is {plan.id} now. "
                "Look at it with --plan, then run that one."
            )
    except LanceNamespaceError as error:
        record_failure(pipeline, catalog, error, say)
        raise
    pipeline = replace(pipeline, engine=pipeline.engine.chosen(None, None, os.environ))
    with (
        recorded(pipeline, catalog, plan.id, say, bool(plan.steps)) as record,
        opened_engine(pipeline, catalog, spark, say, plan.steps) as session,
    ):
        failures: list[LanceNamespaceError] = []

        def failed(about: str, error: LanceNamespaceError) -> None:
            say(f"{about} failed: {error}")
            failures.append(error)
            record.errors.append(str(error))

        takes = tuple(step for step in plan.steps if step.do == TAKE)
        if takes:
            record.begin(say)
            sources, full_refresh = begin_again(pipeline, catalog, select, full_refresh)
            runner = runner_of(session, None, pipeline.engine.driver_rows)
            with LiveReaders(pipeline, catalog, runner, say) as readers:
                record.reports += take_live(readers, sources, failed, say)
            _, plan = plan_pipeline(pipeline, select, full_refresh, again, takes=False)
            plan = replace(plan, steps=(*takes, *plan.steps))
        done = carry_out(pipeline, catalog, plan, session, say, tell, None, failed, began=began, record=record)
        if failures:
            raise failures[0]
        return done


def carry_out(
    pipeline: Pipeline,
    catalog: Catalog,
    plan: Plan,
    spark: object,
    say: Say = lambda text: None,
    tell: Progress = NO_PROGRESS,
    failed: Failed | None = None,
    left_out: Failed | None = None,
    is_ended: Callable[[], bool] = lambda: False,
    began: float | None = None,
    record: RunRecord | None = None,
) -> Run:
    """Do the steps of a plan in a session. With `failed` a step that fails is reported to it, and the others go on;
    with `left_out` those that take from a source.

    `record`: gets the reports of the steps, also of a run that fails.
    """
    began = time.perf_counter() if began is None else began
    pipeline = with_live_tables(pipeline, catalog)
    record = RunRecord(pipeline, catalog, plan.id) if record is None else record
    run = {"pipeline": pipeline.name, "run": record.id, "plan": plan.id}
    runner = runner_of(spark, None if tell is NO_PROGRESS else tell, pipeline.engine.driver_rows)
    running = _Running(pipeline, catalog, runner, run, say, tell, failed, left_out, is_ended, record.reports)
    for name in plan.waiting:
        say(f"{name} waits: {WAITS}")
    for name, files in plan.undone.items():
        say(f"{name}: {many(len(files), 'undone file')} left out until they change: {', '.join(files[:3])}")
    with beside(pipeline.folder):
        if failed is None:
            with naming_failures():
                _check_views(running, plan)
        record.begin(say)
        _carry_out(running, plan)
    for report in running.reports:
        for text in late_warnings(report):
            say(text)
    return Run(run["run"], pipeline.name, plan, tuple(running.reports), time.perf_counter() - began)


def identified(pipeline: Pipeline, say: Say) -> dict[Derived, str]:
    """Return what the functions of a pipeline are known by.

    InvalidInput (13) for one that cannot be found, or an expectation that cannot be run.
    """
    found: dict[Derived, str] = {}
    with naming_section(pipeline.file):
        for spec in pipeline.tables:
            for derived in derived_of(spec.properties):
                with naming_section(f'[table."{spec.name}".columns.{derived.name}]'):
                    found[derived] = planned_identity(derived, say)
            if spec.made_by is not None:
                with naming_section(f'[table."{spec.name}"]'):
                    found[spec.made_by] = planned_identity(spec.made_by, say)
            if spec.schema is not None:
                with naming_section(f'[table."{spec.name}"]'):
                    try_checks(spec.checks, spec.schema)
    return found


def _carry_out(running: _Running, plan: Plan) -> None:
    """Do step after step; the publishes of tables are one commit, and so are those of views."""
    publishes = [step.table for step in plan.steps if step.do == PUBLISH]
    views = [step.table for step in plan.steps if step.do == VIEW]
    broken: set[str] = set()
    for step in plan.steps:
        if running.is_ended():
            return
        if step.table in broken:
            continue
        if step.do == PUBLISH:
            if step.table == publishes[0]:
                broken |= _publish(running, [name for name in publishes if name not in broken])
        elif step.do in STEPS and not running.step(
            f"{step.do} {step.table}: {step.why}", partial(_step, running, step), running.left_out_by(step)
        ):
            if step.do == INGEST:
                if running.failed is not None:
                    _ingest_apart(running, step)
            elif step.do in (CREATE, ALTER, REFRESH, EXPAND):
                broken.add(step.table)
    if views:
        anew = {step.table for step in plan.steps if step.do == REFRESH}
        _make_views(running, [name for name in views if name not in broken], anew)


def _step(running: _Running, step: Step) -> None:
    STEPS[step.do](running, step)


def _publish(running: _Running, names: Sequence[str]) -> set[str]:
    """Publish tables in one commit; if that fails and the run goes on, each alone. Return those that failed."""

    def act(some: Sequence[str]) -> None:
        lineage = {name: {"run": running.run} for name in some}
        may = running.pipeline.publish
        running.reports.append(publish_families(running.spark, running.catalog, may, some, lineage, running.tell))

    if running.step(f"publish {', '.join(names)}", partial(act, names)):
        return set()
    if len(names) == 1:
        return set(names)
    return {name for name in names if not running.step(f"publish {name}", partial(act, [name]))}


# Tables -------------------------------------------------------------------------------------------------------------


def _create(running: _Running, step: Step) -> None:
    if _is_view(running, step):
        return  # its columns are those of its SQL
    definition = _definition(running, running.pipeline.table(step.table))
    if definition is None:
        raise ConcurrentModificationError(f"The files that tell the columns of {step.table} are gone: plan again.")
    running.catalog.create_stream_table(step.table, definition)


def _is_view(running: _Running, step: Step) -> bool:
    return any(view.name == step.table for view in running.pipeline.views)


def _definition(running: _Running, spec: TableSpec) -> Definition | None:
    schema = spec.schema if spec.schema is not None else inferred(running.pipeline, spec, storage_of(running.catalog))
    if schema is None:
        return None
    return define(schema, spec.keys, spec.sequence, (), spec.properties)


def _alter(running: _Running, step: Step) -> None:
    spec, stream = running.pipeline.table(step.table), stream_of(running.catalog, step.table)
    known = stream.definition
    add = {field.name: field.type for field in spec.schema or () if field.name not in known.by_name}
    widen = {}
    for each in spec.schema or ():
        wide = common(known.by_name[each.name].type, each.type) if each.name in known.by_name else None
        if wide is not None and wide != known.by_name[each.name].type:
            widen[each.name] = wide
    if add or widen:
        stream.evolve(add=add, widen=widen)
    stream.set_properties(wanted_properties(known, spec))


def _refresh(running: _Running, step: Step) -> None:
    """Drop and create in one commit: whoever is killed after it goes on with a usual run."""
    if _is_view(running, step):
        return  # its columns are those of its SQL
    definition = _definition(running, running.pipeline.table(step.table))
    if definition is None:
        raise InvalidInputError(f"{step.table} cannot be rebuilt: no file of its sources is there.")
    make_anew(running.catalog, step.table, definition)


def _ingest_apart(running: _Running, step: Step) -> None:
    """Ingest each file of a step alone, so that a bad file does not block the others."""
    for path, digest in step.files if len(step.files) > 1 else ():
        if running.is_ended():
            return
        alone = replace(step, files=((path, digest),))
        running.step(f"{step.do} {step.table}: {path}", partial(_step, running, alone))


def _ingest(running: _Running, step: Step) -> None:
    pipeline, stream = running.pipeline, stream_of(running.catalog, step.table)
    source = next(each for each in pipeline.sources if each.name == step.source)
    paths = [path for path, _ in step.files]
    there = find_files(paths, storage_of(running.catalog), required=False)
    files = [file for file in there if (file.path, file.digest) in set(step.files)]
    if len(files) < len(step.files):
        raise ConcurrentModificationError(f"Files of the source {source.name} changed since it was planned: run again.")
    intake = Intake((), source.format, source.name, False, tuple(pipeline.table(step.table).checks), source.options)
    running.reports.append(ingest_found(running.spark, stream, files, intake, True, running.tell))


def _expand(running: _Running, step: Step) -> None:
    running.reports.append(expand(running.spark, running.catalog, step.table))


def _backfill(running: _Running, step: Step) -> None:
    running.reports.append(backfill(running.spark, running.catalog, step.table, tell=running.tell))


def _index(running: _Running, step: Step) -> None:
    if stream_of(running.catalog, step.table).published is not None:  # without rows a later run does it
        done = index(running.spark, running.catalog, step.table, step.column, step.type, tell=running.tell)
        running.reports.append(done)


STEPS: dict[str, Callable[[_Running, Step], None]] = {
    CREATE: _create,
    ALTER: _alter,
    REFRESH: _refresh,
    INGEST: _ingest,
    EXPAND: _expand,
    BACKFILL: _backfill,
    INDEX: _index,
}


# Views --------------------------------------------------------------------------------------------------------------


def _check_views(running: _Running, plan: Plan) -> None:
    """Raise an error for a view whose SQL the engine refuses, before anything is written."""
    wanted = {step.table for step in plan.steps if step.do == VIEW}
    there = set(running.catalog) if wanted and running.catalog.is_there else set()
    specs = {spec.name: spec for spec in running.pipeline.tables}
    names = {*there, *specs, *(view.name for view in running.pipeline.views)}

    def columns(name: str) -> pa.Schema | None:
        if name in there:
            return schema_of(running.catalog[name])
        spec = specs.get(name)
        if spec is None or spec.schema is None:
            return None  # known when its rows are
        return pa.schema(list(define(spec.schema, spec.keys, spec.sequence, (), spec.properties).shown.values()))

    for view in running.pipeline.views:
        if view.name in wanted:
            found = {name: columns(name) for name in inputs_of(view, names)}
            known = {name: schema for name, schema in found.items() if schema is not None}
            if len(known) == len(found):
                check_view(view, known, running.spark)


def _make_views(running: _Running, names: Sequence[str], anew: Collection[str]) -> None:
    """Compute views at the slot of the tables' publish, one after another, and publish them at one slot."""
    done: list[tuple[MadeView, ViewSpec, Mapping[str, list[object]]]] = []
    lineage: dict[str, dict[str, object]] = {}

    def make(view: ViewSpec) -> None:
        slot = running.catalog.slot
        at = running.catalog.at(slot)
        inputs = inputs_of(view, set(at))
        tables = {each: at[each] for each in inputs}
        moment = ViewMoment(at, slot, inputs)
        made = make_view(running.catalog, view, moment, running.spark, running.say, view.name in anew)
        found = {each: view_input(table) for each, table in tables.items()}
        done.append((made, view, {each: moment_of(at, each) for each in inputs}))
        lineage[view.name] = {"inputs": found, "sql": view.sql, "run": running.run}
        running.reports.append(Report("view", view.name, made.landed.rows, position=made.landed.position))

    def publish_made() -> None:
        running.reports.append(publish(running.spark, running.catalog, *lineage, lineage=lineage))
        for made, view, moments in done:
            remember(made, view, moments)

    for name in names:
        if running.is_ended():
            break
        running.step(f"view {name}", partial(make, next(each for each in running.pipeline.views if each.name == name)))
    if lineage:
        running.step(f"publish {', '.join(lineage)}", publish_made)
