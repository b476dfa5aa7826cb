"""Random change logs: events over few keys, so that they meet, with ties, partial rows, deletes and late ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

from headwater.streams.fold.events import Events, Rules, Truncations
from tests.streams.oracle import Event

KEY_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int64": (pa.int64(), [-(2**40), 0, 1, 2, 3]),
    "string": (pa.string(), ["", "a", "ab", "b", "é"]),
    "binary": (pa.binary(), [b"", b"\0", b"a"]),
    "bool": (pa.bool_(), [True, False]),
    "date": (pa.date32(), [0, 1, 30_000]),
    "int32": (pa.int32(), [-(2**31), -1, 0, 7]),
    "uint64": (pa.uint64(), [0, 1, 2**63]),
    "timestamp": (pa.timestamp("us"), [-1, 0, 10**15]),
    "instant": (pa.timestamp("us", "UTC"), [-1, 0, 10**15]),
    "decimal": (pa.decimal128(20, 2), [Decimal("-0.01"), Decimal("0.00"), Decimal("123456789012345678.25")]),
}
SEQUENCE_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int64": (pa.int64(), list(range(-2, 8))),
    "float": (pa.float64(), [-0.0, 0.0, 1.5, 2.0, float("inf")]),
    "string": (pa.string(), ["", "a", "B", "z", "é", "\U0001f600", "￿"]),
    "date": (pa.date32(), [-1, 0, 30_000]),
    "instant": (pa.timestamp("us", "UTC"), [-1, 0, 10**15]),
    "decimal": (pa.decimal128(20, 2), [Decimal("-0.01"), Decimal("0.00"), Decimal("123456789012345678.25")]),
}


@dataclass(frozen=True)
class History:
    """A table's rules, and batches of events that land in it one after the other."""

    rules: Rules
    batches: list[list[Event]]


@st.composite
def histories(
    draw: st.DrawFn, partial: bool = True, max_batches: int = 5, max_events: int = 8, truncates: bool = True
) -> History:
    key_types = [KEY_TYPES[name] for name in draw(st.lists(st.sampled_from(sorted(KEY_TYPES)), min_size=1, max_size=2))]
    names = draw(st.lists(st.sampled_from(sorted(SEQUENCE_TYPES)), max_size=2))
    lateness = draw(st.sampled_from([None, 0, 2])) if names[:1] == ["int64"] else None
    keys = [(f"k{place}", *found) for place, found in enumerate(key_types)]
    order = [(f"s{place}", *SEQUENCE_TYPES[name]) for place, name in enumerate(names)]
    values = [("a", pa.int64(), [None, 1, 2]), ("b", pa.string(), [None, "x", "y"])]
    schema = pa.schema([(name, kind) for name, kind, _ in (*keys, *order, *values)])
    rules = Rules(schema, tuple(k[0] for k in keys), tuple(s[0] for s in order), lateness)
    event = _events(keys, order, values, partial)
    if truncates and names:
        event = st.one_of(*[event] * 9, _truncations(order))
    batches = draw(st.lists(st.lists(event, min_size=1, max_size=max_events), max_size=max_batches))
    return History(rules, batches)


@st.composite
def _events(draw: st.DrawFn, keys: Any, order: Any, values: Any, partial: bool) -> Event:
    row = {name: draw(st.sampled_from(choices)) for name, _, choices in (*keys, *order)}
    delete = draw(st.integers(0, 4)) == 0
    for name, _, choices in values if not delete else ():
        if not partial or draw(st.integers(0, 2)):
            row[name] = draw(st.sampled_from(choices))
    return Event(row, delete, draw(st.integers(0, 5)) == 0)


@st.composite
def _truncations(draw: st.DrawFn, order: Any) -> Event:
    return Event({name: draw(st.sampled_from(choices)) for name, _, choices in order}, truncate=True)


def arrow_events(rules: Rules, events: Sequence[Event]) -> Events:
    """The events as the product holds them."""
    keyed = [event for event in events if not event.truncate]
    rows = _table(rules, keyed)
    present = {
        column.name: np.array([event.delete or column.name in event.row for event in keyed], bool)
        for column in rules.schema
    }
    cuts = [number for number, event in enumerate(events) if event.truncate]
    truncations = None
    if cuts:
        sequences = _table(rules, [events[number] for number in cuts]).select(list(rules.sequence))
        places = np.array([sum(not event.truncate for event in events[:number]) for number in cuts], np.int64)
        truncations = Truncations(sequences, places, np.zeros(len(cuts), np.int64))
    return Events(
        rows,
        np.array([event.delete for event in keyed], bool),
        {name: mask for name, mask in present.items() if not mask.all()},
        np.array([event.read for event in keyed], bool),
        truncations,
    )


def _table(rules: Rules, events: Sequence[Event]) -> pa.Table:
    columns = [pa.array([event.row.get(column.name) for event in events], column.type) for column in rules.schema]
    return pa.Table.from_arrays(columns, schema=rules.schema)


def python_rows(rules: Rules, events: Sequence[Event]) -> list[Event]:
    """The events with values as Arrow gives them back (dates as dates, not as numbers)."""
    table = _table(rules, events).to_pylist()
    return [
        replace(event, row={name: row[name] for name in event.row}) for event, row in zip(events, table, strict=True)
    ]
