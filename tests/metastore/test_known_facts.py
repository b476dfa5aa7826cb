"""Facts that a registry remembers over commits: what a slot changed is looked up again, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import lance_namespace as api
import pytest

from headwater import MetastoreNamespace
from headwater.errors import ConcurrentModificationError
from headwater.metastore import Metastore
from headwater.metastore.state.snapshot import Snapshot
from headwater.model import Table
from headwater.names import ObjectId

T, U = ObjectId(("a", "t")), ObjectId(("a", "u"))


@pytest.fixture
def namespace(tmp_path: Path) -> MetastoreNamespace:
    made = MetastoreNamespace(root=str(tmp_path))
    made.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    for id in (T, U):
        made.declare_table(api.DeclareTableRequest(id=list(id.names)))
    return made


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The ids that were looked up in the index."""
    walked: list[object] = []
    real = Snapshot.find_with_stream

    def find_with_stream(self: Snapshot, path: object, *options: object) -> object:
        walked.append(path)
        return real(self, path, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(Snapshot, "find_with_stream", find_with_stream)
    return walked


def test_a_commit_elsewhere_does_not_make_a_table_unknown(namespace: MetastoreNamespace, walks: list[object]) -> None:
    other = Metastore(namespace.metastore.store)
    for id in (T, U):
        namespace.registry.find([id], newest=True)
    walks.clear()
    other.run(lambda tx: tx.create_namespace(["b"]))
    other.run(lambda tx: tx.append_delta(U.names, ["file"], format="lance"))
    found = namespace.registry.find([T, U], newest=True)
    assert walks == [U]
    table = found[U]
    assert isinstance(table, Table)
    assert table.known.newest == 1


@pytest.mark.parametrize("verb", ["rename", "drop", "alter", "above"])
def test_a_changed_name_is_never_answered_from_memory(namespace: MetastoreNamespace, verb: str) -> None:
    other = Metastore(namespace.metastore.store)
    namespace.registry.find([T, U, T.parent])
    if verb == "rename":
        other.run(lambda tx: tx.rename(T, U.parent.child("v")))
    elif verb == "drop":
        other.run(lambda tx: tx.drop(T))
    elif verb == "alter":
        other.run(lambda tx: tx.update(T, {"k": "v"}))
    else:
        other.run(lambda tx: tx.rename(["a"], ["z"]))
    found = namespace.registry.find([T, U])
    fresh = MetastoreNamespace(root=namespace.properties.root).registry.find([T, U])
    assert found == fresh
    assert (T in found) is (verb == "alter")


def test_more_slots_than_are_remembered_make_all_unknown(namespace: MetastoreNamespace, walks: list[object]) -> None:
    other = Metastore(namespace.metastore.store)
    namespace.registry.find([T])
    for number in range(40):
        other.run(lambda tx, number=number: tx.create_namespace([f"n{number}"]))  # type: ignore[misc]
    walks.clear()
    namespace.registry.find([T])
    assert walks == [T]


def test_creating_a_name_in_a_transaction_is_no_dependency_on_its_neighbours(namespace: MetastoreNamespace) -> None:
    tx = namespace.metastore.transaction()
    inside = namespace.within(tx)
    inside.create_namespace(api.CreateNamespaceRequest(id=["a"], mode="exist_ok"))
    inside.declare_table(api.DeclareTableRequest(id=["a", "mine"]))
    namespace.declare_table(api.DeclareTableRequest(id=["a", "theirs"]))
    tx.commit()
    assert namespace.list_tables(api.ListTablesRequest(id=["a"])).tables == ["mine", "t", "theirs", "u"]


def test_a_list_in_a_transaction_shows_its_own_changes_and_is_a_dependency(namespace: MetastoreNamespace) -> None:
    tx = namespace.metastore.transaction()
    inside = namespace.within(tx)
    inside.rename_table(api.RenameTableRequest(id=["a", "t"], new_table_name="s"))
    inside.drop_table(api.DropTableRequest(id=["a", "u"]))
    inside.create_namespace(api.CreateNamespaceRequest(id=["a", "u"]))
    assert inside.list_tables(api.ListTablesRequest(id=["a"])).tables == ["s"]
    assert inside.list_namespaces(api.ListNamespacesRequest(id=["a"])).namespaces == ["u"]
    namespace.declare_table(api.DeclareTableRequest(id=["a", "theirs"]))
    with pytest.raises(ConcurrentModificationError):
        tx.commit()
