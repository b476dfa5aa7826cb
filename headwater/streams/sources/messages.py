"""Messages of a topic: a JSON text each, and the place in the topic that each came from. Pure.

A table that names a column of `COLUMNS` gets it filled. A message that is no UTF-8 text is quarantined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa

from headwater.streams.definition import Definition
from headwater.streams.log.quarantine import Quarantined
from headwater.streams.rows.input_rows import as_json

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


def _maker(messages: Messages, name: str, kind: Any) -> Callable[[int], Any]:
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


def _text(value: bytes | None, kind: Any) -> Any:
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
