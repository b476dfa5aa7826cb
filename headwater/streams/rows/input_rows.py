"""Rows as a caller gives them: Arrow data in all its forms, or Python rows, which may each lack columns. Pure.

Rows on their way to a stream table behind a server are packed as one Arrow table, and nothing is lost. A column that
some rows lack has a mask beside it, for *missing* is not NULL. Values of Python that make no Arrow array travel as
MessagePack, so that the table at the other end judges them as it would its own caller's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decoding.arrow import read_type
from headwater.errors import InvalidInputError
from headwater.schema_text import parse_type
from headwater.streams.layout import PRESENT
from headwater.streams.rows.row_keys import Mask

FREE_CELLS = 1 << 24
MAX_SPARSE = 64
"""Rows may have so many cells, or so many times the cells that they give: each is kept, the missing ones too."""
Values = list[Any] | Any  # Python values, or an Arrow array
UPSERT, DELETE, READ, TRUNCATE = "u", "d", "r", "t"
"""The kinds of rows."""


@dataclass(frozen=True)
class InputRows:
    """Columns by name: Arrow arrays, or lists of Python values. `present`: where a column is not missing.

    `reads` are rows (and deletes) of a snapshot of their source. `truncates` delete every row, and need no key.
    """

    columns: Mapping[str, Values]
    length: int
    present: Mapping[str, Mask] = field(default_factory=dict)
    deletes: Mask | None = None
    reads: Mask | None = None
    truncates: Mask | None = None

    @cached_property
    def delete_mask(self) -> Mask:
        return self.deletes if self.deletes is not None else np.zeros(self.length, bool)

    def row(self, index: int) -> dict[str, Any]:
        """Return one row as Python values, without the columns it lacks."""
        found: dict[str, object] = {}
        for name, values in self.columns.items():
            mask = self.present.get(name)
            if mask is None or mask[index]:
                found[name] = values[index] if isinstance(values, list) else values[index].as_py()
        return found

    def kind(self, index: int) -> str:
        masks = ((self.truncates, TRUNCATE), (self.deletes, DELETE), (self.reads, READ))
        return next((kind for mask, kind in masks if mask is not None and mask[index]), UPSERT)

    def take(self, indices: npt.NDArray[np.int64]) -> InputRows:
        columns = {
            name: [values[index] for index in indices] if isinstance(values, list) else values.take(indices)
            for name, values in self.columns.items()
        }
        present = {name: mask[indices] for name, mask in self.present.items()}
        kinds = (None if mask is None else mask[indices] for mask in (self.deletes, self.reads, self.truncates))
        return InputRows(columns, len(indices), present, *kinds)


def as_input_rows(data: object) -> InputRows:
    """Any of: an Arrow table, batch, reader or list of batches, what speaks Arrow's C stream interface (pandas,
    polars, ...), a row (a mapping) or an iterable of rows."""
    if isinstance(data, InputRows):
        return data
    if isinstance(data, Mapping):
        return from_rows([data])
    table = as_table(data)
    if table is not None:
        return from_table(table)
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise InvalidInputError(f"Rows are Arrow data, mappings or a list of mappings, not {type(data).__name__}.")
    rows = list(data)
    table = as_table(rows)
    if table is not None:
        return from_table(table)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidInputError(f"Row {index} is a {type(row).__name__}: rows are mappings from names to values.")
    return from_rows(rows)


def as_table(data: object) -> pa.Table | None:
    """Arrow data in any of its forms, or a frame of pandas or polars, as one table; None: it is none of those."""
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, pa.Table):
        return data
    batches = [data] if isinstance(data, pa.RecordBatch) else data
    try:
        if isinstance(batches, (list, tuple)) and batches and all(isinstance(row, pa.RecordBatch) for row in batches):
            return pa.Table.from_batches(batches)
        return pa.table(data) if hasattr(data, "__arrow_c_stream__") else None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"The rows cannot be read as a table: {str(error)[:200]}") from None


def without_rows(schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of a schema and no rows. Arrow's own `empty_table` raises for a union."""
    return pa.Table.from_batches([], schema)


def from_table(table: pa.Table) -> InputRows:
    columns: dict[str, Any] = {}
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if name in columns:
            raise InvalidInputError(f"Two columns of the data are named {name!r}.")
        columns[name] = column
    return InputRows(columns, table.num_rows)


def from_rows(rows: Sequence[Mapping[str, object]]) -> InputRows:
    """Python rows: a name that a row does not have is missing there, which is not NULL."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(f"The names of a row's columns are texts, not {name!r}.")
    cells = len(names) * len(rows)
    if cells > max(FREE_CELLS, MAX_SPARSE * sum(map(len, rows))):
        raise InvalidInputError(
            f"{len(rows)} rows with {len(names)} names of columns between them make {cells} cells, almost all of them "
            "empty: give rows that have the same columns, or fewer rows at once."
        )
    columns = {name: [row.get(name) for row in rows] for name in names}
    masks = {name: np.fromiter((name in row for row in rows), bool, len(rows)) for name in names}
    return InputRows(columns, len(rows), {name: mask for name, mask in masks.items() if not mask.all()})


def as_json(row: Mapping[str, object]) -> str:
    """Return a row as text, for people: what JSON has no form for is written as Python's text of it."""
    try:
        text = json.dumps(row, default=_text, ensure_ascii=False)
    except (RecursionError, ValueError, TypeError):  # nested without end, or keys that are no texts: what is plain
        text = json.dumps({str(name): _flat(value) for name, value in row.items()}, default=_text, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()  # half a pair of surrogates has no bytes


def _flat(value: object) -> object:
    is_plain = value is None or isinstance(value, (str, int, float, bytes))
    return value if is_plain else f"({type(value).__name__})"


def _text(value: object) -> object:
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)


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


def pack(data: object) -> pa.Table:
    """Rows, or a text, as a table."""
    if isinstance(data, (str, bytes)):
        return pa.table({TEXT: pa.array([data if isinstance(data, bytes) else data.encode()], pa.large_binary())})
    rows = as_input_rows(data)
    if not rows.columns:
        return pa.table({BARE: pa.nulls(rows.length)})
    fields: list[Any] = []
    columns: list[Any] = []
    for name, values in rows.columns.items():
        stored, column = _column(name, values)
        fields.append(stored)
        columns.append(column)
        if name in rows.present:
            fields.append(pa.field(PRESENT + name, pa.bool_()))
            columns.append(pa.array(rows.present[name]))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def unpack(table: pa.Table) -> InputRows | str:
    """Return the packed value; raise InvalidInput (13) for a body that `pack` did not make."""
    if table.schema.names == [TEXT]:
        return _text_of(table)
    if table.schema.names == [BARE]:
        return InputRows({}, table.num_rows)
    columns: dict[str, Any] = {}
    present: dict[str, Any] = {}
    for stored, column in zip(table.schema, table.columns, strict=True):
        if stored.name.startswith(PRESENT):
            present[stored.name.removeprefix(PRESENT)] = np.asarray(column.to_pylist(), bool)
        elif stored.name.startswith(PACKED):
            columns[stored.name.removeprefix(PACKED)] = [_unpacked(value) for value in column.to_pylist()]
        else:
            is_python = (stored.metadata or {}).get(FORM) == PYTHON
            columns[stored.name] = column.to_pylist() if is_python else column
    if not present.keys() <= columns.keys():
        raise InvalidInputError("The body marks rows of a column that it does not have.")
    return InputRows(columns, table.num_rows, present)


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


def _packed(name: str, value: object) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"A value of {name!r} cannot be sent: {error}.") from None


def _unpacked(value: bytes | None) -> object:
    try:
        return msgspec.msgpack.decode(value or b"\xc0")
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInputError("The body has a packed value that cannot be read.") from None


def _text_of(table: pa.Table) -> str:
    values = table.column(0).to_pylist()
    if len(values) != 1 or not isinstance(values[0], bytes):
        raise InvalidInputError("The body has no text.")
    try:
        return values[0].decode()
    except UnicodeDecodeError:
        raise InvalidInputError("The text of the body is not valid UTF-8.") from None


def pack_types(types: dict[str, object]) -> dict[str, str]:
    """Types by name, as texts: Arrow's own form of a type that has no text here."""
    return {name: kind if isinstance(kind, str) else _type_text(parse_type(kind)) for name, kind in types.items()}


def unpack_types(texts: dict[str, str]) -> dict[str, object]:
    return {name: _type(text) for name, text in texts.items()}


ARROW = "arrow:"


def _type_text(kind: object) -> str:
    return ARROW + bytes(pa.schema([pa.field("x", kind)]).serialize()).hex()


def _type(text: str) -> object:
    if not text.startswith(ARROW):
        return text
    return read_type(text.removeprefix(ARROW))
