"""The fresh read: the published base with the tail of the log folded into it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError, TableColumnNotFoundError
from headwater.imports import pc
from headwater.streams.definition import Definition
from headwater.streams.fold.events import Events, Rules, State, decode_lines, highest
from headwater.streams.fold.fold import apply, fold, small_pages, standing, without_gaps
from headwater.streams.fold.tombstones import read_remembered
from headwater.streams.log.stored_events import LogShard, narrowed
from headwater.streams.reading.position_views import PositionView, Published, read_tail
from headwater.streams.rows.hashing import hash_array
from headwater.streams.rows.row_keys import Codes, KeyIndex, Mask
from headwater.streams.serving.copy_rows import filtered, find_rows, judging
from headwater.streams.serving.serving_copy import Lake, manifest_bytes, open_version
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.expressions import check_sql
from headwater.tables.scan.prune import live_batches

FEW_ROWS = 20_000
"""Rows of a base on local disk that are read sooner than a thread is started."""


@dataclass(frozen=True)
class Touched:
    """The keys that events are of, and what a base knows of them."""

    index: KeyIndex
    state: State
    ids: Codes
    addresses: Codes


@small_pages
def read(
    lake: Lake,
    view: PositionView,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    limit: int | None = None,
) -> pa.Table:
    """Return the rows at a position, in no order."""
    definition = view.stream.definition
    wanted = check_columns(definition, columns)
    text = check_sql("filter", filter)
    if limit is not None and not 0 <= limit < 1 << 63:
        raise InvalidInputError(f"A limit is a number of rows from 0 on, not {limit}.")
    if not view.tail:
        return _base_only(lake, view, wanted, text, limit)
    found = _filtered_read(lake, view, wanted, text) if text is not None else None
    if found is None:
        table = shown_state(lake, view, list(definition.shown) if text is not None else wanted)
        found = output(definition, table if text is None else filtered(table, text), wanted)
    return found if limit is None else found.slice(0, limit)


def _filtered_read(lake: Lake, view: PositionView, wanted: Sequence[str], filter: str) -> pa.Table | None:
    """Return the rows that pass a filter: of the base, found by its indices, those of keys that the tail does not have,
    and those of the tail's keys. None: the base has other columns, or the tail concerns every key.
    """
    definition, base = view.stream.definition, view.base
    rules = narrowed(definition, [])
    asked = list(dict.fromkeys((*wanted, *rules.keys)))
    if base is None or base.schema_id != definition.schema_id or view.truncates or not asked:
        return None
    if any(base_names(definition, base).get(name) != name for name in definition.shown):
        return None
    dataset = open_version(lake, view.stream, base.version, base.manifest)
    with judging(filter, definition.schema):
        found = dataset.to_table(columns=asked, filter=filter)
    events = read_tail(lake.store, view, [], True).events
    index = _index_of(rules, events)
    if index is not None and found.num_rows:
        found = found.take(np.flatnonzero(index.find([found.column(name) for name in rules.keys]) < 0))
    if rules.keys and _passes_none(events.rows.select(list(rules.keys)), filter):
        return output(definition, found, wanted)
    tail = filtered(shown_state(lake, view, list(definition.shown), touched=True), filter)
    return pa.concat_tables([output(definition, found, wanted), output(definition, tail, wanted)])


def _passes_none(keys: pa.Table, filter: str) -> bool:
    """Return True if a filter of keys alone passes none of these; False also for a filter of other columns."""
    try:
        return not filtered(keys, filter).num_rows
    except InvalidInputError:  # it names other columns
        return False


def count(lake: Lake, view: PositionView) -> int:
    if not view.tail:
        return view.base.rows if view.base is not None else 0
    return int(whole_state(lake, view, []).rows.num_rows)


def _touched_rows(lake: Lake, view: PositionView, rules: Rules, events: Events) -> pa.Table:
    """Return the rows of the base of the keys that events are of; a truncation is of all."""
    index = _index_of(rules, events)
    if events.truncations is not None:
        return base_rows(lake, view, rules)
    if view.base is None or index is None:
        return rules.schema.empty_table()
    return rows_of_keys(lake, view, view.base, rules, index, events.rows)[0]


def whole_state(
    lake: Lake,
    view: PositionView,
    columns: Sequence[str] | None = None,
    fragments: Sequence[int] | None = None,
    whole: bool = False,
) -> State:
    """Return the state at a view: rows of some columns (key and sequence are always among them), tombstones, watermark.

    `fragments`: of the base only these. `whole`: with the tombstones and marks of all keys, not of the tail's alone.
    """
    definition = view.stream.definition
    rules = narrowed(definition, columns)
    if view.base is None or (lake.store.abilities.path is not None and view.base.rows < FEW_ROWS):
        rows = base_rows(lake, view, rules, fragments)
        log = read_tail(lake.store, view, columns, True)
    else:
        with ThreadPoolExecutor(1) as beside:
            scanned = beside.submit(base_rows, lake, view, rules, fragments)
            log = read_tail(lake.store, view, columns, True)
        rows = scanned.result()
    index = _index_of(rules, log.events)
    every = whole or log.events.truncations is not None
    state = base_state(lake, view, rules, rows, index if not every else None, every)
    return apply(rules, state, fold(rules, state, log.events, log.judged, index))


def _state_of_tail(lake: Lake, view: PositionView, columns: Sequence[str], share: LogShard | None) -> pa.Table:
    """Return the rows of keys that the tail has events of, with `share` only of keys in it.

    Of the base only keys and sequences are read where all events are whole and no row has marks, as those decide which
    one stands; and then the rows that none has replaced.
    """
    definition = view.stream.definition
    rules = narrowed(definition, columns)
    log = read_tail(lake.store, view, columns, True, share)
    events, index = log.events, _index_of(rules, log.events)
    if events.truncations is not None:
        state = whole_state(lake, view, columns)
        mine = None if share is None else share.of_keys([state.rows.column(name) for name in rules.keys])
        return state.rows if mine is None else state.rows.filter(pa.array(mine))
    state = base_state(lake, view, rules, rules.schema.empty_table(), index)
    if index is None or view.base is None:
        return apply(rules, state, fold(rules, state, events, log.judged, index)).rows
    is_even = not (state.marks is not None and len(state.marks)) and not _lacked(definition, view.base, rules)
    whole = without_gaps(events) if is_even and not state.lines else None
    asked = rules if whole is None else narrowed(definition, [])
    old = asked.schema.empty_table()
    if whole is None or definition.sequence:  # else every event stands, whatever was there
        old = rows_of_keys(lake, view, view.base, asked, index, events.rows)[0]
    state = with_rows(definition, view.base, rules, state, old)
    folded = fold(rules, state, events if whole is None else whole, log.judged, index)
    stays = standing(state, folded)
    if whole is None:
        return pa.concat_tables([old.take(stays), folded.rows])
    if not len(stays):
        return folded.rows
    keys = old.take(stays)
    own = KeyIndex([keys.column(name) for name in rules.keys])
    return pa.concat_tables([rows_of_keys(lake, view, view.base, rules, own, keys)[0], folded.rows])


def _index_of(rules: Rules, events: Events) -> KeyIndex | None:
    """Return the keys of events; None: there are none."""
    return KeyIndex([events.rows.column(name) for name in rules.keys]) if rules.keys and len(events) else None


def base_state(
    lake: Lake, view: PositionView, rules: Rules, rows: pa.Table, index: KeyIndex | None, every: bool = False
) -> State:
    """Return these rows of the base of a view, with what it knows beside them: of the keys of an index, or of every
    one."""
    base, definition = view.base, view.stream.definition
    state = State(rows, rules.tombstone.empty_table())
    if base is None:
        return state
    found = None
    if base.tombstones and rules.keys and (index is not None or every):
        found = read_remembered(lake.store, definition, rules, base.tombstones, index)
    state = State(rows, state.tombstones if found is None else found.tombstones, base.watermark)
    lines = decode_lines(definition, base.lines)
    state = replace(state, marks=None if found is None else found.marks.marking, lines=lines)
    return with_rows(definition, base, rules, state, rows)


def with_rows(definition: Definition, base: Published, rules: Rules, state: State, rows: pa.Table) -> State:
    """Return a state with these rows of a base: they never wrote the columns that it lacks."""
    lacked = [name for name in _lacked(definition, base, rules) if name not in state.lines.unwritten]
    top = highest(rules, [rows]) if lacked and rules.sequence else None
    lines = state.lines
    if top is not None:
        lines = replace(lines, unwritten={**lines.unwritten, **dict.fromkeys(lacked, top)})
    return replace(state, rows=rows, lines=lines)


def _lacked(definition: Definition, base: Published, rules: Rules) -> list[str]:
    known = dict(base.columns)
    return [name for name in rules.cells if name in definition.by_name and definition.by_name[name].id not in known]


def state_of_keys(
    lake: Lake, view: PositionView, keys: pa.Table, columns: Sequence[str] | None = None, share: LogShard | None = None
) -> State:
    """The state at a view of some keys only (all in a share, if told): rows, tombstones, watermark.

    The rows are whole, or of some columns.
    """
    definition = view.stream.definition
    rules = narrowed(definition, columns)
    index = KeyIndex([keys.column(name) for name in rules.keys])
    rows = rules.schema.empty_table()
    if view.base is not None:
        rows, _, _ = rows_of_keys(lake, view, view.base, rules, index, keys)
    log = read_tail(lake.store, view, columns, share=share)
    state = base_state(lake, view, rules, rows, index)
    after = apply(rules, state, fold(rules, state, log.events, log.judged))
    wanted = np.flatnonzero(index.find([after.rows.column(name) for name in rules.keys]) >= 0)
    return replace(after, rows=after.rows.take(wanted))


def shown_state(
    lake: Lake,
    view: PositionView,
    wanted: Sequence[str],
    touched: bool = False,
    share: LogShard | None = None,
    fragments: Sequence[int] | None = None,
) -> pa.Table:
    """Return all rows (or those that the tail touches) with columns that may be derived ones.

    Those are NULL in a row of the tail whose inputs are not as published.
    """
    definition = view.stream.definition
    derived = [each for each in definition.derived if each.name in wanted]
    inputs = [name for each in derived for name in each.inputs]
    plain = [name for name in (*wanted, *inputs) if name in definition.by_name]
    if not derived:
        return _state_of_tail(lake, view, plain, share) if touched else whole_state(lake, view, plain, fragments).rows
    rules = narrowed(definition, plain)
    fields = [*rules.schema, *(pa.field(each.name, each.type) for each in derived)]
    wide = Rules(pa.schema(fields), rules.keys, rules.sequence, rules.lateness)
    log = read_tail(lake.store, view, plain, share=share)
    events = log.events
    missing = {each.name: np.zeros(len(events), bool) for each in derived}
    empty = [pa.nulls(len(events), each.type) for each in derived]
    rows = pa.Table.from_arrays([*events.rows.columns, *empty], schema=wide.schema)
    events = replace(events, rows=rows, present={**events.present, **missing})
    before = _touched_rows(lake, view, wide, events) if touched else base_rows(lake, view, wide, fragments)
    state = base_state(lake, view, wide, before, _index_of(wide, events), events.truncations is not None)
    folded = fold(wide, state, events, log.judged)
    made = folded.rows
    for each in derived:
        made = _without_changed(made, state.rows, folded.replaces, each.name, list(each.inputs))
    return apply(wide, state, replace(folded, rows=made)).rows


def _without_changed(rows: pa.Table, old: pa.Table, replaces: Codes, name: str, inputs: list[str]) -> pa.Table:
    known = np.flatnonzero(replaces >= 0)
    changed = np.ones(rows.num_rows, bool)
    changed[known] = ~same_rows(rows.take(known).select(inputs), old.take(replaces[known]).select(inputs))
    places: Any = pa.array(np.arange(rows.num_rows), mask=changed)
    column = rows.column(name).take(places)
    return rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)


def touched_state(lake: Lake, view: PositionView, rules: Rules, events: Events) -> Touched:
    """Return the state of the base for the keys of events; with truncations, for every key."""
    index = KeyIndex([events.rows.column(name) for name in rules.keys])
    nothing = np.empty(0, np.int64)
    if view.base is None:
        return Touched(index, State(rules.schema.empty_table(), rules.tombstone.empty_table()), nothing, nothing)
    if events.truncations is not None:
        rows, ids, addresses = every_row(lake, view, view.base, rules)
        return Touched(
            _joint(rules, rows, events.rows), base_state(lake, view, rules, rows, None, True), ids, addresses
        )
    rows, ids, addresses = rows_of_keys(lake, view, view.base, rules, index, events.rows)
    return Touched(index, base_state(lake, view, rules, rows, index), ids, addresses)


def _joint(rules: Rules, first: pa.Table, second: pa.Table) -> KeyIndex:
    """Return the keys of two tables."""
    keys = pa.concat_tables([table.select(list(rules.keys)) for table in (first, second)])
    return KeyIndex(keys.columns)


def every_row(lake: Lake, view: PositionView, base: Published, rules: Rules) -> tuple[pa.Table, Codes, Codes]:
    """Return all rows of a version, with ids and addresses."""
    dataset = open_version(lake, view.stream, base.version, base.manifest)
    names = base_names(view.stream.definition, base)
    there = [names[field.name] for field in rules.schema if field.name in names]
    found = dataset.scanner(columns=there, with_row_id=True, with_row_address=True).to_table()
    ids = found.column(ROW_ID).to_numpy().astype(np.int64)
    return in_schema(found, rules, names), ids, found.column(ROW_ADDRESS).to_numpy().astype(np.int64)


def rows_of_keys(
    lake: Lake,
    view: PositionView,
    base: Published,
    rules: Rules,
    index: KeyIndex,
    rows: pa.Table,
    fragments: Sequence[int] | None = None,
) -> tuple[pa.Table, Codes, Codes]:
    """Return the rows of a version that have the keys of an index (`rows` are rows with those keys), ids and addresses.

    `fragments`: only those of these fragments.
    """
    dataset = open_version(lake, view.stream, base.version, base.manifest)
    names = base_names(view.stream.definition, base)
    wanted = rows.select(list(rules.keys))
    if index.count < wanted.num_rows:
        wanted = wanted.take(index.places)
    wanted = wanted.rename_columns([names[name] for name in rules.keys])
    there = [names[field.name] for field in rules.schema if field.name in names]
    own = functools.partial(manifest_bytes, lake, view.stream, base.version, base.manifest)
    found = find_rows(dataset, [names[name] for name in rules.keys], index, wanted, there, fragments, own)
    ids = found.column(ROW_ID).to_numpy().astype(np.int64)
    addresses = found.column(ROW_ADDRESS).to_numpy().astype(np.int64)
    return in_schema(found, rules, names), ids, addresses


def base_rows(lake: Lake, view: PositionView, rules: Rules, fragments: Sequence[int] | None = None) -> pa.Table:
    """Return all rows of the base, or of some fragments, under the present schema."""
    if view.base is None:
        return rules.schema.empty_table()
    names = base_names(view.stream.definition, view.base)
    dataset = open_version(lake, view.stream, view.base.version, view.base.manifest)
    there = [names[field.name] for field in rules.schema if field.name in names]
    parts: Any = None if fragments is None else [dataset.get_fragment(id) for id in fragments]
    if not there:
        rows = dataset.count_rows() if parts is None else sum(each.count_rows() for each in parts)
        return in_schema(pa.table({"": pa.nulls(rows)}), rules, names)
    schema = pa.schema([dataset.schema.field(name) for name in there])
    return in_schema(pa.Table.from_batches(live_batches(dataset, parts, columns=there), schema), rules, names)


def base_names(definition: Definition, base: Published) -> dict[str, str]:
    """Return the name in the published version of each present column; columns added since are missing."""
    known = dict(base.columns)
    names = {column.name: known[column.id] for column in definition.columns if column.id in known}
    derived = {each.name: each.name for each in base.derived if each.name in definition.shown}
    return {**derived, **names}


def in_schema(table: pa.Table, rules: Rules, names: dict[str, str]) -> pa.Table:
    columns: list[Any] = []
    for field in rules.schema:
        if field.name not in names:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        column: Any = table.column(names[field.name])
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=rules.schema)


def _base_only(
    lake: Lake, view: PositionView, wanted: Sequence[str], filter: str | None, limit: int | None
) -> pa.Table:
    definition = view.stream.definition
    if view.base is None:
        return pa.schema([definition.shown[name] for name in wanted]).empty_table()
    names = base_names(definition, view.base)
    same = all(names.get(name) == name for name in definition.shown)
    if same and wanted:
        dataset = open_version(lake, view.stream, view.base.version, view.base.manifest)
        with judging(filter, definition.schema):
            found = dataset.to_table(columns=list(wanted), filter=filter, limit=limit)
        return output(definition, found, wanted)
    table = shown_state(lake, view, list(definition.shown) if filter else wanted)
    table = output(definition, table if filter is None else filtered(table, filter), wanted)
    return table if limit is None else table.slice(0, limit)


def output(definition: Definition, table: pa.Table, wanted: Sequence[str]) -> pa.Table:
    """Return the columns asked for, as the schema has them."""
    fields = [definition.shown[name] for name in wanted]
    columns: list[Any] = []
    for field in fields:
        column: Any = table.column(field.name)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def check_columns(definition: Definition, columns: Sequence[str] | None) -> list[str]:
    for name in columns or ():
        if name not in definition.shown:
            raise TableColumnNotFoundError(f"There is no column {name!r} in the stream table.")
    return list(definition.shown if columns is None else columns)


def same_rows(first: pa.Table, second: pa.Table) -> Mask:
    """Return a mask of equal rows in two tables of one length; NULL equals NULL, and NaN equals NaN."""
    same = np.ones(first.num_rows, bool)
    for name in first.schema.names:
        same &= _same(first.column(name), second.column(name))
    return same


def _same(first: Any, second: Any) -> Mask:
    found: Mask = hash_array(first) == hash_array(second)
    alike = np.flatnonzero(found)
    if len(alike) == len(found):
        return _equal(first, second)
    found[alike] = _equal(first.take(alike), second.take(alike))
    return found


def equal_rows(first: pa.Table, second: pa.Table) -> Mask:
    """Return a mask of equal rows among rows of equal hashes, since long texts can be made to collide."""
    same = np.ones(first.num_rows, bool)
    for name in first.schema.names:
        same &= _equal(first.column(name), second.column(name))
    return same


def _equal(first: Any, second: Any) -> Mask:
    """Return a mask of equal values among those with equal hashes; values of a fixed width always are."""
    kind, everything = first.type, np.ones(len(first), bool)
    if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind):
        if first.equals(second):
            return everything
        parts = zip(first, second, strict=True)  # one differs, or has a NaN, which equals nothing
        return np.fromiter((one.equals(other) or repr(one) == repr(other) for one, other in parts), bool, len(first))
    if pa.types.is_primitive(kind) or pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind):
        return everything
    equal: Any = pc.equal(first, second)
    found: Mask = equal.fill_null(True).to_numpy()
    return found
