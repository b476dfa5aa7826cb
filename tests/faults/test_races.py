"""Processes that race over one catalog: one winner, the specified code for the others, and nothing left over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.errors import ConcurrentModificationError, TableAlreadyExistsError
from tests.faults.processes import MODES, Call, Outcome, call, check_sound, perform, race

pytestmark = pytest.mark.xdist_group("races")
WRITERS = 5
ROUNDS = 4
NESTED = ("V2", "compat")


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=NESTED)
def nested(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def prepare(root: str, mode: str, calls: Sequence[Call]) -> DirectoryNamespace:
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    assert [perform(namespace, what) for what in calls] == [None] * len(calls)
    return namespace


def rounds(outcomes: list[list[Outcome]]) -> list[tuple[Outcome, ...]]:
    """The outcomes of all writers, round by round."""
    return list(zip(*outcomes, strict=True))


def test_of_racing_creates_of_one_table_one_wins_and_its_data_is_intact(root: str, mode: str) -> None:
    scripts = [
        [call("create_table", f"t{turn}", rows=writer + 1) for turn in range(ROUNDS)] for writer in range(WRITERS)
    ]
    outcomes = race(root, mode, scripts)
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    for turn, codes in enumerate(rounds(outcomes)):
        assert sorted(codes, key=str) == [5] * (WRITERS - 1) + [None]
        location = str(namespace.describe_table(api.DescribeTableRequest(id=[f"t{turn}"])).location)
        assert lance.dataset(location).to_table().num_rows == codes.index(None) + 1
        assert len(list((Path(location) / "data").iterdir())) == 1
        assert len(list((Path(location) / "_versions").glob("*.manifest"))) == 1
    check_sound(root, mode)


def test_of_racing_declarations_of_one_table_one_wins(root: str, mode: str) -> None:
    outcomes = race(root, mode, [[call("declare_table", f"t{turn}") for turn in range(ROUNDS)]] * WRITERS)
    for codes in rounds(outcomes):
        assert codes.count(None) == 1
        assert set(codes) <= {None, 5, 14}
    check_sound(root, mode)


def test_who_declares_a_table_that_another_makes_meanwhile_is_told_of_the_conflict(
    root: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (DirectoryNamespace(root=root, **MODES[mode]) for _ in range(2))
    choose = one.operations.declared_place

    def overtaken(*asked: Any) -> str:
        place = choose(*asked)
        other.declare_table(api.DeclareTableRequest(id=["t"]))
        return place

    monkeypatch.setattr(one.operations, "declared_place", overtaken)
    with pytest.raises(ConcurrentModificationError):
        one.declare_table(api.DeclareTableRequest(id=["t"]))
    monkeypatch.undo()
    with pytest.raises(TableAlreadyExistsError):
        one.declare_table(api.DeclareTableRequest(id=["t"]))
    check_sound(root, mode)


def test_of_racing_alterations_of_one_namespace_all_stay(root: str, nested: str) -> None:
    namespace = DirectoryNamespace(root=root, **MODES[nested])
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n"], properties={"first": ""}))
    scripts = [
        [
            call(
                "alter_namespace_properties", "n", properties={f"{writer}.{turn}": ""}, removed=[f"{writer}.{turn - 1}"]
            )
            for turn in range(ROUNDS)
        ]
        for writer in range(WRITERS)
    ]
    assert race(root, nested, scripts) == [[None] * ROUNDS] * WRITERS
    found = namespace.describe_namespace(api.DescribeNamespaceRequest(id=["n"])).properties
    assert found == {"first": "", **{f"{writer}.{ROUNDS - 1}": "" for writer in range(WRITERS)}}
    check_sound(root, nested)


def test_of_racing_creates_of_one_namespace_one_wins(root: str, nested: str) -> None:
    outcomes = race(root, nested, [[call("create_namespace", f"n{turn}") for turn in range(ROUNDS)]] * WRITERS)
    for codes in rounds(outcomes):
        assert sorted(codes, key=str) == [2] * (WRITERS - 1) + [None]
    check_sound(root, nested)


def test_a_table_and_a_namespace_never_get_the_same_name(root: str, nested: str) -> None:
    tables = [call("create_table", f"x{turn}", rows=3) for turn in range(ROUNDS)]
    spaces = [call("create_namespace", f"x{turn}") for turn in range(ROUNDS)]
    for table, space in rounds(race(root, nested, [tables, spaces])):
        assert (table, space) in ((None, 2), (5, None))
    check_sound(root, nested, rows=3)


def test_a_parent_dropped_while_children_are_created_leaves_no_orphan(root: str, nested: str) -> None:
    parents = [f"p{turn}" for turn in range(2 * ROUNDS)]
    prepare(root, nested, [call("create_namespace", parent) for parent in parents])
    scripts = [
        [call("drop_namespace", parent) for parent in parents],
        [call("create_namespace", parent, "c") for parent in parents],
        [call("create_table", parent, "t", rows=3) for parent in parents],
    ]
    for drop, child, table in rounds(race(root, nested, scripts)):
        assert drop in (None, 3)
        assert (child, table) == (1, 1) if drop is None else (child, table) in ((None, None), (None, 1), (1, None))
    check_sound(root, nested, rows=3)


def test_a_cascade_against_creates_below_leaves_no_orphan_and_no_folder(root: str, nested: str) -> None:
    parents = [f"p{turn}" for turn in range(2 * ROUNDS)]
    prepared = [
        step for parent in parents for step in (call("create_namespace", parent), call("create_namespace", parent, "c"))
    ]
    prepare(root, nested, prepared)
    scripts = [
        [call("drop_namespace", parent, behavior="Cascade") for parent in parents],
        [call("create_table", parent, "c", "t", rows=3) for parent in parents],
        [call("declare_table", parent, "d") for parent in parents],
    ]
    for drop, created, declared in rounds(race(root, nested, scripts)):
        assert drop is None
        assert created in (None, 1)
        assert declared in (None, 1)
    assert DirectoryNamespace(root=root, **MODES[nested]).list_namespaces(api.ListNamespacesRequest()).namespaces == []
    check_sound(root, nested)


def test_of_a_rename_and_a_drop_of_one_table_one_wins(root: str, mode: str) -> None:
    names = [f"t{turn}" for turn in range(2 * ROUNDS)]
    namespace = prepare(root, mode, [call("create_table", name, rows=3) for name in names])
    scripts = [
        [call("rename_table", name, new_table_name=f"new-{name}") for name in names],
        [call("drop_table", name) for name in names],
    ]
    kept = []
    for name, codes in zip(names, rounds(race(root, mode, scripts)), strict=True):
        assert codes in ((None, 4), (4, None))
        kept += [f"new-{name}"] if codes[0] is None else []
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == sorted(kept)
    check_sound(root, mode, rows=3)


def test_of_two_renames_to_one_name_one_wins_and_both_tables_live(root: str, mode: str) -> None:
    names = [(f"a{turn}", f"b{turn}") for turn in range(ROUNDS)]
    prepare(root, mode, [call("create_table", name, rows=3) for pair in names for name in pair])
    scripts = [
        [call("rename_table", pair[writer], new_table_name=f"c{turn}") for turn, pair in enumerate(names)]
        for writer in range(2)
    ]
    for codes in rounds(race(root, mode, scripts)):
        assert codes in ((None, 5), (5, None))
    namespace = DirectoryNamespace(root=root, **MODES[mode])
    assert len(namespace.list_tables(api.ListTablesRequest(id=[])).tables) == 2 * ROUNDS
    check_sound(root, mode, rows=3)


def test_a_table_created_right_after_a_drop_survives_that_drop(root: str, mode: str) -> None:
    names = [f"t{turn}" for turn in range(5 * ROUNDS)]
    namespace = prepare(root, mode, [call("create_table", name, rows=1) for name in names])
    scripts = [[call("drop_table", name) for name in names], [call("create_table", name, rows=3) for name in names]]
    outcomes = rounds(race(root, mode, scripts))
    created = [name for name, codes in zip(names, outcomes, strict=True) if codes[1] is None]
    assert all(codes[0] is None and codes[1] in (None, 5, 14) for codes in outcomes), outcomes
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == sorted(created)
    check_sound(root, mode, rows=3)


def test_eight_processes_creating_distinct_names_all_succeed(root: str, nested: str) -> None:
    scripts = [
        [
            step
            for turn in range(6)
            for step in (call("create_namespace", f"n{writer}-{turn}"), call("declare_table", f"n{writer}-{turn}", "t"))
        ]
        for writer in range(8)
    ]
    outcomes = race(root, nested, scripts)
    assert outcomes == [[None] * 12] * 8
    namespace = DirectoryNamespace(root=root, **MODES[nested])
    assert len(namespace.list_namespaces(api.ListNamespacesRequest()).namespaces) == 48
    assert len(namespace.list_all_tables(api.ListTablesRequest()).tables) == 48
    check_sound(root, nested)


def test_an_overwrite_against_a_drop_leaves_the_new_table_or_none(root: str, mode: str) -> None:
    names = [f"t{turn}" for turn in range(3 * ROUNDS)]
    prepare(root, mode, [call("create_table", name, rows=3) for name in names])
    overwrites = [call("create_table", name, rows=3, mode="Overwrite") for name in names]
    for dropped, overwritten in rounds(race(root, mode, [[call("drop_table", name) for name in names], overwrites])):
        assert dropped is None
        assert overwritten in (None, 4, 14)
    check_sound(root, mode, rows=3)
