"""Delete events from keys, rows or a predicate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition, define
from headwater.streams.log.batches import shape
from headwater.streams.reading.fresh_reads import read, state_of_keys
from headwater.streams.reading.position_views import PositionView
from headwater.streams.rows.hashing import content_digest
from headwater.streams.rows.input_rows import Given, Mask, from_table, given
from headwater.streams.rows.row_keys import Codes, KeyIndex
from headwater.streams.serving.serving_copy import Lake


@dataclass(frozen=True)
class Deletion:
    """Delete events. `digest` is of what was asked for, where they follow from the state: by it a repeat is known."""

    data: Given
    digest: str | None = None


def deletion(lake: Lake, view: PositionView, what: Any) -> Deletion:
    """The delete events: of the rows a predicate finds, or of keys, with the sequence of the row as it is now.

    A row that has values of the sequence is deleted as of them; a key that has none, and is not there, is no event.
    """
    definition = view.stream.definition
    _check_has_keys(definition)
    marks = definition.rules.tombstone.names
    if isinstance(what, str):
        return Deletion(_deletes(read(lake, view, marks, what)), _digest("predicate", pa.array([what])))
    rows = given(as_rows(definition, what))
    told = _told(definition, rows)
    if told.all():
        columns = {name: rows.columns[name] for name in marks if name in rows.columns}
        return Deletion(Given(columns, rows.length, {}, np.ones(rows.length, bool)))
    asked = _shaped(definition, rows)
    keys = asked.select(list(definition.keys)).take(np.flatnonzero(~told))
    found = state_of_keys(lake, view, keys).rows.select(marks)
    places = np.concatenate([np.flatnonzero(told), np.flatnonzero(~told)[_first(keys, found)]])
    events = pa.concat_tables([asked.take(np.flatnonzero(told)), found]).take(np.argsort(places, kind="stable"))
    return Deletion(_deletes(events), _digest("keys", *asked.columns, pa.array(told)))


def check_columns(definition: Definition, rows: Given | None) -> None:
    """Raise InvalidInput (13) for rows whose columns cannot say what to delete. None: a predicate says it."""
    _check_has_keys(definition)
    if rows is not None:
        _shaped(definition, rows)


def _check_has_keys(definition: Definition) -> None:
    if not definition.keys:
        raise InvalidInputError("A table without keys is an append-only log: its rows cannot be deleted.")


def repeatable(what: Any) -> Any:
    """Return the input of a delete in a form that can be read more than once; iterators and readers cannot."""
    if isinstance(what, pa.RecordBatchReader):
        return given(what)
    return list(what) if isinstance(what, Iterator) else what


def _deletes(rows: pa.Table) -> Given:
    return replace(from_table(rows), deletes=np.ones(rows.num_rows, bool))


def _first(keys: pa.Table, found: pa.Table) -> Codes:
    """For each row that was found the first place of its key."""
    index = KeyIndex(keys.columns)
    first = np.empty(index.count, np.int64)
    first[index.codes[::-1]] = np.arange(keys.num_rows)[::-1]
    return first[index.find([found.column(name) for name in keys.schema.names])]


def _digest(kind: str, *columns: Any) -> str:
    return content_digest([f"{kind} {place:04}" for place in range(len(columns))], columns, len(columns[0]))


def _told(definition: Definition, rows: Given) -> Mask:
    """Return a mask of the rows with a value in every sequence column; without a sequence, none."""
    if not all(name in rows.columns for name in definition.sequence or ("",)):
        return np.zeros(rows.length, bool)
    told = np.ones(rows.length, bool)
    for name in definition.sequence:
        told &= rows.present.get(name, told)
    return told


def _shaped(definition: Definition, rows: Given) -> pa.Table:
    """The key and sequence columns in their types; a bad key is refused as in any other call."""
    marks = definition.rules.tombstone
    only = {name: values for name, values in rows.columns.items() if name in marks.names}
    loose = pa.schema([pa.field(field.name, field.type) for field in marks])
    kept = {name: mask for name, mask in rows.present.items() if name in only}
    return shape(define(loose, definition.keys), Given(only, rows.length, kept)).events.rows


def as_rows(definition: Definition, what: Any) -> Any:
    """Plain keys as rows: a value, any number of values, or of tuples where the key has several columns."""
    if isinstance(what, pa.ChunkedArray):
        what = what.to_pylist()
    elif hasattr(what, "tolist"):  # one column of Arrow, numpy or pandas
        what = what.tolist()
    if isinstance(what, (Given, Mapping, pa.Table, pa.RecordBatch)) or hasattr(what, "__arrow_c_stream__"):
        return what
    _check_has_keys(definition)
    keys = list(what) if isinstance(what, Iterable) and not isinstance(what, (str, bytes, tuple)) else [what]
    if any(isinstance(key, (Mapping, pa.RecordBatch)) for key in keys):
        return list(keys)
    rows = []
    for key in keys:
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(definition.keys):
            raise InvalidInputError(f"{key!r} is not a key: give {', '.join(definition.keys)}, in this order.")
        rows.append(dict(zip(definition.keys, parts, strict=True)))
    return rows
