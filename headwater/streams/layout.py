"""Every on-disk name of stream tables inside the metastore's own layout (docs/formats/streams.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headwater.metastore.records.serving_copy import LANCE_FORMAT, READER_FORMAT, RECORD_FORMAT, location_of

KIND = "__hw_kind"
ROW = "__hw_row"
PRESENT = "__hw_has_"
UPSERTS, DELETES, READS = 0, 1, 2
"""Kinds of rows in the log. `READS` is added for rows of a snapshot, which are never too late."""
CELLS, NEVER = "__hw_cells", "__hw_never"
"""Of a mark the columns, as bits by their ids, and whether they were never written; a tombstone has none."""
TRUNCATES, HIGH, BATCH = "truncates", "high", "batch"
"""Of a delta its truncations, its highest first sequence value, and the call that its batch began with."""

LANCE = LANCE_FORMAT
"""Format and id of the stream of published versions."""

DELTA = "delta"
"""Format and id of the change log."""

RECORD = RECORD_FORMAT
"""Format of streams without deltas, whose properties are a small record: what a source has given."""

READER = READER_FORMAT
"""Format of the stream without deltas whose properties are the positions of readers, by name."""
READERS = "readers"

QUARANTINE = "__quarantine"
HISTORY = "__history"
RUNS = ("system", "runs")
"""The stream table of pipeline runs."""
SOURCES = ("system", "sources")
"""The stream table of live sources; the record of each, with its offset, is a stream of this table."""
PAGES = 64
LINEAGE = "lineage"
"""The property of a published version that says where its rows come from."""


def log_file(home: str, id: str) -> str:
    """Return a file of changes. `home` is the table's directory, `id` a fresh one."""
    return f"{home}/data/{id}.parquet"


def tombstone_file(home: str, id: str) -> str:
    return f"{home}/data/{id}.tombstones.parquet"


def backfill_folder(home: str, name: str) -> str:
    """Return the folder of a backfill's finished batches until a version holds them."""
    return f"{home}/backfill/{name}"


def serving_folder(home: str, version: str) -> str:
    """Return the Lance dataset of a table version, where the metastore puts one."""
    return location_of({}, f"{home}/{version}/{LANCE}")


RECORDS = "source-"
"""How the ids of the records of sources begin."""


def source_record(source: str) -> str:
    """Return the id of the record of a source: what it has given to this table is counted there."""
    return f"{RECORDS}{_digest(source)}"


def source_page(source: str, entry: str, level: int = 0) -> str:
    """Return the id of the page of a source's record where a token or file is looked up. Each level has twice the
    pages."""
    page = int(hashlib.blake2b(entry.encode(), digest_size=8 if level else 2).hexdigest(), 16) % (PAGES << level)
    return f"{source_record(source)}-{page}" if level == 0 else f"{source_record(source)}-{level}-{page}"


def live_record(source: str) -> str:
    """Return the id of the record of a live source, a stream of the table of live sources: its offset is there."""
    return f"live-{_digest(source)}"


def live_page(source: str, number: int) -> str:
    """Return the id of a page of a live source's journal."""
    return f"{live_record(source)}-{number}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def sibling(path: Sequence[str], suffix: str) -> tuple[str, ...]:
    """Return the path of a table that follows another: its quarantine, its history."""
    return (*path[:-1], path[-1] + suffix)
