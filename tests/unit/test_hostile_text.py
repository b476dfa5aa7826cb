"""A megabyte of hostile text costs about four times what a quarter of it does, wherever text is cleaned or matched.

What is counted is processor time of this thread, and only its growth: sixteen times as much is quadratic.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import headwater
from headwater.errors import LanceNamespaceError
from headwater.names import ObjectId, parse
from headwater.namespace.data.write import parse_timeout
from headwater.store.object_stores import without_body
from headwater.tables.columns.fields import parse_path
from headwater.tables.expressions import check_sql
from headwater.tables.handle import TableHandle
from headwater.tables.translate import is_unanswered, named_error

QUARTER = 1 << 18
SHORTER = 1 << 15
"""For the many patterns by themselves: what is quadratic shows in this too."""
FREE_SECONDS = 0.1
"""Who needs less than this for a megabyte needs no comparison: it would compare noise."""
GROWTH = 9.0
TABLE = TableHandle(ObjectId(("t",)), "/lake/t.lance", {"secret": "hunter2hunter2"})
PIECES = (
    "a", " ", "1", "/", "'", '"', "`", "(", "[", ".", "_", "-", "=", "\n", "\\", "/*", "*/", "--", "a/", "a.rs:1:",
    ".rs:1:1", ", location: ", "Schema {", "Not found: ", "/tree/", "Not found: a/tree/", "is referenced by ",
    "Ref not found ", "Ref conflict ", "Column ", "Index \"", "Index name '", "Dataset at path ", "_versions/1", "key=",
    "secret ", "timestamp[", "decimal(", "hunter2", "string", "0" * 20 + "_", "status ", "CASE ", "NOT ", "a,",
)  # fmt: skip
METHODS = ("search", "sub", "finditer", "findall", "split", "match", "fullmatch")


def cost(action: Callable[[str], object], piece: str, size: int) -> float:
    text = (piece * (size // len(piece) + 1))[:size]
    started = time.thread_time()
    with suppress(LanceNamespaceError):
        action(text)
    return time.thread_time() - started


def require_linear(name: str, action: Callable[[str], object], size: int = QUARTER) -> None:
    for piece in PIECES:
        small = cost(action, piece, size // 8)  # what is quadratic is seen here, before it takes minutes
        assert small < 10 * FREE_SECONDS, (name, piece)
        quarter, whole = cost(action, piece, size), cost(action, piece, 4 * size)
        assert whole < FREE_SECONDS or whole < GROWTH * max(quarter, 0.01), (name, piece, quarter, whole)


PLACES: dict[str, Callable[[str], object]] = {
    "an error of pylance": lambda text: named_error(TABLE, "query", ValueError(text)),
    "an error of pylance in parts": lambda text: named_error(TABLE, "query", OSError(5, text)),
    "an error while committing": lambda text: is_unanswered(OSError(text)),
    "an answer of the storage": without_body,
    "a predicate": lambda text: check_sql("filter", text),
    "a field path": parse_path,
    "an id": lambda text: parse(text, "."),
    "a duration": parse_timeout,
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_cleans_or_reads_text_takes_time_in_proportion(name: str) -> None:
    require_linear(name, PLACES[name])


def patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Every pattern of the package, and how its module uses it."""
    for found in pkgutil.walk_packages(headwater.__path__, "headwater."):
        if found.name.startswith(("headwater.rest", "headwater.cli", "headwater.__main__")):
            continue  # the server cuts what it matches, and has tests of its own; the command line is its caller's
        with suppress(ImportError, OSError):  # an extra that is not installed, a module without a line
            module = importlib.import_module(found.name)
            source = inspect.getsource(module)
            for name, value in vars(module).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    yield from ((f"{found.name}.{name}", value, how) for how in METHODS if f"{name}.{how}(" in source)


def used(pattern: re.Pattern[str], how: str) -> Callable[[str], object]:
    if how == "sub":
        return lambda text: pattern.sub("", text)
    if how == "finditer":
        return lambda text: sum(1 for _ in pattern.finditer(text))
    found: Callable[[str], object] = getattr(pattern, how)
    return found


def test_every_pattern_of_the_package_is_linear_in_the_way_it_is_used() -> None:
    seen = 0
    for name, pattern, how in patterns():
        seen += 1
        require_linear(f"{name}.{how}", used(pattern, how), SHORTER)
    assert seen > 5


@pytest.mark.parametrize("piece", PIECES)
def test_an_error_shows_little_of_what_was_sent(piece: str) -> None:
    shown = str(named_error(TABLE, "query", ValueError("Invalid user input: " + piece * QUARTER)))
    assert len(shown) < 500
    assert max((len(word) for word in shown.split()), default=0) <= 201
    assert "hunter2hunter2" not in shown


def test_a_secret_at_the_place_of_a_cut_is_not_left_in_half() -> None:
    for before in range(2980, 3001):
        text = "a.rs:1:1 " * (before // 9) + "x" * (before % 9) + "hunter2" * 2 + " " * 2000
        assert "hunter" not in str(named_error(TABLE, "query", OSError(text)))
