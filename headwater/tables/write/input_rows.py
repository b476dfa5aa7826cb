"""Input rows (Arrow data, data frames, Python dicts) as batches, cast to a table's types without loss.

Input rarely has a table's exact types: Python floats have 64 bits, lists have no fixed size, pandas and polars have
types of their own, and types of a CSV file are guessed. A cast that keeps every value is made here, for every way in.
Any other cast is an error that names the column and, for a bad value, the row. Only floating-point numbers are
rounded, to the column's precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from headwater.errors import InvalidInputError, TableSchemaValidationError
from headwater.imports import pc
from headwater.types import DataType, Field, aligned, convert, is_wide

MIN_DIMENSION = 2
"""Lists of one number are rather lists than vectors."""


def reader_of(data: object, vectors: bool = False) -> pa.RecordBatchReader:
    """Return a reader over Arrow data, a dataset, a data frame, dicts, or an iterable of batches, which is read lazily.

    `vectors`: True makes vectors of equal-length lists of floats in untyped rows. Arrow data and frames with Arrow
    types keep their types.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data]).to_reader()
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "index"):
        return _untyped(_from_pandas(data), vectors)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "scanner") and isinstance(getattr(data, "schema", None), pa.Schema):  # a dataset, read as it goes
        return data.scanner().to_reader()  # type: ignore[no-any-return]
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes, Mapping)):
        rows = iter(data)
        first = next(rows, None)
        if isinstance(first, pa.RecordBatch):
            return pa.RecordBatchReader.from_batches(first.schema, _checked_batches(first, rows))
        return _untyped(_from_rows([] if first is None else [first, *rows]), vectors)
    raise InvalidInputError(
        f"{type(data).__name__} is not a table: give Arrow data, a dataset, a data frame or a list of rows."
    )


def _checked_batches(first: pa.RecordBatch, others: Iterable[object]) -> Iterator[pa.RecordBatch]:
    yield first
    for number, batch in enumerate(others, start=2):
        if not isinstance(batch, pa.RecordBatch) or batch.schema != first.schema:
            raise InvalidInputError(f"Batch {number} is none, or of another schema than the first.")
        yield batch


def _untyped(table: pa.Table, vectors: bool) -> pa.RecordBatchReader:
    return (with_vectors(table) if vectors else table).to_reader()


def _from_pandas(frame: Any) -> pa.Table:
    """Return a pandas frame as a table. A named index becomes a column, an unnamed one is dropped."""
    named = any(name is not None for name in frame.index.names)
    try:
        return pa.Table.from_pandas(frame, preserve_index=named)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"The frame cannot be read as a table: {str(error)[:200]}") from None


def _from_rows(rows: Sequence[Any]) -> pa.Table:
    """Return dicts as a table: every key of any row is a column, NULL in rows without the key."""
    names: dict[str, None] = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"Row {number} is of type {type(row).__name__}: a row is a dict of its columns.")
        names.update(dict.fromkeys(row))
    return pa.table({name: _vector_column(name, [row.get(name) for row in rows]) for name in names})


def _vector_column(name: str, values: Sequence[object]) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"The column {str(name)[:200]!r} is of no one type: {str(error)[:200]}") from None


def with_vectors(table: pa.Table) -> pa.Table:
    """Return the table with columns of equal-length lists of floats as vectors of 32-bit floats."""
    for position, name in enumerate(table.schema.names):
        size = _dimension(table.column(position))
        if size is not None:
            table = table.set_column(position, name, table.column(position).cast(pa.list_(pa.float32(), size)))
    return table


def _dimension(column: Any) -> int | None:
    """Return the vector dimension of a column: lists of floats of one length, without NULL, finite in 32 bits."""
    if not pa.types.is_list(column.type) or not pa.types.is_floating(column.type.value_type):
        return None
    sizes = pc.unique(pc.list_value_length(column).drop_null())
    values: Any = pc.list_flatten(column)
    if len(sizes) != 1 or sizes[0].as_py() < MIN_DIMENSION or values.null_count:
        return None
    narrow = pc.all(pc.equal(pc.is_finite(values), pc.is_finite(values.cast(pa.float32())))).as_py()
    return int(sizes[0].as_py()) if narrow else None


Test = Callable[[DataType], bool]

MAX_SHOWN = 200
PLAIN = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.date32(), pa.timestamp("us")),
    )
)
"""Types that Lance keeps as they are, wherever their values lie."""


def fit(reader: pa.RecordBatchReader, schema: pa.Schema) -> pa.RecordBatchReader:
    """Return a reader that casts the rows to the columns of `schema`. Errors: 20 schema.

    A column that the rows lack is left out: Lance fills it with NULLs, or refuses that.
    """
    if reader.schema.equals(schema, check_metadata=True) and not any(_is_looked_at(field) for field in schema):
        return reader
    for field in reader.schema:
        _require_place(field, schema)
    names = set(reader.schema.names)
    fields = [field for field in schema if field.name in names]
    target = pa.schema(fields, metadata=schema.metadata)  # type: ignore[arg-type]
    return pa.RecordBatchReader.from_batches(target, _batches(reader, target))


def fit_new(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return a reader that casts the rows of a new table to types that Lance can store."""
    if all(field.nullable and field.type.id in PLAIN for field in reader.schema):
        return reader
    return fit(reader, storable(reader.schema))


def storable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with types that Lance cannot store replaced by equivalent ones."""
    return pa.schema([_storable_field(field, field.name) for field in schema], metadata=schema.metadata)  # type: ignore[arg-type]


def _storable_field(field: Field, path: str) -> Field:
    return field.with_type(_storable_type(field.type, path))


def _storable_type(kind: DataType, path: str) -> DataType:
    if kinds.is_interval(kind):
        raise TableSchemaValidationError(
            f"The column {path!r} has the type {kind}, which Lance cannot keep: make it a duration, or numbers."
        )
    if kinds.is_decimal32(kind) or kinds.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return pa.string() if kinds.is_string_view(kind) else pa.binary()
    if kinds.is_dictionary(kind) and not _is_word(kind.value_type):
        return _storable_type(kind.value_type, path)
    if kinds.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([_storable_field(field, f"{path}.{field.name}") for field in fields])
    if not _is_any_list(kind):
        return kind
    item = _storable_field(kind.value_field, path)
    if kinds.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size) if _has_fixed_width(item.type) else pa.list_(item)
    is_large = kinds.is_large_list(kind) or kinds.is_large_list_view(kind)
    return pa.large_list(item) if is_large else pa.list_(item)


def _is_word(kind: DataType) -> bool:
    """Return True for a value type that Lance stores as a dictionary: texts, bytes and plain numbers."""
    is_text = (
        kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)
    )
    return bool(is_text or kinds.is_integer(kind) or kinds.is_float32(kind) or kinds.is_float64(kind))


def _has_fixed_width(kind: DataType) -> bool:
    """Return True for a type that Lance can store in fixed-size lists: values of one width, no texts or lists.

    Lance 14 writes those of structs, and cannot read them beside another column.
    """
    is_number = kinds.is_primitive(kind) or kinds.is_decimal(kind)
    return bool(is_number or kinds.is_fixed_size_binary(kind) or kinds.is_fixed_size_list(kind))


def _is_looked_at(field: Field) -> bool:
    """Return True if values of the column's own type are checked: for NULLs, or for their alignment in memory."""
    return bool(not field.nullable or (field.type.id not in PLAIN and is_wide(field.type)))


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    first = 1
    for batch in reader:
        columns = [_column(batch.column(field.name), field, first) for field in schema]
        yield aligned(pa.RecordBatch.from_arrays(columns, schema=schema))
        first += batch.num_rows


def _column(array: Any, field: Field, first: int) -> Any:
    if array.null_count and not field.nullable:
        row = first + _first_index(array.is_null())
        raise TableSchemaValidationError(f"Row {row} has no value in the column {field.name!r}, which must have one.")
    try:
        return convert(array, field.type, exact=True)
    except InvalidInputError:
        raise _misfit(array, field, first) from None


def _misfit(array: Any, field: Field, first: int) -> TableSchemaValidationError:
    """Return the error for the first row that does not fit, found by bisection."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _reason(array.slice(low, middle - low), field) is None:
            low = middle
        else:
            high = middle
    reason = _reason(array.slice(low, high - low), field) or "it does not fit."
    return TableSchemaValidationError(
        f"Row {first + low} does not fit the column {field.name!r} ({field.type}): {reason[:MAX_SHOWN]}"
    )


def _reason(array: object, field: Field) -> str | None:
    try:
        convert(array, field.type, exact=True)
    except InvalidInputError as error:
        return str(error)
    return None


def _first_index(mask: Any) -> int:
    return int(mask.index(True).as_py())


# Which types may become which: every value that does change is checked on its way.


def _require_place(field: Field, schema: pa.Schema) -> None:
    """Raise TableSchemaValidation (20) if the table has no column for a column of the rows, or of another type."""
    at = schema.get_field_index(field.name)
    if at < 0:
        shown = ", ".join(schema.names[:20]) + (", ..." if len(schema.names) > 20 else "")
        raise TableSchemaValidationError(
            f"The table has no column {field.name[:MAX_SHOWN]!r}. Its columns are: {shown[:MAX_SHOWN]}."
        )
    wrong = _problem(field.name, field.type, schema.field(at).type)
    if wrong is not None:
        raise TableSchemaValidationError(wrong)


def _problem(path: str, source: DataType, target: DataType) -> str | None:
    """Return the reason why values of one type cannot be cast to another; None if they may be."""
    source, target = _plain(source), _plain(target)
    if source == target or kinds.is_null(source):
        return None
    if _is_any_list(source) and _is_any_list(target):
        return _problem(path, source.value_type, target.value_type)
    if kinds.is_struct(source) and kinds.is_struct(target):
        return _problem_of_fields(path, source, target)
    if kinds.is_map(source) and kinds.is_map(target):
        return _problem(path, source.key_type, target.key_type) or _problem(path, source.item_type, target.item_type)
    if any(given(source) and taken(target) for given, taken in KEPT):
        return None
    advice = "make them one or the other" if kinds.is_timestamp(source) and kinds.is_timestamp(target) else "cast it"
    return f"The column {path[:MAX_SHOWN]!r} is {_short(target)} in the table and {_short(source)} here: {advice}."


def _problem_of_fields(path: str, source: DataType, target: DataType) -> str | None:
    places = {target.field(i).name: target.field(i).type for i in range(target.num_fields)}
    for index in range(source.num_fields):
        field = source.field(index)
        below = f"{path}.{field.name}"
        if field.name not in places:
            return f"The table has no field {below[:MAX_SHOWN]!r}: leave it out."
        found = _problem(below, field.type, places[field.name])
        if found is not None:
            return found
    return None


def _short(kind: DataType) -> str:
    return str(kind)[:MAX_SHOWN]


def _plain(kind: DataType) -> DataType:
    """Return the type of the values inside an extension, dictionary or run-end type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    return _plain(kind.value_type) if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind) else kind


def _is_any_list(kind: DataType) -> bool:
    is_view = kinds.is_list_view(kind) or kinds.is_large_list_view(kind)
    return bool(is_view or kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _is_text(kind: DataType) -> bool:
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: DataType) -> bool:
    is_sized = kinds.is_fixed_size_binary(kind)
    return bool(is_sized or kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))


def _is_zoned(kind: DataType) -> bool:
    return bool(kinds.is_timestamp(kind) and kind.tz is not None)


def _is_local(kind: DataType) -> bool:
    """Return True for a date, or a timestamp without a time zone."""
    return bool(kinds.is_date(kind) or (kinds.is_timestamp(kind) and kind.tz is None))


def _is_number(kind: DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind))


KEPT: tuple[tuple[Test, Test], ...] = (
    (_is_text, _is_text),
    (_is_bytes, _is_bytes),
    (_is_number, _is_number),
    (kinds.is_integer, kinds.is_decimal),
    (kinds.is_decimal, kinds.is_decimal),
    (_is_zoned, _is_zoned),
    (_is_local, _is_local),
    (kinds.is_time, kinds.is_time),
    (kinds.is_duration, kinds.is_duration),
)
"""Families of types within which a value may move, each one checked to arrive as it left."""
