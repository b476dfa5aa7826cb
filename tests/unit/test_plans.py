"""Plans: facts and a request in, changes or an error out. No storage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.model import Add, Move, Namespace, Remove, Replace, RequireLocation, Table
from headwater.names import ROOT, ObjectId
from headwater.namespace import plans
from headwater.namespace.plans import CreateMode, DropBehavior, DropMode, Facts

N, M, T, U = ObjectId(("n",)), ObjectId(("m",)), ObjectId(("n", "t")), ObjectId(("n", "u"))
SPACE, TABLE = Namespace(N, {"p": "1"}), Table(T, "place", {"q": "2"})
FACTS: Facts = {N: SPACE, T: TABLE}


def code(action: Callable[[], object]) -> int:
    with pytest.raises(LanceNamespaceError) as caught:
        action()
    return int(caught.value.code)


def test_a_new_namespace_is_added() -> None:
    changes, answer = plans.plan_create_namespace({}, True, N, CreateMode.CREATE, {"a": "b"})
    assert changes == [Add(Namespace(N, {"a": "b"}))]
    assert answer == Namespace(N, {"a": "b"})


def test_a_namespace_that_exists_is_refused_kept_or_replaced() -> None:
    assert code(lambda: plans.plan_create_namespace(FACTS, True, N, CreateMode.CREATE, {})) == 2
    assert plans.plan_create_namespace(FACTS, False, N, CreateMode.EXIST_OK, {}) == ([], SPACE)
    changes, _ = plans.plan_create_namespace(FACTS, True, N, CreateMode.OVERWRITE, {"x": "y"})
    assert changes == [Replace(SPACE, Namespace(N, {"x": "y"}))]
    assert code(lambda: plans.plan_create_namespace(FACTS, False, N, CreateMode.OVERWRITE, {})) == 3


@pytest.mark.parametrize("mode", CreateMode)
def test_a_namespace_never_takes_the_name_of_a_table_nor_a_missing_parent(mode: CreateMode) -> None:
    assert code(lambda: plans.plan_create_namespace(FACTS, True, T, mode, {})) == 2
    assert code(lambda: plans.plan_create_namespace(FACTS, True, M.child("x"), mode, {})) == 1


def test_altering_a_namespace_sets_and_removes_what_is_named_and_keeps_the_rest() -> None:
    changes, answer = plans.plan_alter_namespace(FACTS, N, {"a": "b"}, ())
    assert answer == Namespace(N, {"p": "1", "a": "b"})
    assert changes == [Replace(SPACE, answer)]
    assert plans.plan_alter_namespace(FACTS, N, {"a": "b"}, ("p", "missing"))[1] == Namespace(N, {"a": "b"})
    assert plans.plan_alter_namespace(FACTS, N, {"p": "1"}, ("missing",)) == ([], SPACE)
    assert code(lambda: plans.plan_alter_namespace(FACTS, M, {"a": "b"}, ())) == 1
    assert code(lambda: plans.plan_alter_namespace(FACTS, T, {"a": "b"}, ())) == 1
    assert code(lambda: plans.plan_alter_namespace(FACTS, N, {"a": "b"}, ("a",))) == 13
    many = {str(number): "" for number in range(1000)}
    assert code(lambda: plans.plan_alter_namespace(FACTS, N, many, ())) == 13


def test_the_root_exists_and_stays() -> None:
    assert plans.plan_create_namespace({}, True, ROOT, CreateMode.EXIST_OK, {}) == ([], Namespace(ROOT))
    assert code(lambda: plans.plan_create_namespace({}, True, ROOT, CreateMode.CREATE, {})) == 2
    assert code(lambda: plans.plan_drop_namespace({}, [], ROOT, DropMode.SKIP, DropBehavior.CASCADE)) == 13


def test_a_cascade_removes_what_is_below_before_the_namespace() -> None:
    changes, _ = plans.plan_drop_namespace(FACTS, [TABLE], N, DropMode.FAIL, DropBehavior.CASCADE)
    assert changes == [Remove(TABLE), Remove(SPACE)]
    assert code(lambda: plans.plan_drop_namespace(FACTS, [TABLE], N, DropMode.FAIL, DropBehavior.RESTRICT)) == 3
    assert code(lambda: plans.plan_drop_namespace(FACTS, [], M, DropMode.FAIL, DropBehavior.CASCADE)) == 1
    assert code(lambda: plans.plan_drop_namespace(FACTS, [], T, DropMode.FAIL, DropBehavior.CASCADE)) == 1
    assert plans.plan_drop_namespace(FACTS, [], M, DropMode.SKIP, DropBehavior.RESTRICT) == ([], None)


def test_a_declared_table_requires_its_location_for_itself() -> None:
    changes, table = plans.plan_declare_table(FACTS, U, "there", {})
    assert changes == [RequireLocation("there", U), Add(table)]
    assert code(lambda: plans.plan_declare_table(FACTS, T, "there", {})) == 5
    assert code(lambda: plans.plan_declare_table(FACTS, N, "there", {})) == 5
    assert code(lambda: plans.plan_declare_table(FACTS, M.child("t"), "there", {})) == 1
    assert code(lambda: plans.plan_declare_table(FACTS, ROOT, "there", {})) == 13


def test_registering_over_a_table_replaces_it_only_when_told_to() -> None:
    assert code(lambda: plans.plan_register_table(FACTS, T, "there", CreateMode.CREATE, {})) == 5
    changes, table = plans.plan_register_table(FACTS, T, "there", CreateMode.OVERWRITE, {})
    assert changes == [RequireLocation("there", T), Replace(TABLE, table)]
    assert code(lambda: plans.plan_register_table(FACTS, N, "there", CreateMode.OVERWRITE, {})) == 5


def test_a_rename_moves_the_name_and_keeps_place_and_properties() -> None:
    changes, renamed = plans.plan_rename_table(FACTS, T, U)
    assert (changes, renamed) == ([Move(TABLE, renamed)], Table(U, "place", {"q": "2"}))
    assert plans.plan_rename_table(FACTS, T, T) == ([], TABLE)
    assert code(lambda: plans.plan_rename_table(FACTS, U, T)) == 4
    assert code(lambda: plans.plan_rename_table(FACTS, T, N)) == 5
    assert code(lambda: plans.plan_rename_table(FACTS, T, M.child("t"))) == 1


def test_removing_a_table_says_whether_its_data_stays() -> None:
    assert plans.plan_remove_table(FACTS, T, True) == ([Remove(TABLE, True)], TABLE)
    assert plans.plan_remove_table(FACTS, T, False) == ([Remove(TABLE, False)], TABLE)
    assert code(lambda: plans.plan_remove_table(FACTS, N, False)) == 4


@pytest.mark.parametrize("text", ["ExistOk", "exist_ok", "EXISTOK", "existok"])
def test_a_mode_is_taken_in_any_spelling(text: str) -> None:
    assert plans.choose(CreateMode, text, CreateMode.CREATE) is CreateMode.EXIST_OK
    assert plans.choose(CreateMode, None, CreateMode.OVERWRITE) is CreateMode.OVERWRITE
    with pytest.raises(InvalidInputError, match="Create, ExistOk, Overwrite"):
        plans.choose(CreateMode, "sideways", CreateMode.CREATE)


HERE, THERE = Table(T, "here"), Table(T, "there")
CREATE, EXIST_OK, OVERWRITE = CreateMode.CREATE, CreateMode.EXIST_OK, CreateMode.OVERWRITE


@pytest.mark.parametrize("mode", CreateMode)
def test_a_free_name_is_the_new_tables_and_one_declared_at_its_place_is_filled(mode: CreateMode) -> None:
    assert plans.own_name(None, HERE, mode, created=False) == (
        [RequireLocation("here", T), Add(HERE)],
        plans.Ownership(HERE),
    )
    assert plans.own_name(HERE, HERE, mode, created=False) == ([], plans.Ownership(HERE))
    declared = Table(T, "here", {"old": "1"})
    assert plans.own_name(declared, HERE, mode, created=False) == ([Replace(declared, HERE)], plans.Ownership(HERE))
    assert code(lambda: plans.own_name(Namespace(T), HERE, mode, created=False)) == 5


@pytest.mark.parametrize(("found", "created"), [(HERE, True), (THERE, True), (THERE, False)])
def test_a_name_that_is_taken_goes_by_the_mode(found: Table, created: bool) -> None:
    assert code(lambda: plans.own_name(found, HERE, CREATE, created)) == 5
    changes, owned = plans.own_name(found, HERE, EXIST_OK, created)
    assert (changes, owned.table is found, owned.replaced) == ([], True, None)
    assert plans.own_name(found, HERE, OVERWRITE, created) == ([Replace(found, HERE)], plans.Ownership(HERE, found))
