"""The verbs of the pipeline, from `run` to `lineage` (grammar/run.py)."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.cli.output import confirm, is_terminal, show, show_record, show_records, size
from headwater.config import ENGINE_KEYS, load_profile
from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.pipeline import children, jobs, keeping
from headwater.pipeline.checking import check_pipeline, try_views
from headwater.pipeline.executors import NO_PROGRESS
from headwater.pipeline.grammar import Pipeline, read_pipeline
from headwater.pipeline.lineage import DOWNSTREAM, UPSTREAM, downstream, drawing, export_lineage, open_lineage, upstream
from headwater.pipeline.planning import WAITS, Plan, place_of
from headwater.pipeline.run_records import run_of, runs
from headwater.pipeline.running import plan_pipeline, run_pipeline
from headwater.pipeline.watching import SignalledStop, watch, watch_pipeline
from headwater.references import SPARK_PREFIX
from headwater.spark.failures import naming_failures
from headwater.streams.log.checks import Check
from headwater.streams.sources.files import SourceFile
from headwater.streams.sources.formats import check_format, options_of
from headwater.wording import many
from headwater.work import Runner, runner_of
from headwater.work.runners import Progress, step_jobs
from headwater.work.tasks import PipelineEngine, parse_engine

engine_session = when_used("headwater.spark.engine_session")


def _open(args: argparse.Namespace) -> Catalog:
    catalog: Catalog = args.target.catalog()
    return catalog


def run(args: argparse.Namespace) -> int:
    pipeline = read_pipeline(args.file, args.env)
    pipeline = replace(pipeline, engine=pipeline.engine.chosen(args.engine, args.master, os.environ))
    if args.check:
        check_pipeline(pipeline, _say)
        show({"checked": pipeline.file} if args.json else f"{pipeline.file} can be run.", args.json)
        return 0
    if args.plan:
        _, plan = plan_pipeline(pipeline, args.select, args.full_refresh, args.again, _say)
        places = [place_of(step, pipeline) for step in plan.steps]
        show(_plan_object(plan, places) if args.json else shown_plan(plan, places), args.json)
        return 0
    if args.watch:
        return _watch_pipeline(args, pipeline)
    asked = (args.select, args.full_refresh, args.plan_id)
    with shown_progress(args.json) as tell:
        done = run_pipeline(pipeline, None, *asked, _say, args.again, tell)
    if args.json:
        show({"run": done.id, "plan": done.plan.id, "reports": [asdict(each) for each in done.reports]}, True)
    else:
        show("\n".join([*(_line(each) for each in done.reports), _ended(done.plan, done.seconds)]), False)
    return 0


def try_file(args: argparse.Namespace) -> int:
    """Run the tests of a pipeline file; exit 1 if one fails."""
    pipeline = read_pipeline(args.file, args.env)
    engine = pipeline.engine.chosen(args.engine, args.master, os.environ)
    results = []
    if engine.is_spark and pipeline.tests:
        with engine_session.engine_session(engine, say=_say) as session:
            results = try_views(pipeline, session)
    else:
        results = try_views(pipeline)
    if args.json:
        show_records(({**asdict(each), "passed": each.passed} for each in results), True)
    for each in () if args.json else results:
        lines = [f"{'passed' if each.passed else 'FAILED':7} {each.name} ({each.view})"]
        lines += [f"        lacks {row}" for row in each.lacks] + [f"        has   {row}" for row in each.extra]
        show("\n".join([*lines, *([f"        {each.error}"] if each.error else [])]), False)
    if not results:
        _say(f"{pipeline.file} has no [[test]].")
    return 0 if all(each.passed for each in results) else 1


def _watch_pipeline(args: argparse.Namespace, pipeline: Pipeline) -> int:
    """Run a pipeline again and again until Ctrl-C or SIGTERM, which end it after the step in hand."""
    if args.plan_id or args.full_refresh or args.again:
        raise InvalidInputError("--watch does what is new: it takes no --plan-id, --full-refresh or --again.")
    stop = SignalledStop()
    with shown_progress(args.json) as tell:
        rounds = watch_pipeline(pipeline, stop, args.every, args.select, _say, tell, args.metrics, _on_signals(stop))
        for done in rounds:
            for report in done.reports:
                show(asdict(report) if args.json else _line(report), args.json)
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


def _plan_object(plan: Plan, places: Sequence[str]) -> dict[str, object]:
    found = asdict(plan)
    steps = [{**step, "where": place} for step, place in zip(found["steps"], places, strict=True)]
    return {**found, "steps": steps, "id": plan.id}


def shown_plan(plan: Plan, places: Sequence[str]) -> str:
    """Return a plan for people: a line a step with the place where it will run, what is left out, and its id."""
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


def _show(report: jobs.Report, args: argparse.Namespace) -> int:
    show(asdict(report) if args.json else _line(report), args.json)
    return 0


@contextmanager
def _engine(args: argparse.Namespace, catalog: Catalog) -> Iterator[Runner]:
    """Yield the runner of a single verb."""
    engine = _of_profile(args).of_verb(args.engine, args.master)
    if not engine.is_spark:
        yield runner_of(None)
        return
    jobs.check_here(catalog)
    with engine_session.engine_session(engine, None, metastore_of(catalog.namespace).location(), _say) as session:
        yield runner_of(session, driver_rows=engine.driver_rows)


def _of_profile(args: argparse.Namespace) -> PipelineEngine:
    """Return the engine that the profile of the catalog names."""
    name = args.target.resolved.shown
    found = load_profile(name) or {}
    told = {key.removeprefix(SPARK_PREFIX): value for key, value in found.items() if key.startswith(SPARK_PREFIX)}
    engine, master = (found.get(key) for key in ENGINE_KEYS)
    return parse_engine(engine, master, told, f"The profile {name!r}:")


def _job(args: argparse.Namespace, about: str, act: Callable[[Any, Catalog, Progress], jobs.Report]) -> int:
    """Do one job on the engine that the line or the profile names, and show its report."""
    catalog = _open(args)
    with shown_progress(args.json) as tell, _engine(args, catalog) as spark, naming_failures():
        with step_jobs(spark.spark, f"headwater: {about}", spark) as counted:
            done = act(spark, catalog, tell)
        return _show(replace(done, where=counted.where), args)


def ingest(args: argparse.Namespace) -> int:
    source = args.source if "://" in args.source else Path(args.source)
    options = options_of(args.format, dict(args.option))
    check_format(args.format, options)
    if args.watch:
        catalog = _open(args)
        with _engine(args, catalog) as spark:
            return _watch(args, spark, catalog, source, options)
    asked = (args.table, source, args.format, args.name, args.strict)

    def act(spark: object, catalog: Catalog, tell: Progress) -> jobs.Report:
        return jobs.ingest(spark, catalog, *asked, again=args.again, tell=tell, **options)

    return _job(args, f"ingest {args.table}", act)


def _watch(args: argparse.Namespace, spark: object, catalog: Catalog, source: Any, options: Mapping[str, Any]) -> int:
    """Take files until Ctrl-C or SIGTERM: the file that is being taken is finished, and so is the command."""
    stop = SignalledStop()

    def failed(file: SourceFile, error: Exception) -> None:
        print(f"{file.path} was not taken: {error}", file=sys.stderr, flush=True)

    _on_signals(stop)
    how = {"stop": stop, "every": args.every, "publishes": args.publish, "failed": failed}
    for report in watch(spark, catalog, args.table, source, args.format, args.name, **how, **options):
        _show(report, args)
        sys.stdout.flush()
    return 0


def publish(args: argparse.Namespace) -> int:
    if not args.tables:
        raise InvalidInputError("Name the stream tables to publish.")
    about = f"publish {', '.join(args.tables)}"
    return _job(args, about, lambda spark, catalog, tell: jobs.publish(spark, catalog, *args.tables, tell=tell))


def backfill(args: argparse.Namespace) -> int:
    def act(spark: object, catalog: Catalog, tell: Progress) -> jobs.Report:
        return jobs.backfill(spark, catalog, args.table, args.rows, args.batch, tell)

    return _job(args, f"backfill {args.table}", act)


def index(args: argparse.Namespace) -> int:
    def act(spark: object, catalog: Catalog, tell: Progress) -> jobs.Report:
        return keeping.index(spark, catalog, args.table, args.column, args.type, tell=tell)

    return _job(args, f"index {args.table}", act)


def maintain(args: argparse.Namespace) -> int:
    return _job(
        args, "maintain", lambda spark, catalog, tell: keeping.maintain(spark, catalog, *args.tables, tell=tell)
    )


def undo_source(args: argparse.Namespace) -> int:
    def act(spark: object, catalog: Catalog, tell: Progress) -> jobs.Report:
        return children.undo_source(spark, catalog, args.table, args.source, args.file, args.digest)

    return _job(args, f"undo {args.table or args.source}", act)


def quarantine(args: argparse.Namespace) -> int:
    if args.retry and args.drop:
        raise InvalidInputError("Say one of --retry and --drop.")
    table = jobs.log_of(_open(args), args.table)
    chosen = {"reason": args.reason, "source": args.source}
    if args.retry:
        checks: dict[str, Any] = {"checks": _checks(args.pipeline, args.table)} if args.pipeline else {}
        done = table.retry_quarantined(**chosen, **checks)
        told = f"{many(done.rows, 'row')} taken again, {done.quarantined:,} stay, position {done.position}"
        show(asdict(done) if args.json else f"{args.table}: {told}", args.json)
        left = set(table.quarantine().column("reason").to_pylist()) if done.quarantined and not args.json else set()
        if not checks and any(str(reason).startswith("check:") for reason in left):
            show(
                "They were judged by the expectations as they landed: --pipeline FILE judges by those of a file.", False
            )
    elif args.drop:
        confirm(args, f"This will drop rows from the quarantine of {args.table}.")
        dropped = table.drop_quarantined(**chosen)
        show({"dropped": dropped} if args.json else f"{args.table}: {many(dropped, 'row')} dropped", args.json)
    else:
        rows = table.quarantine().select(["reason", "column", "source", "row", "position", "time"]).to_pylist()
        kept = [row for row in rows if all(each in (None, row[name]) for name, each in chosen.items())]
        if not (is_terminal() and not args.json):
            kept = [{**row, "time": row["time"].isoformat(timespec="seconds")} for row in kept]
        show_records(kept, args.json, "the quarantine is empty", wrapped=("row", "source", "reason"))
    return 0


def _checks(file: str, table: str) -> Sequence[Check]:
    """Return the expectations that a pipeline file has of a table."""
    found = {spec.name: spec.checks for spec in read_pipeline(file).tables}
    if table not in found:
        raise InvalidInputError(f"{file} has no table {table!r}: {', '.join(found)}.")
    return found[table]


def show_runs(args: argparse.Namespace) -> int:
    if args.action not in (None, "show") or (args.action == "show") != (args.id is not None):
        raise InvalidInputError("`headwater runs` is followed by nothing, or by show ID.")
    catalog = _open(args)
    if args.action == "show":
        found = run_of(catalog, args.id)
        show_record(_run_shown({**found, "steps": json.loads(found["steps"])}), args.json)
        return 0
    listed = list(runs(catalog, args.pipeline, args.limit))
    short = is_terminal() and not args.json
    shown = (_run_line(row) if short else {name: _run_shown(row)[name] for name in RUN_FIELDS} for row in listed)
    show_records(shown, args.json, "no pipeline has run in this catalog")
    for row in listed if short else ():
        if row["error"]:
            show(f"{row['run'][:8]} failed: {row['error']}", False)
    return 0


RUN_FIELDS = ("run", "pipeline", "state", "began", "seconds", "rows", "quarantined", "late", "who", "where", "error")


def _run_line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a terminal shows of a run in one line; `runs show ID` has the rest."""
    named = ("pipeline", "state", "began", "seconds", "rows", "quarantined")
    return {"run": row["run"][:8], **{name: row[name] for name in named}, "seconds": round(row["seconds"] or 0, 1)}


def _run_shown(row: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: row[name].isoformat(timespec="seconds") for name in ("began", "ended") if row[name] is not None}
    return {**row, **times}


def lineage(args: argparse.Namespace) -> int:
    if args.upstream and args.downstream:
        raise InvalidInputError("Say one of --upstream and --downstream.")
    catalog = _open(args)
    way = DOWNSTREAM if args.downstream else UPSTREAM
    if args.open_lineage:
        export_lineage(open_lineage(catalog, [args.table]), args.open_lineage, args.token)
    node = (downstream if args.downstream else upstream)(catalog, args.table)
    show(asdict(node) if args.json else "\n".join(drawing(node, way)), args.json)
    return 0


PLAIN_S = 5.0
"""Without a terminal a line comes when a stage begins, and then so many seconds apart."""


class Bar:
    """A bar for each stage: tasks, rows, bytes, and the time that is left."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = RichProgress(*columns, console=console, transient=True, expand=True)
        self._task: Any = None
        self._rows = self._bytes = self._all = self._done = self._tasks = 0

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        self._rows = self._bytes = 0
        self._all = bytes
        self._done, self._tasks = 0, max(tasks, 1)
        self._task = self.progress.add_task(name, total=self._tasks, told="")

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        self._rows, self._bytes = self._rows + rows, self._bytes + bytes
        self.at(self._done + tasks, self._tasks)

    def at(self, done: int, of: int) -> None:
        if self._task is None:
            return
        self._done, self._tasks = min(done, of), of
        shown = amounts(self._rows, self._bytes, self._all)
        self.progress.update(self._task, completed=self._done, total=of, told=shown)


class Lines:
    """Plain lines: the stages, and now and then how far one is."""

    def __init__(self) -> None:
        self._name, self._tasks, self._all = "", 0, 0
        self._done = self._rows = self._bytes = 0
        self._last = time.monotonic()

    def stage(self, name: str, tasks: int, bytes: int = 0) -> None:
        self._name, self._tasks, self._all = name, tasks, bytes
        self._done = self._rows = self._bytes = 0
        self._say(f"{name}: {many(tasks, 'task')}" + (f", {size(bytes)}" if bytes else ""))

    def step(self, tasks: int = 1, rows: int = 0, bytes: int = 0) -> None:
        self._rows, self._bytes = self._rows + rows, self._bytes + bytes
        self.at(self._done + tasks, self._tasks)

    def at(self, done: int, of: int) -> None:
        self._done, self._tasks = min(done, of), of
        if time.monotonic() - self._last >= PLAIN_S:
            self._say(f"{self._name}: {self._done}/{self._tasks} tasks {amounts(self._rows, self._bytes, self._all)}")

    def _say(self, text: str) -> None:
        self._last = time.monotonic()
        print(text.rstrip(), file=sys.stderr, flush=True)


def amounts(rows: int, bytes: int, of: int) -> str:
    parts = [many(rows, "row")] if rows else []
    if of:
        parts.append(f"{size(bytes)} of {size(of)}")
    return ", ".join(parts)


@contextmanager
def shown_progress(quiet: bool = False) -> Iterator[Progress]:
    """Return what shows the progress of a job: a bar on a terminal, else lines; nothing with --json."""
    if quiet:
        yield NO_PROGRESS
        return
    if not sys.stderr.isatty():
        yield Lines()
        return
    bar = Bar(Console(stderr=True))
    with bar.progress:
        yield bar
