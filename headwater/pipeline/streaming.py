"""A streaming DataFrame as a source: batch by batch, each taken once, whatever happens to Spark's own record of them.

A batch is known by its query and its number, which Spark keeps in the checkpoint and repeats after a failure; the
record of what was taken is that of the table, in the transaction that lands the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError
from headwater.pipeline.executors import ingest_frame
from headwater.streams.log.landing import LandingReport
from headwater.streams.sources.formats import total
from headwater.streams.sources.intake import Intake
from headwater.work import Runner

QUERY = "sql.streaming.queryId"
"""The property of a job that names the streaming query it is of."""


def ingest_stream(
    frame: Any, stream: CatalogStream, intake: Intake, checkpoint: str | None, runner: Runner
) -> tuple[LandingReport, int]:
    """Take what a stream has now; the report, and how many batches that were."""
    if checkpoint is None:
        raise InvalidInputError("A streaming DataFrame needs checkpoint=..., where Spark keeps how far it has read.")
    reports: list[LandingReport] = []

    def take(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY)
        reports.append(ingest_frame(batch, stream, replace(intake, token=f"{query}:{number}"), runner))

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    new = [report for report in reports if not report.duplicate]
    return (total(new) if new else LandingReport(stream.position)), len(new)
