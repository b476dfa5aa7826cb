"""The same metastore on every kind of store."""

from __future__ import annotations

from pathlib import Path

import obstore.store
import pytest

from headwater.metastore import Metastore
from headwater.store import LocalStore, ObjectStore, PrefixedStore, Store, memory_store
from tests.metastore.model import tree_of
from tests.metastore.writers import work


def exercise(first: Metastore, second: Metastore) -> None:
    with first.transaction("before") as tx:
        tx.create_namespace(["a"])
        tx.create_namespace(["a", "b"])
        tx.create_table(["a", "b", "t"])
        tx.append_delta(["a", "b", "t"], [("first", 1, 1)])
    second.run(work)
    for number in range(5):
        for store in (first, second):
            store.run(lambda tx, number=number: tx.append_delta(["new", "b", "t"], [f"{number}"]))  # type: ignore[misc]
    assert [delta.position for delta in first.deltas(["new", "b", "t"])] == list(range(1, 13))
    assert tree_of(first) == tree_of(second)
    assert first.verify() == []
    second.checkpoint()
    second.collect(keep=1)
    assert first.verify() == second.verify() == []
    assert tree_of(first) == tree_of(second)


@pytest.mark.parametrize("kind", ["memory", "prefixed", "obstore on disk"])
def test_the_metastore_works_on(kind: str, tmp_path: Path) -> None:
    stores: dict[str, Store] = {
        "memory": memory_store(),
        "prefixed": PrefixedStore(LocalStore(tmp_path), "deep/down"),
        "obstore on disk": ObjectStore(obstore.store.LocalStore(tmp_path)),
    }
    exercise(Metastore(stores[kind]), Metastore(stores[kind]))


def test_the_metastore_works_on_s3(s3_root: str, s3_options: dict[str, str]) -> None:
    exercise(Metastore(s3_root, s3_options), Metastore(s3_root, s3_options))
    assert tree_of(Metastore(s3_root, s3_options))


def test_the_metastore_works_in_a_named_memory(tmp_path: Path) -> None:
    exercise(Metastore("memory://lake/one"), Metastore("memory://lake/one"))
    assert Metastore("memory://lake/two").list() == []
