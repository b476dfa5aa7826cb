"""Stream tables in Spark: a read is the published base with the tail of the log folded into it, by a Python worker.

The driver pins a slot of the catalog and a position of the log; whoever reads opens the metastore at that slot and
folds. Where nothing is after the last publish, the table is read as any Lance table, in parts and by its indices.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.metastore import Metastore, Snapshot
from headwater.spark.protocol import Fold, Scan
from headwater.streams.opening import Stream, is_stream_table, open_stream
from headwater.streams.reading import count, read, read_touched, read_untouched
from headwater.streams.serving import Lake, lake, open_version
from headwater.streams.views import View, newest_published, view_at
from headwater.tables.nested import pruned
from headwater.tables.parts import AnyPart, Fragments, ScanPart, Whole
from headwater.tables.scan import ROW_ADDRESS, ROW_ID, SMALL_ROWS, Extent, batch_rows, divide
from headwater.types import convert_batch, wire_schema

LAKE = "lake"
"""The option of a session's catalog that says where its metastore is, for reading stream tables fresh."""

TAIL = Fragments(())
"""The part that reads the rows which the log after the base touches: it is of no fragment."""

Json = dict[str, Any]


def lake_option(root: str, storage: Mapping[str, str]) -> str:
    return json.dumps({"root": root, "storage": dict(storage)}, sort_keys=True)


@lru_cache(maxsize=16)
def opened(option: str) -> Lake:
    """The lake of a session's option, once per process."""
    known = json.loads(option)
    return lake(Metastore(known["root"], known["storage"]), known["root"], known["storage"])


class Streams:
    """The stream tables of a catalog, as the driver sees them."""

    def __init__(self, option: str) -> None:
        self._option = option

    def load(self, id: list[str], version: str | None, micros: int | None) -> tuple[Stream, Fold] | None:
        """A stream table and how to read it: now, at a position, or as of a time. None: it is none."""
        metastore = opened(self._option).metastore
        now = metastore.now()
        if not _is_stream(now, id):
            return None
        if micros is not None:
            now = metastore.at(dt.datetime.fromtimestamp(micros / 1_000_000, dt.UTC))
        stream = open_stream(now, id)
        view = view_at(now, stream, _position(stream, version))
        published = newest_published(now, stream)
        is_published = published is not None and not view.tail and version is None and micros is None
        rows = sum(file.rows or 0 for delta in view.tail for file in delta.files)
        rows += view.base.rows if view.base is not None else 0
        keyed = bool(stream.definition.keys)
        return stream, Fold(self._option, now.slot, view.position, rows, not is_published, keyed)


def _is_stream(snapshot: Snapshot, id: list[str]) -> bool:
    try:
        return is_stream_table(snapshot, id) and bool(snapshot.last_position(id) >= 0)
    except LanceNamespaceError:  # the history of a stream table has no log of its own
        return False


def _position(stream: Stream, version: str | None) -> int | None:
    if version is None:
        return None
    if not version.isdigit():
        raise InvalidInputError(f"{stream.name} is a stream table: VERSION AS OF takes a position, not {version!r}.")
    return int(version)


def schema_of(stream: Stream) -> pa.Schema:
    return pa.schema(list(stream.definition.shown.values()))


def _view(scan: Scan) -> tuple[Lake, View]:
    fold = scan.table.fold
    assert fold is not None
    found = opened(fold.lake)
    snapshot = found.metastore.at(fold.slot)
    return found, view_at(snapshot, open_stream(snapshot, scan.table.id), fold.position)


def check_readable(scan: Scan) -> None:
    """Statements that change rows ask for the places of rows, and rows of a log have none."""
    if ROW_ADDRESS in scan.columns or ROW_ID in scan.columns:
        raise scan.table.refused()


def count_rows(scan: Scan) -> int:
    found, view = _view(scan)
    if scan.filter is None:
        return count(found, view)
    return read(found, view, columns=list(view.stream.definition.keys[:1]) or None, filter=scan.filter).num_rows


def output_schema(scan: Scan) -> pa.Schema:
    check_readable(scan)
    _, view = _view(scan)
    shown = view.stream.definition.shown
    trees = scan.fields or {}
    return wire_schema(pa.schema([pruned(shown[name], trees.get(name)) for name in scan.columns]))


def plan(scan: Scan, parallelism: int) -> Sequence[ScanPart]:
    """One part, or for a large base one for each group of its fragments, and `TAIL` for what the log touches."""
    check_readable(scan)
    found, view = _view(scan)
    if view.base is None or view.base.rows < SMALL_ROWS or not scan.columns:
        return [Whole()]
    dataset = open_version(found, view.stream, view.base.version, view.base.manifest)
    metadata = [fragment.metadata for fragment in dataset.get_fragments()]
    extents = [Extent(each.id, each.num_rows) for each in metadata if each.num_rows]
    return [*divide(extents, parallelism, splittable=False), TAIL]


def read_rows(scan: Scan, part: AnyPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a part, in the wire schema."""
    if isinstance(part, Fragments) or scan.columns:
        rows = _rows(scan, part)
        for batch in rows.slice(0, scan.limit).to_batches(max_chunksize=batch_rows(schema)):
            yield convert_batch(batch, schema)
        return
    count = count_rows(scan) if scan.limit is None else min(scan.limit, count_rows(scan))
    empty: Any = pa.array([{}] * count, pa.struct([]))
    yield pa.RecordBatch.from_struct_array(empty)


def _rows(scan: Scan, part: AnyPart) -> pa.Table:
    found, view = _view(scan)
    if part == TAIL:
        return read_touched(found, view, scan.columns, scan.filter)
    if isinstance(part, Fragments):
        return read_untouched(found, view, part.fragments, scan.columns, scan.filter)
    return read(found, view, list(scan.columns), scan.filter, scan.limit)
