"""Output of verbs: fitted to a terminal for people, whole and plain in a pipe, JSON with --json.

What comes from a catalog is text, whatever it holds: control characters, marks that turn the writing direction, and
markup are shown as what they are, and do nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headwater.imports import rich

HIDDEN = ("id",)
"""Fields of records for programs only: names as a list, beside the dotted ones."""
MIN_WIDTH, GAP = 6, 3
SHORT_VECTOR = 3
MAX_CELL = 200
_UNITS = ("kB", "MB", "GB", "TB")
_JOINERS = "\u200c\u200d"
_STEPS = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (30 * 86_400, "days", 86_400))


class Bytes(int):
    """A size: a number for programs, in kB, MB or GB for people."""


def is_terminal() -> bool:
    return sys.stdout.isatty()


def visible(text: str) -> str:
    """Return a text in one line, in which nothing acts on a terminal."""
    return text if text.isascii() and text.isprintable() else "".join(_seen(char) for char in text)


def _seen(char: str) -> str:
    acts = unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return char.encode("unicode_escape").decode() if acts and char not in _JOINERS else char


def plain(response: object) -> Any:
    """Return a response as values that JSON knows; what is not there is left out, and so is the transport's context.

    Storage options can be credentials, and what is printed ends in logs: their names are shown, their values not.
    """
    if hasattr(response, "model_dump"):
        return plain(response.model_dump(by_alias=True, exclude_none=True, exclude={"context"}))
    if isinstance(response, (list, tuple)):
        return [plain(item) for item in response]
    if isinstance(response, msgspec.Struct):
        return plain(msgspec.to_builtins(response))
    if is_dataclass(response) and not isinstance(response, type):
        return {key: str(value) if is_dataclass(value) else value for key, value in vars(response).items()}
    if isinstance(response, Mapping):
        return {key: _hidden(key, value) for key, value in response.items() if value is not None}
    return response


def _hidden(key: str, value: object) -> object:
    if key == "storage_options" and isinstance(value, Mapping):
        return dict.fromkeys(value, "(hidden)")
    return plain(value) if isinstance(value, (Mapping, list)) else value


def say_json(value: object) -> None:
    print(msgspec.json.encode(value, enc_hook=int).decode())


def show(response: object, as_json: bool) -> None:
    """Print one response."""
    value = plain(response)
    if as_json:
        say_json(value)
        return
    for line in lines(value):
        print(line)


def show_records(
    records: Iterable[Mapping[str, object]], as_json: bool, empty: str = "", wrapped: Sequence[str] = ()
) -> None:
    """Print a list: one JSON object a line, or a table.

    `empty`: the message for a list without records. `wrapped`: columns that a terminal wraps and does not cut.
    """
    if as_json:
        for record in records:
            say_json(record)
        return
    found = [{key: value for key, value in record.items() if key not in HIDDEN} for record in records]
    if found:
        print_grid(found, wrapped=wrapped)
    elif empty:
        print(empty, file=sys.stderr)


def show_record(record: Mapping[str, object], as_json: bool) -> None:
    """Print one thing: an object, or its fields one a line."""
    if as_json:
        say_json(record)
        return
    for key, value in record.items():
        if key not in HIDDEN and value is not None:
            print(f"{key}: {cell(value)}")


def show_names(records: Iterable[tuple[str, Mapping[str, object]]], as_json: bool) -> None:
    """Print names, one a line, each with its record for programs."""
    for shown, record in records:
        if as_json:
            say_json(record)
        else:
            print(visible(shown))


def print_grid(records: Sequence[Mapping[str, object]], null: str = "", wrapped: Sequence[str] = ()) -> None:
    """Records as a table: fitted to a terminal, or aligned and whole in a pipe."""
    if not is_terminal():
        for line in grid(records, null):
            print(line)
        return
    console = screen()
    console.print(_table(records, console.width, null, wrapped), soft_wrap=False)


def screen() -> Any:
    """Return the terminal, as wide as it is; COLUMNS wins."""
    asked = os.environ.get("COLUMNS", "")
    return rich.console.Console(
        highlight=False, markup=False, emoji=False, width=int(asked) if asked.isdigit() and asked != "0" else None
    )


def fitted(line: str) -> str:
    """Return a line that takes one line of the screen; in a pipe, the whole of it."""
    if not is_terminal():
        return line
    text = rich.text.Text(line)
    text.truncate(screen().width, overflow="ellipsis")
    return str(text.plain)


def _table(records: Sequence[Mapping[str, object]], width: int, null: str, wrapped: Sequence[str]) -> Any:
    """Return a table for a screen of this width: no column is squeezed away, and those without a value are left out.

    If it is too wide, times are shown as ages, and the columns `wrapped` take several lines.
    """
    heads = list(dict.fromkeys(key for record in records for key in record))
    if not null:
        heads = [head for head in heads if any(record.get(head) not in (None, "") for record in records)] or heads
    fitting = heads[: max(1, width // (MIN_WIDTH + GAP))]
    hint = "choose some with --column" if null else "--json shows all"
    left_out = f"{len(heads) - len(fitting)} more columns are not shown: {hint}"
    table = rich.table.Table(
        box=rich.box.SIMPLE_HEAD, show_edge=False, caption=left_out if len(fitting) < len(heads) else None
    )
    room = width - GAP * len(fitting)
    rows, natural = _measured(records, fitting, null)
    if sum(natural) > room:
        records = [{head: _age(value) for head, value in record.items()} for record in records]
        rows, natural = _measured(records, fitting, null)
    for head, given in zip(fitting, widths(natural, room), strict=True):
        numeric = all(isinstance(record.get(head), (int, float)) for record in records)
        side: Any = "right" if numeric else "left"
        cut: Any = {"overflow": "fold"} if head in wrapped else {"no_wrap": True, "overflow": "ellipsis"}
        table.add_column(rich.text.Text(visible(head)), justify=side, width=given, **cut)
    for row in rows:
        table.add_row(*row)
    return table


def _measured(records: Sequence[Mapping[str, object]], heads: Sequence[str], null: str) -> tuple[list[Any], list[int]]:
    """Return the cells of records, and the width that each column would take."""
    rows = [[_text(record.get(head), null) for head in heads] for record in records]
    return rows, [max(len(visible(head)), *(row[at].cell_len for row in rows)) for at, head in enumerate(heads)]


def _age(value: object) -> object:
    return ago(value) if isinstance(value, datetime) and value.tzinfo is not None else value


def widths(natural: Sequence[int], room: int) -> list[int]:
    """Widths that fit into the room: the widest columns give way."""
    found = list(natural)
    while sum(found) > room and max(found) > 1:
        found[found.index(max(found))] -= 1
    return found


def _text(value: object, null: str) -> Any:
    return rich.text.Text(null, style="dim") if value is None else rich.text.Text(cell(value, True)[:MAX_CELL])


def grid(records: Sequence[Mapping[str, object]], null: str = "") -> list[str]:
    """Return records as aligned columns, one record a line, nothing cut."""
    heads = list(dict.fromkeys(key for record in records for key in record))
    cells = [[null if record.get(head) is None else cell(record[head]) for head in heads] for record in records]
    shown = [visible(head) for head in heads]
    widths = [max(len(head), *(len(row[at]) for row in cells)) for at, head in enumerate(shown)]
    table = [shown, *cells]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table]


def cell(value: object, terminal: bool | None = None) -> str:
    """Return one value as text, in one line."""
    short = is_terminal() if terminal is None else terminal
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, datetime):
        return local(value) if short and value.tzinfo is not None else stamp(value)
    if isinstance(value, Bytes):
        return size(value)
    if isinstance(value, float) and short:
        return min(str(value), f"{value:.8g}", key=len)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>" if short else value.hex()
    if isinstance(value, (list, tuple)) and short and _is_vector(value):
        return f"[{', '.join(f'{item:.4g}' for item in value[:SHORT_VECTOR])}, … {len(value)} numbers]"
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, str) for item in value):
        return visible(", ".join(value))
    if isinstance(value, (Mapping, list, tuple)):
        return visible(msgspec.json.encode(value, enc_hook=int).decode())
    return visible(str(value))


def _is_vector(value: Sequence[object]) -> bool:
    return len(value) > SHORT_VECTOR and all(isinstance(item, (int, float)) for item in value[:SHORT_VECTOR])


def stamp(value: datetime) -> str:
    """RFC 3339."""
    return value.isoformat().replace("+00:00", "Z")


def local(value: datetime) -> str:
    return f"{value.astimezone():%Y-%m-%d %H:%M} ({ago(value)})"


def ago(value: datetime, now: datetime | None = None) -> str:
    """Return the age of a time in the largest unit that fits."""
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    if seconds < 1:
        return "now"
    for below, unit, step in _STEPS:
        if seconds < below:
            return f"{int(seconds // step)} {unit} ago"
    return f"{int(seconds // (30 * 86_400))} months ago"


def size(count: int) -> str:
    """Return a number of bytes for people: 512 bytes, 1.5 kB, 12.3 MB, 4.0 GB."""
    if count < 1000:
        return f"{count} bytes"
    power = min((len(str(count)) - 1) // 3, len(_UNITS))
    return f"{count / 1000**power:,.1f} {_UNITS[power - 1]}"


def lines(value: object, indent: str = "") -> Iterator[str]:
    """Yield a response for people: names one to a line, records as a table, the rest as `key: value`."""
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
        yield from (f"{indent}{cell(item)}" for item in value)
    elif value not in (None, ""):
        yield from (f"{indent}{visible(line)}" for line in str(value).split("\n"))


def _entry(key: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, (Mapping, list)) and item:
        yield f"{indent}{visible(key)}:"
        yield from lines(item, indent + "  ")
    elif not isinstance(item, (Mapping, list)):
        yield f"{indent}{visible(key)}: {cell(item)}"


class NotAgreedError(Exception):
    """Nobody said yes: nothing was changed."""


def confirm(args: argparse.Namespace, what: str) -> None:
    """Go on if --yes was given, or somebody at a terminal says yes; else NotAgreed, which ends with 2."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise NotAgreedError(f"{what} Nothing was changed: without a terminal, confirm with --yes.")
    print(f"headwater: {what} Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotAgreedError("Nothing was changed.")
