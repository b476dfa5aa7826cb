"""`DESCRIBE HISTORY name`: the commits that changed a table or namespace, newest first, as rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from headwater.names import format_name, parse_name

_STATEMENT = re.compile(r"\s*desc(?:ribe)?\s+history\s+(?P<name>\S.*?)\s*;?\s*", re.IGNORECASE | re.DOTALL)
_FIELDS: list[pa.Field[Any]] = [
    pa.field("commit", pa.int64()),
    pa.field("time", pa.timestamp("ms", "UTC")),
    pa.field("author", pa.string()),
    pa.field("operation", pa.string()),
    pa.field("message", pa.string()),
    pa.field("version", pa.int64()),
    pa.field("name", pa.string()),
]
SCHEMA = pa.schema(_FIELDS)
"""`operation` is what was done to the record (create, change, drop...), `message` what the writer did."""


def asked_name(sql: str) -> tuple[str, ...] | None:
    """Return the name that a DESCRIBE HISTORY asks about; None for another statement."""
    found = _STATEMENT.fullmatch(sql)
    return None if found is None else tuple(parse_name(found["name"].replace("`", '"')))


def history_rows(entries: Sequence[Any], most: int | None = None) -> pa.Table:
    """Return the entries of a history, oldest first, as rows, newest first; at most `most`."""
    rows = [
        {
            "commit": entry.slot,
            "time": entry.time,
            "author": entry.author,
            "operation": entry.operation,
            "message": entry.message,
            "version": entry.version,
            "name": format_name(entry.path) if entry.path else None,
        }
        for entry in islice(reversed(entries), most)
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
