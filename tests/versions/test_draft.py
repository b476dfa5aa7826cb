"""A draft refuses what no longer holds of a table's versions, and knows the newest without counting them all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import ConcurrentModificationError
from headwater.model import Add, Change, Move, Remove, Replace, RequireTable, Table, Version
from headwater.names import ObjectId
from headwater.registries.manifest.index import Index
from headwater.registry import Draft

T, U = ObjectId(("t",)), ObjectId(("u",))


def version(table: ObjectId, number: int) -> Version:
    return Version(table.child(str(number)), f"_versions/{number}.manifest")


def index(*numbers: int) -> Index:
    found = Index()
    found.put(Table(T, "t.lance"))
    for number in numbers:
        found.put(version(T, number))
    return found


def test_a_version_is_refused_when_another_is_newer() -> None:
    draft = Draft(index(1, 2))
    draft.apply([RequireTable(Table(T, "t.lance"), 2), Add(version(T, 3))])
    with pytest.raises(ConcurrentModificationError):
        Draft(draft).apply([RequireTable(Table(T, "t.lance"), 2), Add(version(T, 3))])


def test_a_version_is_refused_when_its_table_was_made_anew_elsewhere() -> None:
    draft = Draft(index(1))
    draft.apply([Replace(Table(T, "t.lance"), Table(T, "other"))])
    assert draft.versions(T) == []
    with pytest.raises(ConcurrentModificationError):
        draft.apply([RequireTable(Table(T, "t.lance"), 1)])


def test_a_version_of_no_table_is_refused() -> None:
    with pytest.raises(ConcurrentModificationError):
        Draft(Index()).apply([Add(version(T, 1))])


def test_versions_move_and_go_with_their_table() -> None:
    draft = Draft(index(1, 2))
    draft.apply([Move(Table(T, "t.lance"), Table(U, "t.lance"))])
    assert (draft.versions(T), draft.versions(U)) == ([], [1, 2])
    draft.apply([Remove(Table(U, "t.lance"))])
    assert draft.newest_version(U) == 0


@settings(deadline=None, max_examples=200)
@given(
    start=st.frozensets(st.integers(1, 9)),
    groups=st.lists(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=4), max_size=6),
)
def test_the_newest_version_is_the_largest_of_all(start: frozenset[int], groups: list[list[tuple[bool, int]]]) -> None:
    draft = Draft(index(*start))
    for group in groups:
        trial = Draft(draft)
        changes: list[Change] = [Add(version(T, n)) if adds else Remove(version(T, n)) for adds, n in group]
        with contextlib.suppress(ConcurrentModificationError):
            trial.apply(changes)
            assert trial.newest_version(T) == max(trial.versions(T), default=0)
            draft.absorb(trial)
        assert draft.newest_version(T) == max(draft.versions(T), default=0)
