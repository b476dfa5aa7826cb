"""Values of Kafka Connect as its JSON converter writes them, by the schema part of a message. Pure.

Decimals are bytes in base64 with a scale, dates are days, times and timestamps numbers whose unit the schema's name
tells. Without a schema a value is what JSON says it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

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


def is_unavailable(value: Any) -> bool:
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
    """A value as Python has it. One that is not what its schema says is left as it is, and will not fit its column."""
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


def reads(schema: Any) -> bool:
    """Return whether values of this schema, or parts of them, are anything but what JSON says they are."""
    if not isinstance(schema, Mapping):
        return False
    if str(schema.get("name")) in READ or schema.get("type") == "bytes":
        return True
    return any(map(reads, (schema.get("items"), schema.get("values"), *(schema.get("fields") or ()))))


def fields_of(schema: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The schemas of a struct's fields, by name."""
    return {str(field.get("field")): field for field in (schema or {}).get("fields") or ()}
