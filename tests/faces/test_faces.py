"""Every verb through every door of a catalog: the same state, log entry, author, audit line and error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater.testing.faces import CASES, Case, ComparedCatalog, doors_of


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComparedCatalog]:
    made = ComparedCatalog(tmp_path_factory.mktemp("faces"))
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_verb_does_the_same_through_every_door(site: ComparedCatalog, case: Case) -> None:
    outcomes = {door: site.run(case, door) for door in doors_of(case)}
    expected = next(iter(outcomes.values()))
    assert expected.code == case.code
    assert bool(expected.log) == (case.code is None and case.changes)
    texts = [found.error for found in outcomes.values() if found.error is not None]
    for door, found in outcomes.items():
        assert (door, found.code) == (door, expected.code)
        if found.error is not None:  # the released REST client puts the name of the error before its text
            assert found.error.endswith(min(texts, key=len)), door
        assert (door, found.state) == (door, expected.state)
        assert (door, found.log) == (door, expected.log)
        assert (door, found.message) == (door, found.message and expected.message)
        assert (door, found.answer) == (door, expected.answer)
    noted = {door: found.audit for door, found in outcomes.items() if found.audit is not None}
    assert len({str(lines) for lines in noted.values()}) == 1, noted
