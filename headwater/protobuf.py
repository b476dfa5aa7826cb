"""A reader and writer of protobuf's wire format, as far as Lance manifests need it. Pure.

A message is a sequence of numbered fields. Unknown fields keep their bytes, so that a message can be changed in one
place and written again without loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

Value = int | bytes
"""A number (wire type 0), or bytes: a text, a message, packed numbers (2), or eight or four bytes (1, 5)."""

_FIXED = {1: 8, 5: 4}


def parse(message: bytes) -> Iterator[tuple[int, Value, bytes]]:
    """Yield each field's number, its value and the bytes of the whole field. ValueError: this is no message."""
    at = 0
    while at < len(message):
        begin = at
        key, at = _varint(message, at)
        kind = key & 7
        value: Value
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            length, at = _varint(message, at)
            value, at = message[at : at + length], at + length
        elif kind in _FIXED:
            value, at = message[at : at + _FIXED[kind]], at + _FIXED[kind]
        else:
            raise ValueError(f"unknown wire type {kind}")
        if at > len(message):
            raise ValueError("the message ends in the middle of a field")
        yield key >> 3, value, message[begin:at]


def pick(message: bytes, wanted: int) -> list[Value]:
    """Yield the values of one field and skip the others: a manifest may have thousands of fragments.

    ValueError: this is no message.
    """
    found: list[Value] = []
    at, end, last = 0, len(message), len(message) - 1
    while at < end:
        first = message[at]
        if first & 0x87 == 2 and first >> 3 != wanted and at < last and message[at + 1] < 0x80:
            at += 2 + message[at + 1]  # most of them: short, and of one byte each are the number and the length
            continue
        key, at = (message[at], at + 1) if message[at] < 0x80 else _varint(message, at)
        kind = key & 7
        value: Value | None = None
        if kind == 2:
            length, begin = (message[at], at + 1) if at < end and message[at] < 0x80 else _varint(message, at)
            at = begin + length
        elif kind == 0:
            begin = at
            value, at = _varint(message, at)
        elif kind in _FIXED:
            begin, at = at, at + _FIXED[kind]
        else:
            raise ValueError(f"unknown wire type {kind}")
        if key >> 3 == wanted:
            found.append(message[begin:at] if value is None else value)
    if at > end:
        raise ValueError("the message ends in the middle of a field")
    return found


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes | str) -> bytes:
    """Encode a text or a message as a field."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def packed(field: int, values: Iterable[int]) -> bytes:
    data = b"".join(varint(value) for value in values)
    return text(field, data) if data else b""


def pairs(field: int, values: Mapping[str, str]) -> bytes:
    """Encode a map of texts as a field."""
    return b"".join(text(field, text(1, key) + text(2, value)) for key, value in values.items())


def pair(entry: bytes) -> tuple[str, str]:
    """Decode one entry of a map of texts."""
    key = value = b""
    for field, content, _ in parse(entry):
        if field == 1:
            key = as_bytes(content)
        elif field == 2:
            value = as_bytes(content)
    return key.decode(), value.decode()


def numbers(content: Value) -> list[int]:
    """Return the numbers of one occurrence of a repeated field, packed or not."""
    if isinstance(content, int):
        return [content]
    found, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        found.append(value)
    return found


def as_bytes(content: Value) -> bytes:
    if isinstance(content, bytes):
        return content
    raise ValueError("a number where bytes are expected")


def as_number(content: Value) -> int:
    if isinstance(content, int):
        return content
    raise ValueError("bytes where a number is expected")


def varint(value: int) -> bytes:
    """Encode a number as a varint; a negative number in 64 bits."""
    value &= 2**64 - 1
    if value < 0x80:
        return value.to_bytes(1, "little")
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("the message ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number of more than ten bytes")
