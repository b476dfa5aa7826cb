"""The verbs of the pipeline: run, ingest, publish, backfill, maintain, undo, lineage (grammar/pipeline.py)."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.cli.output import show
from headwater.cli.progress import telling
from headwater.config import ENGINE_KEYS, load_profile
from headwater.errors import InvalidInputError
from headwater.pipeline import jobs, keeping
from headwater.pipeline.exporting import export_lineage
from headwater.pipeline.grammar import Pipeline, read_pipeline
from headwater.pipeline.lineage import DOWNSTREAM, UPSTREAM, downstream, drawing, open_lineage, upstream
from headwater.pipeline.planning import WAITS, Plan, place_of
from headwater.pipeline.progress import Teller
from headwater.pipeline.running import plan_pipeline, run_pipeline
from headwater.pipeline.watching import SignalledStop, watch, watch_pipeline
from headwater.references import SPARK_PREFIX
from headwater.spark.failures import naming_failures
from headwater.streams.sources.files import SourceFile
from headwater.streams.sources.formats import check_format, options_of
from headwater.wording import many
from headwater.work import Runner, runner_of
from headwater.work.engine import Engine, parse_engine
from headwater.work.spark_jobs import step_jobs


def _open(given: argparse.Namespace) -> Catalog:
    catalog: Catalog = given.target.catalog()
    return catalog


def run(given: argparse.Namespace) -> int:
    pipeline = read_pipeline(given.file)
    pipeline = replace(pipeline, engine=pipeline.engine.chosen(given.engine, given.master, os.environ))
    if given.plan:
        _, plan = plan_pipeline(pipeline, given.select, given.full_refresh, given.again, _say)
        places = [place_of(step, pipeline) for step in plan.steps]
        show(_plan_object(plan, places) if given.json else shown_plan(plan, places), given.json)
        return 0
    if given.watch:
        return _watch_pipeline(given, pipeline)
    asked = (given.select, given.full_refresh, given.plan_id)
    with telling(given.json) as tell:
        done = run_pipeline(pipeline, None, *asked, _say, given.again, tell)
    if given.json:
        show({"run": done.id, "plan": done.plan.id, "reports": [asdict(each) for each in done.reports]}, True)
    else:
        show("\n".join([*(_line(each) for each in done.reports), _ended(done.plan, done.seconds)]), False)
    return 0


def _watch_pipeline(given: argparse.Namespace, pipeline: Pipeline) -> int:
    """Run a pipeline again and again until Ctrl-C or SIGTERM, which end it after the step in hand."""
    if given.plan_id or given.full_refresh or given.again:
        raise InvalidInputError("--watch does what is new: it takes no --plan-id, --full-refresh or --again.")
    stop = SignalledStop()
    with telling(given.json) as tell:
        rounds = watch_pipeline(pipeline, stop, given.every, given.select, _say, tell, given.metrics, _on_signals(stop))
        for done in rounds:
            for report in done.reports:
                show(asdict(report) if given.json else _line(report), given.json)
            sys.stdout.flush()
    return 0


def _on_signals(stop: SignalledStop) -> Callable[[], None]:
    """Return what makes SIGINT and SIGTERM set a stop. PySpark handles SIGINT itself when a session starts."""

    def install() -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: stop.set())

    install()
    return install


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _plan_object(plan: Plan, places: Sequence[str]) -> dict[str, Any]:
    found = asdict(plan)
    steps = [{**step, "where": place} for step, place in zip(found["steps"], places, strict=True)]
    return {**found, "steps": steps, "id": plan.id}


def shown_plan(plan: Plan, places: Sequence[str]) -> str:
    """A plan for people: a line a step with the place where it will run, what is left out, and its id."""
    lines = []
    for step, place in zip(plan.steps, places, strict=True):
        size = f", {step.bytes:,} bytes" if step.bytes is not None else ""
        rows = f", {many(step.rows, 'row')}" if step.rows else ""
        source = f" from {step.source}" if step.source else ""
        lines.append(f"{step.do:9} {step.table}{source}: {step.why}{size}{rows} [{place}]")
    lines += [f"{'waits':9} {name}: {WAITS}" for name in plan.waiting]
    for name, files in plan.undone.items():
        lines.append(f"{'left out':9} {many(len(files), 'undone file')} of {name}: --again takes them")
    for each in plan.stays:
        told = f"the file names no {each.type} index of {each.column}"
        lines.append(f"{'stays':9} {each.table}: {told}: headwater index {each.table} drop {each.index}")
    known = sum(plan.skipped.values())
    steps = many(len(plan.steps), "step") if plan.steps else "nothing to do"
    lines.append(f"{steps}; {many(known, 'known file')}")
    return "\n".join([*lines, f"plan {plan.id}"])


def _ended(plan: Plan, seconds: float) -> str:
    return f"{'Nothing was new' if not plan.steps else 'Done'} ({seconds:.1f} s)."


def _line(report: jobs.Report) -> str:
    if report.parts:
        names = ", ".join(part.table for part in report.parts)
        lines = [_line(part) for part in report.parts]
        return "\n".join([*lines, *([f"{report.job:9} {names}: {_where(report)}"] if report.where else [])])
    counts = [many(report.rows, "row")]
    counts += [many(report.files, "file")] if report.files else []
    for name in ("quarantined", "late", "skipped"):
        if getattr(report, name):
            told = "taken out of the quarantine" if (report.job, name) == ("undo", "quarantined") else name
            counts.append(f"{getattr(report, name):,} {told}")
    counts += [f"{name} fails for {many(count, 'row')}" for name, count in report.checks.items()]
    counts += [f"{many(report.undone, 'undone file')} left out (--again takes them)"] if report.undone else []
    counts += [f"{name} covers {part:.0%}" for name, part in report.coverage.items()]
    counts += [f"{many(report.stale, 'row')} to backfill (headwater backfill {report.table})"] if report.stale else []
    at = f"position {report.position}" if report.position else ""
    version = f"version {report.version}" if report.version else ""
    return f"{report.job:9} {report.table}: {', '.join([*counts, *filter(None, (at, version, _where(report)))])}"


def _where(report: jobs.Report) -> str:
    if report.where is None:
        return ""
    where = report.where
    return f"{where.place} ({many(where.jobs, 'job')}, {many(where.tasks, 'task')})" if where.tasks else where.place


def _show(report: jobs.Report, given: argparse.Namespace) -> int:
    show(asdict(report) if given.json else _line(report), given.json)
    return 0


@contextmanager
def _engine(given: argparse.Namespace, catalog: Catalog) -> Iterator[Runner]:
    """Yield the runner of a single verb."""
    engine = _of_profile(given).of_verb(given.engine, given.master)
    if not engine.is_spark:
        yield runner_of(None)
        return
    from headwater.spark.engine import engine_session

    jobs.check_here(catalog)
    with engine_session(engine, None, metastore_of(catalog.namespace).location(), _say) as session:
        yield runner_of(session, driver_rows=engine.driver_rows)


def _of_profile(given: argparse.Namespace) -> Engine:
    """Return the engine that the profile of the catalog names."""
    name = given.target.resolved.shown
    found = load_profile(name) or {}
    told = {key.removeprefix(SPARK_PREFIX): value for key, value in found.items() if key.startswith(SPARK_PREFIX)}
    engine, master = (found.get(key) for key in ENGINE_KEYS)
    return parse_engine(engine, master, told, f"The profile {name!r}:")


def _job(given: argparse.Namespace, about: str, act: Callable[[Any, Catalog, Teller], jobs.Report]) -> int:
    """Do one job on the engine that the line or the profile names, and show its report."""
    catalog = _open(given)
    with telling(given.json) as tell, _engine(given, catalog) as spark, naming_failures():
        with step_jobs(spark.spark, f"headwater: {about}") as counted:
            done = act(spark, catalog, tell)
        return _show(replace(done, where=counted.where), given)


def ingest(given: argparse.Namespace) -> int:
    source = given.source if "://" in given.source else Path(given.source)
    options = options_of(given.format, dict(given.option))
    check_format(given.format, options)
    if given.watch:
        catalog = _open(given)
        with _engine(given, catalog) as spark:
            return _watch(given, spark, catalog, source, options)
    asked = (given.table, source, given.format, given.name, given.strict)

    def act(spark: Any, catalog: Catalog, tell: Teller) -> jobs.Report:
        return jobs.ingest(spark, catalog, *asked, again=given.again, tell=tell, **options)

    return _job(given, f"ingest {given.table}", act)


def _watch(given: argparse.Namespace, spark: Any, catalog: Catalog, source: Any, options: Mapping[str, Any]) -> int:
    """Take files until Ctrl-C or SIGTERM: the file that is being taken is finished, and so is the command."""
    stop = SignalledStop()

    def failed(file: SourceFile, error: Exception) -> None:
        print(f"{file.path} was not taken: {error}", file=sys.stderr, flush=True)

    _on_signals(stop)
    how = {"stop": stop, "every": given.every, "publishes": given.publish, "failed": failed}
    for report in watch(spark, catalog, given.table, source, given.format, given.name, **how, **options):
        _show(report, given)
        sys.stdout.flush()
    return 0


def publish(given: argparse.Namespace) -> int:
    if not given.tables:
        raise InvalidInputError("Name the stream tables to publish.")
    about = f"publish {', '.join(given.tables)}"
    return _job(given, about, lambda spark, catalog, tell: jobs.publish(spark, catalog, *given.tables, tell=tell))


def backfill(given: argparse.Namespace) -> int:
    def act(spark: Any, catalog: Catalog, tell: Teller) -> jobs.Report:
        return jobs.backfill(spark, catalog, given.table, given.rows, given.batch, tell)

    return _job(given, f"backfill {given.table}", act)


def index(given: argparse.Namespace) -> int:
    def act(spark: Any, catalog: Catalog, tell: Teller) -> jobs.Report:
        return keeping.index(spark, catalog, given.table, given.column, given.type, tell=tell)

    return _job(given, f"index {given.table}", act)


def maintain(given: argparse.Namespace) -> int:
    return _job(
        given, "maintain", lambda spark, catalog, tell: keeping.maintain(spark, catalog, *given.tables, tell=tell)
    )


def undo(given: argparse.Namespace) -> int:
    def act(spark: Any, catalog: Catalog, tell: Teller) -> jobs.Report:
        return jobs.undo(spark, catalog, given.table, given.source, given.file, given.digest)

    return _job(given, f"undo {given.table or given.source}", act)


def lineage(given: argparse.Namespace) -> int:
    if given.upstream and given.downstream:
        raise InvalidInputError("Say one of --upstream and --downstream.")
    catalog = _open(given)
    way = DOWNSTREAM if given.downstream else UPSTREAM
    if given.open_lineage:
        export_lineage(open_lineage(catalog, [given.table]), given.open_lineage, given.token)
    node = (downstream if given.downstream else upstream)(catalog, given.table)
    show(asdict(node) if given.json else "\n".join(drawing(node, way)), given.json)
    return 0
