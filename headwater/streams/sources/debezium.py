"""Debezium: change events of a database, as JSON, bare or with their schema, enveloped or flattened. Pure.

The envelope's own fields are offered as columns, so that a table may name one and use it to order its events. Without
a sequence nothing orders events that were delivered twice or late, so such a table is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition
from headwater.streams.log.batches import Quarantined
from headwater.streams.rows.column_casts import cast_values
from headwater.streams.rows.input_rows import DELETE, READ, TRUNCATE, UPSERT, as_json, as_table
from headwater.streams.sources.debezium_envelopes import (
    CREATES,
    OFFERED,
    READS,
    UNSET,
    Columns,
    Decoding,
    LogPlace,
    as_columns,
    decode,
    decode_lines,
    decoding,
    envelope_of,
    first_place,
    in_log_order,
    is_plain,
    offered,
)
from headwater.streams.sources.format_output import UNREADABLE, RowsOfKeys, Taken, completed, from_events
from headwater.streams.sources.message_values import (
    Messages,
    check_unit,
    fields_of,
    is_unavailable,
    is_unavailable_in,
    read_value,
    reader_of,
    with_values,
)

Row = dict[str, Any]
Decoder = msgspec.json.Decoder[Any]
FLAT = {
    "lsn": ("__lsn", "__source_lsn"),
    "ts_ms": ("__source_ts_ms", "__ts_ms"),
    **{name: (f"__{name}", f"__source_{name}") for name in ("file", "pos", "row", "scn", "change_lsn", "ord", "txId")},
}
CLOUD_EVENT = "iodebezium"
"""What the names of Debezium's own attributes of a CloudEvent begin with."""
ENVELOPE = frozenset(("op", "before", "after"))
ROW = ENVELOPE | {"__op", "__deleted"}
OPS = frozenset("cudrt")
MOST_WRAPPED = 5
"""So many wrappings of a message are taken off: a record, a CloudEvent, a schema, each perhaps as a text."""


@dataclass(frozen=True)
class DebeziumChange:
    """One message: the row before, the row after, and the place in the log. `unsent`: columns that were not sent."""

    op: str
    before: Row | None
    after: Row | None
    source: LogPlace
    unsent: tuple[str, ...] = ()


def take_debezium(
    definition: Definition,
    data: object,
    apply_as_truncates: bool = False,
    time_unit: str | None = None,
    bad: Sequence[Quarantined] = (),
    rows_of: RowsOfKeys | None = None,
    reads_first: bool = False,
) -> Taken:
    """Return the events of a stream of messages, in the order of the database's log where the messages tell it.

    A truncation is an error, unless it is to be applied: then it deletes all rows before its place. `time_unit` is
    that of times which are numbers, in messages whose schema does not tell it. `rows_of` gives the rows of some keys: a
    row whose key changed has values there that the database did not send again. `reads_first`: rows that a snapshot
    read are older than every change, wherever the log was when it read them.
    """
    check_unit(time_unit)
    check_debezium(definition, apply_as_truncates)
    topic = data if isinstance(data, Messages) else None
    data = records(data) if topic is None else topic.text
    bad = (*bad, *(topic.bad if topic is not None else ()))
    known = decoding(definition) if isinstance(data, str) else None
    found = _by_columns(definition, known, data, bad, reads_first, topic) if known is not None else None
    if found is None:
        found = _by_message(definition, data, apply_as_truncates, bad, reads_first, topic)
    columns, rejected = found
    read = with_values(columns.data, definition, time_unit)
    return completed(definition, Taken(read, tuple(rejected)), columns.unsent, rows_of)


def check_debezium(definition: Definition, apply_as_truncates: bool) -> None:
    """Raise InvalidInput for a table that cannot take Debezium events, or truncations among them."""
    if definition.keys and not definition.sequence:
        raise InvalidInputError(
            "Debezium events into a table with keys need a sequence: nothing else orders a delivery that was repeated "
            f"or delayed. Name a column that grows, or one of the envelope's ({', '.join(OFFERED)}) in the schema."
        )
    if apply_as_truncates:
        _check_truncation(definition, OFFERED)


def check_frame(names: Sequence[str]) -> None:
    """Raise InvalidInput for a frame with these columns, none of which holds messages."""
    if not {"value", "payload", *ROW} & set(names):
        raise InvalidInputError(
            "A frame of Debezium messages has them in a column 'value', or has columns op, before and after; this one "
            f"has: {', '.join(names) or 'none'}. Nothing was loaded."
        )


def records(data: object) -> Any:
    """Return messages as a text of lines or a list: of a frame those in its column `value`, or rows that are messages.

    Raises InvalidInput for anything else, so that nothing is taken for a message that is none.
    """
    if isinstance(data, (str, bytes, bytearray)):
        return _text_of(data)
    if isinstance(data, Mapping):
        return [data]
    if not isinstance(data, list):
        table = as_table(data)
        data = list(data) if table is None and isinstance(data, Iterable) else _rows_of(table, data)
    elif data and (table := as_table(data)) is not None:
        data = _rows_of(table, data)
    for index, item in enumerate(data):
        if not isinstance(item, (str, bytes, Mapping, type(None))):
            raise InvalidInputError(f"Message {index} is a {type(item).__name__}: messages are texts or mappings.")
    data = [_text_of(item) if isinstance(item, bytes) else item for item in data if item is not None]
    is_text = all(isinstance(item, str) and "\n" not in item for item in data)
    return "\n".join(data) if is_text else data


def _rows_of(table: pa.Table | None, data: object) -> list[Any]:
    if table is None:
        raise InvalidInputError(f"Debezium messages are JSON, mappings or a frame of those, not {type(data).__name__}.")
    names = table.schema.names
    check_frame(names)
    is_bare = "value" in names and not ROW & set(names)
    return list(table.column("value").to_pylist() if is_bare else table.to_pylist())


Found = tuple[Columns, list[Quarantined]]


def _by_columns(
    definition: Definition,
    known: Decoding,
    text: str,
    bad: Sequence[Quarantined],
    reads_first: bool,
    topic: Messages | None,
) -> Found | None:
    """Parse all messages at once; None if some must be parsed before the columns are known."""
    rejected = list(bad)
    envelopes = decode_lines(known, text)
    numbers: Sequence[int] = range(len(envelopes or ()))
    if envelopes is None:
        envelopes, numbers = [], []
        for number, line in enumerate(text.split("\n")):
            found = decode(known, line) if line and not line.isspace() else None
            if found is not None and (found is UNSET or not is_plain(found)):
                single = _by_itself(line)
                if isinstance(single, DebeziumChange):
                    found = envelope_of(known, definition, single) if single.op != "t" else None
                    if found is None:
                        return None
                else:
                    rejected += [_placed(single, topic, number)] if single is not None else []
                    continue
            if found is not None:
                envelopes.append(found)
                numbers.append(number)
    if reads_first:
        for found in envelopes:
            if found.op in READS:
                found.source = first_place(found.source)
    if topic is not None and (offered := topic.offered(definition)) is not None:
        for found, number in zip(envelopes, numbers, strict=True):
            found.source = LogPlace() if found.source is None else found.source
            found.source.hw_message = offered(number)
    return as_columns(known, definition, envelopes, is_unavailable_in(text)), rejected


def _placed(rejected: Quarantined, topic: Messages | None, number: int) -> Quarantined:
    """Return a rejected message of a topic, with its place."""
    return rejected if topic is None else replace(rejected, source=topic.shown(number))


def _by_itself(line: str) -> DebeziumChange | Quarantined | None:
    """Parse one line to a change, or to a row of the quarantine; None for an empty one."""
    message = next(iter(messages(line)), None)
    if message is None:
        return None
    if isinstance(message, _Broken):
        return Quarantined(message.text, "parse")
    found = parse(message)
    return Quarantined(as_json({"message": message}), found) if isinstance(found, str) else found


def _by_message(
    definition: Definition,
    data: object,
    apply_as_truncates: bool,
    bad: Sequence[Quarantined],
    reads_first: bool,
    topic: Messages | None,
) -> Found:
    """Parse messages one after another."""
    changes: list[DebeziumChange] = []
    rejected = list(bad)
    offered = topic.offered(definition) if topic is not None else None
    for number, message in numbered(data):
        if isinstance(message, _Broken):
            rejected.append(_placed(Quarantined(message.text, "parse"), topic, number))
            continue
        found = parse(message)
        if isinstance(found, DebeziumChange):
            if offered is not None:
                found.source.hw_message = offered(number)
            if found.op == "t" and not apply_as_truncates:
                raise InvalidInputError(
                    f"Message {number} truncates the source's table: say apply_as_truncates=True to delete all rows."
                )
            is_first = reads_first and found.op in READS
            changes.append(replace(found, source=first_place(found.source)) if is_first else found)
        elif found is not None:
            rejected.append(_placed(Quarantined(as_json({"message": message}), found), topic, number))
    return _events(definition, in_log_order(changes)), rejected


_DECODER: Decoder = msgspec.json.Decoder(float_hook=Decimal)
PLAIN: Decoder = msgspec.json.Decoder()
"""Takes numbers as floats, where nothing says yet that they have more digits."""


@dataclass(frozen=True)
class _Broken:
    text: str


def messages(data: object, decoder: Decoder = _DECODER) -> Iterable[Any]:
    """Return messages from lines of JSON (text, bytes, or a list of those), or as parsed already. `null` is passed
    over."""
    return (message for _, message in numbered(data, decoder))


def numbered(data: Any, decoder: Decoder = _DECODER) -> Iterable[tuple[int, Any]]:
    """Messages, each with the number of its line or item."""
    if isinstance(data, (str, bytes, bytearray)):
        data = _text_of(data).split("\n")
    if isinstance(data, Mapping):
        data = [data]
    for number, item in enumerate(data):
        if isinstance(item, (str, bytes)):
            if not item.strip():
                continue
            try:
                item = decoder.decode(item)
            except UNREADABLE:
                text = item if isinstance(item, str) else item.decode("utf-8", errors="replace")
                yield number, _Broken(text)
                continue
        if item is not None:
            yield number, item


def _text_of(data: str | bytes | bytearray) -> str:
    return data if isinstance(data, str) else bytes(data).decode("utf-8", errors="replace")


def parse(message: object) -> DebeziumChange | str | None:
    """Return a message as a change; a text says why it is none; None: there is nothing in it (a tombstone of the
    topic)."""
    schema: Any = None
    told: Mapping[str, Any] = {}
    for _ in range(MOST_WRAPPED):
        if isinstance(message, (str, bytes)):
            try:
                message = _DECODER.decode(message)
            except UNREADABLE:
                return "parse"
        if message is None:
            return None
        if not isinstance(message, Mapping):
            return "parse"
        if "specversion" in message and "data" in message:
            told, message = message, message["data"]
        elif "payload" in message and set(message) <= {"schema", "payload"}:
            schema, message = message.get("schema"), message["payload"]
        elif not ROW & message.keys() and (inner := {"value", "payload"} & message.keys()):
            message = message[inner.pop()]  # a record of a topic, beside its key
        else:
            break
    if not isinstance(message, Mapping):
        return "parse"
    if told:
        message = {**_cloud_envelope(told), **message}
    try:
        if "op" in message and (ENVELOPE & set(message) != {"op"} or str(message["op"]).lower() == "t"):
            return _enveloped(message, fields_of(schema))
        if "__op" in message or "__deleted" in message:
            return _flattened(message, fields_of(schema))
    except ValueError:
        return "parse"
    return "unknown_op"


def _cloud_envelope(told: Mapping[str, object]) -> Row:
    """Return the parts of an envelope that a CloudEvent has among its attributes, where all values are texts."""
    names = {CLOUD_EVENT + name.replace("_", "").lower(): name for name in LogPlace.__struct_fields__}
    given = {names[key.lower()]: value for key, value in told.items() if key.lower() in names and value is not None}
    source = {
        name: int(value) if name != "file" and isinstance(value, str) and value.isdecimal() else value
        for name, value in given.items()
    }
    op = told.get(f"{CLOUD_EVENT}op")
    return {"source": source} if op is None else {"op": op, "source": source}


def _enveloped(message: Mapping[str, object], kinds: Mapping[str, Mapping[str, object]]) -> DebeziumChange | str:
    op = str(message["op"]).lower()
    if op not in OPS:
        return "unknown_op"
    before, _ = _row(message.get("before"), kinds.get("before"))
    after, unsent = _row(message.get("after"), kinds.get("after"))
    if op != "t" and (before if op == "d" else after) is None:
        return "parse"
    source = message.get("source") or {}
    if not isinstance(source, Mapping):
        return "parse"
    place = LogPlace(**{name: source.get(name) for name in LogPlace.__struct_fields__})
    if place.ts_ms is None:
        place.ts_ms = message.get("ts_ms")
    return DebeziumChange(op, before, after, place, unsent)


def _flattened(message: Mapping[str, object], kinds: Mapping[str, Mapping[str, object]]) -> DebeziumChange | str:
    deleted = str(message.get("__deleted", "false")).lower() == "true"
    op = str(message.get("__op") or ("d" if deleted else "u")).lower()
    if op not in OPS:
        return "unknown_op"
    row, unsent = _row(
        {name: value for name, value in message.items() if not name.startswith("__")},
        {"fields": [{**kind, "field": name} for name, kind in kinds.items()]},
    )
    place = LogPlace()
    for name, fields in FLAT.items():
        setattr(place, name, next((message[field] for field in fields if message.get(field) is not None), None))
    gone = op == "d" or deleted
    return DebeziumChange("d" if gone else op, row if gone else None, None if gone else row, place, unsent)


def _row(value: object, schema: Mapping[str, object] | None) -> tuple[Row | None, tuple[str, ...]]:
    """Return a row without the columns that the database did not send, and their names."""
    if not isinstance(value, Mapping):
        return None, ()
    kinds = fields_of(schema)
    unsent = tuple(name for name, item in value.items() if is_unavailable(item))
    return {name: read_value(item, kinds.get(name)) for name, item in value.items() if name not in unsent}, unsent


def _events(definition: Definition, changes: Sequence[DebeziumChange]) -> Columns:
    events: list[tuple[Row, str]] = []
    unsent: dict[int, Sequence[str]] = {}
    named = [column for column in definition.columns if column.name in OFFERED]
    for change in changes:
        told = {column.name: offered([change.source], column.name, column.type)[0] for column in named}
        told = {name: value for name, value in told.items() if value is not None}
        if change.op == "t":
            events.append((_truncation(definition, told), TRUNCATE))
            continue
        if change.op == "d":
            events.append(({**_marks(definition, change.before or {}), **told}, DELETE))
            continue
        after, old = {**(change.after or {}), **told}, change.before or {}
        moved = bool(definition.keys) and _has_moved(definition, old, after)
        lacking = list(change.unsent)
        if moved:
            marks = {**{name: after.get(name) for name in definition.sequence}, **told}
            events.append(({**marks, **{name: old[name] for name in definition.keys}}, DELETE))
            after = {**{name: old[name] for name in lacking if old.get(name) is not None}, **after}
            lacking = [name for name in lacking if name not in after]
        if lacking and definition.keys and (moved or change.op in CREATES):
            unsent[len(events)] = lacking
        events.append((after, READ if change.op == READ else UPSERT))
    return Columns(from_events(events, ()).data, unsent)


def _has_moved(definition: Definition, old: Row, new: Row) -> bool:
    """Return True if the key changed: that is a delete of the old one and an upsert of the new one."""
    if not all(name in old for name in definition.keys):
        return False
    return any(_key(definition, old, name) != _key(definition, new, name) for name in definition.keys)


def _key(definition: Definition, row: Row, name: str) -> Any:
    """Return a key in the type of its column, so that texts of the same decimal are equal."""
    kind, value = definition.by_name[name].type, row.get(name)
    reader = reader_of(kind)
    value = value if reader is None else reader(value)
    values, bad = cast_values([value], kind)
    return value if bad[0] else values[0].as_py()


def _truncation(definition: Definition, told: Row) -> Row:
    """Return a delete of every key at the truncation's place in the log, which alone orders it: it has no row."""
    _check_truncation(definition, told)
    return {name: told[name] for name in definition.sequence if name in told}


def _check_truncation(definition: Definition, told: Iterable[str]) -> None:
    for name in definition.sequence if definition.keys else ():
        if name not in told:
            raise InvalidInputError(
                f"A truncation has no row, so nothing gives it a value of {name!r}, which orders the table: name a "
                f"column of the envelope ({', '.join(OFFERED)}) as its sequence to apply truncations."
            )


def _marks(definition: Definition, row: Row) -> Row:
    return {name: row[name] for name in (*definition.keys, *definition.sequence) if name in row}
