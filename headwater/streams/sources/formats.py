"""The formats by name, the options of each, and `snapshot`: the whole table as it is at its source.

What differs between a snapshot and the state becomes events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition
from headwater.streams.fold.events import Events, Rules, State, empty
from headwater.streams.fold.fold import fold
from headwater.streams.log.batches import EventBatch, Quarantined, shape
from headwater.streams.log.landing import LandingReport, digest_of_batch
from headwater.streams.log.stored_events import narrowed
from headwater.streams.reading.change_feed import difference
from headwater.streams.reading.fresh_reads import state_of_keys, whole_state
from headwater.streams.reading.position_views import PositionView
from headwater.streams.rows.input_rows import READ, InputRows, as_input_rows, as_json
from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.sources.debezium import check_debezium, check_frame, take_debezium
from headwater.streams.sources.files import (
    SourceFile,
    as_lines,
    is_lines,
    json_rows,
    message_rows,
    read_lines,
    read_rows,
)
from headwater.streams.sources.format_output import RowsOfKeys, Taken, take_op, take_rows
from headwater.streams.sources.message_values import Messages, check_unit


def take_snapshot(
    lake: Lake, view: PositionView, data: object, allow_empty: bool = False, within: pa.Table | None = None
) -> Taken:
    """Upserts of rows that are new or different, deletes (with the row's sequence) of those that are not there.

    `within`: the keys that it is a snapshot of; nothing is said of others.
    """
    definition = view.stream.definition
    check_snapshot(definition)
    rows = as_input_rows(data)
    if not rows.length and not allow_empty:
        raise InvalidInputError(
            "The snapshot is empty, which would delete every row: say allow_empty=True if it is so."
        )
    batch = shape(definition, rows, definition.contract) if rows.length else _nothing(definition)
    bad = [Quarantined(as_json(rows.row(each.index)), each.reason, each.column, kind=READ) for each in batch.bad]
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
    made = InputRows(columns, table.num_rows, {}, mask, np.ones(table.num_rows, bool))
    return Taken(made, tuple(bad), digest_of_batch(batch, bad))


def check_snapshot(definition: Definition) -> None:
    """Raise InvalidInput for a table without keys."""
    if not definition.keys:
        raise InvalidInputError("The table has no keys: rows of a snapshot cannot be told apart. Use append.")


def _marked(rules: Rules, held: State, new: pa.Table, changed: pa.Table) -> pa.Table:
    """Return rows that are as they were, but with cells older than the row: the snapshot has seen all of them."""
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
    return shape(definition, InputRows(columns, 0))


def _only(rules: Rules, events: Events) -> Events:
    present = {name: mask for name, mask in events.present.items() if name in rules.schema.names}
    return Events(events.rows.select(rules.schema.names), events.deletes, present)


def _under(rules: Rules, rows: pa.Table) -> pa.Table:
    """Return the state's rows with the columns that the snapshot's contract added or widened."""
    columns: list[Any] = []
    for field in rules.schema:
        if field.name not in rows.schema.names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column: Any = rows.column(field.name)
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=rules.schema)


def _without_bad(definition: Definition, rows: InputRows, batch: EventBatch, deleted: pa.Table) -> pa.Table:
    """A row that is there and bad is not a row that is gone."""
    if not batch.bad or not deleted.num_rows:
        return deleted
    keys = {tuple(rows.row(each.index).get(name) for name in definition.keys) for each in batch.bad}
    held = zip(*(deleted.column(name).to_pylist() for name in definition.keys), strict=True)
    return deleted.take(np.array([place for place, key in enumerate(held) if key not in keys], np.int64))


OP, DEBEZIUM, SNAPSHOT = "op", "debezium", "snapshot"
FORMATS: dict[str, dict[str, type]] = {
    "rows": {},
    OP: {"op_column": str},
    DEBEZIUM: {"apply_as_truncates": bool, "time_unit": str, "reads_first": bool},
    SNAPSHOT: {"allow_empty": bool},
}
"""The formats, each with its options and what they are."""


class HasDefinition(Protocol):
    """A stream table, opened here or behind a server."""

    @property
    def definition(self) -> Definition: ...


FLAGS = {"true": True, "false": False}


def check_format(format: str, options: Mapping[str, Any]) -> None:
    if format not in FORMATS:
        raise InvalidInputError(f"{format!r} is no format: use one of {', '.join(FORMATS)}.")
    for name, value in options.items():
        if name not in FORMATS[format]:
            known = ", ".join(FORMATS[format]) or "none"
            raise InvalidInputError(f"The format {format!r} has no option {name!r}; it has: {known}.")
        if not isinstance(value, FORMATS[format][name]):
            wanted = "true or false" if FORMATS[format][name] is bool else "a text"
            raise InvalidInputError(f"The option {name!r} is {wanted}, not {value!r}.")
    check_unit(options.get("time_unit"))


def check_target(
    definition: Definition, format: str, options: Mapping[str, Any], columns: InputRows | None = None
) -> None:
    """Raise InvalidInput (13) for a table that cannot take data of this format, before any row of it is decoded.

    `columns`: the columns of the data, without rows, if its header names them; None: text.
    """
    if format == DEBEZIUM:
        check_debezium(definition, options.get("apply_as_truncates", False))
        if columns is not None:
            check_frame(list(columns.columns))
        return
    if format == SNAPSHOT:
        check_snapshot(definition)
    if columns is not None:
        op = options.get("op_column", "op") if format == OP else None
        kept = {name: values for name, values in columns.columns.items() if name != op}
        shape(definition, InputRows(kept, 0), definition.contract)


def options_of(format: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Options as a command line gives them."""
    flags = {name for name, kind in FORMATS[format].items() if kind is bool}
    return {name: FLAGS.get(text.lower(), text) if name in flags else text for name, text in texts.items()}


def take(
    lake: Lake, view: PositionView, data: Any, format: str, options: Mapping[str, Any], file: SourceFile | None = None
) -> Taken:
    """Return the rows that change data stands for. `file`: read the data from there."""
    definition = view.stream.definition
    if format == SNAPSHOT:
        check_target(definition, format, options)
        rows, bad = _rows(definition, data, format, options, file)
        taken = take_snapshot(lake, view, rows, **options)
        return Taken(taken.data, (*bad, *taken.bad), taken.digest)

    def rows_of(keys: pa.Table) -> pa.Table:
        return state_of_keys(lake, view, keys).rows

    return take_alone(definition, data, format, options, file, rows_of)


def take_alone(
    definition: Definition,
    data: object,
    format: str,
    options: Mapping[str, Any],
    file: SourceFile | None = None,
    rows_of: RowsOfKeys | None = None,
) -> Taken:
    """As `take`, for a format that needs no earlier rows. `rows_of`: returns earlier rows of changed keys."""
    check_target(definition, format, options)
    if format == DEBEZIUM:
        if file is None:
            found = _as_lines(data)
        elif is_lines(file):
            found = read_lines(file)
        else:
            found, _ = _rows(definition, data, format, options, file)
        return take_debezium(definition, found, rows_of=rows_of, **options)
    rows, bad = _rows(definition, data, format, options, file)
    return take_op(rows, bad=bad, **options) if format == OP else take_rows(rows, bad)


def _as_lines(data: object) -> Any:
    """Return messages as given; of a text of JSON, lines."""
    return as_lines(_text(data)) if isinstance(data, (str, bytes, bytearray)) else data


def _text(data: str | bytes | bytearray) -> str:
    return data if isinstance(data, str) else bytes(data).decode(errors="replace")


def _rows(
    definition: Definition, data: object, format: str, options: Mapping[str, object], file: SourceFile | None
) -> tuple[Any, list[Quarantined]]:
    """Return rows as given, of a file, or of a text of JSON; and lines that could not be parsed."""
    if file is not None:
        return read_rows(file, definition, lambda columns: check_target(definition, format, options, columns))
    if isinstance(data, Messages):
        return message_rows(data, definition)
    if isinstance(data, (str, bytes, bytearray)):
        return json_rows(_text(data), definition)
    return data, []


def in_batches(stream: HasDefinition, files: Sequence[SourceFile], format: str) -> Sequence[Sequence[SourceFile]]:
    """Divide the files of one ingest call into batches: on a table with a lateness all are one, else each is its own.

    A snapshot is compared with the state, so a file of that format always stands alone.
    """
    if len(files) < 2 or format == SNAPSHOT or stream.definition.rules.lateness is None:
        return [[file] for file in files]
    return [files]


def total(reports: Sequence[LandingReport]) -> LandingReport:
    """Return one report of several files."""
    return LandingReport(
        max(report.position for report in reports),
        sum(report.rows for report in reports),
        sum(report.quarantined for report in reports),
        all(report.duplicate for report in reports),
        tuple(dict.fromkeys(name for report in reports for name in report.added)),
        tuple(dict.fromkeys(name for report in reports for name in report.widened)),
        sum(report.discarded for report in reports),
        _sums([report.checks for report in reports]),
        sum(report.too_late for report in reports),
    )


def _sums(counted: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = dict.fromkeys(name for each in counted for name in each)
    return {name: sum(each.get(name, 0) for each in counted) for name in names}
