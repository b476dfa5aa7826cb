"""The verbs of the pipeline: run, ingest, publish, backfill, maintain, undo, lineage (grammar/pipeline.py)."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headwater.catalog import Catalog
from headwater.cli.output import show
from headwater.cli.progress import telling
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.pipeline import jobs, keeping
from headwater.pipeline.exporting import export_lineage
from headwater.pipeline.grammar import read_pipeline
from headwater.pipeline.lineage import DOWNSTREAM, UPSTREAM, downstream, drawing, open_lineage, upstream
from headwater.pipeline.planning import WAITS, Plan
from headwater.pipeline.running import plan_pipeline, run_pipeline
from headwater.pipeline.watching import SignalledStop, watch
from headwater.streams.sources.files import SourceFile
from headwater.streams.sources.formats import check_format, options_of
from headwater.wording import many


def _open(given: argparse.Namespace) -> Catalog:
    catalog: Catalog = given.target.catalog()
    return catalog


def run(given: argparse.Namespace) -> int:
    pipeline = read_pipeline(given.file)
    if given.plan:
        _, plan = plan_pipeline(pipeline, given.select, given.full_refresh, given.again, _say)
        show({**asdict(plan), "id": plan.id} if given.json else shown_plan(plan), given.json)
        return 0
    spark = _session(given.spark)
    asked = (given.select, given.full_refresh, given.plan_id)
    with telling(given.json) as tell:
        done = run_pipeline(pipeline, spark, *asked, _say, given.again, tell)
    if given.json:
        show({"run": done.id, "plan": done.plan.id, "reports": [asdict(each) for each in done.reports]}, True)
    else:
        show("\n".join([*(_line(each) for each in done.reports), _ended(done.plan, done.seconds)]), False)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def shown_plan(plan: Plan) -> str:
    """A plan for people: a line a step, what is left out, and its id."""
    lines = []
    for step in plan.steps:
        size = f", {step.bytes:,} bytes" if step.bytes is not None else ""
        rows = f", {many(step.rows, 'row')}" if step.rows else ""
        source = f" from {step.source}" if step.source else ""
        lines.append(f"{step.do:9} {step.table}{source}: {step.why}{size}{rows}")
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
        return "\n".join(_line(part) for part in report.parts)
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
    return f"{report.job:9} {report.table}: {', '.join([*counts, *filter(None, (at, version))])}"


def _show(report: jobs.Report, given: argparse.Namespace) -> int:
    show(asdict(report) if given.json else _line(report), given.json)
    return 0


def ingest(given: argparse.Namespace) -> int:
    source = given.source if "://" in given.source else Path(given.source)
    options = options_of(given.format, dict(given.option))
    check_format(given.format, options)
    spark = _session(given.spark)
    if given.watch:
        return _watch(given, spark, source, options)
    asked = (given.table, source, given.format, given.name, given.strict)
    with telling(given.json) as tell:
        done = jobs.ingest(spark, _open(given), *asked, again=given.again, tell=tell, **options)
    return _show(done, given)


def _watch(given: argparse.Namespace, spark: Any, source: Any, options: Mapping[str, Any]) -> int:
    """Until Ctrl-C (or a polite kill): the file that is being taken is finished, and so is the command."""
    stop = SignalledStop()

    def failed(file: SourceFile, error: Exception) -> None:
        print(f"{file.path} was not taken: {error}", file=sys.stderr, flush=True)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    how = {"stop": stop, "every": given.every, "publishes": given.publish, "failed": failed}
    for report in watch(spark, _open(given), given.table, source, given.format, given.name, **how, **options):
        _show(report, given)
        sys.stdout.flush()
    return 0


def _session(master: str | None) -> Any:
    """A Spark session of this process, if one was asked for."""
    if master is None:
        return None
    from headwater.spark.session import session_of

    try:
        return session_of(master)
    except ModuleNotFoundError:
        raise UnsupportedOperationError("--spark needs PySpark: pip install 'headwater[spark]'.") from None


def publish(given: argparse.Namespace) -> int:
    if not given.tables:
        raise InvalidInputError("Name the stream tables to publish.")
    with telling(given.json) as tell:
        done = jobs.publish(_session(given.spark), _open(given), *given.tables, tell=tell)
    return _show(done, given)


def backfill(given: argparse.Namespace) -> int:
    with telling(given.json) as tell:
        done = jobs.backfill(_session(given.spark), _open(given), given.table, given.rows, given.batch, tell)
    return _show(done, given)


def index(given: argparse.Namespace) -> int:
    with telling(given.json) as tell:
        done = keeping.index(_session(given.spark), _open(given), given.table, given.column, given.type, tell=tell)
    return _show(done, given)


def maintain(given: argparse.Namespace) -> int:
    with telling(given.json) as tell:
        done = keeping.maintain(_session(given.spark), _open(given), *given.tables, tell=tell)
    return _show(done, given)


def undo(given: argparse.Namespace) -> int:
    return _show(jobs.undo(None, _open(given), given.table, given.source, given.file, given.digest), given)


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
