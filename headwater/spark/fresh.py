"""Stream tables in Spark: a read is the published base with the tail of the log folded into it, by a Python worker.

The driver pins a slot of the catalog and a position of the log; whoever reads opens the metastore at that slot and
folds. Where nothing is after the last publish, the table is read as any Lance table, in parts and by its indices.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.metastore import Metastore, Snapshot
from headwater.metastore.commit.table_parts import partition_id
from headwater.names import format_name
from headwater.spark.served_streams import EPOCH, count_served, read_served, served
from headwater.spark.wire_values import Fold, WireScan, WireTable, is_server
from headwater.streams.definition import Definition
from headwater.streams.log.log_files import least_events
from headwater.streams.log.stored_events import LogShard
from headwater.streams.reading.change_feed import changes, walked
from headwater.streams.reading.fresh_reads import count, read
from headwater.streams.reading.position_views import PositionView, newest_published, view_at
from headwater.streams.reading.table_reads import read_bucket, read_touched, read_untouched
from headwater.streams.serving.serving_copy import Lake, lake, open_version
from headwater.streams.stream_lookup import Stream, is_stream_table, open_stream
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.partitions import partitions_of
from headwater.tables.scan.parts import AnyPart, Fragments, Tail, WholeTable
from headwater.tables.scan.prune import pruned
from headwater.tables.scan.table_scan import SMALL_ROWS, Extent, batch_rows, divide
from headwater.types import convert_batch, wire_schema

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

LAKE = "lake"
"""The option of a session's catalog that says where its metastore is, for reading stream tables fresh."""

NEEDS_STORAGE = "This needs a metastore catalog whose storage the session reaches: configure it with root=."


def lake_option(root: str, storage: Mapping[str, str], author: str | None = None) -> str:
    """Return the option that says where a metastore is. `author`: whom the log names for commits made by it."""
    known = {"root": root, "storage": dict(storage), **({} if author is None else {"author": author})}
    return json.dumps(known, sort_keys=True)


@lru_cache(maxsize=16)
def opened(option: str) -> Lake:
    """Return the lake of a session's option, once per process."""
    known = json.loads(option)
    if is_server(option):
        raise UnsupportedOperationError(NEEDS_STORAGE)
    metastore = Metastore(known["root"], known["storage"], author=known.get("author", ""))
    return lake(metastore, known["root"], known["storage"])


def lake_of(table: WireTable) -> Lake:
    """Return the metastore that a stream table of a session is in."""
    return opened(table.log.lake)


class Streams:
    """The stream tables of a catalog, as the driver sees them."""

    def __init__(self, option: str) -> None:
        self._option = option

    def load(self, id: list[str], version: str | None, micros: int | None) -> tuple[Definition, Fold] | None:
        """Return how to read a stream table now, at a position or as of a time; None if the table is none."""
        metastore = opened(self._option).metastore
        now = metastore.now()
        if not _is_stream(now, id):
            return None
        if micros is not None:
            now = _at_time(metastore, id, EPOCH + dt.timedelta(microseconds=micros))
        stream = open_stream(now, id)
        view = view_at(now, stream, _position(stream, version))
        published = newest_published(now, stream)
        is_now = version is None and micros is None
        is_published = is_now and published is not None and published.is_of(view.position, stream.definition.schema_id)
        rows = sum(file.rows or 0 for delta in view.tail for file in delta.files)
        rows += view.base.rows if view.base is not None else 0
        keyed = bool(stream.definition.keys)
        fold = Fold(self._option, now.slot, view.position, rows, not is_published, keyed, id=stream.id)
        return stream.definition, fold


def _at_time(metastore: Metastore, id: list[str], time: dt.datetime) -> Snapshot:
    """Return the catalog at a time, with every position whose commit time is not after it: that may be told before its
    slot's.

    11 if the table was not there, or what is known of it does not go so far back.
    """
    now, name = metastore.now(), format_name(id)
    try:
        found = metastore.at(time)
    except InvalidInputError as error:
        raise TableVersionNotFoundError(f"{name} cannot be read as of {time.isoformat()}. {error}") from None
    millis = (time - EPOCH) // dt.timedelta(milliseconds=1)
    newest = max((delta.slot for delta in now.deltas(id) if delta.time_ms <= millis), default=0)
    found = metastore.at(newest) if newest > found.slot else found
    if not _is_stream(found, id):
        raise TableVersionNotFoundError(f"{name} had no position yet at {time.isoformat()}: it was created later.")
    return found


def _is_stream(snapshot: Snapshot, id: list[str]) -> bool:
    try:
        return is_stream_table(snapshot, id) and bool(snapshot.last_position(id) >= 0)
    except LanceNamespaceError:  # the history of a stream table has no log of its own
        return False


def shares_for(rows: int, parallelism: int, base: int = 0) -> int:
    """In how many shares of their keys to fold so many events: a power of two, none of them small.

    Each looks through the keys of a base of so many rows, which should take less time than folding what it is for.
    """
    least = max(SMALL_ROWS // 2, least_events(base))
    count = 1
    while count < parallelism and rows // (2 * count) >= least:
        count *= 2
    return count


def _position(stream: Stream, version: str | None) -> int | None:
    if version is None:
        return None
    if not version.isdigit():
        raise InvalidInputError(f"{stream.name} is a stream table: VERSION AS OF takes a position, not {version!r}.")
    return int(version)


def schema_of(definition: Definition) -> pa.Schema:
    return pa.schema(list(definition.shown.values()))


def _view(scan: WireScan) -> tuple[Lake, PositionView]:
    found, fold = lake_of(scan.table), scan.table.log
    snapshot = found.metastore.at(fold.slot)
    return found, view_at(snapshot, open_stream(snapshot, scan.table.id), fold.position)


def check_readable(scan: WireScan) -> None:
    """Statements that change rows ask for the places of rows, and rows of a log have none."""
    if ROW_ADDRESS in scan.columns or ROW_ID in scan.columns:
        raise scan.table.refused()


def count_rows(scan: WireScan) -> int:
    if (stream := served(scan)) is not None:
        return count_served(stream, scan)
    found, view = _view(scan)
    if scan.filter is None:
        return count(found, view)
    return read(found, view, columns=list(view.stream.definition.keys[:1]) or None, filter=scan.filter).num_rows


def output_schema(scan: WireScan) -> pa.Schema:
    check_readable(scan)
    stream = served(scan)
    shown = (stream if stream is not None else _view(scan)[1].stream).definition.shown
    trees = scan.fields or {}
    return wire_schema(pa.schema([pruned(shown[name], trees.get(name)) for name in scan.columns]))


def plan(scan: WireScan, parallelism: int, by_partition: bool = False) -> Sequence[AnyPart]:
    """Return one part; or for a large table first what the log touches, in shares, then groups of the base's fragments.

    `by_partition`: of a table in buckets of its key each part is a bucket, folded for itself.
    """
    check_readable(scan)
    if served(scan) is not None:
        return [WholeTable()]
    found, view = _view(scan)
    whole = view.stream.definition.rules.lateness is not None or view.truncates
    metadata = _fragments(found, view)
    if by_partition and not whole and (buckets := _buckets(found, view, metadata)) is not None:
        return [Fragments(tuple(sorted(ids)), key=key) for key, ids in sorted(buckets.items())]
    rows = sum(file.rows or 0 for delta in view.tail for file in delta.files)
    base = view.base.rows if view.base is not None else 0
    if not scan.columns or base + rows < SMALL_ROWS:
        return [WholeTable()]
    count = 1 if whole else shares_for(rows, parallelism, base)
    extents = [Extent(each.id, each.num_rows) for each in metadata if each.num_rows]
    return [*(Tail(number, count) for number in range(count)), *divide(extents, parallelism, splittable=False)]


def _fragments(found: Lake, view: PositionView) -> list[FragmentMetadata]:
    if view.base is None:
        return []
    dataset = open_version(found, view.stream, view.base.version, view.base.manifest)
    return [fragment.metadata for fragment in dataset.get_fragments()]


def _buckets(found: Lake, view: PositionView, metadata: Sequence[FragmentMetadata]) -> dict[Any, set[int]] | None:
    """The buckets of a table and the fragments of each; None: not all fragments tell theirs, or it is in none."""
    if not view.stream.definition.buckets:
        return None
    known: dict[Any, set[int]] | None = {}
    if view.base is not None and metadata:
        known = partitions_of(open_version(found, view.stream, view.base.version, view.base.manifest), metadata)
    if known is None:
        return None
    every = {partition_id(key): key for key in product(*(range(each.width) for each in view.stream.definition.buckets))}
    if not all(delta.partition in every for delta in view.tail):
        return None
    return {**{every[delta.partition]: set() for delta in view.tail}, **known}


def read_rows(scan: WireScan, part: AnyPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part, in the wire schema, as they are read."""
    if not scan.columns:
        count = count_rows(scan)
        yield without_columns(count if scan.limit is None else min(scan.limit, count))
        return
    left = scan.limit
    for rows in _in_order(scan, _rows(scan, part)):
        yield from sent(rows.slice(0, left), schema)
        left = None if left is None else left - min(left, rows.num_rows)
        if left == 0:
            return


def _in_order(scan: WireScan, found: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows as they are read, or all of them in the order of the key."""
    if not scan.ordered:
        yield from found
        return
    rows = pa.concat_tables(list(found))
    yield rows.sort_by([(name, "ascending") for name in _view(scan)[1].stream.definition.keys])


def changed_rows(option: str, slot: int, path: Sequence[str], after: int, share: LogShard | None) -> pa.Table:
    """The rows that changed after a position up to a slot, as they were and as they are; of a share of the keys."""
    found = opened(option)
    snapshot = found.metastore.at(slot)
    return changes(found, snapshot, open_stream(snapshot, path), after, None, share)


def check_changes(option: str, slot: int, path: Sequence[str], after: int) -> None:
    """11: the changes after a position are collected."""
    found = opened(option)
    snapshot = found.metastore.at(slot)
    walked(found, snapshot, open_stream(snapshot, path), after, None)  # it reads nothing before it is walked


def sent(rows: pa.Table, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as they go to Spark; of a schema without columns only their number."""
    if not schema.names:
        yield without_columns(rows.num_rows)
        return
    for batch in rows.to_batches(max_chunksize=batch_rows(schema)):
        yield convert_batch(batch, schema)


def without_columns(rows: int) -> pa.RecordBatch:
    empty: Any = pa.array([{}] * rows, pa.struct([]))
    return pa.RecordBatch.from_struct_array(empty)


def _rows(scan: WireScan, part: AnyPart) -> Iterator[pa.Table]:
    if (stream := served(scan)) is not None:
        yield read_served(stream, scan)
        return
    found, view = _view(scan)
    if isinstance(part, Tail):
        share = LogShard(part.share, part.shares) if part.shares > 1 else None
        yield read_touched(found, view, scan.columns, scan.filter, share)
    elif isinstance(part, Fragments) and part.key is not None:
        yield read_bucket(found, view, part.key, part.fragments, scan.columns, scan.filter)
    elif isinstance(part, Fragments):
        yield from read_untouched(found, view, part.fragments, scan.columns, scan.filter)
    else:
        yield read(found, view, list(scan.columns), scan.filter, scan.limit)
