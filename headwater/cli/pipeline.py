"""The verbs of the pipeline: run, ingest, publish, backfill, maintain, undo, lineage."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headwater.catalog import Catalog
from headwater.cli.output import show
from headwater.cli.serving import properties_of
from headwater.errors import InvalidInputError
from headwater.pipeline import jobs
from headwater.pipeline.grammar import read_pipeline
from headwater.pipeline.lineage import DOWNSTREAM, UPSTREAM, downstream, drawing, open_lineage, upstream
from headwater.pipeline.planning import Plan
from headwater.pipeline.running import plan_pipeline, run_pipeline
from headwater.streams.sources.formats import FORMATS


def add_pipeline(verbs: Any) -> None:
    """The arguments of every verb of the pipeline."""
    run = verbs.add_parser("run", help="run a pipeline file: take in, publish and compute what is new")
    run.add_argument("file", help="a pipeline file, such as pipeline.toml")
    run.add_argument("--plan", action="store_true", help="only show what it would do and why, and the plan's id")
    run.add_argument("--plan-id", help="do exactly the plan of this id, or nothing")
    run.add_argument("--select", action="append", default=[], metavar="TABLE", help="only this one (repeatable)")
    run.add_argument("--full-refresh", action="append", default=[], metavar="TABLE", help="make it anew (repeatable)")
    run.add_argument("--json", action="store_true", help="print JSON")
    run.set_defaults(run=_run)
    ingest = _catalog_verb(verbs, "ingest", "take change data from files into a stream table", _ingest)
    ingest.add_argument("source", help="files, by path or glob")
    ingest.add_argument("--format", choices=tuple(FORMATS), default="rows", help="what the files hold (rows)")
    ingest.add_argument("--name", help="the name of the source")
    ingest.add_argument("--strict", action="store_true", help="refuse everything when a row is bad")
    publish = _catalog_verb(verbs, "publish", "publish stream tables at one slot", _publish, several=True)
    publish.description = "Make the serving copies equal to the newest state, all in one commit."
    backfill = _catalog_verb(verbs, "backfill", "compute stale derived values of a stream table again", _backfill)
    backfill.add_argument("--rows", type=int, help="about so many, in one version (all)")
    _catalog_verb(verbs, "maintain", "rewrite worn fragments, collect what is past retention", _maintain, several=True)
    undo = _catalog_verb(verbs, "undo", "take out what came from a source or a file, and publish the difference", _undo)
    undo.add_argument("--source", help="the name of the source")
    undo.add_argument("--file", help="one of its files")
    lineage = _catalog_verb(verbs, "lineage", "show what a table comes from, or what comes from it", _lineage)
    way = lineage.add_mutually_exclusive_group()
    way.add_argument("--upstream", action="store_true", help="what it comes from (as without this)")
    way.add_argument("--downstream", action="store_true", help="what comes from it")
    lineage.add_argument("--open-lineage", metavar="FILE", help="write OpenLineage events, one a line, to this file")


def _catalog_verb(verbs: Any, name: str, about: str, run: Any, several: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=about)
    parser.add_argument("catalog", help="a path, a URI, or the name of a profile")
    if several:
        parser.add_argument("tables", nargs="*", help="stream tables, such as raw.orders (all)")
    else:
        parser.add_argument("table", help="a stream table, such as raw.orders")
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="as `connect` takes them")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _open(given: argparse.Namespace) -> Catalog:
    return Catalog(given.catalog, **properties_of(given.property))


def _run(given: argparse.Namespace) -> int:
    pipeline = read_pipeline(given.file)
    if given.plan:
        _, plan = plan_pipeline(pipeline, given.select, given.full_refresh)
        show({**asdict(plan), "id": plan.id} if given.json else shown_plan(plan), given.json)
        return 0
    done = run_pipeline(
        pipeline, None, given.select, given.full_refresh, given.plan_id, lambda text: print(text, file=sys.stderr)
    )
    if given.json:
        show({"run": done.id, "plan": done.plan.id, "reports": [asdict(each) for each in done.reports]}, True)
    else:
        show("\n".join([*(_line(each) for each in done.reports), _ended(done.plan, done.seconds)]), False)
    return 0


def shown_plan(plan: Plan) -> str:
    """A plan for people: a line a step, what is left out, and its id."""
    lines = []
    for step in plan.steps:
        size = f", {step.bytes:,} bytes" if step.bytes is not None else ""
        rows = f", {step.rows:,} rows" if step.rows else ""
        source = f" from {step.source}" if step.source else ""
        lines.append(f"{step.do:9} {step.table}{source}: {step.why}{size}{rows}")
    known = sum(plan.skipped.values())
    lines.append(f"{'nothing to do' if not plan.steps else f'{len(plan.steps)} steps'}; {known} files are known")
    return "\n".join([*lines, f"plan {plan.id}"])


def _ended(plan: Plan, seconds: float) -> str:
    return f"{'Nothing was new' if not plan.steps else 'Done'} ({seconds:.1f} s)."


def _line(report: jobs.Report) -> str:
    if report.parts:
        return "\n".join(_line(part) for part in report.parts)
    counts = [f"{report.rows:,} rows"]
    for name in ("files", "quarantined", "late", "skipped"):
        if getattr(report, name):
            counts.append(f"{getattr(report, name):,} {name}")
    counts += [f"{count:,} rows fail {name}" for name, count in report.checks.items()]
    at = f"position {report.position}" if report.position else ""
    version = f"version {report.version}" if report.version else ""
    return f"{report.job:9} {report.table}: {', '.join([*counts, *filter(None, (at, version))])}"


def _show(report: jobs.Report, given: argparse.Namespace) -> int:
    show(asdict(report) if given.json else _line(report), given.json)
    return 0


def _ingest(given: argparse.Namespace) -> int:
    source = Path(given.source)
    return _show(jobs.ingest(None, _open(given), given.table, source, given.format, given.name, given.strict), given)


def _publish(given: argparse.Namespace) -> int:
    if not given.tables:
        raise InvalidInputError("Name the stream tables to publish.")
    return _show(jobs.publish(None, _open(given), *given.tables), given)


def _backfill(given: argparse.Namespace) -> int:
    return _show(jobs.backfill(None, _open(given), given.table, given.rows), given)


def _maintain(given: argparse.Namespace) -> int:
    return _show(jobs.maintain(None, _open(given), *given.tables), given)


def _undo(given: argparse.Namespace) -> int:
    return _show(jobs.undo(None, _open(given), given.table, given.source, given.file), given)


def _lineage(given: argparse.Namespace) -> int:
    catalog = _open(given)
    way = DOWNSTREAM if given.downstream else UPSTREAM
    if given.open_lineage:
        events = open_lineage(catalog, [given.table])
        Path(given.open_lineage).write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    node = (downstream if given.downstream else upstream)(catalog, given.table)
    show(asdict(node) if given.json else "\n".join(drawing(node, way)), given.json)
    return 0
