"""Damaged data of every format ends in rows or in an error of the table (`tests/decoding/fuzz.py`)."""

from __future__ import annotations

import pytest

from tests.decoding import fuzz_server
from tests.decoding.fuzz import run


def test_a_few_damaged_inputs_are_read_or_refused() -> None:
    assert run(400, seed=3, with_sql=False) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_many_damaged_inputs_and_texts_of_sql_are_run_or_refused(seed: int) -> None:
    assert run(20_000, seed) == []


@pytest.mark.long
def test_a_server_with_workers_answers_every_damaged_input_with_rows_or_an_error_of_the_table() -> None:
    failures, answers, _ = fuzz_server.run(2_000, seed=13)
    assert failures == []
    assert sum(answers.values()) == 2_000
