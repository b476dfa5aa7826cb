"""Change data on its way in: what one call takes, and the tasks that prepare it as files of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.streams.checks import Check
from headwater.streams.definition import Definition
from headwater.streams.landing import BatchOrigin
from headwater.streams.opening import Stream
from headwater.streams.position_views import PositionView
from headwater.streams.preparing import prepare
from headwater.streams.serving_copy import CatalogLocation, Lake
from headwater.streams.sources.files import SourceFile, naming
from headwater.streams.sources.formats import take, take_alone
from headwater.streams.sources.moved_rows import StateNeededError
from headwater.streams.sources.taken import Taken
from headwater.streams.sources.task_rows import are_few, chunks, packed
from headwater.work import Json, guarded


@dataclass(frozen=True)
class Intake:
    """The files of a call, their format and source, and the checks of their rows.

    `token`: of a batch taken once.
    `evolved`: what other parts of the same batch make of the table.
    """

    files: tuple[SourceFile, ...]
    format: str
    source: str | None
    strict: bool
    checks: tuple[Check, ...]
    options: Mapping[str, Any]
    token: str | None = None
    evolved: Definition | None = None

    def origin(self, file: SourceFile) -> BatchOrigin:
        return BatchOrigin(self.source, None, file.path, file.digest)

    def written(self, lake: Lake, stream: Stream, taken: Taken, origin: BatchOrigin, known: int) -> Json:
        """Write what was taken as files of the log, and return what the commit needs."""
        how = taken, origin, self.checks, known
        return prepare(lake.store, lake.clock, stream, *how, evolved=self.evolved)


def prepare_files(
    location: CatalogLocation,
    stream: Stream,
    intake: Intake,
    files: Sequence[SourceFile],
    known: int,
    view: PositionView | None,
) -> Json:
    """Prepare files on an executor, each with its own answer or error.

    `known`: the rows of the table so far, which choose a number of buckets.
    `view`: the state, for files that are compared with it. Without it such a file answers None.
    """
    lake = location.lake()
    return {"files": [guarded(_prepare_file, lake, stream, intake, file, known, view) for file in files]}


def _prepare_file(
    lake: Lake, stream: Stream, intake: Intake, file: SourceFile, known: int, view: PositionView | None
) -> Json | None:
    with naming(file):
        try:
            if view is None:
                taken = take_alone(stream.definition, None, intake.format, intake.options, file)
            else:
                taken = take(lake, view, file.path, intake.format, intake.options, file)
        except StateNeededError:
            return None
        return intake.written(lake, stream, taken, intake.origin(file), known)


def prepare_rows(
    location: CatalogLocation,
    stream: Stream,
    intake: Intake,
    known: int,
    view: PositionView | None,
    hands_over: bool,
    reader: Any,
) -> list[Json | None]:
    """Prepare the rows of a task, one file of the log after another. The last answer may be an error.

    `view`: the state that the rows, all of which one task has then, are compared with.
    `hands_over`: few rows go to the driver as they are.
    """
    lake, made = location.lake(), list[Json | None]()
    # Without a state a task holds the rows of one file of the log, whatever it gets.
    for data in chunks(reader) if view is None else [reader.read_all()]:
        is_handed = hands_over and are_few(data)
        found = packed(data) if is_handed else guarded(prepare_chunk, lake, stream, intake, known, view, data)
        made.append(found)
        if found is None or "error" in found:
            break
    for _ in reader:  # the sender waits until they are read
        pass
    return made


def prepare_table(location: CatalogLocation, *arguments: Any) -> Json | None:
    """Write rows as files of the log, on an executor."""
    return prepare_chunk(location.lake(), *arguments)


def prepare_chunk(
    lake: Lake, stream: Stream, intake: Intake, known: int, view: PositionView | None, data: pa.Table
) -> Json | None:
    """Write some rows as files of the log; None: the state is needed."""
    try:
        if view is None:
            taken = take_alone(stream.definition, data, intake.format, intake.options)
        else:
            taken = take(lake, view, data, intake.format, intake.options)
    except StateNeededError:
        return None
    return intake.written(lake, stream, taken, BatchOrigin(intake.source), known)
