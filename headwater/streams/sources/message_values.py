"""Messages of a topic, a JSON text each with its place in the topic, and their values by the types of columns. Pure.

A table that names a column of `COLUMNS` gets it filled. A message that is no UTF-8 text is quarantined.
Without a schema bytes come in base64, dates as days, times as numbers whose unit is an option, decimals of any scale as
an object, maps and other nested values perhaps as a text of JSON. With a schema, decimals are bytes in base64 with a
scale, dates are days, times and timestamps numbers whose unit the schema's name tells.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition
from headwater.streams.log.batches import Quarantined
from headwater.streams.rows.column_casts import FAILS, floats
from headwater.streams.rows.input_rows import InputRows, as_json

TOPIC, PARTITION, OFFSET, TIMESTAMP, KEY, HEADERS = "_topic", "_partition", "_offset", "_timestamp", "_key", "_headers"
COLUMNS = (TOPIC, PARTITION, OFFSET, TIMESTAMP, KEY, HEADERS)
"""The columns that a topic offers."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Messages:
    """Messages of one partition of a topic, in their order.

    `values`: the bytes of each; None: a tombstone of the topic.
    `offsets`: the offset of each. `timestamps`: milliseconds.
    `keys`, `headers`, `timestamps`: may be left out if the table names no such column.
    """

    topic: str
    partition: int
    values: Sequence[bytes | None]
    offsets: Sequence[int]
    timestamps: Sequence[int | None] = ()
    keys: Sequence[bytes | None] = ()
    headers: Sequence[Headers | None] = ()

    @cached_property
    def text(self) -> str:
        """The messages as lines, one for each; an empty line for a tombstone and for one that is no text."""
        lines = [b"" if value is None else value.replace(b"\n", b" ").replace(b"\r", b" ") for value in self.values]
        try:
            return b"\n".join(lines).decode()
        except UnicodeDecodeError:
            return "\n".join("" if _is_bad(line) else line.decode() for line in lines)

    @cached_property
    def bad(self) -> tuple[Quarantined, ...]:
        """The messages that are no UTF-8 text."""
        return tuple(
            Quarantined(value.decode(errors="backslashreplace"), "parse", source=self.shown(index))
            for index, value in enumerate(self.values)
            if value is not None and not value.isascii() and _is_bad(value)
        )

    def shown(self, index: int) -> str:
        """Return the place of a message, for people."""
        return f"{self.topic}[{self.partition}]@{self.offsets[index]}"

    def offered(self, definition: Definition) -> Callable[[int], Mapping[str, Any]] | None:
        """Return a function from the number of a message to the columns that the table names; None: it names none."""
        makers = {
            column.name: _maker(self, column.name, column.type)
            for column in definition.columns
            if column.name in COLUMNS
        }
        if not makers:
            return None
        return lambda index: {name: make(index) for name, make in makers.items()}


def _is_bad(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return False


def _maker(messages: Messages, name: str, kind: pa.DataType) -> Callable[[int], Any]:
    if name == TOPIC:
        return lambda index: messages.topic
    if name == PARTITION:
        return lambda index: messages.partition
    if name == OFFSET:
        return lambda index: messages.offsets[index]
    if name == TIMESTAMP:
        if pa.types.is_timestamp(kind):
            return lambda index: _moment(messages.timestamps[index])
        return lambda index: messages.timestamps[index]
    if name == KEY:
        return lambda index: _text(messages.keys[index], kind)
    return lambda index: _headers(messages.headers[index])


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)


def _text(value: bytes | None, kind: pa.DataType) -> bytes | str | None:
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return value if value is None or is_bytes else value.decode(errors="backslashreplace")


def _headers(found: Headers | None) -> str | None:
    """Return the headers as a JSON object; of two of one name the later."""
    if not found:
        return None
    return as_json({name: None if value is None else value.decode(errors="backslashreplace") for name, value in found})


def named_columns(definition: Definition) -> Collection[str]:
    """Return the columns of a topic that a table names."""
    return frozenset(column.name for column in definition.columns) & frozenset(COLUMNS)


DIGITS = Context(prec=1000)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UNAVAILABLE = "__debezium_unavailable_value"
_BYTES = UNAVAILABLE.encode()
UNAVAILABLE_BYTES = base64.b64encode(_BYTES).decode()
UNAVAILABLE_ID = str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))
"""As Java names an id by bytes."""
_TEXTS = frozenset((UNAVAILABLE, UNAVAILABLE_BYTES, json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))))
_ITEMS = frozenset((UNAVAILABLE, UNAVAILABLE_BYTES, UNAVAILABLE_ID))
_NUMBERS = list(_BYTES)
_IN_TEXT = (UNAVAILABLE, UNAVAILABLE_BYTES, UNAVAILABLE_ID, *(space.join(map(str, _NUMBERS)) for space in (",", ", ")))


def is_unavailable(value: object) -> bool:
    """Return whether the database did not send the value: it did not change, so it is missing and not NULL.

    Debezium says so in the column's own type: a text or its bytes, a list of that text, of the id that is named by it
    or of its bytes as numbers, a map of the text to itself.
    """
    if isinstance(value, str):
        return value in _TEXTS
    if isinstance(value, list):
        if len(value) == 1:
            return isinstance(value[0], str) and value[0] in _ITEMS
        return len(value) == len(_NUMBERS) and value == _NUMBERS
    return isinstance(value, dict) and len(value) == 1 and value.get(UNAVAILABLE) == UNAVAILABLE


def is_unavailable_in(text: str) -> bool:
    """Return whether a text may hold such a value."""
    return any(part in text for part in _IN_TEXT)


def _decimal(value: Any, parameters: Mapping[str, Any]) -> Decimal:
    raw = base64.b64decode(value, validate=True)
    scale = int(parameters.get("scale", 0))
    return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-scale, DIGITS)  # Python's own keep 28 digits


def variable_decimal(value: Any, _: Any = None) -> Decimal:
    return _decimal(value["value"], {"scale": value["scale"]})


def days(value: Any, _: Any = None) -> date:
    return (EPOCH + timedelta(days=int(value))).date()


def moment(per_second: int) -> Callable[..., Any]:
    def read(value: Any, _: Any = None) -> Any:
        seconds, rest = divmod(int(value), per_second)
        micros, odd = divmod(rest * 10**9 // per_second, 1000)
        found = EPOCH + timedelta(seconds=seconds, microseconds=micros)
        if odd:  # nanoseconds have no place in Python's times: the text keeps them
            return f"{found:%Y-%m-%dT%H:%M:%S}.{micros * 1000 + odd:09d}Z"
        return found

    return read


def time_of_day(per_second: int) -> Callable[..., time]:
    def read(value: Any, _: Any = None) -> time:
        since = timedelta(microseconds=int(value) * 10**6 // per_second)
        if not timedelta() <= since < timedelta(days=1):  # MySQL's are durations too: no time of a day is one of those
            raise ValueError("no time of a day")
        return (EPOCH + since).time()

    return read


READ: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "org.apache.kafka.connect.data.Decimal": _decimal,
    "io.debezium.data.VariableScaleDecimal": variable_decimal,
    "org.apache.kafka.connect.data.Date": days,
    "io.debezium.time.Date": days,
    "org.apache.kafka.connect.data.Timestamp": moment(10**3),
    "io.debezium.time.Timestamp": moment(10**3),
    "io.debezium.time.MicroTimestamp": moment(10**6),
    "io.debezium.time.NanoTimestamp": moment(10**9),
    "org.apache.kafka.connect.data.Time": time_of_day(10**3),
    "io.debezium.time.Time": time_of_day(10**3),
    "io.debezium.time.MicroTime": time_of_day(10**6),
    "io.debezium.time.NanoTime": time_of_day(10**9),
}


def read_value(value: Any, schema: Mapping[str, Any] | None) -> Any:
    """Return a value as Python has it. One that is not what its schema says is left as it is, and will not fit its
    column."""
    if value is None or schema is None:
        return value
    read = READ.get(str(schema.get("name")))
    try:
        if read is not None:
            return read(value, schema.get("parameters") or {})
        if schema.get("type") == "bytes" and isinstance(value, str):
            return base64.b64decode(value, validate=True)
        if schema.get("type") == "array" and isinstance(value, list):
            return [read_value(item, schema.get("items")) for item in value]
        if schema.get("type") == "struct" and isinstance(value, Mapping):
            kinds = fields_of(schema)
            return {name: read_value(item, kinds.get(name)) for name, item in value.items()}
        if schema.get("type") == "map" and isinstance(value, Mapping):
            return {name: read_value(item, schema.get("values")) for name, item in value.items()}
    except (ValueError, TypeError, KeyError, OverflowError, binascii.Error, ArithmeticError):
        return value
    return value


def reads(schema: object) -> bool:
    """Return whether values of this schema, or parts of them, are anything but what JSON says they are."""
    if not isinstance(schema, Mapping):
        return False
    if str(schema.get("name")) in READ or schema.get("type") == "bytes":
        return True
    return any(map(reads, (schema.get("items"), schema.get("values"), *fields_of(schema).values())))


def fields_of(schema: object) -> dict[str, Mapping[str, object]]:
    """Return the schemas of a struct's fields, by name; ValueError for what is no schema."""
    if schema is None:
        return {}
    fields = (schema.get("fields") or []) if isinstance(schema, Mapping) else None
    if not isinstance(fields, list) or not all(isinstance(field, Mapping) for field in fields):
        raise ValueError("A message has a schema that is none.")
    return {str(field.get("field")): field for field in fields}


UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NOTHING = type(None)
_DECODER: Any = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True)
class ValueReader:
    """A reader of values of some Python types; others are as they should be."""

    read: Callable[[Any], Any]
    types: frozenset[type]

    def __call__(self, value: object) -> Any:
        """Return the value in the type of its column. One of another type comes back as it is, and will not fit."""
        if type(value) not in self.types:
            return value
        try:
            return self.read(value)
        except (ArithmeticError, LookupError, TypeError, ValueError, binascii.Error, msgspec.DecodeError):
            return value


def check_unit(unit: str | None) -> None:
    if unit is not None and unit not in UNITS:
        raise InvalidInputError(f"The time_unit {unit!r} is none of {', '.join(UNITS)}.")


def with_values(data: InputRows, definition: Definition, unit: str | None) -> InputRows:
    """Return the same rows, with values as the types of the columns want them; a number is a time only if `unit` is
    told."""
    kinds = {column.name: column.type for column in definition.columns}
    return replace(data, columns={name: _read(values, kinds.get(name), unit) for name, values in data.columns.items()})


def _read(values: Any, kind: Any, unit: str | None) -> Any:
    if not isinstance(values, list):
        return values
    kinds = set(map(type, values))
    if kind is None or (Decimal in kinds and pa.types.is_floating(kind)):  # the type of a new column its values tell
        return [floats(value) for value in values]
    if pa.types.is_timestamp(kind) and unit is not None and int in kinds and kinds <= {int, NOTHING}:
        try:
            return pa.array(values, pa.int64()).cast(pa.timestamp(unit, kind.tz))
        except FAILS:
            pass
    reader = reader_of(kind, unit)
    return values if reader is None or not kinds & reader.types else [reader(value) for value in values]


def reader_of(kind: pa.DataType, unit: str | None = None) -> ValueReader | None:
    """Return the reader of values of a type; None: they are taken as they are."""
    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return ValueReader(lambda value: base64.b64decode(value, validate=True), frozenset([str]))
    if types.is_decimal(kind):
        return ValueReader(variable_decimal, frozenset([dict]))
    if types.is_date(kind):
        return ValueReader(days, frozenset([int]))
    if types.is_time(kind):
        return ValueReader(time_of_day(UNITS[unit]), frozenset([int])) if unit is not None else None
    if types.is_timestamp(kind):
        return ValueReader(moment(UNITS[unit]), frozenset([int])) if unit is not None else None
    return _nested_reader(kind, unit) if types.is_nested(kind) else None


def _nested_reader(kind: object, unit: str | None) -> ValueReader:
    """Return the reader of nested values: their parts by their own types, a text as the JSON that it is."""
    parts = _parts_reader(kind, unit)

    def read(value: object) -> Any:
        value = _DECODER.decode(value) if isinstance(value, str) else value
        return value if parts is None else parts(value)

    return ValueReader(read, frozenset([str]) if parts is None else frozenset([str, list, dict]))


def _parts_reader(kind: Any, unit: str | None) -> Callable[[Any], object] | None:
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        readers = {field.name: found for field in fields if (found := reader_of(field.type, unit)) is not None}

        def by_name(value: Mapping[str, object]) -> Any:
            return {name: readers[name](part) if name in readers else part for name, part in value.items()}

        return by_name if readers else None
    item = reader_of(kind.item_type if pa.types.is_map(kind) else kind.value_type, unit)
    if item is None:
        return None
    if not pa.types.is_map(kind):
        return lambda value: [item(part) for part in value] if isinstance(value, list) else value
    return lambda value: {name: item(part) for name, part in value.items()}
