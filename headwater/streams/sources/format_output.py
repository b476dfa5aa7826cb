"""Output of a format: rows with their kinds, and rows that it rejects. Pure.

A change of the key comes as a delete of the old key and a new row at the same place in the log. The database may not
send all its values again. The new row takes what it lacks from the row that was deleted: as it was in the table, and as
earlier events of the batch made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition
from headwater.streams.log.batches import Quarantined
from headwater.streams.rows.column_casts import cast_array, cast_values
from headwater.streams.rows.input_rows import DELETE, READ, TRUNCATE, InputRows, as_input_rows, as_json, from_rows

DELETES = frozenset(("delete", "d"))
UPSERTS = frozenset(("insert", "update", "upsert", "c", "u", "r"))
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Errors of a decoder of a text that is not JSON, or hostile JSON."""


@dataclass(frozen=True)
class Taken:
    """Rows to land, in order, and rows for the quarantine. `digest` is of what was given, where that is not these."""

    data: InputRows
    bad: tuple[Quarantined, ...] = ()
    digest: str | None = None


def take_rows(data: object, bad: Sequence[Quarantined] = ()) -> Taken:
    """`rows`: every row is an append or an upsert."""
    return Taken(as_input_rows(data), tuple(bad))


def take_op(data: object, op_column: str = "op", bad: Sequence[Quarantined] = ()) -> Taken:
    """`op`: a column says of each row what it is, in any case of letters; an unknown word is `unknown_op`."""
    rows = as_input_rows(data)
    if op_column not in rows.columns:
        if not rows.length:
            return Taken(rows, tuple(bad))
        raise InvalidInputError(f"The column {op_column!r}, which says what each row is, is missing.")
    values = rows.columns[op_column]
    words = [str(word).lower() for word in (values if isinstance(values, list) else values.to_pylist())]
    known = np.array([word in DELETES or word in UPSERTS for word in words], bool)
    found = [Quarantined(as_json(rows.row(int(index))), "unknown_op", op_column) for index in np.flatnonzero(~known)]
    plain = InputRows(
        {name: column for name, column in rows.columns.items() if name != op_column},
        rows.length,
        {name: mask for name, mask in rows.present.items() if name != op_column},
        np.array([word in DELETES for word in words], bool),
        np.array([word == READ for word in words], bool) if READ in words else None,
    )
    return Taken(plain if known.all() else plain.take(np.flatnonzero(known)), (*bad, *found))


def from_events(events: Sequence[tuple[Mapping[str, object], str]], bad: Sequence[Quarantined]) -> Taken:
    """Rows, each with its kind: an upsert, a delete, a read or a truncation."""
    rows = from_rows([row for row, _ in events])
    deletes, reads, truncates = (
        np.array([own == kind for _, own in events], bool) for kind in (DELETE, READ, TRUNCATE)
    )
    kinds = deletes, reads if reads.any() else None, truncates if truncates.any() else None
    return Taken(InputRows(rows.columns, rows.length, rows.present, *kinds), tuple(bad))


RowsOfKeys = Callable[[pa.Table], pa.Table]
Key = tuple[Any, ...]
Row = dict[str, Any]


class StateNeededError(Exception):
    """The rows of the table are needed, by somebody who cannot read them."""


def completed(
    definition: Definition, taken: Taken, unsent: Mapping[int, Sequence[str]], rows_of: RowsOfKeys | None
) -> Taken:
    """Return the rows with what they lack; one whose old row is not known goes to the quarantine as `missing_value`.

    `unsent`: by the number of a new row, its columns whose values were not sent. A row that the table has at this place
    of the log already, or a later one, was delivered again: it stays as it is.
    """
    if not unsent:
        return taken
    if rows_of is None:
        raise StateNeededError
    data = taken.data
    keys, places = _typed(definition, data, definition.keys), _typed(definition, data, definition.sequence)
    before = {index: index - 1 for index in unsent if _is_move(data, keys, places, index)}
    asked = {keys[index] for index in (*unsent, *before.values())}
    rows = {tuple(row[name] for name in definition.keys): row for row in rows_of(_table(definition, asked)).to_pylist()}
    filled: dict[int, Row] = {}
    bad: list[int] = []
    gone: dict[int, Row | None] = {}
    for index in range(data.length):
        key = keys[index]
        if data.truncates is not None and data.truncates[index]:
            rows.clear()
        if key not in asked:
            continue
        if data.delete_mask[index]:
            gone[index] = rows.pop(key, None)
            continue
        row = data.row(index)
        if index in unsent:
            old = gone.get(before.get(index, -1))
            if old is not None and _is_earlier(definition, old, places[index]):
                filled[index] = {name: old.get(name) for name in unsent[index]}
                row |= filled[index]
            elif key not in rows or _is_earlier(definition, rows[key], places[index]):
                bad.append(index)
        rows[key] = {**rows.get(key, {}), **row, **dict(zip(definition.sequence, places[index], strict=True))}
    rejected = [Quarantined(as_json(data.row(index)), "missing_value", unsent[index][0]) for index in bad]
    return replace(taken, data=_without(_with(data, filled), bad), bad=(*taken.bad, *rejected))


def _typed(definition: Definition, data: InputRows, names: Sequence[str]) -> list[Key]:
    """Return the values of some columns, cast to the table's types, as one tuple for each row."""
    columns = []
    for name in names:
        values, kind = data.columns.get(name, [None] * data.length), definition.by_name[name].type
        array, _ = cast_values(values, kind) if isinstance(values, list) else cast_array(values, kind)
        columns.append(array.to_pylist())
    return list(zip(*columns, strict=True))


def _is_move(data: InputRows, keys: Sequence[Key], places: Sequence[Key], index: int) -> bool:
    """Return whether the event before a row is the delete of its old key."""
    is_delete = index > 0 and bool(data.delete_mask[index - 1])
    return is_delete and places[index - 1] == places[index] and keys[index - 1] != keys[index]


def _is_earlier(definition: Definition, row: Row, place: Key) -> bool:
    held = tuple(row.get(name) for name in definition.sequence)
    return None not in held and None not in place and held < place


def _table(definition: Definition, keys: set[Key]) -> pa.Table:
    columns = zip(*keys, strict=True)
    return pa.table(
        {
            name: pa.array(values, definition.by_name[name].type)
            for name, values in zip(definition.keys, columns, strict=True)
        }
    )


def _with(data: InputRows, filled: Mapping[int, Row]) -> InputRows:
    """Return the rows with values in place of missing ones."""
    columns, present = dict(data.columns), dict(data.present)
    for name in dict.fromkeys(name for row in filled.values() for name in row):
        given = columns.get(name, [None] * data.length)
        values = list(given) if isinstance(given, list) else given.to_pylist()
        mask = present.get(name, np.full(data.length, name in columns)).copy()
        for index, row in filled.items():
            if name in row:
                values[index], mask[index] = row[name], True
        columns[name], present[name] = values, mask
    return replace(data, columns=columns, present=present)


def _without(data: InputRows, bad: Sequence[int]) -> InputRows:
    return data if not bad else data.take(np.setdiff1d(np.arange(data.length), bad))
