"""The pages of what runs over the catalog: pipeline runs, and the lineage of all tables."""

from __future__ import annotations

from typing import Any

from headwater.errors import LanceNamespaceError
from headwater.names import ObjectId, parse_name
from headwater.rest.page.page_facts import RUNS, LineageFacts, RunFact, RunFacts
from headwater.rest.routes import Permission
from headwater.web.drawings import draw
from headwater.web.visit import Page, RequestContext

LISTED = 100
FAILED = "failed"
NAMESPACE_NOT_FOUND, TABLE_NOT_FOUND = 1, 4


def runs_page(visit: RequestContext) -> Page:
    """Return the page of pipeline runs, newest first, each with its steps and the tables that they wrote."""
    found = runs_of(visit)
    kept = [run for run in found.runs if visit.keeps(run.pipeline, run.state, run.error or "", run.who or "", run.run)]
    tables = {step.table: _table(step.table) for run in kept for step in run.steps if step.table}
    values = {
        "tables": tables,
        "writable": {name for name, id in tables.items() if visit.may(Permission.WRITE, id)},
        "readable": {name for name, id in tables.items() if visit.caller.may(Permission.SELECT, id)},
    }
    return Page("runs.html", {"runs": kept, "total": found.total, "title": "Runs", **values})


def runs_of(visit: RequestContext) -> RunFacts:
    """Return the newest runs; none where no pipeline has run yet."""
    try:
        found: RunFacts = visit.question("PageRuns", RUNS, limit=LISTED)
    except LanceNamespaceError as error:
        if int(error.code) not in (NAMESPACE_NOT_FOUND, TABLE_NOT_FOUND):
            raise
        return RunFacts([], 0)
    return found


def _table(name: str) -> ObjectId:
    return ObjectId(parse_name(name))


def lineage_page(visit: RequestContext) -> Page:
    """Return the lineage of the tables that the visitor may see, with freshness, and pipelines that fail."""
    found: LineageFacts = visit.question("PageCatalogLineage", word=visit.wanted)
    failed, now = failing(visit), visit.served.clock.now_ms()
    values: dict[str, Any] = {
        "drawing": draw(found, visit.links, now, {run.pipeline for run in failed}) if found.boxes else "",
        "facts": found,
        "stale": [box for box in found.boxes.values() if box.state],
        "failing": failed,
        "title": "Lineage",
    }
    return Page("catalog_lineage.html", values)


def failing(visit: RequestContext) -> list[RunFact]:
    """Return the newest run of each pipeline if it failed, as far as the visitor may read the runs."""
    if not visit.caller.may(Permission.SELECT, RUNS):
        return []
    newest: dict[str, RunFact] = {}
    for run in runs_of(visit).runs:
        newest.setdefault(run.pipeline, run)
    return [run for run in newest.values() if run.state == FAILED]
