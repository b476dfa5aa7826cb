"""Paging: the one rule of every list."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.errors import InvalidInputError
from headwater.paging import MAX_TOKEN_CHARS, after, check_limit, page, token_after


def test_a_page_continues_after_the_last_name_of_the_one_before() -> None:
    names = ["a", "b", "c", "d"]
    first, token = page(names, None, 2)
    assert (first, token) == (["a", "b"], token_after("b"))
    assert page(names, token, 2) == (["c", "d"], None)
    assert page(["a", "c", "d"], token, 2) == (["c", "d"], None)
    assert page(["z"], token, 2) == (["z"], None)


def test_without_a_limit_everything_is_one_page() -> None:
    assert page(["a", "b"], None, None) == (["a", "b"], None)
    assert page([], None, 5) == ([], None)
    assert page(["a", "b"], None, 2) == (["a", "b"], None)


@pytest.mark.parametrize("name", ["a", "é日本", "x" * 255, "=", "a b"])
def test_a_token_says_which_name_it_continues_after(name: str) -> None:
    assert after(token_after(name)) == name
    assert token_after(name).isascii()


@pytest.mark.parametrize("token", ["*", "é", "A" * (MAX_TOKEN_CHARS + 1), "_w", "\x00"])
def test_a_token_that_was_never_given_out_is_invalid(token: str) -> None:
    with pytest.raises(InvalidInputError, match="page_token"):
        page(["a"], token, 1)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
def test_a_limit_is_a_positive_whole_number(limit: Any) -> None:
    with pytest.raises(InvalidInputError, match="limit"):
        check_limit(limit)
