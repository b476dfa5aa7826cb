"""The exactly-once sink: one commit per batch, which carries the stream's id and the batch's number.

A batch that is in the table already is not committed again. Where the newest batch of a stream is, is found from a
tag that follows the stream's commits and keeps that version from being cleaned up; a commit after which the driver
died before it moved the tag is found in the versions after the tag.
"""

from __future__ import annotations

import contextlib
from typing import Any

import lance

from headwater.spark.catalog import Connection
from headwater.spark.commit import BATCH, STREAM
from headwater.spark.rowlevel import overwrite
from headwater.spark.stream import move_tag, tag_of
from headwater.spark.tables import TableRef

SINK = "headwater-sink-"


def committed_batch(dataset: lance.LanceDataset, stream: str) -> int:
    """The newest batch of a stream that is in the table, or -1."""
    tag = dataset.tags.list().get(tag_of(SINK, stream))
    depth = dataset.version - (tag["version"] if tag is not None else 0) + 1
    for transaction in dataset.get_transactions(max(1, depth)):
        properties = (transaction.transaction_properties or {}) if transaction is not None else {}
        if properties.get(STREAM) == stream:
            return int(properties[BATCH])
    return -1


def commit_batch(
    connection: Connection, table: TableRef, stream: str, batch: int, fragments: list[dict[str, Any]], truncate: bool
) -> int:
    """Commit a batch once. The answer is the version it is in, or the newest one when it was there already."""
    newest = connection.open(table)
    if committed_batch(newest, stream) >= batch:
        return int(newest.version)
    properties = {STREAM: stream, BATCH: str(batch)}
    current = TableRef(table.id, table.uri, newest.version, table.managed, table.storage_options)
    if truncate:
        version = overwrite(connection.committer, current, "true", fragments, properties)
    elif fragments:
        version = connection.committer.append(current, fragments, properties)
    else:
        return int(newest.version)
    with contextlib.suppress(OSError, ValueError):  # the tag only shortens the search
        move_tag(connection.open(table), tag_of(SINK, stream), version)
    return version
