"""Indices: create, list, describe, drop (lance-rest-openapi.yaml, the index operations)."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import lance_namespace as api
from lance_namespace_urllib3_client.models.index_content import IndexContent

from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.namespace.data.query import DISTANCES
from headwater.paging import page
from headwater.tables import indices
from headwater.tables.commit.history import transaction_id
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

MAX_NAME_CHARS = 255
TOKENIZERS = ("simple", "whitespace", "raw", "ngram", "icu")
MODELS_VARIABLE = "LANCE_LANGUAGE_MODEL_HOME"
_MODEL = re.compile(r"(jieba|lindera)/[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
MAX_PARAMETER = 2**31 - 1

# Request field -> pylance's name for it.
FULL_TEXT_OPTIONS = ("with_position", "base_tokenizer", "language", "max_token_length", "lower_case", "stem",
                     "remove_stop_words", "ascii_folding")  # fmt: skip
IVF_OPTIONS = {"num_partitions": "num_partitions", "sample_rate": "sample_rate", "max_iterations": "max_iters",
               "target_partition_size": "target_partition_size", "num_bits": "num_bits"}  # fmt: skip
HNSW_OPTIONS = {"m": "m", "ef_construction": "ef_construction"}
PQ_OPTIONS = {"num_sub_vectors": "num_sub_vectors"}


def create_table_index(table: TableHandle, request: api.CreateTableIndexRequest) -> api.CreateTableIndexResponse:
    """CreateTableIndex: errors 7 TableIndexAlreadyExists, 12 column, 13 InvalidInput, 14, 19, 22 branch."""
    return api.CreateTableIndexResponse(transaction_id=_create(table, request, indices.TYPES))


def create_table_scalar_index(
    table: TableHandle, request: api.CreateTableIndexRequest
) -> api.CreateTableScalarIndexResponse:
    """CreateTableScalarIndex: as CreateTableIndex, for the scalar and full-text types."""
    return api.CreateTableScalarIndexResponse(transaction_id=_create(table, request, indices.SCALAR))


def _create(table: TableHandle, request: api.CreateTableIndexRequest, allowed: tuple[str, ...]) -> str | None:
    kind = indices.index_type(request.index_type, allowed)
    check_options(request)
    dataset = table.open(branch=request.branch)
    index = indices.new_index(table, dataset, request.column, kind, request.name, options_of(kind, request))
    indices.build(table, dataset, index)
    with translating(table, "read the transaction of"):
        return transaction_id(dataset)


def check_options(request: api.CreateTableIndexRequest) -> None:
    """Every option within its range, whether or not this type of index uses it."""
    numbers = (*IVF_OPTIONS, *HNSW_OPTIONS, "num_sub_vectors", "max_token_length")
    for name in numbers:
        value, least = getattr(request, name), 0 if name == "max_token_length" else 1
        if value is not None and not least <= value <= MAX_PARAMETER:
            raise InvalidInputError(f"{name} must be between {least} and {MAX_PARAMETER}, not {value}.")
    if request.distance_type is not None and request.distance_type.lower() not in DISTANCES:
        raise InvalidInputError(f"distance_type must be one of {', '.join(DISTANCES)}.")
    if request.name is not None and not 0 < len(request.name) <= MAX_NAME_CHARS:
        raise InvalidInputError(f"An index name is a text of 1 to {MAX_NAME_CHARS} characters.")
    if request.base_tokenizer is not None:
        check_tokenizer(request.base_tokenizer)


def check_tokenizer(name: str) -> None:
    """A tokenizer of Lance's own, or a language model of this machine: a name that leads to no other folder."""
    if name in TOKENIZERS:
        return
    model = _MODEL.fullmatch(name)
    home = os.environ.get(MODELS_VARIABLE) or os.path.expanduser("~/.local/share/lance/language_models")
    if model is None or not os.path.isdir(os.path.join(home, name)):
        raise InvalidInputError(
            f"base_tokenizer {name[:80]!r} is not here: use {', '.join(TOKENIZERS)}, or a language model that this "
            "machine has, such as jieba/default."
        )


def options_of(kind: str, request: api.CreateTableIndexRequest) -> dict[str, object]:
    """The options that were given and that this type of index has, as pylance names them."""
    if kind not in indices.VECTOR:
        names = dict(zip(FULL_TEXT_OPTIONS, FULL_TEXT_OPTIONS, strict=True)) if kind in indices.FULL_TEXT else {}
    else:
        names = {**IVF_OPTIONS, **(HNSW_OPTIONS if "HNSW" in kind else {}), **(PQ_OPTIONS if "PQ" in kind else {})}
    options = {ours: getattr(request, name) for name, ours in names.items() if getattr(request, name) is not None}
    return {**options, "metric": (request.distance_type or "l2").lower()} if kind in indices.VECTOR else options


def list_table_indices(table: TableHandle, request: api.ListTableIndicesRequest) -> api.ListTableIndicesResponse:
    """ListTableIndices: errors 11 version, 13 InvalidInput, 19, 22 branch. Pages by index name."""
    dataset = table.open(request.version, request.branch)
    with translating(table, "list the indices of"):
        found = {index.name: index for index in dataset.describe_indices()}
        names, token = page(sorted(found), request.page_token, request.limit)
        rows = dataset.count_rows() if names else 0
        contents = [_content(dataset, found[name], rows) for name in names]
    return api.ListTableIndicesResponse(indexes=contents, page_token=token)


def _content(dataset: lance.LanceDataset, index: Any, rows: int) -> IndexContent:
    segments = list(index.segments)
    first = segments[0] if segments else None
    indexed = min(int(index.num_rows_indexed), rows)
    created = [segment.created_at for segment in segments if segment.created_at is not None]
    return IndexContent(
        index_name=index.name,
        index_uuid=str(first.uuid) if first is not None else "",
        columns=[str(name) for name in index.field_names],
        status="SUCCEEDED",
        index_type=index.index_type,
        type_url=index.type_url,
        num_indexed_rows=indexed,
        num_unindexed_rows=rows - indexed,
        size_bytes=index.total_size_bytes,
        num_segments=len(segments),
        created_at=min(created) if created else None,
        index_version=first.index_version if first is not None else None,
        index_details=json.dumps(index.details, sort_keys=True, default=str),
    )


def describe_table_index_stats(
    table: TableHandle, request: api.DescribeTableIndexStatsRequest
) -> api.DescribeTableIndexStatsResponse:
    """DescribeTableIndexStats: errors 6 TableIndexNotFound, 11 version, 13 InvalidInput, 19, 22 branch."""
    dataset = table.open(request.version, request.branch)
    name = indices.require_index(table, dataset, request.index_name)
    with translating(table, f"describe the index {name[:80]!r} of"):
        stats = dataset.stats.index_stats(name)
        details = next(index.details for index in dataset.describe_indices() if index.name == name)
    metric = (details or {}).get("metric_type")
    return api.DescribeTableIndexStatsResponse(
        distance_type=str(metric).lower() if metric else None,
        index_type=stats.get("index_type"),
        num_indexed_rows=stats.get("num_indexed_rows"),
        num_unindexed_rows=stats.get("num_unindexed_rows"),
        num_indices=stats.get("num_indices"),
    )


def drop_table_index(table: TableHandle, request: api.DropTableIndexRequest) -> api.DropTableIndexResponse:
    """DropTableIndex: errors 6 TableIndexNotFound, 13 InvalidInput, 14, 19, 22 branch."""
    dataset = table.open(branch=request.branch)
    name = indices.require_index(table, dataset, request.index_name)
    with translating(table, f"drop the index {name[:80]!r} of"):
        dataset.drop_index(name)
        return api.DropTableIndexResponse(transaction_id=transaction_id(dataset))
