"""Answers to agents: JSON within limits of rows and bytes, with a note on what was cut. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from headwater.cli.output import visible

MAX_ROWS = 1_000
MAX_BYTES = 1_000_000
MAX_TEXT = 4_000
SHORT_VECTOR = 8
EXACT = 1 << 53
"""Whole numbers below this are the same in every reader of JSON."""
_ROOM_TO_SAY = 4_000
"""Bytes that are kept for saying what was cut."""
_ODD = re.compile(r"[^\x20-\x7e]")


class AgentAnswer:
    """An answer with fields in order of addition. Lists are cut at the limits, and `cut` names what was cut."""

    def __init__(self, room: int = MAX_BYTES) -> None:
        self._room = room - _ROOM_TO_SAY
        self._fields: list[str] = []
        self._cut: list[str] = []

    def say(self, **fields: object) -> AgentAnswer:
        """Add values, except None. A value beyond the limit is cut."""
        for key, value in fields.items():
            if value is not None and not self._add(key, as_json(shortened(value))):
                self._cut.append(f"{key} is larger than an answer may be")
        return self

    def rows(self, key: str, found: Iterable[object], advice: str, most: int = MAX_ROWS) -> AgentAnswer:
        """Add a list, as far as the limits of rows and bytes allow."""
        kept, used = list[str](), len(key) + 8
        for item in found:
            text = as_json(item)
            if len(kept) == most:
                self._cut.append(f"{key}: only the first {most:,} are here; {advice}")
                break
            if used + _size(text) + 1 > self._room:
                self._cut.append(f"{key}: only the first {len(kept):,} fit into {MAX_BYTES:,} bytes; {advice}")
                break
            kept.append(text)
            used += _size(text) + 1
        self._room -= used
        self._fields.append(f"{as_json(key)}:[{','.join(kept)}]")
        return self

    def text(self) -> str:
        """Return the answer as JSON."""
        cut = [f'"cut":{as_json(self._cut)}'] if self._cut else []
        return "{" + ",".join((*self._fields, *cut)) + "}"

    def _add(self, key: str, text: str) -> bool:
        field = f"{as_json(key)}:{text}"
        if _size(field) + 1 > self._room:
            return False
        self._room -= _size(field) + 1
        self._fields.append(field)
        return True


def shortened(value: object) -> object:
    """Return the value with long texts cut, each with its length."""
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return f"{value[:MAX_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, Mapping):
        return {key: shortened(item) for key, item in value.items()}
    return [shortened(item) for item in value] if isinstance(value, (list, tuple)) else value


def cells(row: Mapping[str, object], short: bool = True) -> dict[str, Any]:
    """Return a row as JSON values: bytes as their count and, if `short`, vectors as their first numbers."""
    return {key: _cell(value, short) for key, value in row.items()}


def _cell(value: object, short: bool) -> object:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"<{len(value):,} bytes>"
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _cell(item, short) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if short and len(value) > SHORT_VECTOR and all(isinstance(item, (int, float)) for item in value):
            return [*value[:SHORT_VECTOR], f"… {len(value)} numbers"]
        return [_cell(item, short) for item in value]
    return value


def as_json(value: object) -> str:
    """Return JSON with control characters escaped, so that no terminal obeys them."""
    text = msgspec.json.encode(value, enc_hook=_other).decode()
    return text if text.isascii() and text.isprintable() else _ODD.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if visible(char) == char:
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _other(value: object) -> object:
    """Sizes are numbers; of what JSON does not know, the text."""
    return int(value) if isinstance(value, int) else str(value)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
