"""Watching a source: what is new is taken as it comes, with the same record of what was taken.

Nothing is remembered between two looks but files that could not be taken, so that each is told of once: a file that is
still being written is tried again when it has changed. Whoever watches may be killed, and another goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from headwater.catalog import Catalog
from headwater.errors import LanceNamespaceError
from headwater.pipeline.facts import is_taken
from headwater.pipeline.jobs import Report, ingest_found, open_lake, publish, stream_of
from headwater.pipeline.progress import NOBODY, Teller
from headwater.streams.sources.files import SourceFile, find_files
from headwater.streams.sources.formats import check_format
from headwater.streams.sources.intake import Intake

EVERY_S = 2.0


class Stop(Protocol):
    """What ends a watch: a `threading.Event` for other threads, a `SignalledStop` for the handler of a signal."""

    def wait(self, timeout: float) -> bool: ...


class SignalledStop:
    """A stop that the handler of a signal may set. An event may not be set there: its lock may be held by the very code
    that the signal interrupts, which would wait for itself for ever."""

    def __init__(self) -> None:
        self._told: SimpleQueue[None] = SimpleQueue()  # its `put` may interrupt itself and its `get`

    def set(self) -> None:
        self._told.put(None)

    def wait(self, timeout: float) -> bool:
        """Whether it was set, at the latest after so many seconds; once told, it is told no more."""
        try:
            self._told.get(timeout=timeout)
        except Empty:
            return False
        return True


def watch(
    spark: Any,
    catalog: str | Catalog,
    table: str,
    source: Any,
    format: str = "rows",
    name: str | None = None,
    stop: Stop | None = None,
    every: float = EVERY_S,
    publishes: bool = False,
    failed: Callable[[SourceFile, LanceNamespaceError], None] = lambda file, error: None,
    storage: Mapping[str, str] | None = None,
    tell: Teller = NOBODY,
    **options: Any,
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
    tell: Teller,
) -> Iterator[Report]:
    """What was taken of the files that are there: all at once, or each by itself from one on that cannot be taken."""
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
