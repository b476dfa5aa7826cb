"""Debezium: change events of a database, as JSON, bare or with their schema, enveloped or flattened. Pure.

The envelope's own fields are offered as columns, so that a table may name one and use it to order its events. Without
a sequence nothing orders events that were delivered twice or late, so such a table is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.casting import as_float
from headwater.streams.definition import Definition
from headwater.streams.given import as_json
from headwater.streams.quarantine import Quarantined
from headwater.streams.sources.bare_times import check_unit, with_times
from headwater.streams.sources.connect import fields_of, is_unavailable, is_unavailable_in, read_value
from headwater.streams.sources.envelopes import (
    OFFERED,
    UNSET,
    Decoding,
    as_columns,
    decode,
    decoding,
    envelope_of,
    is_plain,
)
from headwater.streams.sources.taken import UNREADABLE, Taken, from_events

Row = dict[str, Any]
Decoder = msgspec.json.Decoder[Any]
FLAT = {
    "_lsn": ("__lsn", "__source_lsn"),
    "_ts_ms": ("__source_ts_ms", "__ts_ms"),
    "_file": ("__file", "__source_file"),
    "_pos": ("__pos", "__source_pos"),
    "_txid": ("__txId", "__source_txId"),
}
ENVELOPE = frozenset(("op", "before", "after"))
OPS = frozenset("cudrt")


@dataclass(frozen=True)
class DebeziumChange:
    """One message: the row before, the row after, and what the envelope says."""

    op: str
    before: Row | None
    after: Row | None
    offered: Row


def take_debezium(
    definition: Definition,
    data: Any,
    apply_as_truncates: bool = False,
    time_unit: str | None = None,
    state: Callable[[], list[Row]] = list,
    bad: Sequence[Quarantined] = (),
) -> Taken:
    """The events of a stream of messages, in the order of the database's log where the messages tell it.

    A truncation is an error, unless it is to be applied: then it deletes all rows, which `state` gives. `time_unit` is
    that of times which are numbers, in messages whose schema does not tell it.
    """
    check_unit(time_unit)
    if definition.keys and not definition.sequence:
        raise InvalidInputError(
            "Debezium events into a table with keys need a sequence: nothing else orders a delivery that was repeated "
            "or delayed. Name a column that grows, or one of the envelope's (_lsn, _ts_ms, _file, _pos) in the schema."
        )
    known = decoding(definition) if isinstance(data, (str, bytes, bytearray)) else None
    taken = _by_columns(definition, known, _text_of(data), bad) if known is not None else None
    if taken is None:
        taken = _by_message(definition, data, apply_as_truncates, state, bad)
    return replace(taken, data=with_times(taken.data, definition, time_unit))


def _by_columns(definition: Definition, known: Decoding, text: str, bad: Sequence[Quarantined]) -> Taken | None:
    """All messages at once; None: there are some that must be understood before the columns are known."""
    envelopes: list[Any] = []
    rejected = list(bad)
    for line in text.split("\n"):
        found = decode(known, line) if line and not line.isspace() else None
        if found is not None and (found is UNSET or not is_plain(found)):
            single = _by_itself(line)
            if isinstance(single, DebeziumChange):
                found = envelope_of(known, definition, single) if single.op != "t" else None
                if found is None:
                    return None
            else:
                rejected += [single] if single is not None else []
                continue
        if found is not None:
            envelopes.append(found)
    return Taken(as_columns(known, definition, envelopes, is_unavailable_in(text)), tuple(rejected))


def _by_itself(line: str) -> DebeziumChange | Quarantined | None:
    """One line: a change, what is wrong with it, or nothing."""
    message = next(iter(messages(line)), None)
    if message is None:
        return None
    if isinstance(message, _Broken):
        return Quarantined(message.text, "parse")
    found = parse(message)
    return Quarantined(as_json({"message": message}), found) if isinstance(found, str) else found


def _by_message(
    definition: Definition,
    data: Any,
    apply_as_truncates: bool,
    state: Callable[[], list[Row]],
    bad: Sequence[Quarantined],
) -> Taken:
    """One message after another."""
    changes: list[DebeziumChange] = []
    rejected = list(bad)
    for number, message in enumerate(messages(data)):
        if isinstance(message, _Broken):
            rejected.append(Quarantined(message.text, "parse"))
            continue
        found = parse(message)
        if isinstance(found, DebeziumChange):
            if found.op == "t" and not apply_as_truncates:
                raise InvalidInputError(
                    f"Message {number} truncates the source's table: say apply_as_truncates=True to delete all rows."
                )
            changes.append(found)
        elif found is not None:
            rejected.append(Quarantined(as_json({"message": message}), found))
    rows = state() if any(change.op == "t" for change in changes) else []
    return _events(definition, in_order(changes), rows, rejected)


_DECODER: Decoder = msgspec.json.Decoder(float_hook=Decimal)
PLAIN: Decoder = msgspec.json.Decoder()
"""Takes numbers as floats, where nothing says yet that they have more digits."""


@dataclass(frozen=True)
class _Broken:
    text: str


def messages(data: Any, decoder: Decoder = _DECODER) -> Iterable[Any]:
    """Messages from lines of JSON (text, bytes, or a list of those), or as parsed already. `null` is passed over."""
    if isinstance(data, (str, bytes, bytearray)):
        data = _text_of(data).split("\n")
    if isinstance(data, Mapping):
        data = [data]
    for item in data:
        if isinstance(item, (str, bytes)):
            if not item.strip():
                continue
            try:
                item = decoder.decode(item)
            except UNREADABLE:
                text = item if isinstance(item, str) else item.decode("utf-8", errors="replace")
                yield _Broken(text)
                continue
        if item is not None:
            yield item


def _text_of(data: str | bytes | bytearray) -> str:
    return data if isinstance(data, str) else bytes(data).decode("utf-8", errors="replace")


def parse(message: Any) -> DebeziumChange | str | None:
    """A message as a change; a text says why it is none; None: there is nothing in it (a tombstone of the topic)."""
    if not isinstance(message, Mapping):
        return "parse"
    schema: Mapping[str, Any] | None = None
    if "payload" in message and set(message) <= {"schema", "payload"}:
        schema, message = message.get("schema"), message["payload"]
        if message is None:
            return None
        if not isinstance(message, Mapping):
            return "parse"
    if "op" in message and (ENVELOPE & set(message) != {"op"} or str(message["op"]).lower() == "t"):
        return _enveloped(message, fields_of(schema))
    if "__op" in message or "__deleted" in message:
        return _flattened(message, fields_of(schema))
    return "unknown_op"


def _enveloped(message: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> DebeziumChange | str:
    op = str(message["op"]).lower()
    if op not in OPS:
        return "unknown_op"
    before = _row(message.get("before"), kinds.get("before"))
    after = _row(message.get("after"), kinds.get("after"))
    if op != "t" and (before if op == "d" else after) is None:
        return "parse"
    source = message.get("source") or {}
    offered = {name: source.get(field) for name, field in OFFERED.items() if source.get(field) is not None}
    if "_ts_ms" not in offered and message.get("ts_ms") is not None:
        offered["_ts_ms"] = message["ts_ms"]
    return DebeziumChange(op, before, after, offered)


def _flattened(message: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> DebeziumChange | str:
    deleted = str(message.get("__deleted", "false")).lower() == "true"
    op = str(message.get("__op") or ("d" if deleted else "u")).lower()
    if op not in OPS:
        return "unknown_op"
    row = {
        name: read_value(value, kinds.get(name))
        for name, value in message.items()
        if not name.startswith("__") and not is_unavailable(value)
    }
    offered = {}
    for name, fields in FLAT.items():
        value = next((message[field] for field in fields if message.get(field) is not None), None)
        if value is not None:
            offered[name] = value
    gone = op == "d" or deleted
    return DebeziumChange("d" if gone else op, row if gone else None, None if gone else row, offered)


def _row(value: Any, schema: Mapping[str, Any] | None) -> Row | None:
    """A row without the columns that the database did not send."""
    if not isinstance(value, Mapping):
        return None
    kinds = fields_of(schema)
    return {name: read_value(item, kinds.get(name)) for name, item in value.items() if not is_unavailable(item)}


def in_order(changes: Sequence[DebeziumChange]) -> list[DebeziumChange]:
    """By log position, a snapshot's reads before the changes at their position; as they came where none is told."""
    places = [_place(change.offered) for change in changes]
    if any(place is None for place in places):
        return list(changes)
    kinds = {type(place) for place in places}
    if len(kinds) > 1:
        return list(changes)
    order = sorted(range(len(changes)), key=lambda index: (places[index], changes[index].op != "r"))
    return [changes[index] for index in order]


def _place(offered: Row) -> Any:
    lsn, file, pos = offered.get("_lsn"), offered.get("_file"), offered.get("_pos")
    if isinstance(lsn, int):
        return lsn
    return (str(file), pos) if file is not None and isinstance(pos, int) else None


def _events(
    definition: Definition, changes: Sequence[DebeziumChange], state: Sequence[Row], bad: Sequence[Quarantined]
) -> Taken:
    events: list[tuple[Row, bool]] = []
    for change in changes:
        offered = {name: value for name, value in change.offered.items() if name in definition.by_name}
        if change.op == "t":
            events += _truncation(definition, [*state, *(row for row, delete in events if not delete)], offered)
            continue
        if change.op == "d":
            events.append((_fitted(definition, {**_marks(definition, change.before or {}), **offered}), True))
            continue
        after = _fitted(definition, {**(change.after or {}), **offered})
        old = _fitted(definition, change.before or {})
        if definition.keys and _has_moved(definition, old, after):
            moved = {**{name: after.get(name) for name in definition.sequence}, **offered}
            events.append(({**moved, **{name: old[name] for name in definition.keys}}, True))
        events.append((after, False))
    return from_events(events, bad)


def _has_moved(definition: Definition, old: Row, new: Row) -> bool:
    """Whether the key changed: that is a delete of the old one and an upsert of the new one."""
    return all(name in old for name in definition.keys) and any(old[n] != new.get(n) for n in definition.keys)


def _truncation(definition: Definition, rows: Sequence[Row], offered: Row) -> list[tuple[Row, bool]]:
    """A delete of every row, at the truncation's place in the log where that is what orders the table."""
    return [({**_marks(definition, row), **offered}, True) for row in rows]


def _marks(definition: Definition, row: Row) -> Row:
    return {name: row[name] for name in (*definition.keys, *definition.sequence) if name in row}


def _fitted(definition: Definition, row: Row) -> Row:
    """Texts that JSON has for decimals and bytes, as the table's columns want them."""
    found: Row = {}
    for name, value in row.items():
        column = definition.by_name.get(name)
        found[name] = _text(value, column.type) if column is not None and isinstance(value, str) else value
        if isinstance(value, Decimal) and (column is None or not pa.types.is_decimal(column.type)):
            found[name] = as_float(value)
    return found


def _text(value: str, kind: Any) -> Any:
    try:
        if pa.types.is_decimal(kind):
            return Decimal(value)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return base64.b64decode(value, validate=True)
    except (InvalidOperation, binascii.Error, ValueError):
        return value
    return value
