"""Scans of a Lance table: the driver plans parts of a version, and executors read each part as Arrow batches.

A `Scan` holds columns, filter, limit or search, and is sent once per query. `parts` are its tasks.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.imports import lance
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID, require_field
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import partitions_of
from headwater.tables.scan import prune as pruning
from headwater.tables.scan.parts import Fragments, Rows, ScanPart, Slice, WholeTable, chosen
from headwater.tables.scan.prune import live_batches, may_match, whole_rows
from headwater.tables.translate import translating
from headwater.types import arrow_schema, convert_batch, wire_schema

BATCH_BYTES = 4 << 20
MIN_BATCH_ROWS = 1024
MAX_BATCH_ROWS = 65_536
SMALL_ROWS = 200_000
PART_ROWS = 20_000
"""The cost of one more part, in rows: its task, and the wait for its first batch."""
INDEXED_ROWS = 100_000
TAKEN_ROWS = 50_000
SCANNED_ROWS = 50_000_000
SCORES = ("_distance", "_score")
COUNTED = ("filter", "limit", "offset")
"""Options that go by live rows: a deleted one must not be seen by them."""
EXTRAS: dict[str, Any] = {
    ROW_ADDRESS: pa.field(ROW_ADDRESS, pa.int64(), nullable=False),
    ROW_ID: pa.field(ROW_ID, pa.int64(), nullable=False),
    "_distance": pa.field("_distance", pa.float32()),
    "_score": pa.field("_score", pa.float32()),
    "_change_type": pa.field("_change_type", pa.string(), nullable=False),
    "_commit_version": pa.field("_commit_version", pa.int64(), nullable=False),
    "_commit_timestamp": pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
}


@dataclass(frozen=True)
class Scan:
    """A read of a table: columns, subfields of structs, a filter in Lance's SQL, a limit, or a search.

    `prune` is the filter (and what only runtime knew) as a tree, by which fragments are skipped.
    `schema` (Spark's JSON form) is that of a stream, which may outlive the version its query was started at.
    """

    table: TableHandle
    columns: tuple[str, ...]
    filter: str | None = None
    limit: int | None = None
    search: dict[str, Any] | None = None
    changes: bool = False
    fields: Mapping[str, pruning.Tree] = field(default_factory=dict)
    prune: Mapping[str, object] | None = None
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Extent:
    """The id and row count of one fragment, for planning."""

    id: int
    rows: int


def divide(extents: Sequence[Extent], parallelism: int, *, splittable: bool) -> list[Fragments | Slice]:
    """Divide fragments into parts of about equal size, two to four per core: the division with the shortest read time.

    Only a scan without a filter can slice a fragment, because offsets count the rows after the filter. Pure.
    """
    cores = max(1, parallelism)
    total = sum(extent.rows for extent in extents)
    targets = [max(SMALL_ROWS, -(-total // (cores * turns))) for turns in (2, 3, 4)]
    return min((_parts(extents, target, splittable) for target in targets), key=lambda parts: _finish(parts, cores))[0]


def _finish(parts: tuple[list[Fragments | Slice], list[int]], cores: int) -> int:
    """Return the time to read all parts, counted in rows, if each free core takes the next part. Pure."""
    busy = [0] * cores
    for rows in parts[1]:
        heapq.heapreplace(busy, busy[0] + PART_ROWS + rows)
    return max(busy)


def _parts(extents: Sequence[Extent], target: int, splittable: bool) -> tuple[list[Fragments | Slice], list[int]]:
    """Parts of about `target` rows, and the rows of each."""
    parts: list[Fragments | Slice] = []
    sizes: list[int] = []
    group: list[int] = []
    size = 0
    for extent in extents:
        if splittable and extent.rows > target * 3 // 2:
            slices = _slices(extent, target)
            parts.extend(slices)
            sizes.extend(each.limit for each in slices)
            continue
        if group and size + extent.rows > target * 5 // 4:
            parts.append(Fragments(tuple(group)))
            sizes.append(size)
            group, size = [], 0
        group.append(extent.id)
        size += extent.rows
    if group:
        parts.append(Fragments(tuple(group)))
        sizes.append(size)
    return parts, sizes


def _slices(extent: Extent, target: int) -> list[Slice]:
    count = -(-extent.rows // target)
    size = -(-extent.rows // count)
    return [Slice((extent.id,), start, min(size, extent.rows - start)) for start in range(0, extent.rows, size)]


def whole_fragments(extents: Sequence[Extent], parallelism: int) -> list[tuple[int, ...]]:
    """Return the fragments of each part, without slices of fragments."""
    return [part.fragments for part in divide(extents, parallelism, splittable=False)]


def plan(scan: Scan, parallelism: int, by_partition: bool = False) -> Sequence[ScanPart]:
    """Return the parts of a scan. A search, a small limit, and a filter with few rows by an index are one part.

    `by_partition`: each part holds one partition and names it, if all fragments have a known one and they are few.
    """
    dataset = scan.table.open()
    if scan.search is not None:
        return [WholeTable()]
    matching = [each for each in may_match(dataset, scan.prune) if each.num_rows]
    extents = [Extent(each.id, each.num_rows) for each in matching]
    if not extents:
        return []
    if scan.limit is not None and scan.filter is None:
        return [Fragments(tuple(_enough(extents, scan.limit)))]
    if scan.filter is not None and indexed(dataset, scan.filter):
        found = dataset.scanner(columns=[], filter=scan.filter, with_row_id=True).to_table()
        ids = found.column(ROW_ID).to_numpy()[: scan.limit]
        if len(ids) <= INDEXED_ROWS and takes_rows(dataset, scan):
            taken = [ids[start : start + TAKEN_ROWS] for start in range(0, len(ids), TAKEN_ROWS)]
            return [Rows.of(each) for each in taken]
        if len(ids) <= INDEXED_ROWS:
            return [WholeTable()] if len(ids) else []
    grouped = partitions_of(dataset, matching) if by_partition else None
    if grouped is not None:
        parts = ((key, part) for key, ids in grouped.items() for part in _parts_of(ids, extents, parallelism))
        return [Fragments(part, key=key) for key, part in parts]
    return divide(extents, parallelism, splittable=scan.filter is None and scan.limit is None)


def _parts_of(ids: set[int], extents: Sequence[Extent], parallelism: int) -> list[tuple[int, ...]]:
    return whole_fragments([extent for extent in extents if extent.id in ids], parallelism)


def _enough(extents: Sequence[Extent], limit: int) -> list[int]:
    chosen: list[int] = []
    rows = 0
    for extent in extents:
        chosen.append(extent.id)
        rows += extent.rows
        if rows >= limit:
            break
    return chosen


def indexed(dataset: lance.LanceDataset, filter: str) -> bool:
    """Return True if Lance's indices should find the rows before anything is read.

    They must answer the whole filter. A filter of ranges only may match a large part of the table. Up to SCANNED_ROWS,
    reading one column is then several times faster than the index.
    """
    if not dataset.list_indices():
        return False
    points = " = " in filter or " IN (" in filter
    if not points and dataset.count_rows() <= SCANNED_ROWS:
        return False
    text = dataset.scanner(columns=[], filter=filter, with_row_id=True).explain_plan()
    return "ScalarIndexQuery" in text and "refine_filter=--" in text


def takes_rows(dataset: lance.LanceDataset, scan: Scan) -> bool:
    """Return True if rows found by an index can be fetched by id: plain columns only, no blobs or addresses."""
    known = bool(scan.columns) and all(name in dataset.schema.names for name in scan.columns)
    return known and pruning.paths(dataset.schema, scan.columns, scan.fields) is not None


def count(scan: Scan) -> int:
    """Return count(*): from the manifest, or with a filter from partitions, an index or a scan of its columns."""
    dataset = scan.table.open()
    rows, left = whole_rows(dataset, scan.prune) if scan.prune else (0, None)
    if left == []:
        return rows
    if scan.filter is None or indexed(dataset, scan.filter):
        return int(dataset.count_rows(filter=scan.filter))
    fragments = [dataset.get_fragment(id) for id in left] if left else None
    options: dict[str, Any] = {"columns": [], "with_row_id": True, "use_scalar_index": False, "fragments": fragments}
    return rows + int(dataset.scanner(filter=scan.filter, **options).count_rows())


def count_part(scan: Scan, part: ScanPart) -> int:
    return int(_scanner(_dataset(scan, part), Scan(scan.table, (), scan.filter), part).count_rows())


def _dataset(scan: Scan, part: ScanPart) -> lance.LanceDataset:
    """Open the version of a part: a stream's parts each have their own."""
    version = part.version if isinstance(part, Fragments) else None
    return (scan.table if version is None else scan.table.at(version)).open(scattered=isinstance(part, Rows))


def output_schema(scan: Scan) -> pa.Schema:
    """Return the wire schema of the batches that `read` yields."""
    try:
        return wire_schema(_lance_output(scan.table.open(), scan))
    except TableVersionNotFoundError:
        if scan.schema is None:
            raise
        return arrow_schema(scan.schema)


def _lance_output(dataset: lance.LanceDataset, scan: Scan) -> pa.Schema:
    known = {field.name: pruning.pruned(field, scan.fields.get(field.name)) for field in dataset.schema}
    return pa.schema([known[name] if name in known else EXTRAS[name] for name in scan.columns])


def read(scan: Scan, part: ScanPart, schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the part's rows in `schema` (default: the wire schema), in batches of a few megabytes."""
    dataset = _dataset(scan, part)
    target = schema if schema is not None else output_schema(scan)
    if not scan.columns:
        yield from _empty_batches(count_part(scan, part))
        return
    for batch in _batches(dataset, scan, part, target):
        if batch.num_rows:
            yield convert_batch(batch, target)


def _batches(dataset: lance.LanceDataset, scan: Scan, part: ScanPart, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows by id, by windows if the scan needs subfields only, else by a scan of whole columns."""
    paths = pruning.paths(dataset.schema, scan.columns, scan.fields)
    if isinstance(part, Rows):
        yield from dataset._take_rows(part.ids(), columns=paths).to_batches()
        return
    taken = paths and scan.fields and scan.search is None and _filter(part) is None
    found = pruning.windows(dataset, part, scan.limit) if taken else None
    if paths is None or found is None or (scan.filter is not None and scan.limit is not None):
        yield from _scanned(dataset, scan, part)
    elif scan.filter is None:
        yield from pruning.take(dataset, paths, found, batch_rows(target))
    else:
        yield from pruning.take_where(dataset, paths, scan.filter, part, batch_rows(target))


def _empty_batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches that have rows and no columns."""
    while rows > 0:
        size = min(rows, MAX_BATCH_ROWS)
        rows_only: Any = pa.array([{}] * size, pa.struct([]))
        yield pa.RecordBatch.from_struct_array(rows_only)
        rows -= size


def _filter(part: ScanPart) -> str | None:
    return part.filter if isinstance(part, Fragments) else None


def _scanned(dataset: lance.LanceDataset, scan: Scan, part: ScanPart) -> Iterator[pa.RecordBatch]:
    options = _options(dataset, scan, part)
    if scan.search is not None or not options["columns"] or any(options.get(name) is not None for name in COUNTED):
        yield from dataset.scanner(**options).to_batches()
        return
    yield from live_batches(dataset, **{name: value for name, value in options.items() if name not in COUNTED})


def _scanner(dataset: lance.LanceDataset, scan: Scan, part: ScanPart) -> lance.LanceScanner:
    return dataset.scanner(**_options(dataset, scan, part))


def _options(dataset: lance.LanceDataset, scan: Scan, part: ScanPart) -> dict[str, Any]:
    present = set(dataset.schema.names)
    data_columns = [name for name in scan.columns if name in present]
    options: dict[str, object] = {
        "columns": data_columns,
        "filter": _both(scan.filter, _filter(part)),
        "limit": part.limit if isinstance(part, Slice) else scan.limit,
        "batch_size": batch_rows(pa.schema([dataset.schema.field(name) for name in data_columns])),
        "with_row_address": ROW_ADDRESS in scan.columns or not data_columns,
        "with_row_id": ROW_ID in scan.columns,
        "blob_handling": "all_binary",
    }
    wanted = chosen(part)
    if wanted is not None:
        options["fragments"] = [f for f in dataset.get_fragments() if f.fragment_id in wanted]
    if isinstance(part, Slice):
        options["offset"] = part.offset
    if scan.search is not None:
        options |= _search(scan.search)
        options["columns"] = data_columns + [name for name in scan.columns if name in SCORES]
    return options


def _both(first: str | None, second: str | None) -> str | None:
    return f"({first}) AND ({second})" if first and second else first or second


def _search(search: dict[str, object]) -> dict[str, object]:
    """Vector search or full-text search as options of a Lance scan; a filter applies before the search."""
    if isinstance(search["query"], str):
        return {
            "full_text_query": {"query": search["query"], "columns": [search["column"]]},
            "limit": search["k"],
            "filter": search.get("filter"),
            "prefilter": True,
        }
    nearest = {"column": search["column"], "q": search["query"], "k": search["k"]}
    for key in ("metric", "nprobes", "refine_factor", "ef"):
        if search.get(key) is not None:
            nearest[key] = search[key]
    return {"nearest": nearest, "limit": None, "filter": search.get("filter"), "prefilter": True}


def check_search(table: TableHandle, search: dict[str, Any]) -> None:
    """Raise an error for a search that cannot run (its column, its dimension, its filter), before any task starts."""
    score = "_score" if isinstance(search["query"], str) else "_distance"
    require_field(table.open().schema, search["column"])
    with translating(table, "search", otherwise=InvalidInputError):
        _scanner(table.open(), Scan(table, (score,), search=search), WholeTable()).explain_plan()


def batch_rows(schema: pa.Schema) -> int:
    """Return the rows per batch for batches of a few megabytes. Pure."""
    width = sum(_width(field.type) for field in schema) or 8
    return max(MIN_BATCH_ROWS, min(MAX_BATCH_ROWS, BATCH_BYTES // width))


def _width(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size * _width(kind.value_type))
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(index).type) for index in range(kind.num_fields))
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return 1024 if pa.types.is_large_binary(kind) else 32


SMALL_TABLE = 50_000
"""Tables up to this many rows are not sampled: the estimate would not change a plan."""
WINDOWS = 32
WINDOW_ROWS = 128
KEPT = 64

_known: OrderedDict[tuple[str, int, str], pa.Table] = OrderedDict()
_lock = threading.Lock()


def rows_left(scan: Scan, used: Iterable[str]) -> int:
    """Estimate the rows that a scan finds, by its filter on a sample of the table.

    `used`: the top-level columns in the filter. The sample of a version is kept in memory for other filters.
    """
    dataset = scan.table.open()
    fragments = may_match(dataset, scan.prune)
    rows: int = sum(fragment.num_rows for fragment in fragments)
    columns = sorted(used)
    deleted = any(fragment.deletion_file is not None for fragment in fragments)
    if scan.filter is None or not columns or rows <= SMALL_TABLE or deleted:
        return rows
    seen = _sample(dataset, columns)
    found = _matching(seen, scan.filter)
    return max(1, round(rows * (found + 0.5) / (seen.num_rows + 1)))


def _sample(dataset: lance.LanceDataset, columns: list[str]) -> pa.Table:
    """Return windows of rows from all over the table: neighbouring rows cost one read."""
    key = (dataset.uri, int(dataset.version), "\0".join(columns))
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
    starts = np.linspace(0, dataset.count_rows() - WINDOW_ROWS, WINDOWS).astype(int)
    places = np.concatenate([np.arange(start, start + WINDOW_ROWS) for start in starts])
    found: pa.Table = dataset.take(places.tolist(), columns=columns)
    with _lock:
        _known[key] = found
        while len(_known) > KEPT:
            _known.popitem(last=False)
    return found


def _matching(rows: pa.Table, filter: str) -> int:
    """Count the rows that match, by Lance itself, so that the filter means what it means in a scan."""
    return int(lance.write_dataset(rows, "memory://sample").count_rows(filter=filter))
