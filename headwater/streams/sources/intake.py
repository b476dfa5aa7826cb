"""Change data on its way in: what one call takes, the tasks that prepare it as files of the log, and their rows.

A task that has few rows writes no file of the log. The driver writes those of all tasks as one, so that a small
statement, or a small batch of a stream, is one delta at one position, in however many tasks Spark divides it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, groupby, repeat
from typing import Any, TypeVar

import pyarrow as pa

from headwater.streams.definition import Definition
from headwater.streams.log.checks import Check
from headwater.streams.log.landing import BatchOrigin
from headwater.streams.log.prepared_landing import prepare
from headwater.streams.reading.position_views import PositionView
from headwater.streams.serving.serving_copy import CatalogLocation, Lake
from headwater.streams.sources.files import SourceFile, naming
from headwater.streams.sources.format_output import StateNeededError, Taken
from headwater.streams.sources.formats import take, take_alone
from headwater.streams.sources.message_values import Messages
from headwater.streams.stream_lookup import Stream
from headwater.work import Json, guarded

FEW_ROWS, FEW_BYTES = 1000, 1 << 16
"""The most rows and bytes that a task returns, so that the driver can hold those of all tasks."""
ROWS = "arrow"
FILE_ROWS = 1 << 20
FIRST_ROWS, FIRST_FILES = 1 << 18, 4
"""A task writes a file of the log for each so many rows, the first ones of fewer, so that one is written while the rows
of the next come in. It holds no more than two files' rows."""

T = TypeVar("T")


def are_few(rows: pa.Table) -> bool:
    return rows.num_rows <= FEW_ROWS and rows.nbytes <= FEW_BYTES


def chunks(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Yield the rows of a task, as many at once as go into one file of the log; the next are read meanwhile."""
    sizes = chain(repeat(FIRST_ROWS, FIRST_FILES), repeat(FILE_ROWS))
    parts = (_rows(reader, size) for size in sizes)
    with ThreadPoolExecutor(1) as beside:
        coming = beside.submit(next, parts)
        while (found := coming.result()).num_rows:
            coming = beside.submit(next, parts)
            yield found


def _rows(reader: pa.RecordBatchReader, wanted: int) -> pa.Table:
    """About so many rows; none when there are no more."""
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        wanted -= batch.num_rows
        if wanted <= 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


def packed(rows: pa.Table) -> Json:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows)
    return {ROWS: base64.b64encode(sink.getvalue()).decode()}


def unpacked(parts: Iterable[Mapping[str, Any]]) -> pa.Table | None:
    """Return the rows of all tasks, which have the same columns; None: there are none."""
    found = [pa.ipc.open_stream(pa.py_buffer(base64.b64decode(part[ROWS]))).read_all() for part in parts]
    rows = pa.concat_tables(found) if found else None
    return rows if rows is not None and rows.num_rows else None


def gathered(parts: Iterable[Any], prepare: Callable[[pa.Table], T]) -> Iterator[T]:
    """Yield the prepared output of tasks in order; the driver prepares the rows that they returned, all together."""
    for is_handed, group in groupby(parts, key=lambda part: part is not None and ROWS in part):
        if not is_handed:
            yield from group
        elif (rows := unpacked(group)) is not None:
            yield prepare(rows)


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
    reader: pa.RecordBatchReader,
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
    lake: Lake, stream: Stream, intake: Intake, known: int, view: PositionView | None, data: pa.Table | Messages
) -> Json | None:
    """Write some rows or messages as files of the log. None: the state of the table is needed."""
    try:
        if view is None:
            taken = take_alone(stream.definition, data, intake.format, intake.options)
        else:
            taken = take(lake, view, data, intake.format, intake.options)
    except StateNeededError:
        return None
    return intake.written(lake, stream, taken, BatchOrigin(intake.source), known)
