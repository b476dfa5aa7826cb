"""Output of a format: rows with their kinds, and rows that it rejects. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from headwater.errors import InvalidInputError
from headwater.streams.log.quarantine import Quarantined
from headwater.streams.rows.input_rows import Given, as_json, from_rows, given

DELETES = frozenset(("delete", "d"))
UPSERTS = frozenset(("insert", "update", "upsert", "c", "u", "r"))
UPSERT, DELETE, READ, TRUNCATE = "u", "d", "r", "t"
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What a text that is no JSON, or hostile JSON, makes of a decoder."""


@dataclass(frozen=True)
class Taken:
    """Rows to land, in order, and rows for the quarantine. `digest` is of what was given, where that is not these."""

    data: Given
    bad: tuple[Quarantined, ...] = ()
    digest: str | None = None


def take_rows(data: Any, bad: Sequence[Quarantined] = ()) -> Taken:
    """`rows`: every row is an append or an upsert."""
    return Taken(given(data), tuple(bad))


def take_op(data: Any, op_column: str = "op", bad: Sequence[Quarantined] = ()) -> Taken:
    """`op`: a column says of each row what it is, in any case of letters; an unknown word is `unknown_op`."""
    rows = given(data)
    if op_column not in rows.columns:
        if not rows.length:
            return Taken(rows, tuple(bad))
        raise InvalidInputError(f"The column {op_column!r}, which says what each row is, is missing.")
    values = rows.columns[op_column]
    words = [str(word).lower() for word in (values if isinstance(values, list) else values.to_pylist())]
    known = np.array([word in DELETES or word in UPSERTS for word in words], bool)
    found = [Quarantined(as_json(rows.row(int(index))), "unknown_op", op_column) for index in np.flatnonzero(~known)]
    plain = Given(
        {name: column for name, column in rows.columns.items() if name != op_column},
        rows.length,
        {name: mask for name, mask in rows.present.items() if name != op_column},
        np.array([word in DELETES for word in words], bool),
        np.array([word == READ for word in words], bool) if READ in words else None,
    )
    return Taken(plain if known.all() else plain.take(np.flatnonzero(known)), (*bad, *found))


def from_events(events: Sequence[tuple[Mapping[str, Any], str]], bad: Sequence[Quarantined]) -> Taken:
    """Rows, each with its kind: an upsert, a delete, a read or a truncation."""
    rows = from_rows([row for row, _ in events])
    deletes, reads, truncates = (
        np.array([own == kind for _, own in events], bool) for kind in (DELETE, READ, TRUNCATE)
    )
    kinds = deletes, reads if reads.any() else None, truncates if truncates.any() else None
    return Taken(Given(rows.columns, rows.length, rows.present, *kinds), tuple(bad))
