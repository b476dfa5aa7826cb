"""What a verb prints: for people by default, one JSON value with --json."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TextIO

import msgspec
import pyarrow as pa
from pydantic import BaseModel

MAX_CELL = 60


def plain(response: Any) -> Any:
    """A response as values that JSON knows; what is not there is left out, and so is the transport's context.

    Storage options can be credentials, and what is printed ends in logs: their names are shown, their values not.
    """
    if isinstance(response, BaseModel):
        return plain(response.model_dump(by_alias=True, exclude_none=True, exclude={"context"}))
    if isinstance(response, list):
        return [plain(item) for item in response]
    if is_dataclass(response) and not isinstance(response, type):
        return {key: str(value) if is_dataclass(value) else value for key, value in vars(response).items()}
    if isinstance(response, Mapping):
        return {key: _hidden(key, value) for key, value in response.items() if value is not None}
    return response


def _hidden(key: str, value: Any) -> Any:
    if key == "storage_options" and isinstance(value, Mapping):
        return dict.fromkeys(value, "(hidden)")
    return plain(value) if isinstance(value, (Mapping, list)) else value


def show(response: Any, as_json: bool, out: TextIO | None = None) -> None:
    """Print a response."""
    out = out or sys.stdout
    value = plain(response)
    if as_json:
        print(msgspec.json.encode(value).decode(), file=out)
        return
    for line in lines(value):
        print(line, file=out)


def lines(value: Any, indent: str = "") -> Iterable[str]:
    """A value for people: names one to a line, records as a table, the rest as `key: value`."""
    if isinstance(value, Mapping):
        sole = [item for item in value.values() if isinstance(item, list)]
        if len(value) == 1 and sole:
            yield from lines(sole[0], indent)
            return
        for key, item in value.items():
            yield from _entry(key, item, indent)
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        yield from (indent + line for line in grid(value))
    elif isinstance(value, list):
        yield from (f"{indent}{item}" for item in value)
    elif value not in (None, ""):
        yield f"{indent}{value}"


def _entry(key: str, item: Any, indent: str) -> Iterable[str]:
    if isinstance(item, (Mapping, list)) and item:
        yield f"{indent}{key}:"
        yield from lines(item, indent + "  ")
    elif not isinstance(item, (Mapping, list)):
        yield f"{indent}{key}: {item}"


def grid(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Records as aligned columns."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    widths = [max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(heads)]
    table = [heads, *cells]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = msgspec.json.encode(value).decode() if isinstance(value, (Mapping, list)) else str(value)
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def show_rows(table: pa.Table, as_json: bool, out: TextIO | None = None) -> None:
    """Rows of a table: a grid for people, one JSON object a line for programs."""
    out = out or sys.stdout
    rows = table.to_pylist()
    if as_json:
        for row in rows:
            print(msgspec.json.encode(row).decode(), file=out)
        return
    for line in grid(rows) if rows else ["(no rows)"]:
        print(line, file=out)
