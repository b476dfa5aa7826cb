"""Reads of files of a DeltaCAT root, and rows of its data files in the schema of their table.

The root may be hostile: a link that leads out of it is not followed.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headwater.decoding.arrow import read_schema
from headwater.decoding.files import FORMATS, FileRows
from headwater.errors import CorruptFileError, InvalidInputError
from headwater.moving.deltacat.layout import RowFile
from headwater.store import KeyNotFoundError, Store

MAX_METADATA = 64 << 20
"""No record or revision is larger: DeltaCAT's are some kB."""


def check_inside(store: Store, key: str) -> None:
    """Raise InvalidInput (13) if a file of a local root is outside of it when links are followed."""
    root = store.abilities.path
    if root is None:
        return
    real = os.path.realpath(root)
    if not os.path.realpath(os.path.join(root, key)).startswith(real + os.sep):
        raise InvalidInputError(f"{key} is a link that leads out of the root: nothing is imported.")


def read_metadata(store: Store, key: str) -> bytes:
    """Return the bytes of a record or revision. KeyNotFoundError, or CorruptFile if it is too large."""
    check_inside(store, key)
    entry = store.head(key)
    if entry is not None and entry.size > MAX_METADATA:
        raise CorruptFileError(key, f"it has {entry.size} bytes, and no metadata file has")
    return store.get(key)


FIELD_ID = b"PARQUET:field_id"
MERGE_KEY = b"DELTACAT:merge_key"
PAST_DEFAULT = b"DELTACAT:past_default"


def parse_schema(data: bytes, name: str) -> pa.Schema:
    """Decode a table's schema with DeltaCAT's field metadata; InvalidInput (13)."""
    try:
        return read_schema(data)
    except InvalidInputError as error:
        raise InvalidInputError(f"The schema of {name} is not understood ({type(error).__name__}).") from None


def merge_keys(schema: pa.Schema) -> tuple[str, ...]:
    return tuple(each.name for each in schema if (each.metadata or {}).get(MERGE_KEY, b"") == b"True")


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema without DeltaCAT's field metadata."""
    return pa.schema([each.remove_metadata() for each in schema])


def problem(store: Store, file: RowFile) -> str | None:
    """Return the reason why a file cannot be read, without reading its rows; None if there is none."""
    if file.content_type not in FORMATS or file.encoding != "identity":
        return f"{file.key}: {file.content_type} ({file.encoding}) is not read"
    check_inside(store, file.key)
    if store.head(file.key) is None:
        return f"{file.key} is missing"
    try:
        _opened(store, file)
    except InvalidInputError as error:
        return str(error)
    return None


def schema_of(store: Store, files: Sequence[RowFile]) -> pa.Schema:
    """Return the schema of the files, for a table without a schema of its own."""
    found = [_opened(store, file).schema.remove_metadata() for file in files]
    try:
        return pa.unify_schemas(found, promote_options="permissive")
    except pa.ArrowException as error:
        raise InvalidInputError(f"{files[0].key} and other files of its table do not agree: {error}") from None


def batches(store: Store, files: Sequence[RowFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in order, with the columns of `schema` by field id, or by name in files without ids."""
    for file in files:
        try:
            found = _opened(store, file)
            places = _places(found.schema, schema)
            names = [found.schema.names[place] for place in places if place >= 0]
            for batch in found.batches(list(dict.fromkeys(names))):
                yield _under(batch, schema)
        except (InvalidInputError, pa.ArrowException, ValueError) as error:
            raise InvalidInputError(f"{file.key} cannot be read: {str(error).splitlines()[0][:200]}") from None


def _under(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = []
    for each, place in zip(schema, _places(batch.schema, schema), strict=True):
        found = _missing(each, batch.num_rows) if place < 0 else batch.column(place).cast(each.type)
        columns.append(found)
    return pa.RecordBatch.from_arrays(columns, schema=plain(schema))


def _places(found: pa.Schema, schema: pa.Schema) -> list[int]:
    """Return the position of each column in a file's schema; -1 if it is missing."""
    by_id = {_id(each): place for place, each in enumerate(found) if _id(each) is not None}
    return [
        by_id.get(_id(each), -1) if by_id and _id(each) is not None else found.get_field_index(each.name)
        for each in schema
    ]


def _missing(field: Any, rows: int) -> Any:
    """A column that was added later: DeltaCAT shows its default in rows from before."""
    text = (field.metadata or {}).get(PAST_DEFAULT)
    if text is None:
        return pa.nulls(rows, field.type)
    value = msgspec.msgpack.decode(base64.b64decode(text))
    return pa.array([value] * rows, field.type)


def _id(field: Any) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return None if found in (None, b"-1") else found


def _opened(store: Store, file: RowFile) -> FileRows:
    """Open a file of rows, from its path, or from its bytes where there are no paths. Error 13 names the file."""
    path = store.abilities.path
    try:
        return FORMATS[file.content_type](store.get(file.key) if path is None else os.path.join(path, file.key))
    except KeyNotFoundError:
        raise InvalidInputError(f"{file.key} is missing.") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{file.key} cannot be read: {error}") from None
