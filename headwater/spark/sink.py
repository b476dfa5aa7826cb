"""The exactly-once sink: one commit per batch, which carries the stream's id and the batch's number.

A batch that is in the table already is not committed again. A tag of the table, set before a stream's first commit
and moved after each, says from which version on its newest batch is to be looked for, and keeps that version from
being cleaned up. So a stream without a tag has committed nothing yet.
"""

from __future__ import annotations

import contextlib
from typing import Any

import lance

from headwater.spark.catalog import Connection
from headwater.spark.stream import move_tag, tag_of
from headwater.tables.commit.committer import BATCH, STREAM, overwrite
from headwater.tables.commit.history import committed
from headwater.tables.handle import TableHandle

SINK = "headwater-sink-"


def committed_batch(dataset: lance.LanceDataset, stream: str) -> int:
    """The newest batch of a stream that is in the table, or -1."""
    tag = dataset.tags.list().get(tag_of(SINK, stream))
    if tag is None:
        return -1
    for version in range(dataset.version, tag["version"] - 1, -1):
        properties = committed(dataset, version).properties
        if properties.get(STREAM) == stream:
            return int(properties[BATCH])
    return -1


def commit_batch(
    connection: Connection, table: TableHandle, stream: str, batch: int, fragments: list[dict[str, Any]], truncate: bool
) -> int:
    """Commit a batch once. The answer is the version it is in, or the newest one when it was there already."""
    newest = connection.open(table)
    if committed_batch(newest, stream) >= batch or not (fragments or truncate):
        return int(newest.version)
    move_tag(newest, tag_of(SINK, stream), newest.version, only_create=True)
    properties = {STREAM: stream, BATCH: str(batch)}
    current = table.at(newest.version)
    if truncate:
        version = overwrite(connection.committer, current, "true", fragments, properties)
    else:
        version = connection.committer.append(current, fragments, properties)
    with contextlib.suppress(OSError, ValueError):  # the tag only shortens the search
        move_tag(connection.open(table), tag_of(SINK, stream), version)
    return version
