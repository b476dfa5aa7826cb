"""Columns and metadata: add, alter, drop, backfill (lance-rest-openapi.yaml, the column operations), and restore.

A column is added with values from a SQL expression, or as *computed*: empty, with its expression kept in the field's
metadata, to be filled by a backfill. A backfill runs to its end within the call; the job id it answers with is that of
the transaction that committed it. Columns of a pickled function in a container are not run here: Unsupported (0).
Metadata belongs to the schema or to a field. `restore_table` goes back to an older version.

Indices: create, list, describe, drop (lance-rest-openapi.yaml, the index operations).
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import lance_namespace as api
import pyarrow as pa
from lance_namespace_urllib3_client.models.add_columns_entry import AddColumnsEntry
from lance_namespace_urllib3_client.models.alter_columns_entry import AlterColumnsEntry
from lance_namespace_urllib3_client.models.index_content import IndexContent
from lance_namespace_urllib3_client.models.update_field_metadata_entry import UpdateFieldMetadataEntry

from headwater.errors import ConcurrentModificationError, InvalidInputError, UnsupportedOperationError
from headwater.imports import lance
from headwater.namespace.data.describe import text_metadata, type_from_json
from headwater.namespace.data.query import DISTANCES
from headwater.paging import page
from headwater.table_refs import check_version
from headwater.tables import indices
from headwater.tables.columns import alter as columns
from headwater.tables.columns.alter import Alteration, column_of
from headwater.tables.columns.fields import require_field
from headwater.tables.commit.history import transaction_id
from headwater.tables.expressions import check_sql
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

COMPUTED = "headwater.computed"
"""The field metadata key that holds a computed column's expression."""
MAX_COLUMNS = 1000


def alter_table_add_columns(
    table: TableHandle, request: api.AlterTableAddColumnsRequest
) -> api.AlterTableAddColumnsResponse:
    """AlterTableAddColumns, all in one commit: errors 0, 12, 13 InvalidInput, 14, 19, 20 schema, 22 branch."""
    entries = list(request.new_columns or [])
    _check_count("new_columns", len(entries))
    kinds = {_check_entry(entry) for entry in entries}
    if len(kinds) > 1:
        raise InvalidInputError("new_columns mixes expression and computed columns: add them in two requests.")
    dataset = table.open(branch=request.branch)
    columns.check_new_names(dataset.schema, [entry.name for entry in entries])
    with translating(table, "add columns to"):
        if kinds == {"expression"}:
            columns.add(dataset, {entry.name: check_sql("expression", entry.expression) or "" for entry in entries})
        else:
            columns.add(dataset, _computed_fields(dataset, entries))
        return api.AlterTableAddColumnsResponse(version=dataset.version)


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= MAX_COLUMNS:
        raise InvalidInputError(f"{field} must hold between 1 and {MAX_COLUMNS} entries.")


def _check_entry(entry: AddColumnsEntry) -> str:
    """Check an entry of AddColumns, which is one of three kinds."""
    if entry.virtual_column is not None:
        raise UnsupportedOperationError(
            f"The column {entry.name[:80]!r} is virtual, and functions in containers are not run by this catalog: "
            "give an expression, or declare it as computed."
        )
    given = [kind for kind in ("expression", "computed") if getattr(entry, kind) is not None]
    if len(given) != 1:
        raise InvalidInputError(f"The new column {entry.name[:80]!r} needs one of expression and computed.")
    check_sql(given[0], getattr(entry, given[0]))
    return given[0]


def _computed_fields(dataset: lance.LanceDataset, entries: list[AddColumnsEntry]) -> pa.Schema:
    """The types of the columns are those of their expressions."""
    expressions = {entry.name: entry.computed or "" for entry in entries}
    checked = {name: check_sql("computed", expression) or "" for name, expression in expressions.items()}
    types = dataset.scanner(columns=checked, limit=1).projected_schema
    return pa.schema(
        pa.field(name, types.field(name).type, nullable=True, metadata={COMPUTED: expression})
        for name, expression in expressions.items()
    )


def alter_table_alter_columns(
    table: TableHandle, request: api.AlterTableAlterColumnsRequest
) -> api.AlterTableAlterColumnsResponse:
    """AlterTableAlterColumns, all at once: errors 0, 12 column, 13 InvalidInput, 14, 19, 20 schema, 22 branch."""
    entries = list(request.alterations or [])
    _check_count("alterations", len(entries))
    dataset = table.open(branch=request.branch)
    changes = [_alteration(dataset.schema, entry) for entry in entries]
    with translating(table, "alter columns of"):
        columns.alter(dataset, changes)
        return api.AlterTableAlterColumnsResponse(version=dataset.version)


def _alteration(schema: pa.Schema, entry: AlterColumnsEntry) -> Alteration:
    if entry.virtual_column is not None:
        raise UnsupportedOperationError("Virtual columns are not supported by this catalog.")
    if entry.rename is not None:
        columns.check_name(entry.rename)
    kind = type_from_json(entry.data_type) if entry.data_type is not None else None
    change = Alteration(column_of(schema, entry.path), entry.rename, entry.nullable, kind)
    if change == Alteration(change.column):
        raise InvalidInputError(
            f"The alteration of {entry.path[:80]!r} changes nothing: rename, nullable or data_type."
        )
    return change


def alter_table_drop_columns(
    table: TableHandle, request: api.AlterTableDropColumnsRequest
) -> api.AlterTableDropColumnsResponse:
    """AlterTableDropColumns, all in one commit: errors 12 column, 13 InvalidInput, 14, 19, 22 branch."""
    _check_count("columns", len(request.columns or []))
    dataset = table.open(branch=request.branch)
    gone = [column_of(dataset.schema, path) for path in request.columns]
    with translating(table, "drop columns of"):
        columns.drop(dataset, gone)
        return api.AlterTableDropColumnsResponse(transaction_id=transaction_id(dataset), version=dataset.version)


def alter_table_backfill_columns(
    table: TableHandle, request: api.AlterTableBackfillColumnsRequest
) -> api.AlterTableBackfillColumnsResponse:
    """AlterTableBackfillColumns of a computed column, done when it answers: errors 12, 13, 14, 19, 22 branch.

    Without `where`, the rows still empty are filled. The options that tune a cluster have nothing to tune here.
    """
    where = check_sql("where", request.where)
    dataset = table.open(branch=request.branch)
    column, field = require_field(dataset.schema, request.column)
    expression = (text_metadata(field.metadata) or {}).get(COMPUTED)
    if expression is None:
        raise InvalidInputError(f"The column {column!r} is not a computed one: nothing says how to fill it.")
    if request.read_version is not None and request.read_version != dataset.version:
        raise ConcurrentModificationError(
            f"Table {table.id} is at version {dataset.version}, not at {request.read_version}: look again."
        )
    with translating(table, f"backfill {column!r} of"):
        dataset.update({column: check_sql("computed", expression) or ""}, where=where or f"`{column}` IS NULL")
        return api.AlterTableBackfillColumnsResponse(job_id=transaction_id(dataset) or str(dataset.version))


MAX_KEYS = 10_000


def restore_table(table: TableHandle, request: api.RestoreTableRequest) -> api.RestoreTableResponse:
    """RestoreTable: a new version with the content of an old one. Errors 11 version, 13, 14, 19, 22 branch."""
    check_version(table.id, request.version)
    dataset = table.open(request.version, request.branch)
    with translating(table, f"restore version {request.version} of"):
        dataset.restore()
        return api.RestoreTableResponse(transaction_id=transaction_id(dataset))


def update_table_schema_metadata(
    table: TableHandle, request: api.UpdateTableSchemaMetadataRequest
) -> api.UpdateTableSchemaMetadataResponse:
    """UpdateTableSchemaMetadata: sets the keys given and keeps the others; answers with all of them."""
    dataset = table.open(branch=request.branch)
    with translating(table, "update the schema metadata of"):
        if not request.metadata:
            return api.UpdateTableSchemaMetadataResponse(metadata=dict(dataset.schema_metadata))
        _check_keys(list(request.metadata))
        after = dataset.update_schema_metadata(dict(request.metadata))
        return api.UpdateTableSchemaMetadataResponse(metadata=dict(after), transaction_id=transaction_id(dataset))


def update_field_metadata(
    table: TableHandle, request: api.UpdateFieldMetadataRequest
) -> api.UpdateFieldMetadataResponse:
    """UpdateFieldMetadata of several fields in one commit; a null value deletes its key. Errors 12, 13, 14, 19, 22."""
    if not request.updates:
        raise InvalidInputError("updates must name at least one field.")
    dataset = table.open(branch=request.branch)
    changes: dict[str, dict[str, str | None]] = {}
    for entry in request.updates:
        path, change = _field_change(dataset, entry)
        if path in changes:
            raise InvalidInputError(f"updates names the field {path[:200]!r} twice: put its changes into one entry.")
        changes[path] = change
    with translating(table, "update the field metadata of"):
        dataset.update_field_metadata(changes)
        schema = dataset.schema
        after = {path: text_metadata(require_field(schema, path)[1].metadata) or {} for path in changes}
        return api.UpdateFieldMetadataResponse(version=dataset.version, fields=after)


def _field_change(dataset: lance.LanceDataset, entry: UpdateFieldMetadataEntry) -> tuple[str, dict[str, str | None]]:
    """Return the keys to set and to delete. Replacing is deleting every key that is not given, so that one commit does
    all."""
    path, field = require_field(dataset.schema, entry.path)
    _check_keys(list(entry.metadata))
    change: dict[str, str | None] = dict(entry.metadata)
    if entry.replace:
        for key in text_metadata(field.metadata) or {}:
            change.setdefault(key, None)
    return path, change


def _check_keys(keys: list[str]) -> None:
    if len(keys) > MAX_KEYS or not all(keys):
        raise InvalidInputError(f"Metadata has at most {MAX_KEYS} keys, none of them empty.")


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
    """Raise for an option out of its range, whether or not this type of index uses it."""
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
    """Return the options that were given and that this type of index has, as pylance names them."""
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
