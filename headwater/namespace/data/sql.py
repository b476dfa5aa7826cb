"""SQL in requests: predicates and expressions, checked before a parser sees them."""

from __future__ import annotations

from headwater.errors import InvalidInputError

MAX_SQL_CHARS = 100_000
MAX_SQL_DEPTH = 200


def check_sql(field: str, text: str | None) -> str | None:
    """SQL from a request: not empty, of sane length and not nested so deep that a parser's stack would end.

    It comes back in brackets: Lance's parser ignores what follows a complete expression ("id = 1; ..." or
    "id = 1 LIMIT 2"), and a request must not be carried out in part.
    """
    if text is None:
        return None
    if not isinstance(text, str) or not text.strip():
        raise InvalidInputError(f"{field} is empty: leave it out, or give a SQL expression.")
    if len(text) > MAX_SQL_CHARS:
        raise InvalidInputError(f"{field} is longer than {MAX_SQL_CHARS} characters.")
    depth = deepest = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        deepest = max(deepest, depth)
    if deepest > MAX_SQL_DEPTH:
        raise InvalidInputError(f"{field} has brackets nested deeper than {MAX_SQL_DEPTH}.")
    return f"({text}\n)"
