"""Indices of a table: their types and options, builds in this process or in segments on executors, and drops.

A segment comes back to the driver as JSON, which is data and never run.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.arguments import check_options
from headwater.errors import InvalidInputError, TableIndexAlreadyExistsError, TableIndexNotFoundError
from headwater.imports import lance
from headwater.tables.columns.fields import dimension, require_field
from headwater.tables.handle import TableHandle
from headwater.tables.scan.table_scan import Extent, whole_fragments
from headwater.tables.translate import translating

if TYPE_CHECKING:
    from lance.dataset import Index

Json = dict[str, Any]


def segment_to_json(segment: Index) -> Json:
    kind, details = segment.index_details or (None, b"")
    return {
        "uuid": segment.uuid,
        "name": segment.name,
        "fields": list(segment.fields),
        "dataset_version": segment.dataset_version,
        "fragment_ids": sorted(segment.fragment_ids),
        "index_version": segment.index_version,
        "created_at": segment.created_at.isoformat() if segment.created_at else None,
        "base_id": segment.base_id,
        "files": None if segment.files is None else [dataclasses.asdict(file) for file in segment.files],
        "index_details": None if kind is None else [kind, base64.b64encode(details).decode()],
        "covering_fields": list(segment.covering_fields),
    }


def segment_from_json(value: Json) -> Index:
    details = value["index_details"]
    return lance.Index(
        **{
            **value,
            "fragment_ids": set(value["fragment_ids"]),
            "created_at": dt.datetime.fromisoformat(value["created_at"]) if value["created_at"] else None,
            "files": None if value["files"] is None else [lance.IndexFile(**file) for file in value["files"]],
            "index_details": None if details is None else (details[0], base64.b64decode(details[1])),
        }
    )


PARTITION_ROWS = 8192
MAX_PARTITIONS = 65_536
BUILD_OPTIONS = frozenset(
    [
        "metric",
        "distance_type",
        "num_partitions",
        "ivf_centroids",
        "pq_codebook",
        "num_sub_vectors",
        "num_bits",
        "accelerator",
        "filter_nan",
        "train",
        "index_cache_size",
        "shuffle_partition_batches",
        "shuffle_partition_concurrency",
        "ivf_centroids_file",
        "sample_rate",
        "max_iters",
        "max_iterations",
        "target_partition_size",
        "streaming_sample_rate",
        "streaming_coreset_rate",
        "streaming_refine_passes",
        "m",
        "max_level",
        "skip_transpose",
        "ef_construction",
        "prefetch_distance",
        "one_pass_ivfpq",
        "precomputed_partition_dataset",
        "rabitq_model",
        "format_version",
        "document_granularity",
        "with_position",
        "block_size",
        "memory_limit",
        "num_workers",
        "base_tokenizer",
        "language",
        "max_token_length",
        "lower_case",
        "stem",
        "remove_stop_words",
        "custom_stop_words",
        "ascii_folding",
        "min_ngram_length",
        "max_ngram_length",
        "prefix_only",
        "skip_merge",
        "rows_per_zone",
        "number_of_items",
        "probability",
        "page_size",
    ]
)
"""Options that pylance's index builders know. They ignore any other option without an error."""


def completed(kind: str, given: Mapping[str, object], rows: int | None, dimension: int) -> dict[str, Any]:
    """Return the options of a vector index, with defaults for those that product quantization needs.

    `rows`: of one segment, for an index built in segments. pylance does not choose the partitions of segments.
    """
    options = dict(given)
    if kind.endswith("PQ"):
        options.setdefault("num_sub_vectors", sub_vectors(dimension))
        if rows is not None:
            options.setdefault("num_partitions", partitions(rows))
    return options


def partitions(rows: int) -> int:
    """Return the number of IVF partitions for PARTITION_ROWS rows each: fewer slow searches down, more slow builds."""
    return max(1, min(MAX_PARTITIONS, rows // PARTITION_ROWS))


def sub_vectors(dimension: int) -> int:
    """Return the number of sub-vectors: 16 values each if the dimension allows it, else 8, else one sub-vector."""
    for width in (16, 8):
        if dimension % width == 0:
            return dimension // width
    return 1


FULL_TEXT = ("FTS", "INVERTED")
SCALAR = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "RTREE", *FULL_TEXT)
VECTOR = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
TYPES = (*SCALAR, *VECTOR)
MERGED_ROWS = 20_000_000


@dataclass(frozen=True)
class NewIndex:
    """An index to build: the path of its column, its type and name as Lance writes them, and pylance's options."""

    column: str
    kind: str
    name: str | None
    options: Mapping[str, Any]


def index_type(text: str, allowed: Sequence[str] = TYPES) -> str:
    """Return the index type for a text in any case, with or without underscores; InvalidInput (13)."""
    plain = text.upper().replace("_", "").replace("-", "")
    for kind in allowed:
        if kind.replace("_", "") == plain:
            return "INVERTED" if kind in FULL_TEXT else kind
    raise InvalidInputError(f"The index type {text[:80].upper()!r} is not known: use one of {', '.join(allowed)}.")


def new_index(
    table: TableHandle,
    dataset: lance.LanceDataset,
    column: str,
    kind: str,
    name: str | None,
    options: Mapping[str, object],
    rows: int | None = None,
) -> NewIndex:
    """Return a checked index definition with defaults. `rows`: of one segment. Errors 7, 12, 13."""
    check_options(options, BUILD_OPTIONS, "An index")
    path, field = require_field(dataset.schema, column)
    if name is not None and name in names_of(table, dataset):
        raise TableIndexAlreadyExistsError(
            f"Table {table.id} already has an index {name[:80]!r}: drop it first, or choose another name."
        )
    if kind in VECTOR:
        size = dimension(field.type)
        if size is None:
            raise InvalidInputError(f"A {kind} index needs vectors, and the column {path!r} is {field.type}.")
        options = completed(kind, options, rows, size)
    return NewIndex(path, kind, name, options)


def default_name(column: str) -> str:
    return f"{column}_idx".replace(".", "_")


def build(table: TableHandle, dataset: lance.LanceDataset, index: NewIndex) -> None:
    """Build and commit the index in this process."""
    with translating(table, f"create a {index.kind} index on"):
        make: Any = dataset.create_index if index.kind in VECTOR else dataset.create_scalar_index
        make(index.column, index.kind, name=index.name, replace=False, **index.options)


def divided(dataset: lance.LanceDataset, tasks: int) -> list[list[int]]:
    """Return the fragments of each task."""
    metadata = [fragment.metadata for fragment in dataset.get_fragments()]
    extents = [Extent(fragment.id, fragment.num_rows) for fragment in metadata if fragment.num_rows]
    return [list(fragments) for fragments in whole_fragments(extents, tasks)]


def build_piece(table: TableHandle, index: NewIndex, fragments: list[int]) -> dict[str, object]:
    """Build the index segment of some fragments. It belongs to no version until it is committed."""
    with translating(table, f"create a {index.kind} index on", otherwise=InvalidInputError):
        return segment_of(table.open(), index, fragments)


def segment_of(dataset: lance.LanceDataset, index: NewIndex, fragments: list[int]) -> Json:
    """Build a segment of an index over some fragments of a dataset."""
    segment = dataset.create_index_uncommitted(
        index.column, index.kind, name=index.name, fragment_ids=fragments, **index.options
    )
    return segment_to_json(segment)


def commit_pieces(
    table: TableHandle, newest: lance.LanceDataset, index: NewIndex, results: Sequence[dict[str, Any]]
) -> int:
    """Commit the segments of an index to the newest version. Returns their number after merging."""
    built = [segment_from_json(value) for value in results]
    segments = _merged(table, built) if index.kind == "BTREE" else built
    if segments:
        newest.commit_existing_index_segments(index.name or default_name(index.column), index.column, segments)
    if segments is not built:
        _remove_segments(table, built)
    return len(segments)


def _merged(table: TableHandle, built: list[Index]) -> list[Index]:
    """Merge segments into one, because a lookup reads every segment.

    A large table keeps its segments: the driver alone would merge for longer than the executors built.
    """
    dataset = table.open()
    if len(built) < 2 or dataset.count_rows() > MERGED_ROWS:
        return built
    return [dataset.merge_existing_index_segments(built)]


def merge_pieces(table: TableHandle, results: Sequence[Json]) -> list[Json]:
    """Merge the parts of an index on an executor; those of a large table stay as they are."""
    return [segment_to_json(each) for each in _merged(table, [segment_from_json(value) for value in results])]


def remove_pieces(table: TableHandle, results: Sequence[Json]) -> None:
    """Delete the files of parts that were merged."""
    _remove_segments(table, [segment_from_json(value) for value in results])


def _remove_segments(table: TableHandle, built: list[Any]) -> None:
    """Delete the files of merged segments, which no version names."""
    session = lance.file.LanceFileSession(table.uri, table.storage_options or None)
    for segment in built:
        for file in segment.files or []:
            session.delete_file(f"_indices/{segment.uuid}/{file.path}")


def names_of(table: TableHandle, dataset: lance.LanceDataset) -> set[str]:
    with translating(table, "list the indices of"):
        return {index.name for index in dataset.describe_indices()}


def require_index(table: TableHandle, dataset: lance.LanceDataset, name: str | None) -> str:
    """Return the name of an existing index. Errors 6, 13."""
    if not name:
        raise InvalidInputError("index_name is missing.")
    if name not in names_of(table, dataset):
        raise TableIndexNotFoundError(f"Table {table.id} has no index {name[:200]!r}.")
    return name


def drop(table: TableHandle, dataset: lance.LanceDataset, name: str | None) -> None:
    """Drop an index. Errors 6, 13, 14."""
    known = require_index(table, dataset, name)
    with translating(table, f"drop the index {known!r} of"):
        dataset.drop_index(known)
