"""Tables of cases for the pure rules: which transactions conflict, and what a grant allows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.errors import ConcurrentModificationError
from headwater.metastore import Metastore, Transaction
from headwater.names import ObjectId
from headwater.rest.auth.access import Caller, Grant
from headwater.rest.routes import READS, Permission
from headwater.store import memory_store

Work = Callable[[Transaction], object]


def a_table(*names: str) -> Work:
    return lambda tx: tx.create_table(list(names))


def a_namespace(*names: str) -> Work:
    return lambda tx: tx.create_namespace(list(names))


def a_drop(*names: str) -> Work:
    return lambda tx: tx.drop(list(names))


def an_append(*names: str) -> Work:
    return lambda tx: tx.append_delta(list(names), [("f", 1, 1)])


def a_look(*names: str) -> Work:
    return lambda tx: (tx.get(list(names)), tx.create_namespace(["seen"]))


def a_list(*names: str) -> Work:
    return lambda tx: (tx.list(list(names)), tx.create_namespace(["seen"]))


# What the transaction does, what another one commits after it began, and the reason if it conflicts.
CASES: tuple[tuple[str, Work, Work, str | None], ...] = (
    ("two names in one namespace", a_table("a", "x"), a_table("a", "y"), None),
    ("one name twice", a_table("a", "x"), a_table("a", "x"), "changed a name"),
    ("names in two namespaces", a_table("a", "x"), a_table("b", "x"), None),
    ("two appends to one table", an_append("a", "t"), an_append("a", "t"), None),
    ("an append to a table that was dropped", an_append("a", "t"), a_drop("a", "t"), "changed"),
    ("a drop of a table that was appended to", a_drop("a", "t"), an_append("a", "t"), None),
    ("a new table in a namespace that was dropped", a_table("b", "x"), a_drop("b"), "changed"),
    ("a drop of a namespace that has a new table", a_drop("b"), a_table("b", "x"), "changed"),
    ("a look at a table that was dropped", a_look("a", "t"), a_drop("a", "t"), "changed"),
    ("a look at a table beside the one that was dropped", a_look("a", "t"), a_drop("a", "u"), None),
    ("a list of names that have grown", a_list("a"), a_table("a", "x"), "changed"),
    ("a list of the names beside them", a_list("b"), a_table("a", "x"), None),
)


@pytest.mark.parametrize(("work", "other", "reason"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_transaction_conflicts_by_what_it_read_or_wrote(work: Work, other: Work, reason: str | None) -> None:
    store = Metastore(memory_store())
    with store.transaction() as tx:
        for name in (["a"], ["b"]):
            tx.create_namespace(name)
        for name in (["a", "t"], ["a", "u"]):
            tx.create_table(name)
    mine = store.transaction()
    work(mine)
    with store.transaction() as tx:
        other(tx)
    if reason is None:
        mine.commit()
        assert store.verify() == []
        return
    with pytest.raises(ConcurrentModificationError, match=reason):
        mine.commit()


# The grant, what is asked for and on which object, whether it may be done, and whether the object may be seen.
READS_SALES = Grant(READS, ObjectId(("prod", "sales")))
GRANTS: tuple[tuple[str, Grant, Permission, tuple[str, ...], bool, bool], ...] = (
    ("the object itself", READS_SALES, Permission.SELECT, ("prod", "sales"), True, True),
    ("below it", READS_SALES, Permission.SELECT, ("prod", "sales", "orders"), True, True),
    ("far below it", READS_SALES, Permission.DESCRIBE, ("prod", "sales", "eu", "orders"), True, True),
    ("another permission", READS_SALES, Permission.WRITE, ("prod", "sales", "orders"), False, True),
    (
        "both permissions, one of them not held",
        READS_SALES,
        Permission.SELECT | Permission.DROP,
        ("prod", "sales"),
        False,
        True,
    ),
    ("the way to it", READS_SALES, Permission.DESCRIBE, ("prod",), False, True),
    ("the root on the way", READS_SALES, Permission.DESCRIBE, (), False, True),
    ("beside it", READS_SALES, Permission.SELECT, ("prod", "hr"), False, False),
    ("a name that begins alike", READS_SALES, Permission.SELECT, ("prod", "sales2"), False, False),
    ("the same name elsewhere", READS_SALES, Permission.SELECT, ("test", "sales"), False, False),
    ("everything, from the root", Grant(~Permission(0)), Permission.MANAGE, ("any", "thing"), True, True),
    ("nothing at all", Grant(Permission(0)), Permission.DESCRIBE, ("any",), False, True),
)


@pytest.mark.parametrize(
    ("grant", "permission", "names", "may", "sees"), [case[1:] for case in GRANTS], ids=[case[0] for case in GRANTS]
)
def test_a_grant_covers_its_object_and_all_below(
    grant: Grant, permission: Permission, names: tuple[str, ...], may: bool, sees: bool
) -> None:
    caller = Caller("somebody", (grant,))
    assert caller.may(permission, ObjectId(names)) is may
    assert caller.may_see(ObjectId(names)) is sees


def test_grants_add_up_and_do_not_mix_their_objects() -> None:
    caller = Caller("somebody", (READS_SALES, Grant(Permission.WRITE, ObjectId(("prod", "hr")))))
    assert caller.may(Permission.WRITE, ObjectId(("prod", "hr", "people")))
    assert not caller.may(Permission.WRITE, ObjectId(("prod", "sales")))
    assert not caller.may(Permission.SELECT, ObjectId(("prod", "hr")))
