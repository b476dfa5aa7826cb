"""What a registry says of a table when it finds it: what plans rely on."""

from __future__ import annotations

from pathlib import Path

import lance
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.model import RegistryFacts, Table
from headwater.names import ObjectId
from headwater.testing.namespace_suite import ROWS, ipc

T = ObjectId(("t",))


def known(catalog: DirectoryNamespace | MetastoreNamespace, newest: bool = True) -> RegistryFacts:
    found = catalog.registry.find([T], newest=newest)[T]
    assert isinstance(found, Table)
    (listed,) = (item for item in catalog.registry.descendants(ObjectId()) if item.id == T)
    assert isinstance(listed, Table)
    assert (listed.known.managed, listed.known.recorded) == (found.known.managed, found.known.recorded)
    return found.known


def test_a_table_that_is_only_a_folder_is_seen_and_after_its_migration_recorded(tmp_path: Path) -> None:
    lance.write_dataset(ROWS, str(tmp_path / "t.lance"))
    catalog = DirectoryNamespace(root=str(tmp_path))
    assert known(catalog) == RegistryFacts(recorded=False)
    assert T not in catalog.registry.find([T], seen=False)
    assert catalog.migrate() == ["t"]
    assert known(catalog) == RegistryFacts()
    assert known(DirectoryNamespace(root=str(tmp_path))) == RegistryFacts()
    catalog.drop_table(api.DropTableRequest(id=["t"]))
    assert not (tmp_path / "t.lance").exists()


def test_without_a_manifest_every_table_is_only_seen(tmp_path: Path) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), manifest_enabled="false")
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    assert known(catalog) == RegistryFacts(recorded=False)
    assert catalog.registry.find([T], seen=False) == {}


@pytest.mark.parametrize("kind", ["managed", "metastore"])
def test_a_managed_table_is_found_with_its_newest_version(tmp_path: Path, kind: str) -> None:
    root = str(tmp_path / "lake")
    catalog: DirectoryNamespace | MetastoreNamespace = (
        MetastoreNamespace(root=root)
        if kind == "metastore"
        else DirectoryNamespace(root=root, table_version_management="true")
    )
    declared = catalog.declare_table(api.DeclareTableRequest(id=["t"]))
    assert declared.managed_versioning is True
    assert known(catalog) == RegistryFacts(managed=True, newest=0)
    for number in (1, 2):
        catalog.insert_into_table(api.InsertIntoTableRequest(id=["t"], mode="append"), ipc(ROWS))
        found = known(catalog)
        assert found.digest is not None
        assert found == RegistryFacts(managed=True, newest=number, digest=found.digest)


def test_what_is_known_of_a_table_is_no_part_of_what_it_is() -> None:
    assert Table(T, "t.lance", known=RegistryFacts(managed=True, newest=3)) == Table(T, "t.lance")
