"""Debezium's envelopes, many at a time: lines of JSON become columns with few steps in Python for each. Pure.

It takes what messages nearly always are: envelopes with rows of the table's own columns, bare or with a schema. A line
that is anything else is parsed by `debezium.parse`, which says what it means; where it has columns that are not known,
or truncates, all lines go that way.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.streams.definition import Definition
from headwater.streams.rows.column_casts import has_decimals
from headwater.streams.rows.input_rows import InputRows
from headwater.streams.sources.format_output import UNREADABLE
from headwater.streams.sources.message_values import COLUMNS, UNAVAILABLE, fields_of, is_unavailable, read_value, reads

UNSET: object = msgspec.UNSET
UPSERTS, DELETES, READS = frozenset("curCUR"), frozenset("dD"), frozenset("rR")
CREATES = frozenset("cC")
WRAPPED = ('{"schema"', '{"payload"')


class LogPlace(msgspec.Struct, gc=False):
    """The place of a change in the database's log, under Debezium's names for its parts."""

    lsn: object = None
    ts_ms: Any = None
    file: Any = None
    pos: Any = None
    row: Any = None
    scn: object = None
    change_lsn: object = None
    ord: object = None
    event_serial_no: object = None
    txId: object = None
    hw_message: Any = None
    """The columns that a topic offers for the message, by name; a database sends no such part."""


def first_place(place: LogPlace | None) -> LogPlace:
    """Return the place before all others for a row that a snapshot read.

    PostgreSQL sends a transaction whole if it ends after the snapshot, also its changes from before: the log's end at
    the snapshot is no lower bound for them. The log of MySQL has transactions in the order of their ends.
    """
    place = LogPlace() if place is None else place
    if place.file is not None:
        return place
    return LogPlace(0, place.ts_ms, None, place.pos, place.row, 0, "", 0, 0, place.txId, place.hw_message)


OFFERED: dict[str, tuple[str, ...]] = {
    "_lsn": ("lsn",),
    "_ts_ms": ("ts_ms",),
    "_file": ("file",),
    "_file_no": ("file",),
    "_pos": ("pos",),
    "_row": ("row",),
    "_scn": ("scn",),
    "_change_lsn": ("change_lsn",),
    "_ord": ("ord", "event_serial_no"),
    "_txid": ("txId",),
    **dict.fromkeys(COLUMNS, ("message",)),
}
"""The columns that an envelope's source fills, in tables that name them, and the fields that they are filled with."""


def offered(places: Sequence[LogPlace | None], name: str, kind: pa.DataType) -> list[Any]:
    """Return what envelopes offer for a column, None: nothing. Digits in a text are a number in a column of those."""
    if name in COLUMNS:
        return [
            None if place is None or not isinstance(place.hw_message, dict) else place.hw_message.get(name)
            for place in places
        ]
    first, *others = OFFERED[name]
    values = [None if place is None else getattr(place, first) for place in places]
    for other in others:
        values = [getattr(place, other, None) if v is None else v for place, v in zip(places, values, strict=True)]
    if name == "_file_no":
        return [file_number(value) for value in values]
    if str in set(map(type, values)) and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        return [int(value) if isinstance(value, str) and value.isdecimal() else value for value in values]
    return values


def file_number(name: object) -> int | None:
    """Return the number at the end of the name of a log's file; None: there is none."""
    found = re.search(r"(\d+)$", name) if isinstance(name, str) else None
    return int(found[1]) if found is not None else None


@dataclass(frozen=True)
class Decoding:
    """Decoders of a table's messages: a struct per row, with a field per column."""

    row: Any
    envelope: Any
    bare: Any
    wrapped: Any
    lines: Any


def decoding(definition: Definition) -> Decoding | None:
    """None: the keys of the table must be looked at one by one."""
    kinds = [definition.by_name[name].type for name in definition.keys]
    if any(pa.types.is_decimal(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind) for kind in kinds):
        return None
    fields: list[Any] = [
        (f"c{place}", _python_type(column.type), msgspec.field(name=column.name, default=UNSET))
        for place, column in enumerate(definition.columns)
    ]
    row: Any = msgspec.defstruct("Row", fields, forbid_unknown_fields=True, gc=False)
    side = row | None | msgspec.UnsetType
    kept: list[Any] = [("op", str), ("before", side, UNSET), ("after", side, UNSET)]
    kept += [("source", LogPlace | None, None), ("ts_ms", Any, None)]
    envelope: Any = msgspec.defstruct("Envelope", kept, gc=False)
    whole: list[Any] = [("payload", envelope | None), ("schema", msgspec.Raw, msgspec.Raw(b"null"))]
    wrapped: Any = msgspec.defstruct("Wrapped", whole, forbid_unknown_fields=True, gc=False)
    decoder: Any = msgspec.json.Decoder
    exact = {"float_hook": Decimal} if any(has_decimals(column.type) for column in definition.columns) else {}
    by_line = decoder(envelope | None, **exact), decoder(wrapped | None, **exact), decoder(envelope, **exact)
    return Decoding(row, envelope, *by_line)


def _python_type(kind: pa.DataType) -> Any:
    """Numbers of floating-point columns and of vectors are decoded as such; a message with anything else in their place
    is looked at by itself."""
    types = pa.types
    if types.is_floating(kind):
        return int | float | str | None | msgspec.UnsetType
    if (types.is_list(kind) or types.is_fixed_size_list(kind)) and types.is_floating(kind.value_type):
        return list[int | float | str | None] | str | None | msgspec.UnsetType
    return Any


def decode_lines(known: Decoding, text: str) -> list[Any] | None:
    """Return the envelopes in all lines by one call of the decoder; None: some line must be looked at by itself.

    No value of JSON has `}` and `{` beside each other. So if each line begins and ends with one, none goes on in the
    next, and as many values as lines are one in each.
    """
    text = text.rstrip("\n")
    count = text.count("\n") + 1
    if text.startswith(WRAPPED) or text[:1] + text[-1:] != "{}" or text.count("}\n{") != count - 1:
        return None
    try:
        found: list[Any] = known.lines.decode_lines(text)
    except UNREADABLE:
        return None
    return found if len(found) == count and all(map(is_plain, found)) else None


def decode(known: Decoding, line: str) -> Any:
    """Return the envelope in a line, None for an empty one, UNSET for one that only the slow parser reads."""
    try:
        if not line.startswith(WRAPPED):
            found = known.bare.decode(line)
        else:
            message = known.wrapped.decode(line)
            found = message.payload if message is not None else None
            schema = _schema(bytes(message.schema)) if found is not None else None
            if schema is not None:
                return _read(found, schema)
    except (*UNREADABLE, ValueError):  # a schema that is none
        return UNSET
    return found


@lru_cache(maxsize=64)
def _schema(text: bytes) -> Mapping[str, list[tuple[str, Any]]] | None:
    """Return the columns of a message whose values are read by their schema; None without a schema."""
    schema = msgspec.json.decode(text)
    if schema is None:
        return None
    sides = fields_of(schema)
    rows = {side: fields_of(sides.get(side)).items() for side in ("before", "after")}
    return {side: [(name, kind) for name, kind in fields if reads(kind)] for side, fields in rows.items()}


def _read(envelope: object, schema: Mapping[str, list[tuple[str, Any]]]) -> Any:
    """Return the envelope with the values of its rows as their schema says."""
    for side, kinds in schema.items():
        row = getattr(envelope, side)
        if row is None or row is UNSET:
            continue
        places = {name: place for place, name in enumerate(row.__struct_encode_fields__)}
        for name, kind in kinds:
            if name in places:
                field = f"c{places[name]}"
                value = getattr(row, field)
                if value is not UNSET and not is_unavailable(value):
                    setattr(row, field, read_value(value, kind))
    return envelope


def is_plain(envelope: Any) -> bool:
    """Return True if it has the row that its kind of change must have."""
    if envelope.op in UPSERTS:
        return envelope.after is not None and envelope.after is not UNSET
    return envelope.op in DELETES and envelope.before is not None and envelope.before is not UNSET


def envelope_of(known: Decoding, definition: Definition, change: Any) -> Any:
    """Return a change that was parsed by itself, as the others are; None: it has columns that are not known."""
    names = {column.name: f"c{place}" for place, column in enumerate(definition.columns)}
    sides = []
    for row in (change.before, change.after):
        if row is not None and not row.keys() <= names.keys():
            return None
        sides.append(None if row is None else known.row(**{names[name]: value for name, value in row.items()}))
    for name in change.unsent:
        if name not in names:
            return None
        setattr(sides[1], names[name], UNAVAILABLE)
    return known.envelope(change.op, *sides, change.source)


# Columns -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """Events as columns. `unsent`: by the number of a new row, its columns whose values the database did not send."""

    data: InputRows
    unsent: Mapping[int, Sequence[str]] = field(default_factory=dict)


def as_columns(known: Decoding, definition: Definition, envelopes: Sequence[object], has_unavailable: bool) -> Columns:
    """Return the events of envelopes, in the order of the database's log where all of them tell it."""
    ordered = in_log_order(envelopes)
    gone = [each.op in DELETES for each in ordered]
    rows = [each.before if is_gone else each.after for is_gone, each in zip(gone, ordered, strict=True)]
    rows, gone, ordered, new = _with_moved(known, definition, rows, gone, ordered)
    deletes = np.array(gone, bool)
    marks = {*definition.keys, *definition.sequence}
    columns: dict[str, Any] = {}
    present: dict[str, Any] = {}
    unsent: dict[int, list[str]] = {}
    for place, column in enumerate(definition.columns):
        values: list[Any] = list(map(operator.attrgetter(f"c{place}"), rows))
        if has_unavailable:
            for index, value in enumerate(values):
                if is_unavailable(value):
                    values[index] = UNSET
                    if new[index]:
                        unsent.setdefault(index, []).append(column.name)
        if column.name not in marks and True in gone:
            values = [UNSET if is_gone else value for is_gone, value in zip(gone, values, strict=True)]
        if column.name in OFFERED:
            told = offered([each.source for each in ordered], column.name, column.type)
            if column.name == "_ts_ms":
                told = [each.ts_ms if value is None else value for value, each in zip(told, ordered, strict=True)]
            values = [own if value is None else value for value, own in zip(told, values, strict=True)]
        if UNSET in values:
            mask = np.array([value is not UNSET for value in values], bool)
            if not mask.any():
                continue
            present[column.name] = mask
            values = [None if value is UNSET else value for value in values]
        columns[column.name] = values
    reads = np.array([each.op in READS and not is_gone for is_gone, each in zip(gone, ordered, strict=True)], bool)
    return Columns(InputRows(columns, len(rows), present, deletes, reads if reads.any() else None), unsent)


def in_log_order(changes: Sequence[Any]) -> list[Any]:
    """Return the order by log position, a snapshot's reads before changes; the order of arrival without positions."""
    places = _places([each.source for each in changes])
    if places is None:
        return list(changes)
    after_reads = [each.op not in READS for each in changes]
    try:
        numbers = np.array(places, np.int64) if type(places[0]) is int else None
    except OverflowError:
        numbers = None
    if numbers is not None:
        order = np.lexsort((np.array(after_reads, bool), numbers)).tolist()
    else:
        order = sorted(range(len(places)), key=list(zip(places, after_reads, strict=True)).__getitem__)
    return [changes[place] for place in order]


def _places(sources: Sequence[Any]) -> list[Any] | None:
    """Return the log position of each change, if all changes give it in one way."""
    if not sources or None in sources:
        return None
    lsn = [source.lsn for source in sources]
    kinds = set(map(type, lsn))
    if kinds == {int}:
        return lsn
    if int in kinds or bool in kinds:
        return None
    if all(source.file is not None and isinstance(source.pos, int) for source in sources):
        rows = [source.row if isinstance(source.row, int) else 0 for source in sources]
        names = [(file_number(source.file) or 0, str(source.file)) for source in sources]
        return [(*name, source.pos, row) for name, source, row in zip(names, sources, rows, strict=True)]
    return None


def _with_moved(
    known: Decoding, definition: Definition, rows: list[Any], gone: list[bool], ordered: list[Any]
) -> tuple[list[Any], list[bool], list[Any], list[bool]]:
    """Add a delete of the old key before each row whose key changed; return also which rows are new to their keys."""
    new = [each.op in CREATES for each in ordered]
    if not definition.keys:
        return rows, gone, ordered, [False] * len(rows)
    places = {column.name: f"c{place}" for place, column in enumerate(definition.columns)}
    key = operator.attrgetter(*(places[name] for name in definition.keys))
    kind = known.row
    at: dict[int, Any] = {}
    for place, each in enumerate(ordered):
        old = each.before
        if old.__class__ is not kind or gone[place] or key(old) == key(each.after):
            continue
        if _has_moved([places[name] for name in definition.keys], old, each.after):
            marks = {places[name]: getattr(each.after, places[name]) for name in definition.sequence}
            marks = {name: None if value is UNSET else value for name, value in marks.items()}
            sent = {name: value for name in places.values() if not _is_unsent(value := getattr(old, name))}
            for name, value in sent.items():  # a row before the change that is whole has what was not sent of it
                if value is not None and is_unavailable(getattr(each.after, name)):
                    setattr(each.after, name, value)
            at[place] = kind(**{**marks, **{places[name]: getattr(old, places[name]) for name in definition.keys}})
    if not at:
        return rows, gone, ordered, new
    order = [(place, moved) for place in range(len(rows)) for moved in ((True, False) if place in at else (False,))]
    return (
        [at[place] if moved else rows[place] for place, moved in order],
        [moved or gone[place] for place, moved in order],
        [ordered[place] for place, _ in order],
        [not moved and (new[place] or place in at) for place, moved in order],
    )


def _has_moved(keys: Sequence[str], old: object, new: object) -> bool:
    """Return True if a whole key became another one. What was not sent did not change, and is no key."""
    before, after = [getattr(old, key) for key in keys], [getattr(new, key) for key in keys]
    if any(map(_is_unsent, before)):
        return False
    return before != [None if _is_unsent(value) else value for value in after]


def _is_unsent(value: object) -> bool:
    return value is UNSET or is_unavailable(value)
