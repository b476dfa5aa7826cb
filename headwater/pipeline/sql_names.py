"""Which tables a SQL text names. Pure, and for every engine: it reads words, not grammar.

A name inside a text literal or a comment is none. An alias that is spelled like a table counts as that table, which at
worst recomputes a view that need not be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from headwater.names import format_name

_WORDS = re.compile(
    r"""--[^\n]*+ | /\*(?:[^*]|\*(?!/))*+\*/ | '(?:[^']|'')*+'
      | (?P<name> (?:"(?:[^"]|"")++"|`[^`]++`|\w++) (?:\s*+\.\s*+(?:"(?:[^"]|"")++"|`[^`]++`|\w++))*+ )""",
    re.VERBOSE | re.DOTALL,
)
_PART = re.compile(r"""\"((?:[^"]|"")++)\"|`([^`]++)`|(\w++)""")


def candidates(sql: str) -> set[str]:
    """Every name that stands in a SQL text and may be a table's: `a.b.c` may be that, `a.b` or `a`."""
    return {format_name(parts[:end]) for parts in _names(sql) for end in range(1, len(parts) + 1)}


def names_in(sql: str, known: Iterable[str]) -> set[str]:
    """The known names (as people write them) that stand in a SQL text, without regard to case."""
    wanted = {name.lower(): name for name in known}
    found = set()
    for parts in _names(sql):
        for end in range(len(parts), 0, -1):  # t.column names t
            name = format_name(parts[:end]).lower()
            if name in wanted:
                found.add(wanted[name])
                break
    return found


def _names(sql: str) -> Iterator[list[str]]:
    for match in _WORDS.finditer(sql):
        if match["name"] is not None:
            yield _parts(match["name"])


def replaced(sql: str, names: Mapping[str, str]) -> str:
    """The SQL with other names for its tables; `t.column` keeps its column."""
    wanted = {name.lower(): new for name, new in names.items()}

    def new(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0]
        parts = _parts(match["name"])
        for end in range(len(parts), 0, -1):
            name = format_name(parts[:end]).lower()
            if name in wanted:
                return ".".join([wanted[name], *(f"`{part}`" for part in parts[end:])])
        return match[0]

    return _WORDS.sub(new, sql)


def _parts(name: str) -> list[str]:
    return [(a.replace('""', '"') if a else b or c) for a, b, c in _PART.findall(name)]
