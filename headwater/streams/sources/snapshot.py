"""`snapshot`: the whole table as it is at its source. What differs from the state becomes events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition
from headwater.streams.fold.events import Events, Rules, State, empty
from headwater.streams.fold.fold import fold
from headwater.streams.log.batches import EventBatch, shape
from headwater.streams.log.landing import digest_of_batch
from headwater.streams.log.log_files import narrowed
from headwater.streams.log.quarantine import Quarantined
from headwater.streams.reading.change_feed import difference
from headwater.streams.reading.fresh_reads import state_of_keys, whole_state
from headwater.streams.reading.position_views import PositionView
from headwater.streams.rows.input_rows import Given, as_json, given
from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.sources.format_output import Taken


def take_snapshot(
    lake: Lake, view: PositionView, data: Any, allow_empty: bool = False, within: pa.Table | None = None
) -> Taken:
    """Upserts of rows that are new or different, deletes (with the row's sequence) of those that are not there.

    `within`: the keys that it is a snapshot of; nothing is said of others.
    """
    definition = view.stream.definition
    check_snapshot(definition)
    rows = given(data)
    if not rows.length and not allow_empty:
        raise InvalidInputError(
            "The snapshot is empty, which would delete every row: say allow_empty=True if it is so."
        )
    batch = shape(definition, rows, definition.contract) if rows.length else _nothing(definition)
    bad = [Quarantined(as_json(rows.row(each.index)), each.reason, each.column) for each in batch.bad]
    present = [name for name in batch.definition.schema.names if name in rows.columns] if rows.length else []
    # Columns that the snapshot lacks are not compared, and stay. Its rows are none before the other: none is too late.
    rules = replace(narrowed(batch.definition, present), lateness=None)
    new = fold(rules, empty(rules), _only(rules, batch.events)).rows
    held = whole_state(lake, view, whole=True) if within is None else state_of_keys(lake, view, within)
    old = _under(rules, held.rows)
    found = difference(rules, old, new)
    deleted = _without_bad(definition, rows, batch, found.deleted)
    changed = pa.concat_tables([found.inserted, found.after])
    upserts = _in_order(rules, pa.concat_tables([changed, _marked(rules, held, new, changed)]), batch.events.rows)
    table = pa.concat_tables([deleted, upserts])
    mask = np.concatenate([np.ones(deleted.num_rows, bool), np.zeros(upserts.num_rows, bool)])
    columns = {name: table.column(name) for name in rules.schema.names}
    made = Given(columns, table.num_rows, {}, mask, np.ones(table.num_rows, bool))
    return Taken(made, tuple(bad), digest_of_batch(batch, bad))


def check_snapshot(definition: Definition) -> None:
    """Raise InvalidInput for a table without keys."""
    if not definition.keys:
        raise InvalidInputError("The table has no keys: rows of a snapshot cannot be told apart. Use append.")


def _marked(rules: Rules, held: State, new: pa.Table, changed: pa.Table) -> pa.Table:
    """Rows that are as they were, but with cells older than the row: the snapshot has seen all of them."""
    if held.marks is None or not len(held.marks):
        return rules.schema.empty_table()
    keys = [new.column(name) for name in rules.keys]
    marked = KeyIndex([held.marks.rows.column(name) for name in rules.keys]).holds(keys)
    if changed.num_rows:
        marked &= ~KeyIndex([changed.column(name) for name in rules.keys]).holds(keys)
    return new.take(np.flatnonzero(marked))


def _in_order(rules: Rules, upserts: pa.Table, rows: pa.Table) -> pa.Table:
    """Rows in the order they were given: of two, the later one may be too late for the other."""
    if not upserts.num_rows:
        return upserts
    index = KeyIndex([rows.column(name) for name in rules.keys])
    last = np.empty(index.count, np.int64)
    last[index.codes] = np.arange(rows.num_rows)
    return upserts.take(np.argsort(last[index.find([upserts.column(name) for name in rules.keys])], kind="stable"))


def _nothing(definition: Definition) -> EventBatch:
    columns = {name: pa.nulls(0, definition.by_name[name].type) for name in definition.schema.names}
    return shape(definition, Given(columns, 0))


def _only(rules: Rules, events: Events) -> Events:
    present = {name: mask for name, mask in events.present.items() if name in rules.schema.names}
    return Events(events.rows.select(rules.schema.names), events.deletes, present)


def _under(rules: Rules, rows: pa.Table) -> pa.Table:
    """The state's rows with the columns that the snapshot's contract added or widened."""
    columns: list[Any] = []
    for field in rules.schema:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column: Any = rows.column(field.name)
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=rules.schema)


def _without_bad(definition: Definition, rows: Given, batch: EventBatch, deleted: pa.Table) -> pa.Table:
    """A row that is there and bad is not a row that is gone."""
    if not batch.bad or not deleted.num_rows:
        return deleted
    keys = {tuple(rows.row(each.index).get(name) for name in definition.keys) for each in batch.bad}
    held = zip(*(deleted.column(name).to_pylist() for name in definition.keys), strict=True)
    return deleted.take(np.array([place for place, key in enumerate(held) if key not in keys], np.int64))
