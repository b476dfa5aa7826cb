"""Change data on its way in: what one call takes, and the tasks that prepare it as files of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.streams.log.checks import Check
from headwater.streams.log.landing import BatchOrigin
from headwater.streams.log.prepared_landing import prepare
from headwater.streams.reading.position_views import PositionView
from headwater.streams.serving.serving_copy import CatalogLocation, Lake
from headwater.streams.sources.files import SourceFile, naming
from headwater.streams.sources.formats import SNAPSHOT, take, take_alone
from headwater.streams.sources.key_changes import StateNeededError
from headwater.streams.sources.task_rows import are_few, chunks, packed
from headwater.streams.stream_lookup import Stream
from headwater.work import Json, guarded


@dataclass(frozen=True)
class Intake:
    """The files of a call, their format and source, and the checks of their rows. `token`: of a batch taken once."""

    files: tuple[SourceFile, ...]
    format: str
    source: str | None
    strict: bool
    checks: tuple[Check, ...]
    options: Mapping[str, Any]
    token: str | None = None

    def origin(self, file: SourceFile) -> BatchOrigin:
        return BatchOrigin(self.source, None, file.path, file.digest)

    @property
    def truncates(self) -> bool:
        """True if a message may empty the table."""
        return bool(self.options.get("apply_as_truncates"))

    @property
    def needs_state(self) -> bool:
        """True if what a file means depends on the rows that are there: then one file goes after another."""
        return self.format == SNAPSHOT or self.truncates


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
        return prepare(lake.store, lake.clock, stream, taken, intake.origin(file), intake.checks, known)


def prepare_rows(
    location: CatalogLocation, stream: Stream, intake: Intake, known: int, hands_over: bool, reader: Any
) -> list[Json]:
    """Prepare the rows of a task, one file of the log after another. The last answer may be an error.

    `hands_over`: few rows go to the driver as they are.
    """
    lake, made = location.lake(), list[Json]()
    for data in chunks(reader):  # a task holds the rows of one file of the log, whatever it gets
        is_handed = hands_over and are_few(data)
        made.append(packed(data) if is_handed else guarded(prepare_chunk, lake, stream, intake, known, data))
        if "error" in made[-1]:
            break
    for _ in reader:  # the sender waits until they are read
        pass
    return made


def prepare_chunk(lake: Lake, stream: Stream, intake: Intake, known: int, data: pa.Table) -> Json:
    """Write some rows as files of the log."""
    taken = take_alone(stream.definition, data, intake.format, intake.options)
    return prepare(lake.store, lake.clock, stream, taken, BatchOrigin(intake.source), intake.checks, known)
