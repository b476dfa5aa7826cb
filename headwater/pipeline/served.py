"""Jobs of stream tables that are reached through a server: files are read here and sent, the server does the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.catalog import Catalog
from headwater.catalog.transport import Remote
from headwater.errors import UnsupportedOperationError
from headwater.pipeline.facts import is_taken
from headwater.pipeline.progress import Teller
from headwater.rest.remote_streams import RemoteStream
from headwater.streams.log.landing import LandingReport
from headwater.streams.sources.files import SourceFile, find_files, is_files
from headwater.streams.sources.formats import in_batches, total
from headwater.streams.sources.intake import Intake
from headwater.streams.table import StreamTable
from headwater.verbs.stream_requests import RemotePublished
from headwater.wording import many


def is_served(lake: Catalog) -> bool:
    return isinstance(lake.namespace, Remote)


def sorted_out(
    stream: StreamTable | RemoteStream, files: Sequence[SourceFile], source: str, again: bool
) -> tuple[list[SourceFile], int, int]:
    """The files that are to be taken, how many were taken before, and how many were undone; those only if `again`."""
    taken = stream.files(source)
    undone = {} if again else stream.files(source, undone=True)
    left = [file for file in files if not is_taken(taken, file)]
    new = [file for file in left if not is_taken(undone, file)]
    return new, len(files) - len(left), len(left) - len(new)


def taken_by_server(
    stream: RemoteStream, source: Any, intake: Intake, again: bool, tell: Teller
) -> tuple[LandingReport, int, int, int]:
    """Return the report of a landing, and the numbers of files taken, known before, and left out as undone."""
    if intake.checks:
        raise UnsupportedOperationError(f"{stream.name} is reached through a server: its checks are properties of it.")
    how = {"source": intake.source, "strict": intake.strict, **intake.options}
    if not is_files(source):
        if getattr(source, "isStreaming", False):
            raise UnsupportedOperationError(
                f"{stream.name} is reached through a server: write a stream into it with writeStream.toTable(...)."
            )
        rows = source.toArrow() if hasattr(source, "mapInArrow") else source
        return stream.ingest(rows, intake.format, **how), 0, 0, 0
    new, skipped, undone = sorted_out(stream, find_files(source), intake.source or "", again)
    tell.stage(f"send {many(len(new), 'file')} to {stream.name}", len(new), sum(file.size for file in new))
    reports = []
    for batch in in_batches(stream, new, intake.format):
        reports.append(stream.ingest_files(batch, intake.format, **how))
        tell.step(len(batch), reports[-1].rows, sum(file.size for file in batch))
    return total(reports) if reports else LandingReport(stream.position), len(new), skipped, undone


def published_by_server(
    lake: Catalog, streams: Sequence[Any], lineage: Mapping[str, Mapping[str, Any]] | None
) -> list[RemotePublished]:
    if lineage:
        raise UnsupportedOperationError("Lineage of one's own is recorded where the catalog's root is opened.")
    return list(lake.publish([stream.id.names for stream in streams]))
