"""Records of runs: each run of a pipeline is a row of `system.runs`, a stream table of the pipeline's catalog.

The beginning and the end of a run are landed as two changes of its row. A run that was killed has no end; a later run
on the same machine sees that its process is gone, and notes it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.transactions import metastore_of
from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError
from headwater.names import format_name
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline.grammar import Pipeline
from headwater.pipeline.hooks import notify
from headwater.pipeline.jobs import Report
from headwater.pipeline.views import Say
from headwater.streams import layout
from headwater.tables.expressions import quoted

RUNS = format_name(layout.RUNS)
RUNNING, DONE, FAILED, KILLED = "running", "done", "failed", "killed"
_TIME: Any = pa.timestamp("us", "UTC")
_COLUMNS: dict[str, Any] = {
    "run": pa.string(),
    "pipeline": pa.string(),
    "state": pa.string(),
    "began": _TIME,
    "ended": _TIME,
    "seconds": pa.float64(),
    "rows": pa.int64(),
    "quarantined": pa.int64(),
    "late": pa.int64(),
    "error": pa.string(),
    "plan": pa.string(),
    "who": pa.string(),
    "where": pa.string(),
    "host": pa.string(),
    "process": pa.string(),
    "watch": pa.bool_(),
    "steps": pa.string(),
}
SCHEMA = pa.schema(_COLUMNS)
"""`steps` is JSON: an object for each table of each step. `where`: the engine, and the places in which steps ran."""
BEGIN, END = "begin:", "end:"
"""The sources of the two changes of a run: the deltas tell which runs have no end, and no row is read for that."""
RECENT = 200
PUBLISH_AFTER = 64
"""The table is published when so many changes wait, so that reads stay cheap."""
FORGOTTEN = timedelta(days=1)
"""A run of another machine that has no end after this time counts as killed."""
LOOKS = ("ingest", "publish", "view")
"""Jobs that may find nothing to do."""
STEP = ("job", "table", "rows", "files", "quarantined", "late", "seconds", "position", "version")


CALLING = threading.BoundedSemaphore(4)
"""Rounds of resident runs whose hooks are being called."""
Call = tuple[str, dict[str, Any]]


@dataclass
class RunRecord:
    """The record of one run, while it runs. `errors`: those of its steps; `reports`: what they did.

    `begins`: its beginning is recorded as well, so that a run that is killed is known.
    """

    pipeline: Pipeline
    catalog: Catalog
    plan: str
    watch: bool = False
    reports: list[Report] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    begins: bool = False
    is_begun: bool = False

    def __post_init__(self) -> None:
        metastore = metastore_of(self.catalog.namespace)
        self.id = metastore.clock.uuid()
        self.clock = metastore.clock
        self._started = self.clock.monotonic()
        self._began = _now(self.clock)
        self._who = metastore.properties.author

    @property
    def did_something(self) -> bool:
        """True unless its steps found nothing new."""
        parts = [part for report in self.reports for part in (report.parts or (report,))]
        return any(part.rows or part.files or part.quarantined or part.job not in LOOKS for part in parts)

    def begin(self, say: Say) -> None:
        """Record the beginning, once all that can be refused before anything is written was looked at."""
        if self.begins and not self.is_begun:
            self.is_begun = _written(self, RUNNING, say)

    def row(self, state: str) -> dict[str, Any]:
        """Return the row of the table, as the run is now."""
        parts = [part for report in self.reports for part in (report.parts or (report,))]
        places = dict.fromkeys(report.where.place for report in self.reports if report.where is not None)
        engine = self.pipeline.engine
        named = f"spark {engine.shown}" if engine.is_spark else "embedded"
        is_over = state != RUNNING
        return {
            "run": self.id,
            "pipeline": self.pipeline.name,
            "state": state,
            "began": self._began,
            "ended": _now(self.clock) if is_over else None,
            "seconds": round(self.clock.monotonic() - self._started, 3) if is_over else None,
            "rows": sum(part.rows for part in parts if part.job == "ingest"),
            "quarantined": sum(part.quarantined for part in parts),
            "late": sum(part.late for part in parts),
            "error": "; ".join(dict.fromkeys(self.errors)) or None,
            "plan": self.plan,
            "who": self._who,
            "where": ": ".join(filter(None, (named, ", ".join(places) if engine.is_spark else ""))),
            "host": socket.gethostname(),
            "process": _process(os.getpid()),
            "watch": self.watch,
            "steps": json.dumps([_step(report, part) for report in self.reports for part in report.parts or (report,)]),
        }


def _step(report: Report, part: Report) -> dict[str, object]:
    where = report.where.place if report.where is not None else None
    return {**{name: getattr(part, name) for name in STEP}, "where": where, "checks": dict(part.checks)}


@contextmanager
def recorded(
    pipeline: Pipeline,
    catalog: Catalog,
    plan: str,
    say: Say,
    has_steps: bool = True,
    errors: list[str] | None = None,
    known: Collection[str] | None = None,
) -> Iterator[RunRecord]:
    """Record a run: its beginning before its first step, and its end with what became of it. Tell the file's hooks.

    `errors`: of a resident run, those of this round; `known`: of the round before. A round that did nothing, and failed
    as the one before, leaves no record and tells nobody.
    """
    record = RunRecord(pipeline, catalog, plan, known is not None)
    if errors is not None:
        record.errors = errors
    record.begins = has_steps and not known
    try:
        yield record
    except BaseException as error:
        record.errors.append(str(error) or type(error).__name__)
        _ended(record, FAILED, say)
        raise
    is_new = record.is_begun or not set(record.errors) <= set(known or ())
    if is_new or record.did_something or not record.watch:
        _ended(record, FAILED if record.errors else DONE, say)


def record_failure(pipeline: Pipeline, catalog: Catalog, error: Exception, say: Say) -> None:
    """Record a run that could not be planned."""
    _ended(RunRecord(pipeline, catalog, "", errors=[str(error)]), FAILED, say)


def _ended(record: RunRecord, state: str, say: Say) -> None:
    row = record.row(state)
    if record.catalog.is_there:
        _written(record, state, say)
        with suppress(LanceNamespaceError):
            _publish(record.catalog)
    hooks = record.pipeline.hooks
    told = {**row, "began": str(row["began"]), "ended": str(row["ended"]), "steps": json.loads(row["steps"])}
    calls = []
    if state == FAILED and hooks.on_failure:
        calls.append((hooks.on_failure, {"event": "failure", **told}))
    if row["quarantined"] and hooks.on_quarantine:
        calls.append((hooks.on_quarantine, {"event": "quarantine", **told}))
    if not calls:
        return
    if not record.watch:
        _tell(record, calls, row, say)
    elif CALLING.acquire(blocking=False):  # the next round does not wait for a hook that hangs
        threading.Thread(target=_tell_apart, args=(record, calls, row, say), name="headwater-hook").start()
    else:
        _note(record, row, "The hooks were not told: those of earlier rounds have not answered yet.", say)


def _tell_apart(record: RunRecord, calls: Sequence[Call], row: dict[str, Any], say: Say) -> None:
    try:
        _tell(record, calls, row, say)
    finally:
        CALLING.release()


def _tell(record: RunRecord, calls: Sequence[Call], row: dict[str, Any], say: Say) -> None:
    """Tell the hooks of a run, and note in its record which could not be told."""
    missed: list[str] = []
    for to, message in calls:
        notify(record.pipeline.hooks, to, message, record.pipeline.folder, record.clock, missed.append)
    if missed:
        _note(record, row, " ".join(missed), say)


def _note(record: RunRecord, row: dict[str, Any], text: str, say: Say) -> None:
    """Say a sentence, and add it to the errors of a run that has ended."""
    say(text)
    noted = {**row, "error": "; ".join(filter(None, (row["error"], text)))}
    if record.catalog.is_there:
        with suppress(LanceNamespaceError):
            _land(record.catalog, [noted], f"{END}{record.id}")


def _written(record: RunRecord, state: str, say: Say) -> bool:
    """Land a change of the run's row, with the table if there is none; say why, if it cannot be."""
    rows, source = [record.row(state)], f"{BEGIN if state == RUNNING else END}{record.id}"
    try:
        if state == RUNNING:
            for row in unended(record.catalog):
                _land(record.catalog, [{**row, "state": KILLED}], f"{END}{row['run']}")
        _land(record.catalog, rows, source)
    except LanceNamespaceError as error:
        say(f"The run is not recorded in {RUNS}: {error}")
        return False
    return True


def _land(catalog: Catalog, rows: Sequence[dict[str, object]], source: str) -> None:
    def work(tx: Catalog) -> None:
        if RUNS not in tx:
            tx.create_stream_table(RUNS, SCHEMA, keys="run")
        tx[RUNS].upsert(rows, source=source)

    if is_kept(catalog):
        catalog[RUNS].upsert(rows, source=source)
    else:
        catalog.create_namespace(RUNS.partition(".")[0], exist_ok=True)  # no file is written before there is a catalog
        catalog.run(work, f"record of a run in {RUNS}")


def is_kept(catalog: Catalog) -> bool:
    """Return True if the catalog is there, and has a record of runs."""
    return catalog.is_there and RUNS in catalog


def _publish(catalog: Catalog) -> None:
    table = catalog[RUNS]
    published = table.published
    if table.position - (published.position if published is not None else 0) >= PUBLISH_AFTER:
        table.publish()


# Reading --------------------------------------------------------------------------------------------------------------


def runs(catalog: Catalog, pipeline: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the runs of a catalog, newest first, or those of one pipeline."""
    if not is_kept(catalog):
        return []
    where = f"pipeline = {quoted(pipeline)}" if pipeline is not None else None
    found = catalog[RUNS].to_arrow(filter=where).sort_by([("began", "descending")]).slice(0, limit).to_pylist()
    return [_shown(row, catalog) for row in found]


def run_of(catalog: Catalog, id: str) -> dict[str, Any]:
    """Return the run with an id, which may be cut short; TableNotFound (4) and InvalidInput (13) name it."""
    found = [row for row in runs(catalog) if id and row["run"].startswith(id)]
    if not found:
        raise TableNotFoundError(f"There is no run {id!r}: `headwater runs` lists them.")
    if len(found) > 1:
        raise InvalidInputError(f"{len(found)} runs begin with {id!r}: give more of the id.")
    return found[0]


def unended(catalog: Catalog) -> list[dict[str, object]]:
    """Return the rows of recent runs that have no end though their process is gone."""
    table = catalog[RUNS] if is_kept(catalog) else None
    if not isinstance(table, CatalogStream):
        return []
    sources = {str(delta.properties.get("source")) for delta in table.deltas(max(table.position - RECENT, 0))}
    begun = [source.removeprefix(BEGIN) for source in sources if source.startswith(BEGIN)]
    open_ = [id for id in begun if f"{END}{id}" not in sources]
    if not open_:
        return []
    found = table.to_arrow(filter=f"run IN ({', '.join(map(quoted, open_))})").to_pylist()
    return [row for row in found if row["state"] == RUNNING and _shown(row, catalog)["state"] == KILLED]


def _shown(row: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return a row as it is: of a run that was killed nobody may have noted it yet."""
    if row["state"] != RUNNING:
        return row
    if row["host"] == socket.gethostname():
        is_gone = _process(int(str(row["process"]).partition("@")[0] or 0)) != row["process"]
    else:
        here = catalog.namespace
        is_gone = isinstance(here, MetastoreNamespace) and _now(here.clock) - row["began"] > FORGOTTEN
    return {**row, "state": KILLED} if is_gone else row


def _now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


def _process(number: int) -> str:
    """Return the number of a process and the time that it was started, since numbers are used again."""
    try:
        started = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, 0)
            return f"{number}@"
        return ""
    return f"{number}@{started}"
