"""Text of strangers: work on it is linear, and an answer echoes at most 200 characters of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from headwater.names import ObjectId
from headwater.rest.coding import read_json, read_query
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.origin import address_of, check_site, networks
from headwater.rest.reply import MAX_ECHO, MAX_MESSAGE, clean, context_headers, is_known_to_client, shown
from headwater.rest.routes import BodyKind, RouteTable

MEGABYTE = 1024 * 1024
HOSTILE = ["a", " ", ".rs:1", "a.rs:", ",", "'", "/", "$", "%2e", "\t,x.rs", "((", "=&", "a' "]


def quietly(function: Callable[[], Any]) -> None:
    with suppress(Exception):
        function()


PLACES: dict[str, Callable[[str], Any]] = {
    "a message": clean,
    "a forwarded address": lambda text: address_of("10.0.0.1", text, networks(["10.0.0.1"])),
    "an origin": lambda text: check_site({"origin": text, "host": text}, frozenset(), True, True),
    "a host": lambda text: check_site({"host": text}, frozenset({"x"}), True, True),
    "a path": lambda text: RouteTable(ALL_ROUTES).find("/v1/" + text, "GET"),
    "an id": lambda text: RouteTable(ALL_ROUTES).lost_its_id("/v1/" + text),
    "a query string": read_query,
    "a JSON body": lambda text: read_json(text.encode()),
    "If-None-Match": lambda text: is_known_to_client(b'"x"', text),
    "a context": lambda text: context_headers({"header.a": text, f"header.{text}": "x"}),
    "an id shown": lambda text: shown(ObjectId((text,))),
}


@pytest.mark.parametrize("place", list(PLACES))
def test_four_times_the_text_takes_at_most_about_four_times_the_steps(place: str) -> None:
    """Lines of Python and calls into C are counted, and patterns are matched on text that is cut before."""
    for unit in HOSTILE:
        small, large = (unit * (size // len(unit)) for size in (MEGABYTE // 4, MEGABYTE))
        steps = [count(lambda text=text: quietly(lambda: PLACES[place](text))) for text in (small, large)]  # type: ignore[misc]
        assert steps[1] <= 5 * steps[0] + 200, (place, unit, steps)


def count(function: Callable[[], Any]) -> int:
    """Events of the interpreter."""
    steps = 0

    def note(*_: Any) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return steps


def test_patterns_see_only_text_that_was_cut() -> None:
    for unit in HOSTILE:
        assert len(clean(unit * MEGABYTE)) <= MAX_MESSAGE
    assert clean("Bad thing, /rustc/x/src/lance.rs:12:34 happened") == "Bad thing happened"
    assert clean(f"the name {'x' * 500!r} is bad") == f"the name '{'x' * (MAX_ECHO - 1)}... is bad"
    assert clean(f"the name {'x ' * 500!r} is bad") == f"the name '{'x ' * (MAX_ECHO // 2)}...' is bad"


TAKE_NOTHING = ("Capabilities", "DescribeCaller", "DescribeLevel", "VerifyCatalog", "CollectCatalog")
"""Operations that take no text at all."""
LONG = "ab cd " * 41  # a name of 246 characters, with spaces


@pytest.mark.parametrize("text", [LONG, "x" * 250])
def test_no_answer_echoes_more_than_200_characters_of_what_was_sent(http: httpx.Client, text: str) -> None:
    bodies: list[Any] = [
        {},
        {"id": [text]},
        {"filter": text, "predicate": text, "mode": text, "column": text, "tag": text, "name": text, "version": text},
        {"location": text, "properties": {text: 1}, "limit": text, "page_token": text, "behavior": text},
        {"manifest_path": text, "version": 1, "updates": [[text, text]], "columns": [text], "index_type": text},
        text,
    ]
    for route in ALL_ROUTES:
        path = route.path.replace("{id}", quote(f"{text}${text}")).replace("{index_name}", quote(text))
        query = {"mode": text, "delimiter": "$", "on": text, "branch": text, "page_token": text, "limit": "1"}
        for body in bodies if route.verb == "POST" and route.body is not BodyKind.ARROW else [None]:
            content = b"" if body is None else json.dumps(body).encode()
            answer = http.request(route.verb, path, params=query, content=content)
            assert answer.status_code >= 400 or route.operation in TAKE_NOTHING, route.operation
            assert longest_echo(answer.text, text) <= MAX_ECHO, (route.operation, body, answer.text)


def longest_echo(answer: str, text: str) -> int:
    """The longest beginning of the text that the answer has."""
    said = json.loads(answer).get("error", "") if answer else ""
    return max((size for size in range(len(text) + 1) if text[:size] in said), default=0)
