"""What `delete` means: keys, rows or a predicate, as delete events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.batches import shape
from headwater.streams.definition import Definition, define
from headwater.streams.given import Given, from_table, given
from headwater.streams.position_views import PositionView
from headwater.streams.reading import read, state_of_keys
from headwater.streams.serving_copy import Lake


def deletion(lake: Lake, view: PositionView, what: Any) -> Given:
    """The delete events: of the rows a predicate finds, or of keys, with the sequence of the row as it is now."""
    definition = view.stream.definition
    if not definition.keys:
        raise InvalidInputError(f"{view.stream.name} has no keys: rows of an append-only log cannot be deleted.")
    marks = list(dict.fromkeys((*definition.keys, *definition.sequence)))
    if isinstance(what, str):
        return _deletes(from_table(read(lake, view, marks, what)))
    rows = given(as_rows(definition, what))
    if all(name in rows.columns for name in definition.sequence):
        return _deletes(Given({name: rows.columns[name] for name in marks if name in rows.columns}, rows.length))
    keys = _keys(definition, rows)
    if not keys.num_rows:
        return _deletes(from_table(keys))
    return _deletes(from_table(state_of_keys(lake, view, keys).rows.select(marks)))


def _deletes(rows: Given) -> Given:
    return Given(rows.columns, rows.length, rows.present, np.ones(rows.length, bool))


def _keys(definition: Definition, rows: Given) -> pa.Table:
    """The key columns in their types; a bad one is refused as in any other call."""
    fields = [definition.by_name[name].field for name in definition.keys]
    only = Given({name: rows.columns[name] for name in definition.keys if name in rows.columns}, rows.length)
    return shape(define(pa.schema(fields), definition.keys), only).events.rows


def as_rows(definition: Definition, what: Any) -> Any:
    """Plain keys as rows: a value, a list of values, or of tuples where the key has several columns."""
    if isinstance(what, (Given, Mapping, pa.Table, pa.RecordBatch)) or hasattr(what, "__arrow_c_stream__"):
        return what
    keys = what if isinstance(what, Sequence | set | frozenset) and not isinstance(what, (bytes, tuple)) else [what]
    if any(isinstance(key, (Mapping, pa.RecordBatch)) for key in keys):
        return list(keys)
    rows = []
    for key in keys:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(definition.keys):
            raise InvalidInputError(f"{key!r} is not a key: give {', '.join(definition.keys)}, in this order.")
        rows.append(dict(zip(definition.keys, parts, strict=True)))
    return rows
