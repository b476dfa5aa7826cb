"""Damaged data of every format ends in rows or in an error of the table (`tests/decoding/fuzz.py`)."""

from __future__ import annotations

import pytest

from tests.decoding.fuzz import run


def test_a_few_damaged_inputs_are_read_or_refused() -> None:
    assert run(400, seed=3, with_sql=False) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_many_damaged_inputs_and_texts_of_sql_are_run_or_refused(seed: int) -> None:
    assert run(20_000, seed) == []
