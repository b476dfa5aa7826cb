"""Arrow types and Spark types, both ways. Pure: imports neither pyspark nor lance.

Spark types appear here as Spark's own JSON form (`StructType.jsonValue()`): a string such as "long" or
"decimal(10,2)", or a dict for arrays, maps and structs. Three questions are answered:

- `spark_type(arrow)`: what a column of a Lance table is in Spark;
- `arrow_type(spark)`: what a column made in Spark is in a new Lance table (also Spark's own Arrow layout);
- `wire_type(arrow)`: in which Arrow type its values travel to the JVM, which reads a smaller set of types.

`convert(array, type)` changes an array's layout without changing what it says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.imports import pc

SparkType = str | dict[str, Any]
DataType = Any  # Arrow's types are told apart at run time; the stubs of pyarrow cannot follow that
Array = Any
Field = Any

BLOB = b"lance-encoding:blob"
WIDE = 16
"""The alignment of values of Rust's widest types, in bytes."""

_SIMPLE: tuple[tuple[DataType, str], ...] = (
    (pa.null(), "void"),
    (pa.bool_(), "boolean"),
    (pa.int8(), "byte"),
    (pa.int16(), "short"),
    (pa.int32(), "integer"),
    (pa.int64(), "long"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.string(), "string"),
    (pa.binary(), "binary"),
    (pa.date32(), "date"),
    (pa.timestamp("us", tz="UTC"), "timestamp"),
    (pa.timestamp("us"), "timestamp_ntz"),
    (pa.duration("us"), "interval day to second"),
    (pa.time64("ns"), "time(6)"),
)
_ARROW_OF = {name: arrow for arrow, name in _SIMPLE}
_SPARK_OF = dict(_SIMPLE)
_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_TEXT = re.compile(r"(string|char|varchar)\b.*", re.DOTALL)


def _leaf(arrow: DataType) -> DataType:
    """Return the type without nesting whose values the JVM reads in place of those of `arrow`."""
    if arrow in _WIDENED:
        return _WIDENED[arrow]
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", tz="UTC" if arrow.tz else None)
    if pa.types.is_duration(arrow):
        return pa.duration("us")
    if pa.types.is_time(arrow):
        return pa.time64("ns")
    if pa.types.is_decimal(arrow):
        if arrow.precision > 38:
            raise InvalidInputError(f"A {arrow} column cannot be read in Spark: its decimals have at most 38 digits.")
        return pa.decimal128(arrow.precision, arrow.scale)
    if pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    if arrow in _SPARK_OF or pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow):
        return arrow
    raise InvalidInputError(f"A column of Arrow type {arrow} has no counterpart in Spark. Leave it out of the select.")


def _plain(arrow: DataType) -> DataType:
    """Return the storage type of an extension type, the value type of a dictionary, or any other type unchanged."""
    if is_blob(arrow):
        return pa.large_binary()
    if isinstance(arrow, pa.BaseExtensionType):
        return _plain(arrow.storage_type)
    return _plain(arrow.value_type) if pa.types.is_dictionary(arrow) else arrow


def is_blob(arrow: DataType) -> bool:
    """Return True for Lance's type of lazily read values, which are read and written here as plain bytes."""
    return isinstance(arrow, pa.BaseExtensionType) and arrow.extension_name.startswith("lance.blob")


def written_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema in which Lance takes rows of a table: blobs are marked byte columns."""
    metadata: Any = schema.metadata
    return pa.schema([_written_field(field) for field in schema], metadata=metadata)


def _written_field(field: Field) -> Field:
    if not is_blob(field.type):
        return field
    return field.with_type(pa.large_binary()).with_metadata({**(field.metadata or {}), BLOB: b"true"})


def _is_list(arrow: DataType) -> bool:
    return pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow)


def _is_list_view(arrow: DataType) -> bool:
    return pa.types.is_list_view(arrow) or pa.types.is_large_list_view(arrow)


def spark_type(arrow: DataType) -> SparkType:
    """Return the Spark type (JSON form) of an Arrow type."""
    arrow = _plain(arrow)
    if _is_list(arrow):
        item = arrow.value_field
        return {"type": "array", "elementType": spark_type(item.type), "containsNull": item.nullable}
    if pa.types.is_struct(arrow):
        return {"type": "struct", "fields": [spark_field(arrow.field(i)) for i in range(arrow.num_fields)]}
    if pa.types.is_map(arrow):
        return {
            "type": "map",
            "keyType": spark_type(arrow.key_type),
            "valueType": spark_type(arrow.item_type),
            "valueContainsNull": arrow.item_field.nullable,
        }
    leaf = _leaf(arrow)
    if pa.types.is_decimal(leaf):
        return f"decimal({leaf.precision},{leaf.scale})"
    if pa.types.is_large_string(leaf) or pa.types.is_large_binary(leaf):
        return "string" if pa.types.is_large_string(leaf) else "binary"
    return _SPARK_OF[leaf]


def spark_field(field: Field) -> dict[str, object]:
    metadata: dict[str, object] = {}
    comment = (field.metadata or {}).get(b"comment")
    if comment is not None:
        metadata["comment"] = comment.decode()
    return {"name": field.name, "type": spark_type(field.type), "nullable": field.nullable, "metadata": metadata}


def spark_schema(schema: pa.Schema) -> dict[str, object]:
    """Return a table's schema in Spark: `StructType.fromJson(spark_schema(s))`."""
    return {"type": "struct", "fields": [spark_field(field) for field in schema]}


def arrow_type(spark: SparkType) -> DataType:
    """Return the Arrow type of a Spark type: Spark's own layout in UTC, list items named `element`."""
    if isinstance(spark, str):
        return _arrow_leaf(spark)
    kind = spark.get("type")
    if kind == "array":
        return pa.list_(pa.field("element", arrow_type(spark["elementType"]), spark["containsNull"]))
    if kind == "struct":
        return pa.struct([arrow_field(field) for field in spark["fields"]])
    if kind == "map":
        value = pa.field("value", arrow_type(spark["valueType"]), spark["valueContainsNull"])
        return pa.map_(pa.field("key", arrow_type(spark["keyType"]), nullable=False), value)
    if kind == "udt":
        return arrow_type(spark["sqlType"])
    raise InvalidInputError(f"The Spark type {spark!r} cannot be kept in a Lance table.")


def _arrow_leaf(name: str) -> DataType:
    if name in _ARROW_OF:
        return _ARROW_OF[name]
    decimal = _DECIMAL.fullmatch(name)
    if decimal or name == "decimal":
        return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else pa.decimal128(10, 0)
    if _TEXT.fullmatch(name):
        return pa.string()
    if name.startswith("time("):
        return pa.time64("ns")
    if name.startswith("interval ") and "year" not in name and "month" not in name:
        return pa.duration("us")
    raise InvalidInputError(f"The Spark type {name!r} cannot be kept in a Lance table; cast it to another type.")


def arrow_field(field: Mapping[str, Any]) -> Field:
    comment = field.get("metadata", {}).get("comment")
    metadata = {"comment": comment} if comment is not None else None
    return pa.field(field["name"], arrow_type(field["type"]), field.get("nullable", True), metadata)


def arrow_schema(spark: Mapping[str, Any]) -> pa.Schema:
    """Return Spark's own Arrow layout of a schema, as `to_arrow_schema(schema, timezone="UTC")` makes it."""
    return pa.schema([arrow_field(field) for field in spark["fields"]])


def lance_schema(spark: Mapping[str, Any], properties: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a new Lance table that Spark creates.

    Two things Spark's types cannot say come from table properties: `vector.<column>` (or lance-spark's
    `<column>.arrow.fixed-size-list.size`) is the dimension of a vector column, `blob.<column>` = true (or
    `<column>.lance.encoding` = blob) keeps a binary column as blobs, read lazily by other clients.
    """
    return pa.schema([_lance_field(arrow_field(field), properties) for field in spark["fields"]])


def _lance_field(field: Field, properties: Mapping[str, str]) -> Field:
    name = field.name
    size = properties.get(f"vector.{name}") or properties.get(f"{name}.arrow.fixed-size-list.size")
    if size is not None:
        if not size.isdigit() or int(size) < 1 or not pa.types.is_list(field.type):
            raise InvalidInputError(
                f"The property 'vector.{name}' = {size!r} cannot be used: give the dimension of an ARRAY column."
            )
        item = pa.field("item", field.type.value_type, nullable=True)
        return field.with_type(pa.list_(item, int(size)))
    blob = properties.get(f"blob.{name}") == "true" or properties.get(f"{name}.lance.encoding") == "blob"
    if blob:
        if not pa.types.is_binary(field.type):
            raise InvalidInputError(f"The property 'blob.{name}' needs a BINARY column, {name!r} is {field.type}.")
        return field.with_type(pa.large_binary()).with_metadata({**(field.metadata or {}), BLOB: b"true"})
    return field


def wire_type(arrow: DataType) -> DataType:
    """Return the Arrow type in which values are sent to the JVM; equal to `arrow` if the JVM reads it."""
    plain = _plain(arrow)
    if pa.types.is_fixed_size_list(plain):
        return pa.list_(_wire_item(plain.value_field), plain.list_size)
    if _is_list(plain):
        return pa.list_(_wire_item(plain.value_field))
    if pa.types.is_struct(plain):
        return pa.struct([wire_field(plain.field(i)) for i in range(plain.num_fields)])
    if pa.types.is_map(plain):
        return pa.map_(wire_type(plain.key_type), _wire_item(plain.item_field))
    return _leaf(plain)


def _wire_item(field: Field) -> Field:
    return pa.field(field.name, wire_type(field.type), field.nullable)


def wire_field(field: Field) -> Field:
    return pa.field(field.name, wire_type(field.type), field.nullable)


def wire_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([wire_field(field) for field in schema])


def convert(array: Array, target: DataType, exact: bool = False) -> Array:
    """Return the same values in another layout. InvalidInput (13) if a value does not fit.

    Spark's times are microseconds, so a finer time is cut unless `exact` is asked for.
    """
    if array.type.equals(target, check_metadata=True):
        return array
    if isinstance(array, pa.ExtensionArray):
        return convert(array.storage, target, exact)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, convert(array, target.storage_type, exact))
    if pa.types.is_dictionary(array.type):
        return convert(array.dictionary_decode(), target, exact)
    if (_is_list(array.type) or _is_list_view(array.type)) and _is_list(target):
        return _convert_list(array, target, exact)
    if pa.types.is_struct(array.type) and pa.types.is_struct(target):
        return _convert_struct(array, target, exact)
    if pa.types.is_map(array.type) and pa.types.is_map(target):
        return _convert_map(array, target, exact)
    return _convert_leaf(array, target, exact)


def _convert_leaf(array: Array, target: DataType, exact: bool) -> Array:
    lossy = pa.types.is_temporal(target) and not exact  # nanoseconds become microseconds, a date64 a day
    try:
        if pa.types.is_run_end_encoded(array.type) and not pa.types.is_run_end_encoded(target):
            return convert(pc.call_function("run_end_decode", [array]), target, exact)
        if pa.types.is_run_end_encoded(target):
            return _run_ends(convert(array, target.value_type, exact), target)
        if pa.types.is_date64(array.type) and not exact:
            return array.cast(pa.timestamp("ms")).cast(target, safe=False)
        if pa.types.is_integer(array.type) and pa.types.is_decimal(target):
            return array.cast(pa.decimal256(76, target.scale)).cast(target)
        if exact and pa.types.is_timestamp(array.type) and pa.types.is_date(target):
            return _days(array, target)
        return _finite(array, array.cast(target, safe=not lossy))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"A value of type {array.type} does not fit the column's type {target}: {str(error)[:200]}"
        ) from None


def _days(array: Array, target: DataType) -> Array:
    """Times as days, each of which must be midnight: Arrow itself would drop the hours."""
    days = array.cast(pa.date32())
    if not days.cast(array.type).equals(array):
        raise InvalidInputError(f"A time that is not midnight does not fit the column's type {target}.")
    return days.cast(target)


def _run_ends(array: Array, target: DataType) -> Array:
    pieces: Any = pc  # the stubs of pyarrow lack this function
    return pieces.run_end_encode(array, run_end_type=target.run_end_type)


def _finite(before: Array, after: Array) -> Array:
    """Floating-point numbers are rounded to the column's precision, but a number never becomes infinite."""
    if pa.types.is_floating(before.type) and pa.types.is_floating(after.type):
        grown: Any = pc.and_(pc.is_inf(after), pc.is_finite(before))
        if grown.true_count:
            raise InvalidInputError(f"A number is too large for the column's type {after.type}.")
    return after


def _convert_list(array: Array, target: DataType, exact: bool) -> Array:
    if pa.types.is_fixed_size_list(target):
        return _to_fixed_size(array, target, exact)
    values = convert(array.flatten(), target.value_type, exact)
    lengths: Any = pc.list_value_length(array)
    ends = pc.cumulative_sum(lengths.fill_null(0).cast(pa.int64()))
    offset_type = pa.int64() if pa.types.is_large_list(target) else pa.int32()
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(offset_type)
    maker = pa.LargeListArray if pa.types.is_large_list(target) else pa.ListArray
    mask = array.is_null() if array.null_count else None
    return maker.from_arrays(offsets, values, type=target, mask=mask)


def _to_fixed_size(array: Array, target: DataType, exact: bool) -> Array:
    lengths: Any = pc.list_value_length(array)
    differs: Any = pc.not_equal(lengths, target.list_size)
    wrong = differs.true_count
    if wrong == 1:
        found = lengths.filter(differs)[0]
        raise InvalidInputError(f"A list has {found} values; the column's lists have {target.list_size}.")
    if wrong:
        raise InvalidInputError(
            f"{wrong} of {len(array)} vectors do not have the column's dimension {target.list_size}. "
            "Pad or filter them before writing."
        )
    there = pa.FixedSizeListArray.from_arrays(convert(array.flatten(), target.value_type, exact), type=target)
    if not array.null_count:
        return there
    is_there = array.is_valid()
    places: Any = pc.subtract(pc.cumulative_sum(is_there.cast(pa.int64())), 1)
    return there.take(pc.if_else(is_there, places, None))


def _convert_struct(array: Array, target: DataType, exact: bool) -> Array:
    names = {array.type.field(i).name: i for i in range(array.type.num_fields)}
    children = []
    for index in range(target.num_fields):
        field = target.field(index)
        if field.name not in names:
            children.append(pa.nulls(len(array), field.type))
        else:
            children.append(convert(pc.struct_field(array, [names[field.name]]), field.type, exact))
    fields = [target.field(i) for i in range(target.num_fields)]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def _convert_map(array: Array, target: DataType, exact: bool) -> Array:
    entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    flat = entries.flatten()
    keys = convert(pc.struct_field(flat, [0]), target.key_type, exact)
    items = convert(pc.struct_field(flat, [1]), target.item_type, exact)
    lengths = pc.fill_null(pc.list_value_length(entries), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)]).cast(pa.int32())
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=mask)


def convert_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of `schema`, by name, in its types; a missing column is NULL."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    present = {name: index for index, name in enumerate(batch.schema.names)}
    columns = [
        convert(batch.column(present[field.name]), field.type)
        if field.name in present
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def aligned(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with values at addresses that Lance reads: IPC aligns to 8 bytes, wide values need 16."""
    if all(_is_aligned(column) for column in batch.columns):
        return batch
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    ipc: Any = pa.ipc  # the stubs of pyarrow lack this option
    options = ipc.IpcReadOptions(ensure_alignment=ipc.Alignment.At64Byte)
    with pa.ipc.open_stream(sink.getvalue(), options=options) as reader:
        return reader.read_next_batch()


def _is_aligned(array: Array) -> bool:
    if not is_wide(array.type):
        return True
    if isinstance(array, pa.DictionaryArray):
        return _is_aligned(array.dictionary)
    return all(buffer is None or buffer.address % WIDE == 0 for buffer in array.buffers())


def is_wide(arrow: DataType) -> bool:
    """Return True for a type with values of 16 bytes or more in memory: decimals, and views of texts and bytes."""
    if isinstance(arrow, pa.BaseExtensionType):
        return is_wide(arrow.storage_type)
    if pa.types.is_decimal(arrow) or pa.types.is_string_view(arrow) or pa.types.is_binary_view(arrow):
        return True
    if pa.types.is_dictionary(arrow):
        return is_wide(arrow.value_type)
    return any(is_wide(arrow.field(index).type) for index in range(arrow.num_fields))
