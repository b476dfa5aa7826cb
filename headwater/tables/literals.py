"""Python values as Lance's SQL says them. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> str | None:
    """A value that columns can be compared with; None where SQL has no text for it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"arrow_cast('{value!r}', 'Float64')"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, dt.datetime):
        return _timestamp(value)
    return f"date '{value.isoformat()}'" if isinstance(value, dt.date) else None


def assigned(value: Any) -> str | None:
    """A value that a column can be set to: also NULL, times, lists, structs and NumPy's values."""
    if isinstance(value, (np.generic, np.ndarray)):
        return assigned(value.tolist())
    if value is None:
        return "NULL"
    if isinstance(value, dt.time):
        return quoted(value.isoformat())
    if isinstance(value, Mapping):
        pairs = ((quoted(str(name)), assigned(item)) for name, item in value.items())
        return _call("named_struct", [part for pair in pairs for part in pair])
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return _call("make_array", [assigned(item) for item in value])
    return literal(value)


def _call(function: str, texts: Sequence[str | None]) -> str | None:
    said = [text for text in texts if text is not None]
    return f"{function}({', '.join(said)})" if len(said) == len(texts) else None


def _decimal(value: Decimal) -> str | None:
    _sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):  # NaN and infinity
        return None
    scale = max(0, -exponent)
    return f"CAST('{value:f}' AS DECIMAL({max(len(digits) + max(0, exponent), scale, 1)},{scale}))"


def _timestamp(value: dt.datetime) -> str:
    zone = "Z" if value.tzinfo is not None else ""
    moment = value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"timestamp '{moment.isoformat(timespec='microseconds')}{zone}'"
