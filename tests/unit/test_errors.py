"""The one error table, compared with the codes, statuses and exceptions that released clients know."""

from __future__ import annotations

import pytest
from lance_namespace import errors as released

from headwater import errors
from headwater.errors import ERRORS, error_for

STATUS = {
    0: 406,
    **dict.fromkeys((1, 4, 6, 8, 10, 11, 12, 22), 404),
    **dict.fromkeys((2, 3, 5, 7, 9, 14, 19, 23), 409),
    **dict.fromkeys((13, 20), 400),
    15: 403,
    16: 401,
    17: 503,
    21: 429,
    18: 500,
}


def test_the_table_has_all_twenty_four_codes_with_the_statuses_that_clients_expect() -> None:
    assert len(ERRORS) == 24
    assert {code: row.status for code, row in ERRORS.items()} == STATUS
    assert {code.value for code in released.ErrorCode} == set(ERRORS)


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_is_the_class_that_released_clients_catch(code: int) -> None:
    error = error_for(code, "what, where and what to do")
    assert type(error) is getattr(released, f"{ERRORS[code].name}Error")
    assert (int(error.code), str(error)) == (code, "what, where and what to do")
    assert 1 <= ERRORS[code].exit <= 7
    assert ERRORS[code].exit != 2  # argparse's own


def test_an_unknown_code_is_internal() -> None:
    assert int(error_for(999, "x").code) == 18


def test_unknown_is_not_conflict_and_a_damaged_file_is_named() -> None:
    unknown = errors.CommitStateUnknownError("it may have landed")
    assert int(unknown.code) == 17
    assert not isinstance(unknown, errors.ConcurrentModificationError)
    damaged = errors.CorruptFileError("__manifest", "it is empty")
    assert (int(damaged.code), damaged.key) == (18, "__manifest")
    assert "__manifest" in str(damaged)
    assert set(errors.__all__) >= {row.exception.__name__ for row in ERRORS.values()}
