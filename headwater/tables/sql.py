"""SQL in requests: predicates and expressions, checked before a parser sees them.

Lance's planner walks an expression by recursion and a chain of operators ("a = b = c ...") nests one level deeper with
each, so about a thousand of them overflow its stack and end the process. No client may be able to do that, so the
length of a chain is limited here. Chains of AND and OR and lists of values are walked otherwise and may be long.
Other forms are planned by copying their operand ("x BETWEEN a AND b" is two comparisons of x), so each one around
another doubles the work: forty of them never end. How many may stand inside one another is limited too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwater.errors import InvalidInputError

MAX_SQL_CHARS = 200_000
MAX_DEPTH = 100
"""How deep brackets may nest; Lance's parser itself ends at about fifty."""
MAX_CHAIN = 200
"""How many words and operators may stand between one AND, OR or comma and the next, at one level of brackets."""

MAX_DOUBLING = 10
"""How many forms that copy their operand when planned may stand inside one another."""

DOUBLING = frozenset(("BETWEEN", "CASE"))
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
NOT_FUNCTIONS = frozenset(
    ("AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "IS", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END", "ANY", "ALL")
)

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?\*/          # not counted
      | (?P<word> '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | [\w.]+ | . )""",
    re.VERBOSE | re.DOTALL,
)


def check_sql(field: str, text: str | None) -> str | None:
    """SQL from a request, or InvalidInput (13) when it is empty or too much for a planner.

    It comes back in brackets: Lance's parser ignores what follows a complete expression ("id = 1; ..." or
    "id = 1 LIMIT 2"), and a request must not be carried out in part.
    """
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"{field} is empty: leave it out, or give a SQL expression.")
    if len(text) > MAX_SQL_CHARS:
        raise InvalidInputError(f"{field} is longer than {MAX_SQL_CHARS} characters.")
    found = extent(text)
    if found.depth > MAX_DEPTH:
        raise InvalidInputError(f"{field} has brackets nested deeper than {MAX_DEPTH}.")
    if found.chain > MAX_CHAIN:
        raise InvalidInputError(f"{field} has a chain of more than {MAX_CHAIN} words and operators: break it up.")
    if found.doubling > MAX_DOUBLING:
        raise InvalidInputError(f"{field} nests more than {MAX_DOUBLING} calls, BETWEENs and CASEs: break it up.")
    return f"({text}\n)"


@dataclass(frozen=True)
class Extent:
    """How deep brackets nest, the longest chain, and how many doubling forms stand inside one another."""

    depth: int
    chain: int
    doubling: int


def extent(text: str) -> Extent:
    """Measure a text without understanding it."""
    levels = [_Level()]
    depth = chain = 0
    last = ""
    for match in _TOKEN.finditer(text):
        word = (match["word"] or "").upper()
        if not word:
            continue
        if word in CLOSING and len(levels) > 1:
            inner = levels.pop()
            levels[-1].close(inner)
        else:
            chain = max(chain, levels[-1].take(word))
        if word in OPENING:
            levels.append(_Level(is_call=_is_name(last)))
            depth = max(depth, len(levels) - 1)
        last = word
    while len(levels) > 1:
        inner = levels.pop()
        levels[-1].close(inner)
    return Extent(depth, chain, levels[0].peak)


def _is_name(word: str) -> bool:
    return (word[:1].isalpha() or word[:1] == "_") and word not in NOT_FUNCTIONS


class _Level:
    """One level of brackets: its running chain, and the deepest doubling met in it."""

    def __init__(self, is_call: bool = False) -> None:
        self.peak = 0
        self._is_call = is_call
        self._length = self._between = self._doubling = 0

    def take(self, word: str) -> int:
        """Count a word; an AND that belongs to a BETWEEN does not end the chain."""
        if word in DOUBLING:
            self._double(self._doubling + 1)
            self._between += word == "BETWEEN"
        if word == "AND" and self._between:
            self._between -= 1
        elif word in ("AND", "OR", ","):
            self._length = self._between = self._doubling = 0
            return 0
        self._length += 1
        return self._length

    def close(self, inner: _Level) -> None:
        """A bracket inside this level has ended: what it doubles is doubled again by what follows it here."""
        self._double(max(self._doubling, inner.peak + inner._is_call))

    def _double(self, count: int) -> None:
        self._doubling = count
        self.peak = max(self.peak, count)
