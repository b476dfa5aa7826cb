"""A proposal refuses what no longer holds of a table's versions, and knows the newest without counting them all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import ConcurrentModificationError
from headwater.model import Add, Change, Move, Remove, Replace, RequireTable, Table, Version
from headwater.names import ObjectId
from headwater.registries.manifest.rows import RowIndex
from headwater.registry import Proposal

T, U = ObjectId(("t",)), ObjectId(("u",))


def version(table: ObjectId, number: int) -> Version:
    return Version(table.child(str(number)), f"_versions/{number}.manifest")


def index(*numbers: int) -> RowIndex:
    found = RowIndex()
    found.put(Table(T, "t.lance"))
    for number in numbers:
        found.put(version(T, number))
    return found


def test_a_version_is_refused_when_another_is_newer() -> None:
    proposal = Proposal(index(1, 2))
    proposal.apply([RequireTable(Table(T, "t.lance"), 2), Add(version(T, 3))])
    with pytest.raises(ConcurrentModificationError):
        Proposal(proposal).apply([RequireTable(Table(T, "t.lance"), 2), Add(version(T, 3))])


def test_a_version_is_refused_when_its_table_was_made_anew_elsewhere() -> None:
    proposal = Proposal(index(1))
    proposal.apply([Replace(Table(T, "t.lance"), Table(T, "other"))])
    assert proposal.versions(T) == []
    with pytest.raises(ConcurrentModificationError):
        proposal.apply([RequireTable(Table(T, "t.lance"), 1)])


def test_a_version_of_no_table_is_refused() -> None:
    with pytest.raises(ConcurrentModificationError):
        Proposal(RowIndex()).apply([Add(version(T, 1))])


def test_versions_move_and_go_with_their_table() -> None:
    proposal = Proposal(index(1, 2))
    proposal.apply([Move(Table(T, "t.lance"), Table(U, "t.lance"))])
    assert (proposal.versions(T), proposal.versions(U)) == ([], [1, 2])
    proposal.apply([Remove(Table(U, "t.lance"))])
    assert proposal.newest_version(U) == 0


@settings(deadline=None, max_examples=200)
@given(
    start=st.frozensets(st.integers(1, 9)),
    groups=st.lists(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=4), max_size=6),
)
def test_the_newest_version_is_the_largest_of_all(start: frozenset[int], groups: list[list[tuple[bool, int]]]) -> None:
    proposal = Proposal(index(*start))
    for group in groups:
        trial = Proposal(proposal)
        changes: list[Change] = [Add(version(T, n)) if adds else Remove(version(T, n)) for adds, n in group]
        with contextlib.suppress(ConcurrentModificationError):
            trial.apply(changes)
            assert trial.newest_version(T) == max(trial.versions(T), default=0)
            proposal.absorb(trial)
        assert proposal.newest_version(T) == max(proposal.versions(T), default=0)
