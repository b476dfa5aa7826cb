"""What the log says of a commit that has no message of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.model import Add, Change, Move, Namespace, Remove, Replace, RequireTable, Table, Version
from headwater.names import ObjectId
from headwater.registries.metastore.changes import summary

SPACE = Namespace(ObjectId(("prod",)))
USERS = Table(ObjectId(("prod", "users")), "a")
SECOND = Version(ObjectId(("prod", "users", "2")), "_versions/2")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ([Add(SPACE)], "create namespace prod"),
        ([Add(USERS), Add(SECOND)], "create table prod.users"),
        ([RequireTable(USERS, 1), Add(SECOND)], "version 2 of prod.users"),
        ([Add(replace(SECOND, message="append 3 rows to prod.users"))], "append 3 rows to prod.users (version 2)"),
        ([Replace(USERS, replace(USERS, properties={"a": "b"}))], "alter table prod.users"),
        ([Replace(USERS, replace(USERS, location="b"))], "replace table prod.users"),
        ([Replace(SECOND, SECOND)], "replace version 2 of prod.users"),
        ([Remove(USERS)], "drop table prod.users"),
        ([Remove(USERS, keep_data=True)], "deregister table prod.users"),
        ([Remove(SECOND)], "delete version 2 of prod.users"),
        ([Move(USERS, Table(ObjectId(("other", "a.b")), "a"))], 'rename table users to other."a.b"'),
        ([Move(SPACE, Namespace(ObjectId(("dev",))))], "rename namespace prod to dev"),
        (
            [Add(Namespace(ObjectId((name,)))) for name in "abcde"],
            "create namespace a, create namespace b, create namespace c and 2 more",
        ),
    ],
)
def test_a_commit_is_told_by_what_it_does_and_to_what(changes: list[Change], told: str) -> None:
    assert summary(changes) == told
