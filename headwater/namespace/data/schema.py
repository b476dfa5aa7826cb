"""Schemas as JSON (lance-rest-openapi.yaml, JsonArrowSchema), spelled as released Lance spells them.

The JSON says less than Arrow does: it drops the unit and zone of times, and a dictionary shows as its values.
A decimal's precision and scale travel in `length`, as `precision * 1000 + scale`.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from lance_namespace_urllib3_client.models.json_arrow_data_type import JsonArrowDataType
from lance_namespace_urllib3_client.models.json_arrow_field import JsonArrowField
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

from headwater.decoding.bounds import MAX_DEPTH
from headwater.errors import InvalidInputError, TableSchemaValidationError
from headwater.imports import lance

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
    """The JSON of a table's schema."""
    return JsonArrowSchema(fields=[_field(field) for field in schema], metadata=text_metadata(schema.metadata))


def lance_schema_to_json(schema: pa.Schema) -> JsonArrowSchema:
    """Return the schema in Lance's own spelling (`timestamp:us:UTC`), which loses nothing but has no maps: error 20."""
    try:
        return JsonArrowSchema.model_validate(lance.schema.schema_to_json(schema))
    except ValueError as error:
        raise TableSchemaValidationError(f"Lance's JSON cannot say the schema: {str(error)[:200]}") from None


def type_to_json(kind: pa.DataType) -> dict[str, object]:
    """A type as requests have it."""
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
    """The Arrow type of its JSON: our spelling, or Lance's own (`timestamp:us:UTC`). InvalidInput (13) otherwise."""
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
