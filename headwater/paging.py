"""The paging of every list: a page continues after the last name of the page before, sorted by bytes.

Because the token is a name and not a position, an entry that does not change is never skipped or repeated
while others come and go.
"""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headwater.errors import InvalidInputError

MAX_TOKEN_CHARS = 4096
PAGE = 1000
"""The page size for reading a whole list."""


def page(names: Sequence[str], token: str | None, limit: int | None) -> tuple[list[str], str | None]:
    """Return the page of the sorted `names` after `token`, and the token of the next page (None at the end)."""
    count = check_limit(limit)
    start = bisect_right(names, after(token)) if token else 0
    if count is None or start + count >= len(names):
        return list(names[start:]), None
    chosen = list(names[start : start + count])
    return chosen, token_after(chosen[-1])


def all_pages(operation: Callable[[Any], Any], request: Any, field: str, limit: int | None = PAGE) -> Iterator[Any]:
    """Return the values of one field from every page of a list."""
    token = None
    while True:
        answer = operation(request.model_copy(update={"page_token": token, "limit": limit}))
        found = getattr(answer, field) or ()
        yield from found.items() if isinstance(found, Mapping) else found
        token = answer.page_token
        if not token:
            return


def check_limit(limit: int | None) -> int | None:
    """Raise InvalidInput (13) unless the limit is a positive number or None, which means everything."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidInputError(f"limit must be a positive whole number, not {limit!r}.")
    return limit


def token_after(name: str) -> str:
    """Return the opaque token that continues after this name."""
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def after(token: str) -> str:
    """Return the name after which a token continues."""
    if len(token) <= MAX_TOKEN_CHARS:
        try:
            return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeError, ValueError):
            pass
    raise InvalidInputError("page_token is not one this catalog gave out: start again without a page_token.")
