"""Watching: a source whose new files are taken as they come, or a whole pipeline that stays resident in one session.

Nothing is remembered between two looks but what could not be done, so that each failure is reported once. Whoever
watches may be killed, and another goes on: the catalog records what was taken.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError
from headwater.pipeline.executors import NO_PROGRESS
from headwater.pipeline.facts import is_taken
from headwater.pipeline.grammar import Pipeline
from headwater.pipeline.jobs import Report, ingest_found, open_catalog, open_lake, opened_engine, publish, stream_of
from headwater.pipeline.live.live_runs import LiveReaders, chosen, take_live
from headwater.pipeline.planning import Plan
from headwater.pipeline.run_records import recorded
from headwater.pipeline.running import Run, carry_out, plan_pipeline
from headwater.streams.sources.files import SourceFile, find_files
from headwater.streams.sources.formats import check_format
from headwater.streams.sources.intake import Intake
from headwater.work import runner_of
from headwater.work.runners import Progress

EVERY_S = 2.0
ROUND_S = 30.0
LIVE_ROUND_S = 0.5
"""A pipeline with live sources looks for changes so often, whatever is asked for files."""
Say = Callable[[str], None]


class Stop(Protocol):
    """The end of a watch: a `threading.Event` for other threads, a `SignalledStop` for the handler of a signal."""

    def wait(self, timeout: float) -> bool: ...

    def is_set(self) -> bool: ...


class SignalledStop:
    """A stop that the handler of a signal may set. An event may not be set there: its lock may be held by the very code
    that the signal interrupts, which would wait for itself for ever."""

    def __init__(self) -> None:
        self._told: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt itself and its `get`

    def set(self) -> None:
        self._told.put(None)

    def is_set(self) -> bool:
        return not self._told.empty()

    def wait(self, timeout: float) -> bool:
        """Return True if it was set, at the latest after so many seconds; once told, it is told no more."""
        try:
            self._told.get(timeout=timeout)
        except Empty:
            return False
        return True


def watch(
    spark: object,
    catalog: str | Catalog,
    table: str,
    source: object,
    format: str = "rows",
    name: str | None = None,
    stop: Stop | None = None,
    every: float = EVERY_S,
    publishes: bool = False,
    failed: Callable[[SourceFile, LanceNamespaceError], None] = lambda file, error: None,
    storage: Mapping[str, str] | None = None,
    tell: Progress = NO_PROGRESS,
    **options: object,
) -> Iterator[Report]:
    """Take files as they come, looking so many seconds apart, until `stop` is set; a report for each look with news.

    With `publishes` what was taken is published at once. A file that cannot be taken is left out until it changes, and
    `failed` is told of it; later ones are taken meanwhile.
    """
    check_format(format, options)
    stop = stop or SignalledStop()
    stream = stream_of(open_lake(spark, catalog), table)
    given = storage if storage is not None else dict(stream.namespace.properties.storage)
    intake = Intake((), format, name, False, (), options)
    broken: set[tuple[str, str]] = set()
    while True:
        there = find_files(source, given, required=False)
        for report in _taken(spark, stream, there, intake, broken, failed, tell):
            yield report
            if publishes:
                yield publish(spark, open_lake(spark, catalog), table, tell=tell)
        if stop.wait(every):
            return


def _taken(
    spark: Any,
    stream: Any,
    there: list[SourceFile],
    intake: Intake,
    broken: set[tuple[str, str]],
    failed: Any,
    tell: Progress,
) -> Iterator[Report]:
    """Take files, all at once, or one by one after a file that cannot be taken; return the reports."""
    before = stream.files(intake.source or "")
    new = [file for file in there if (file.path, file.digest) not in broken and not is_taken(before, file)]
    try:
        report = ingest_found(spark, stream, new, intake, False, tell)
        if report.files:
            yield report
        return
    except LanceNamespaceError:
        after = stream.files(intake.source or "")
    entries = [entry for file in new for entry in after.get(file.path, ()) if entry.digest == file.digest]
    if entries:
        rows, bad = sum(entry.rows for entry in entries), sum(entry.quarantined for entry in entries)
        yield Report("ingest", stream.name, rows, len(entries), bad, position=stream.position)
    for file in new:
        try:
            report = ingest_found(spark, stream, [file], intake, False, tell)
        except LanceNamespaceError as error:
            broken.add((file.path, file.digest))
            failed(file, error)
            continue
        if report.files:
            yield report


# A resident run -------------------------------------------------------------------------------------------------------


class Resident:
    """The memory of a resident run: the failures that are reported, and the counts of its metrics."""

    def __init__(self, say: Say, clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._reported: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._looked_ms = 0
        self._errors: list[str] = []

    def begin(self) -> tuple[list[str], list[str]]:
        """Begin a round: return the list that gets its errors, and the errors of the round before."""
        before, self._errors = self._errors, []
        return self._errors, before

    def failed(self, about: str, error: LanceNamespaceError) -> None:
        """Report a failure, once while it stays the same."""
        with self._lock:
            self._counts["failures", "", ""] += 1
        self._errors.append(str(error))
        self._report(about, str(error))

    def _report(self, about: str, why: str) -> None:
        self._failing[about] = why
        if self._reported.get(about) != why:
            self._say(f"{about} failed and is tried again: {why}")

    def looked(self, reports: Sequence[Report] = ()) -> None:
        """End a look: note what it did, and that this process lives."""
        self._reported, self._failing = self._failing, {}
        with self._lock:
            self._looked_ms = self._clock.now_ms()
            self._counts["looks", "", ""] += 1
            for report in (part for each in reports for part in (each.parts or (each,))):
                for name, count in (("steps", 1), ("rows", report.rows), ("quarantined", report.quarantined)):
                    self._counts[name, report.job, report.table] += count

    def text(self) -> str:
        """Return the metrics in the text format of Prometheus."""
        with self._lock:
            counts, looked, failing = dict(self._counts), self._looked_ms, len(self._reported)
        lines = [
            "# TYPE headwater_run_last_look_timestamp_seconds gauge",
            f"headwater_run_last_look_timestamp_seconds {looked / 1000:.3f}",
            "# TYPE headwater_run_failing gauge",
            f"headwater_run_failing {failing}",
        ]
        for name in ("looks", "failures", "steps", "rows", "quarantined"):
            lines.append(f"# TYPE headwater_run_{name}_total counter")
            for (of, job, table), count in sorted(counts.items()):
                if of == name:
                    labels = f'{{job="{job}",table="{_escaped(table)}"}}' if job else ""
                    lines.append(f"headwater_run_{name}_total{labels} {count}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def watch_pipeline(
    pipeline: Pipeline,
    stop: Stop,
    every: float = ROUND_S,
    select: Sequence[str] = (),
    say: Say = lambda text: None,
    tell: Progress = NO_PROGRESS,
    metrics: str | None = None,
    started: Callable[[], None] = lambda: None,
    spark: object = None,
) -> Iterator[Run]:
    """Run a pipeline in one session, again `every` seconds, until `stop` is set; yield each run that had steps.

    A source or step that fails is reported, and tried again in the next round while the others go on.
    `metrics`: the port, or HOST:PORT, at which Prometheus finds the counts; None: nowhere.
    `started`: called when a session has been started, which may have replaced handlers of signals.
    """
    catalog, _ = open_catalog(pipeline)
    memory = Resident(say, metastore_of(catalog.namespace).clock)
    with served_metrics(metrics, memory, say):
        is_first = True
        while not stop.is_set():
            try:
                with opened_engine(pipeline, catalog, spark, say) as session:
                    started()
                    is_first = False
                    yield from _rounds(pipeline, session, stop, every, select, say, tell, memory)
                    return
            except LanceNamespaceError as error:
                if is_first:
                    raise
                memory.failed("the session of Spark", error)
                memory.looked()
            if stop.wait(every):
                return


def _rounds(
    pipeline: Pipeline,
    spark: object,
    stop: Stop,
    every: float,
    select: Sequence[str],
    say: Say,
    tell: Progress,
    memory: Resident,
) -> Iterator[Run]:
    """Run a pipeline until `stop` is set; raise ServiceUnavailable (17) if the session has ended meanwhile."""
    catalog, _ = open_catalog(pipeline)
    every = min(every, LIVE_ROUND_S) if pipeline.live else every
    with LiveReaders(pipeline, catalog, runner_of(spark, None, pipeline.engine.driver_rows), say) as readers:
        while True:
            errors, known = memory.begin()
            taken = take_live(readers, chosen(pipeline, select), memory.failed, say, True, stop.is_set)
            readers.end_taking()
            catalog, plan = _planned(pipeline, select, memory)
            steps = plan.steps if plan is not None else ()
            reports = tuple(taken)
            begins = bool(steps or taken)
            with recorded(pipeline, catalog, plan.id if plan else "", say, begins, errors, known) as record:
                record.reports += taken
                if plan is not None and begins:
                    ended = memory.failed, None, stop.is_set
                    done = carry_out(pipeline, catalog, plan, spark, say, tell, *ended, record=record)
                    reports = done.reports
            if plan is not None and begins:
                yield done
            if is_gone(spark):
                raise ServiceUnavailableError("The session has ended: another one is started.")
            memory.looked(reports)
            readers.end_round()
            if stop.wait(every):
                return


def _planned(pipeline: Pipeline, select: Sequence[str], memory: Resident) -> tuple[Catalog, Plan | None]:
    """Plan a round; a table that cannot be planned is reported and left out."""
    try:
        return plan_pipeline(pipeline, select, takes=False)
    except LanceNamespaceError as error:
        catalog, _ = open_catalog(pipeline)
        names = select or [*(each.name for each in pipeline.tables), *(each.name for each in pipeline.views)]
        able = [name for name in names if _is_planned(pipeline, name, memory)]
        if len(able) == len(names):
            memory.failed("the plan", error)
        if not able or len(able) == len(names):
            return catalog, None
    return plan_pipeline(_fed(pipeline, able), able, takes=False)


def _is_planned(pipeline: Pipeline, name: str, memory: Resident) -> bool:
    try:
        plan_pipeline(_fed(pipeline, [name]), [name], takes=False)
    except LanceNamespaceError as error:
        memory.failed(f"the plan of {name}", error)
        return False
    return True


def _fed(pipeline: Pipeline, names: Sequence[str]) -> Pipeline:
    """Return a pipeline with the sources of these tables only, and its live ones, which are not planned."""
    return replace(pipeline, sources=tuple(each for each in pipeline.sources if each.live or each.into in names))


def is_gone(spark: object) -> bool:
    """Return True if the Spark of a session has ended."""
    context = getattr(spark, "_sc", None)
    if context is None:
        return spark is not None and bool(getattr(spark, "is_stopped", False))
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except Exception:  # its JVM does not answer
        return True


@contextlib.contextmanager
def served_metrics(at: str | None, memory: Resident, say: Say = lambda text: None) -> Iterator[None]:
    """Serve the metrics of a resident run at `[HOST:]PORT`, on loopback unless a host is given; None: nowhere."""
    if at is None:
        yield
        return
    host, _, number = at.rpartition(":")
    if not (number.isascii() and number.isdigit() and int(number) < 1 << 16):
        raise InvalidInputError(f"--metrics {at!r} is not a port: write 9464, or HOST:9464 for other machines too.")

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] in ("/", "/metrics")
            body = memory.text().encode() if found else b"not found\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Write no line for each request."""

    try:
        server = ThreadingHTTPServer((host.strip("[]") or "127.0.0.1", int(number)), Handler)
    except OSError as error:
        raise InvalidInputError(f"--metrics {at!r} cannot be listened at: {error.strerror or error}.") from None
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    say(f"Metrics at http://{host or '127.0.0.1'}:{server.server_address[1]}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
