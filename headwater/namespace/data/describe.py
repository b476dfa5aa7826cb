"""Descriptions of a table: DescribeTable, its schema as JSON, statistics, transactions (lance-rest-openapi.yaml).

An operation is over when it answers, so every transaction that can be found has succeeded and is fixed for good. A
transaction is named by the id that an answer gave, or by the number of the version it made.
JsonArrowSchema is spelled as released Lance spells it. It drops the unit and zone of times, and a dictionary shows as
its values; a decimal's precision and scale travel in `length`, as `precision * 1000 + scale`. So `describe_exact`, at
POST /headwater/v1/table/{id}/describe, has the exact schema for Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary
from lance_namespace_urllib3_client.models.json_arrow_data_type import JsonArrowDataType
from lance_namespace_urllib3_client.models.json_arrow_field import JsonArrowField
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from headwater.decoding.bounds import MAX_DEPTH
from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableSchemaValidationError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.names import ObjectId, format_name
from headwater.namespace.data.refs import tag_version
from headwater.tables.commit.history import MAX_VERSIONS_SEARCHED, find
from headwater.tables.handle import TableHandle, unread_rows
from headwater.tables.translate import translating
from headwater.types import spark_schema

PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(), "bool": pa.bool_(), "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(),
    "int64": pa.int64(), "uint8": pa.uint8(), "uint16": pa.uint16(), "uint32": pa.uint32(), "uint64": pa.uint64(),
    "float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(), "utf8": pa.string(),
    "large_utf8": pa.large_string(), "binary": pa.binary(), "large_binary": pa.large_binary(),
    "date32": pa.date32(), "date64": pa.date64(),
}  # fmt: skip
NAMES: dict[pa.DataType, str] = {kind: name for name, kind in PLAIN.items()}
NAMES |= {pa.string_view(): "utf8", pa.binary_view(): "binary"}

# What a name says when it comes back without the unit that the JSON drops.
LOOSE: dict[str, pa.DataType] = {
    "timestamp": pa.timestamp("us"), "time32": pa.time32("ms"), "time64": pa.time64("us"),
    "duration": pa.duration("us"), "boolean": pa.bool_(), "string": pa.string(), "large_string": pa.large_string(),
}  # fmt: skip
LISTS: dict[str, Any] = {"list": pa.list_, "large_list": pa.large_list}
MAX_LENGTH = 2**31 - 1


def schema_to_json(schema: pa.Schema) -> JsonArrowSchema:
    """Return a table's schema as JsonArrowSchema."""
    return JsonArrowSchema(fields=[_field(field) for field in schema], metadata=text_metadata(schema.metadata))


def lance_schema_to_json(schema: pa.Schema) -> JsonArrowSchema:
    """Return the schema in Lance's own spelling (`timestamp:us:UTC`), which loses nothing but has no maps: error 20."""
    try:
        return JsonArrowSchema.model_validate(lance.schema.schema_to_json(schema))
    except ValueError as error:
        raise TableSchemaValidationError(f"Lance's JSON cannot say the schema: {str(error)[:200]}") from None


def type_to_json(kind: pa.DataType) -> dict[str, object]:
    """Return a type as requests have it."""
    return dict(_type(kind).to_dict())


def text_metadata(metadata: dict[bytes, bytes] | None) -> dict[str, str] | None:
    """Arrow's metadata as text; None when there is none."""
    if not metadata:
        return None
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in metadata.items()}


def _field(field: pa.Field[pa.DataType]) -> JsonArrowField:
    metadata, kind = text_metadata(field.metadata) or {}, field.type
    if isinstance(kind, pa.BaseExtensionType):
        metadata = {"ARROW:extension:name": kind.extension_name, **metadata}
        metadata.setdefault("ARROW:extension:metadata", _extension_metadata(kind))
        kind = kind.storage_type
    return JsonArrowField(name=field.name, nullable=field.nullable, type=_type(kind), metadata=metadata or None)


def _extension_metadata(kind: object) -> str:
    """Return the metadata of an extension type; of Arrow's own only the tensor has any."""
    if hasattr(kind, "__arrow_ext_serialize__"):
        return str(kind.__arrow_ext_serialize__().decode(errors="replace"))
    if not isinstance(kind, pa.FixedShapeTensorType):
        return ""
    said = {"shape": kind.shape, "dim_names": kind.dim_names, "permutation": kind.permutation}
    return json.dumps({key: list(value) for key, value in said.items() if value is not None}, separators=(",", ":"))


def _type(kind: pa.DataType) -> JsonArrowDataType:
    if kind in NAMES:
        return JsonArrowDataType(type=NAMES[kind])
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if pa.types.is_decimal(kind):
        return JsonArrowDataType(type=f"decimal{kind.bit_width}", length=kind.precision * 1000 + kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return JsonArrowDataType(type="fixed_size_binary", length=kind.byte_width)
    if pa.types.is_fixed_size_list(kind):
        return JsonArrowDataType(type="fixed_size_list", length=kind.list_size, fields=[_field(kind.value_field)])
    fields = [_field(kind.field(position)) for position in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return JsonArrowDataType(type="map", fields=[_entries(fields)])
    if fields or pa.types.is_struct(kind):
        return JsonArrowDataType(type=str(kind).split("<", 1)[0], fields=fields)
    return JsonArrowDataType(type=str(kind).split("[", 1)[0])


def _entries(fields: list[JsonArrowField]) -> JsonArrowField:
    if len(fields) == 1:
        return fields[0]
    return JsonArrowField(name="entries", nullable=False, type=JsonArrowDataType(type="struct", fields=fields))


def type_from_json(data: object, depth: int = 0) -> pa.DataType:
    """Return the Arrow type of its JSON: our spelling, or Lance's own (`timestamp:us:UTC`). InvalidInput (13)
    otherwise."""
    if isinstance(data, str):
        data = {"type": data}
    if not isinstance(data, dict) or not isinstance(data.get("type"), str) or depth > MAX_DEPTH:
        raise InvalidInputError('A data type is an object such as {"type": "int64"}.')
    name = data["type"]
    if name.lower() in PLAIN:
        return PLAIN[name.lower()]
    if name.lower() in LOOSE:
        return LOOSE[name.lower()]
    found: pa.DataType | None = _sized(name.lower(), data, depth)
    return _lance_type(name) if found is None else found


def _sized(name: str, data: dict[str, Any], depth: int) -> Any:
    try:
        if name in LISTS:
            return LISTS[name](_one_child(data, depth))
        if name == "fixed_size_list":
            return pa.list_(_one_child(data, depth), _length(data))
        if name == "struct":
            return pa.struct([_child(child, depth) for child in data.get("fields") or []])
        if name == "fixed_size_binary":
            return pa.binary(_length(data))
        if name in ("decimal128", "decimal256"):
            make = pa.decimal128 if name == "decimal128" else pa.decimal256
            return make(*divmod(_length(data), 1000))
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"The data type {str(name)[:80]!r} is not valid: {str(error)[:200]}") from None
    return None


def _lance_type(name: str) -> pa.DataType:
    try:
        spelled = {"name": "x", "nullable": True, "type": {"type": name[:200]}}
        found: pa.Schema = lance.schema.json_to_schema({"fields": [spelled]})
        kind: pa.DataType = found.field(0).type
        return kind
    except (ValueError, OSError):
        raise InvalidInputError(f"The data type {name[:80]!r} is not known.") from None


def _one_child(data: dict[str, object], depth: int) -> pa.Field[pa.DataType]:
    fields = data.get("fields")
    if not isinstance(fields, list) or len(fields) != 1:
        raise InvalidInputError(f"The data type {str(data['type'])[:80]!r} needs one entry in fields: its item.")
    return _child(fields[0], depth)


def _child(data: object, depth: int) -> pa.Field[pa.DataType]:
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise InvalidInputError("Each of the fields of a data type has a name and a type.")
    return pa.field(data["name"], type_from_json(data.get("type"), depth + 1), bool(data.get("nullable", True)))


def _length(data: dict[str, object]) -> int:
    length = data.get("length")
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MAX_LENGTH:
        raise InvalidInputError(f"The data type {str(data['type'])[:80]!r} needs a length, at least 1.")
    return length


SMALL_FRAGMENT_ROWS = 100_000
UNREAD_ROWS = "headwater.unread_rows"
"""In the metadata of a table with a write-ahead log of Lance's: what is not shown."""


@dataclass(frozen=True)
class DataFacts:
    """Facts of a table's data for DescribeTable. Without details only `version` is set."""

    version: int
    schema: JsonArrowSchema | None = None
    stats: TableBasicStats | None = None
    metadata: dict[str, str] | None = None
    arrow_schema: pa.Schema | None = None


def describe_data(
    table: TableHandle,
    version: int | None = None,
    load_detailed_metadata: bool = True,
    branch: str | None = None,
    tag: str | None = None,
) -> DataFacts:
    """DescribeTable's facts at a version, tag or branch: errors 8, 11, 13, 19, 22."""
    if tag is not None:
        if version is not None or branch is not None:
            raise InvalidInputError("tag cannot be used together with version or branch.")
        version, branch = tag_version(table, tag)
    dataset = table.open(version, branch)
    if not load_detailed_metadata:
        return DataFacts(dataset.version)
    has_log = dataset.mem_wal_index_details() is not None
    unread = {UNREAD_ROWS: unread_rows(table.name)} if has_log else {}
    with translating(table, "describe"):
        return DataFacts(
            version=dataset.version,
            schema=schema_to_json(dataset.schema),
            stats=basic_stats(dataset),
            metadata={**dataset.schema_metadata, **dataset.metadata, **unread},
            arrow_schema=dataset.schema,
        )


def basic_stats(dataset: lance.LanceDataset) -> TableBasicStats:
    """Read from the manifest alone."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    return TableBasicStats(num_deleted_rows=sum(one.num_deletions for one in fragments), num_fragments=len(fragments))


def get_table_stats(table: TableHandle, request: api.GetTableStatsRequest) -> api.GetTableStatsResponse:
    """GetTableStats: rows and fragment lengths count what is not deleted. Errors 19, 22 branch."""
    dataset = table.open(branch=request.branch)
    with translating(table, "read the statistics of"):
        return statistics(dataset)


def statistics(dataset: lance.LanceDataset) -> api.GetTableStatsResponse:
    """Return the numbers of rows, bytes, fragments and indices of one version of a table."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    lengths = sorted(fragment.num_rows for fragment in fragments)
    fields: Any = dataset.stats.data_stats().fields  # a list, which its type does not say
    pages = sum(field.bytes_on_disk for field in fields)  # 0 for columns of one value, which stand in the file's footer
    return api.GetTableStatsResponse(
        total_bytes=pages or bytes_of(fragments),
        num_rows=sum(lengths),
        num_indices=len(dataset.describe_indices()),
        fragment_stats=FragmentStats(
            num_fragments=len(lengths),
            num_small_fragments=sum(length < SMALL_FRAGMENT_ROWS for length in lengths),
            lengths=summary(lengths),
        ),
    )


def bytes_of(fragments: Iterable[lance.FragmentMetadata]) -> int:
    """Return the bytes of the data files of fragments, as far as the manifest has them."""
    return sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files)


def summary(lengths: list[int]) -> FragmentSummary:
    """Return the spread of sorted lengths; all zero of none."""
    if not lengths:
        return FragmentSummary(min=0, max=0, mean=0, p25=0, p50=0, p75=0, p99=0)
    return FragmentSummary(
        min=lengths[0],
        max=lengths[-1],
        mean=sum(lengths) // len(lengths),
        p25=percentile(lengths, 25),
        p50=percentile(lengths, 50),
        p75=percentile(lengths, 75),
        p99=percentile(lengths, 99),
    )


def percentile(lengths: list[int], percent: int) -> int:
    """Return the length at a rank of the sorted lengths, rounded down."""
    return lengths[percent * (len(lengths) - 1) // 100]


SUCCEEDED = "SUCCEEDED"
STATUSES = ("queued", "running", "succeeded", "failed", "canceled")


def describe_transaction(
    table: TableHandle, request: api.DescribeTransactionRequest
) -> api.DescribeTransactionResponse:
    """DescribeTransaction of the table's id followed by the transaction's: error 10 TransactionNotFound."""
    properties = _find(table, _name(request.id))
    return api.DescribeTransactionResponse(status=SUCCEEDED, properties=properties)


def alter_transaction(table: TableHandle, request: api.AlterTransactionRequest) -> api.AlterTransactionResponse:
    """AlterTransaction: error 10 TransactionNotFound; what has succeeded can only be told that it has."""
    properties = _find(table, _name(request.id))
    for action in request.actions:
        status = action.set_status_action.status if action.set_status_action is not None else None
        if status is None:
            raise UnsupportedOperationError("A committed transaction is fixed for good: its properties do not change.")
        if status.lower() not in STATUSES:
            raise InvalidInputError(f"status must be one of {', '.join(STATUSES)}.")
        if status.lower() != "succeeded":
            raise InvalidInputError(
                "The transaction has succeeded: its status does not change. Restore a version instead."
            )
    return api.AlterTransactionResponse(status=SUCCEEDED, properties=properties)


def _name(id: list[str] | None) -> str:
    if not id or not id[-1] or len(id[-1]) > 255:
        raise InvalidInputError("A transaction is named by its table's id followed by its own.")
    return id[-1]


def _find(table: TableHandle, name: str) -> dict[str, str]:
    dataset = table.open()
    with translating(table, "find a transaction of"):
        found = find(dataset, name)
    if found is None:
        raise TransactionNotFoundError(
            f"Table {table.id} has no transaction {name[:80]!r} among its last {MAX_VERSIONS_SEARCHED} versions."
        )
    told = {"uuid": found.uuid, "version": found.version, "read_version": found.read_version}
    return {
        **found.properties,
        **{key: str(value) for key, value in told.items() if value is not None},
        "operation": found.operation,
    }


def describe_exact(namespace: LanceNamespace, id: list[str]) -> dict[str, object]:
    """Return location, newest version, Spark schema (JSON form), Arrow schema (IPC, hex), rows and bytes of a table."""
    answer = namespace.describe_table(
        api.DescribeTableRequest(id=id, with_table_uri=True, load_detailed_metadata=False)
    )
    uri = answer.table_uri or answer.location
    if not uri:
        raise InvalidTableStateError(f"The catalog gives no location for the table {format_name(id)!r}.")
    client = namespace if answer.managed_versioning else None
    dataset = TableHandle(ObjectId(tuple(id)), uri, dict(answer.storage_options or {}), client).open()
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    return {
        "id": id,
        "location": uri,
        "version": dataset.version,
        "spark_schema": spark_schema(dataset.schema),
        "arrow_schema": dataset.schema.serialize().to_pybytes().hex(),
        "rows": sum(fragment.num_rows for fragment in fragments),
        "bytes": bytes_of(fragments),
        "managed_versioning": bool(answer.managed_versioning),
        "unread_rows": unread_rows(format_name(id)) if dataset.mem_wal_index_details() is not None else None,
    }
