"""Rows on their way to a stream table elsewhere, as one Arrow table: what `input_rows` takes, and nothing lost. Pure.

A column that some rows lack has a mask beside it, for *missing* is not NULL. Values of Python that make no Arrow array
travel as MessagePack, so that the table at the other end judges them as it would its own caller's.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.decoding.arrow import read_type
from headwater.errors import InvalidInputError
from headwater.streams.layout import PRESENT
from headwater.streams.rows.column_types import parse_type
from headwater.streams.rows.input_rows import Given, given

TEXT = "__hw_text"
"""The one column of a text: a predicate, or change data as JSON."""
BARE = "__hw_bare"
"""The one column of rows that have none: of no rows, say. A body has at least one column."""
SENT_FILES = ["__hw_file", "__hw_content", "__hw_digest"]
"""The columns of a body that holds files: the name of each, its bytes, and the digest of those."""
END = b"headwater.position"
"""In the schema of changes that were read: the position they end at."""
OF = b"headwater.table"
"""There too: the table that they are of, by its id."""
PACKED = "__hw_packed_"
FORM, PYTHON = b"headwater.form", b"python"


def pack(data: Any) -> pa.Table:
    """Rows, or a text, as a table."""
    if isinstance(data, (str, bytes)):
        return pa.table({TEXT: pa.array([data if isinstance(data, bytes) else data.encode()], pa.large_binary())})
    rows = given(data)
    if not rows.columns:
        return pa.table({BARE: pa.nulls(rows.length)})
    fields: list[Any] = []
    columns: list[Any] = []
    for name, values in rows.columns.items():
        field, column = _column(name, values)
        fields.append(field)
        columns.append(column)
        if name in rows.present:
            fields.append(pa.field(PRESENT + name, pa.bool_()))
            columns.append(pa.array(rows.present[name]))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def unpack(table: pa.Table) -> Given | str:
    """Return the packed value; raise InvalidInput (13) for a body that `pack` did not make."""
    if table.schema.names == [TEXT]:
        return _text(table)
    if table.schema.names == [BARE]:
        return Given({}, table.num_rows)
    columns: dict[str, Any] = {}
    present: dict[str, Any] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if field.name.startswith(PRESENT):
            present[field.name.removeprefix(PRESENT)] = np.asarray(column.to_pylist(), bool)
        elif field.name.startswith(PACKED):
            columns[field.name.removeprefix(PACKED)] = [_unpacked(value) for value in column.to_pylist()]
        else:
            is_python = (field.metadata or {}).get(FORM) == PYTHON
            columns[field.name] = column.to_pylist() if is_python else column
    if not present.keys() <= columns.keys():
        raise InvalidInputError("The body marks rows of a column that it does not have.")
    return Given(columns, table.num_rows, present)


def _column(name: str, values: Any) -> tuple[Any, Any]:
    if not isinstance(values, list):
        return pa.field(name, values.type), values
    try:
        column = pa.array(values)
        if column.to_pylist() == values:
            return pa.field(name, column.type, metadata={FORM: PYTHON}), column
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    packed = pa.array([_packed(name, value) for value in values], pa.binary())
    return pa.field(PACKED + name, pa.binary()), packed


def _packed(name: str, value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"A value of {name!r} cannot be sent: {error}.") from None


def _unpacked(value: bytes | None) -> Any:
    try:
        return msgspec.msgpack.decode(value or b"\xc0")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInputError("The body has a packed value that cannot be read.") from None


def _text(table: pa.Table) -> str:
    values = table.column(0).to_pylist()
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise InvalidInputError("The body has no text.")
    try:
        return values[0].decode()
    except UnicodeDecodeError:
        raise InvalidInputError("The text of the body is not valid UTF-8.") from None


def pack_types(types: dict[str, Any]) -> dict[str, str]:
    """Types by name, as texts: Arrow's own form of a type that has no text here."""
    return {name: kind if isinstance(kind, str) else _type_text(parse_type(kind)) for name, kind in types.items()}


def unpack_types(texts: dict[str, str]) -> dict[str, Any]:
    return {name: _type(text) for name, text in texts.items()}


ARROW = "arrow:"


def _type_text(kind: Any) -> str:
    return ARROW + bytes(pa.schema([pa.field("x", kind)]).serialize()).hex()


def _type(text: str) -> Any:
    if not text.startswith(ARROW):
        return text
    return read_type(text.removeprefix(ARROW))
