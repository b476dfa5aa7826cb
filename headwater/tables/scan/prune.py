"""Reads of less: fragments pruned by their partition values, subfields of structs, live rows, and windows of rows.

Partition pruning finds the fragments that a filter can match, before any file is read.

A filter arrives as a tree of `{"op": ..., "args": [...]}`, `{"column": name}` and `{"literal": value}`; what the JVM
could not say is `{"op": "unknown"}`. Every predicate is judged by the outcomes it may have for the rows of a
fragment (true, false, null), so that NOT, AND and OR stay exact: a fragment without the outcome true is skipped, one
with no other is counted without being read.

Projection of struct subfields reads only the subfields that a query needs. A Lance scan answers `s.x` as a flat column
and forgets which `s` were null, and a scan of `s` reads all of it. A take answers a struct that holds `x` alone, nulls
and all, and costs little more than a scan where the rows are neighbours. So where subfields are asked for, windows of
rows are taken instead of scanned. A tree says what is kept of a struct: `{"x": None, "n": {"p": None}}` is all of `x`
and of `n` only `p`.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.imports import lance
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.partitions import NamedValue, digest, field_ids, first_of, parts_of, transformed
from headwater.tables.scan.parts import ScanPart, Slice, chosen
from headwater.types import BLOB, is_blob

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

Json = Mapping[str, Any]
TRUE, FALSE, NULL = 1, 2, 4
ANY = TRUE | FALSE | NULL
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>", "<=>": "<=>"}
ATOMS = {*_FLIPPED, "IN", "IS_NULL", "IS_NOT_NULL", "STARTS_WITH"}


@dataclass(frozen=True)
class KnownColumn:
    """A column of the table: its field id and its type."""

    id: int
    kind: Any


@dataclass(frozen=True)
class PartitionFilter:
    """A filter over the columns of one version, evaluated on partition values."""

    filter: Json
    columns: dict[str, KnownColumn]

    def outcomes(self, fragment: FragmentMetadata) -> int:
        parts = parts_of(fragment)
        return _outcomes(self.filter, self.columns, parts) if parts else ANY


def partition_filter(dataset: lance.LanceDataset, filter: Json | None) -> PartitionFilter | None:
    """Return the evaluator of a filter; None without a filter."""
    if not filter:
        return None
    kinds = {field.name: field.type for field in dataset.schema}
    return PartitionFilter(filter, {name: KnownColumn(id, kinds[name]) for name, id in field_ids(dataset).items()})


def may_match(dataset: lance.LanceDataset, filter: Json | None) -> list[FragmentMetadata]:
    """Return the fragments with rows for which the filter may be true."""
    found = [fragment.metadata for fragment in dataset.get_fragments()]
    judged = partition_filter(dataset, filter)
    return [each for each in found if judged is None or judged.outcomes(each) & TRUE]


def whole_rows(dataset: lance.LanceDataset, filter: Json | None) -> tuple[int, list[int]]:
    """Return the rows of fragments that match as a whole, and the ids of fragments that match in part."""
    judged = partition_filter(dataset, filter)
    rows, left = 0, []
    for fragment in (each.metadata for each in dataset.get_fragments()):
        found = ANY if judged is None else judged.outcomes(fragment)
        if found == TRUE:
            rows += fragment.num_rows
        elif found & TRUE:
            left.append(fragment.id)
    return rows, left


def _outcomes(tree: Json, columns: dict[str, KnownColumn], parts: Sequence[NamedValue]) -> int:
    op, arguments = tree["op"], tree.get("args", [])
    if op in ("AND", "OR"):
        found = [_outcomes(each, columns, parts) for each in arguments]
        return conjunction(found) if op == "AND" else negation(conjunction([negation(each) for each in found]))
    if op == "NOT":
        return negation(_outcomes(arguments[0], columns, parts))
    if op in ("true", "false"):
        return TRUE if op == "true" else FALSE
    return _atom(op, arguments, columns, parts)


def conjunction(found: Sequence[int]) -> int:
    """Return the possible outcomes of AND over the possible outcomes of its operands."""
    total = TRUE
    for each in found:
        true = total & each & TRUE
        false = (total | each) & FALSE
        null = NULL if (total | each) & NULL and total & ~FALSE and each & ~FALSE else 0
        total = true | false | null
    return total


def negation(found: int) -> int:
    return (found & NULL) | (FALSE if found & TRUE else 0) | (TRUE if found & FALSE else 0)


def _atom(op: str, arguments: Sequence[Json], columns: dict[str, KnownColumn], parts: Sequence[NamedValue]) -> int:
    if len(arguments) == 2 and "literal" in arguments[0] and op in _FLIPPED:
        op, arguments = _FLIPPED[op], [arguments[1], arguments[0]]
    if op not in ATOMS or not arguments or arguments[0].get("column") not in columns:
        return ANY
    if any("literal" not in each or each["literal"] is None for each in arguments[1:]):
        return ANY
    column = columns[arguments[0]["column"]]
    literals = [_value(each) for each in arguments[1:]]
    total = ANY
    for part in parts:
        if part.field == column.id:
            total &= _outcomes_by_value(op, literals, part, column.kind)
    return total


def _value(literal: Json) -> Any:
    value = literal["literal"]
    return decimal.Decimal(value) if literal.get("decimal") else value


def _outcomes_by_value(op: str, literals: Sequence[object], part: NamedValue, kind: object) -> int:
    """Return the possible outcomes of a predicate on one column, by one partition value."""
    if part.value is None and part.digest is None:
        return {"IS_NULL": TRUE, "IS_NOT_NULL": FALSE, "<=>": FALSE}.get(op, NULL)
    if op in ("IS_NULL", "IS_NOT_NULL"):
        return TRUE if op == "IS_NOT_NULL" else FALSE
    if op == "IN":
        each = [_compared("=", literal, part, kind) for literal in literals]
        return negation(conjunction([negation(found) for found in each])) if each else ANY
    if op == "<>":
        return negation(_compared("=", literals[0], part, kind))
    if op == "STARTS_WITH":
        return _starts(literals[0], part)
    return _compared("=" if op == "<=>" else op, literals[0], part, kind)


def _compared(op: str, literal: Any, part: NamedValue, kind: Any) -> int:
    if part.digest is not None:
        text = isinstance(literal, str) and part.transform == "identity"
        return FALSE if text and op == "=" and digest(literal.encode()) != part.digest else TRUE | FALSE
    if part.transform == "bucket":
        return _bucketed(op, literal, part, kind)
    if isinstance(literal, str) != isinstance(part.value, str) or isinstance(literal, bool) != isinstance(
        part.value, bool
    ):
        return TRUE | FALSE
    if part.transform == "identity":
        return _ranged(op, literal, part.value, part.value)
    if isinstance(literal, str):
        return _prefixed(op, literal, part)
    dates = kind == pa.date32()
    low = first_of(part.value, part.transform, part.width, dates=dates)
    high = first_of(part.value + 1, part.transform, part.width, dates=dates) - 1
    return _ranged(op, literal, low, high)


def _bucketed(op: str, literal: object, part: NamedValue, kind: pa.DataType) -> int:
    """Compare by bucket: equal values have equal buckets, and a bucket has no order."""
    if op != "=" or isinstance(literal, (bool, decimal.Decimal)):
        return TRUE | FALSE
    text = isinstance(literal, str)
    if text != (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return TRUE | FALSE
    bucket = transformed(pa.array([literal], pa.string() if text else pa.int64()), "bucket", part.width)[0].as_py()
    return TRUE | FALSE if bucket == part.value else FALSE


def _ranged(op: str, literal: Any, low: object, high: Any) -> int:
    """Return the possible outcomes of comparing a value between low and high with a literal."""
    if op == "=":
        true, false = low <= literal <= high, not (low == high == literal)
    elif op in ("<", "<="):
        true, false = (low < literal, high >= literal) if op == "<" else (low <= literal, high > literal)
    else:
        true, false = (high > literal, low <= literal) if op == ">" else (high >= literal, low < literal)
    return (TRUE if true else 0) | (FALSE if false else 0)


def _prefixed(op: str, literal: str, part: NamedValue) -> int:
    """Return the possible outcomes of comparing a text, known by its first `width` characters, with a literal."""
    prefix = part.value
    if len(prefix) < part.width:
        return _ranged(op, literal, prefix, prefix)
    cut = literal[: part.width]
    if op == "=":
        true, false = cut == prefix, True
    elif op in ("<", "<="):
        true, false = (prefix < literal if op == "<" else prefix <= literal), cut <= prefix
    else:
        true, false = cut <= prefix, (prefix <= literal if op == ">" else prefix < literal)
    return (TRUE if true else 0) | (FALSE if false else 0)


def _starts(literal: object, part: NamedValue) -> int:
    if part.digest is not None or not isinstance(part.value, str) or not isinstance(literal, str):
        return TRUE | FALSE
    if part.transform == "identity" or len(part.value) < part.width:
        return TRUE if part.value.startswith(literal) else FALSE
    if not part.value.startswith(literal[: part.width]):
        return FALSE
    return TRUE if len(literal) <= part.width else TRUE | FALSE


Tree = Mapping[str, Any]
Window = tuple[int, int]
Offsets = npt.NDArray[np.uint64]

PACKED = b"lance-encoding:packed"
ROW_COLUMNS = (ROW_ID, ROW_ADDRESS)
ROW_OFFSET = "_rowoffset"
READ_AHEAD = 2
DENSE = 8


def pruned(field: pa.Field[pa.DataType], tree: Tree | None) -> Any:
    """Return the field with only the subfields of the tree, in the field's own order. Pure."""
    if tree is None or not pa.types.is_struct(field.type):
        return field
    kept = [pruned(child, tree[child.name]) for child in _children(field) if child.name in tree]
    return field.with_type(pa.struct(kept))


def paths(schema: pa.Schema, columns: Sequence[str], trees: Mapping[str, Tree]) -> list[str] | None:
    """Return the paths to take from a version, or None if whole columns must be scanned. Pure.

    Blobs are only read by scans; a packed struct is kept as one value, and parts of it are read wrongly; a subfield
    that the version does not have cannot be named. Fields stand in the struct's own order: asked for in another one,
    Lance answers their values under each other's names.
    """
    found: list[str] = [name for name in columns if name in ROW_COLUMNS]
    for name in columns:
        if name in schema.names:
            under = _paths(schema.field(name), trees.get(name))
            if under is None:
                return None
            found += under
    return found


def _paths(field: pa.Field[pa.DataType], tree: Tree | None) -> list[str] | None:
    if "`" in field.name:
        return None
    if tree is None:
        return None if _holds_blobs(field) else [f"`{field.name}`"]
    children = [child for child in _children(field) if child.name in tree]
    if len(children) < len(tree) or PACKED in (field.metadata or {}):
        return None
    found: list[str] = []
    for child in children:
        under = _paths(child, tree[child.name])
        if under is None:
            return None
        found += [f"`{field.name}`.{path}" for path in under]
    return found


def _holds_blobs(field: pa.Field[pa.DataType]) -> bool:
    return is_blob(field.type) or BLOB in (field.metadata or {}) or any(map(_holds_blobs, _children(field)))


def _children(field: pa.Field[pa.DataType]) -> list[Any]:
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    return [kind.field(index) for index in range(kind.num_fields)]


def windows(dataset: lance.LanceDataset, part: ScanPart, limit: int | None) -> list[Window] | None:
    """Return the part's rows as ranges of row offsets; None if any of its fragments has deleted rows.

    Among deleted rows a take by position gathers row by row, and Lance 14 can look for a position there without end.
    """
    found: list[Window] = []
    start = 0
    wanted = chosen(part)
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        if wanted is None or metadata.id in wanted:
            if metadata.num_deletions:
                return None
            found.append((start, start + metadata.num_rows))
        start += metadata.num_rows
    if isinstance(part, Slice):
        found = [(begin + part.offset, begin + part.offset + part.limit) for begin, _ in found]
    return found if limit is None else _first(found, limit)


def _first(found: list[Window], rows: int) -> list[Window]:
    kept: list[Window] = []
    for begin, end in found:
        kept.append((begin, min(end, begin + rows)))
        rows -= kept[-1][1] - begin
        if rows <= 0:
            break
    return kept


def take(
    dataset: lance.LanceDataset, columns: list[str], ranges: Sequence[Window], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield ranges of rows, in batches of at most `batch_rows`."""
    steps = [(at, min(at + batch_rows, end)) for begin, end in ranges for at in range(begin, end, batch_rows)]
    if steps:
        yield from dataset._ds.take_scan(steps, columns=columns, batch_readahead=READ_AHEAD)


def take_where(
    dataset: lance.LanceDataset, columns: list[str], filter: str, part: ScanPart, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the part's matching rows: Lance finds their offsets, then the columns are read only there."""
    wanted = chosen(part)
    fragments = [f for f in dataset.get_fragments() if wanted is None or f.fragment_id in wanted]
    scanner = dataset.scanner(columns=[ROW_OFFSET], filter=filter, fragments=fragments, batch_size=65_536)
    waiting: list[Offsets] = []
    for batch in scanner.to_batches():
        waiting.append(batch.column(0).to_numpy())
        if sum(map(len, waiting)) >= batch_rows:
            yield from _take_at(dataset, columns, np.sort(np.concatenate(waiting)), batch_rows)
            waiting = []
    if waiting:
        yield from _take_at(dataset, columns, np.sort(np.concatenate(waiting)), batch_rows)


def _take_at(
    dataset: lance.LanceDataset, columns: list[str], offsets: Offsets, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield rows at ascending offsets: dense offsets from whole windows, sparse ones one by one."""
    if not len(offsets):
        return
    begin, end = int(offsets[0]), int(offsets[-1]) + 1
    if end - begin > DENSE * len(offsets):
        yield from dataset.take(offsets.tolist(), columns=columns).to_batches()
        return
    wanted = np.zeros(end - begin, dtype=bool)
    wanted[offsets.astype(np.int64) - begin] = True
    at = 0
    for batch in take(dataset, columns, [(begin, end)], batch_rows):
        yield batch.filter(pa.array(wanted[at : at + batch.num_rows]))
        at += batch.num_rows


def live_batches(
    dataset: lance.LanceDataset, fragments: Sequence[Any] | None = None, **options: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the live rows of `fragments` (None: all), batch by batch; `options` of a scan without filter or limit.

    Deleted rows are read and dropped here. Lance would filter every column of every batch, several times as slowly.

    An empty batch may be among them.
    """
    chosen = dataset.get_fragments() if fragments is None else list(fragments)
    if not any(each.metadata.num_deletions for each in chosen):
        yield from dataset.scanner(fragments=fragments, **options).to_batches()
        return
    wanted = bool(options.pop("with_row_id", False))
    scanner = dataset.scanner(fragments=fragments, with_row_id=True, include_deleted_rows=True, **options)
    for batch in scanner.to_batches():
        ids = batch.column(ROW_ID)
        live = batch.filter(ids.is_valid()) if ids.null_count else batch
        yield live if wanted else live.drop_columns([ROW_ID])


WINDOW_BYTES = 4 * 1024 * 1024
FIRST_ROWS = 1024
MAX_ROWS = 1024 * 1024
Scan = Callable[[int, int], "lance.LanceScanner"]
"""A function from an offset and a limit to the scan of those rows."""


def row_windows(scan: Scan, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows from `start` to `stop`, in order, by one small scan for each window.

    A single scan reads whole pages ahead, also for a reader that is slow or gone. Windows keep memory flat.
    """
    size = FIRST_ROWS
    while start < stop:
        rows = taken = 0
        for batch in scan(start, min(size, stop - start)).to_reader():
            rows, taken = rows + batch.num_rows, taken + batch.nbytes
            yield batch
        start += size
        size = next_size(rows, taken)


def next_size(rows: int, taken: int) -> int:
    """Return the row count of the next window, after one of `rows` rows in `taken` bytes."""
    if not rows:
        return FIRST_ROWS
    return max(1, min(MAX_ROWS, WINDOW_BYTES * rows // max(1, taken)))
