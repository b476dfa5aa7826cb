"""The metastore as a catalog of Lance tables, beyond the conformance suite: names, folders and roots."""

from __future__ import annotations

import os
import pickle
import shutil
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest
from lance_namespace import CreateTableRequest

import headwater
from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.cli.main import main
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
)
from headwater.metastore.records.layout import slot_key
from headwater.model import Add, RequireLocation, Table
from headwater.names import ObjectId
from headwater.namespace.creation import Creation
from headwater.namespace.requests import RenameNamespaceRequest
from headwater.rest.auth.access import needs
from headwater.rest.extensions import EXTENSIONS
from headwater.rest.server import start_in_thread
from headwater.store import Crash, CrashesAtStore
from tests.metastore.published_reader import read
from tests.metastore.samples import code_of, count, make, reopened
from tests.versions.samples import append, folder_of, numbers, opened, rows, stage, stream

BY_EXTENSION = {extension.route.operation: extension.route for extension in EXTENSIONS}


def test_namespaces_and_tables_move_without_their_data(catalog: Any) -> None:
    for id in (["a"], ["a", "b"], ["z"]):
        catalog.create_namespace({"id": id, "properties": {"n": id[-1]}})
    place = make(catalog, "a", "b", "t")
    assert catalog.rename_namespace({"id": ["a", "b"], "new_id": ["z", "c"]}).properties == {"n": "b"}
    catalog.rename_namespace({"id": ["z"], "new_id": ["y"]})
    catalog.rename_table({"id": ["y", "c", "t"], "new_table_name": "top", "new_namespace_id": []})
    found = reopened(catalog).describe_table({"id": ["top"]})
    assert found.location == place
    assert count(catalog, "top") == 3
    lance.write_dataset(rows(9), namespace_client=catalog, table_id=["top"], mode="append")
    assert count(catalog, "top") == 4
    assert catalog.list_namespaces({"id": []}).namespaces == ["a", "y"]
    assert catalog.list_namespaces({"id": ["y"]}).namespaces == ["c"]
    for old, new, code in (
        (["no"], ["x"], 1),
        (["y"], ["a"], 2),
        (["y"], ["top"], 2),
        (["y"], ["y", "c", "y"], 13),
        (["y"], ["no", "y"], 1),
        ([], ["x"], 13),
    ):
        assert code_of(lambda old=old, new=new: catalog.rename_namespace({"id": old, "new_id": new})) == code
    assert catalog.verify() == []


def test_a_directory_catalog_cannot_rename_a_namespace_and_says_so(tmp_path: Path) -> None:
    directory = headwater.DirectoryNamespace(root=str(tmp_path))
    directory.create_namespace({"id": ["a"]})  # type: ignore[arg-type]
    assert code_of(lambda: directory.rename_namespace({"id": ["a"], "new_id": ["b"]})) == 0  # type: ignore[arg-type]


def test_a_dropped_table_keeps_its_files_comes_back_and_its_name_gets_a_folder_of_its_own(catalog: Any) -> None:
    first = make(catalog, "t", versions=2)
    catalog.drop_table({"id": ["t"]})
    assert os.path.isdir(first)
    assert catalog.verify() == []
    second = make(catalog, "t")
    assert second != first
    assert (count(catalog, "t"), numbers(catalog)) == (3, [1])
    catalog.drop_table({"id": ["t"]})
    catalog.metastore.run(lambda tx: tx.undrop(["t"]))
    assert folder_of(catalog) == second
    catalog.rename_table({"id": ["t"], "new_table_name": "u"})
    catalog.metastore.run(lambda tx: tx.undrop(["t"]))
    assert (folder_of(catalog), numbers(catalog)) == (first, [2, 1])
    assert (count(catalog, "t"), count(catalog, "u")) == (4, 3)
    assert catalog.verify() == []


def test_collection_takes_the_folders_of_dropped_tables_and_of_no_others(catalog: Any) -> None:
    catalog.create_namespace({"id": ["n"]})
    dropped, cascaded = make(catalog, "dropped"), make(catalog, "n", "cascaded")
    kept, left = make(catalog, "kept", versions=3), make(catalog, "left")
    again = make(catalog, "again")
    catalog.drop_table({"id": ["dropped"]})
    catalog.drop_namespace({"id": ["n"], "behavior": "Cascade"})
    catalog.deregister_table({"id": ["left"]})
    catalog.drop_table({"id": ["again"]})
    catalog.register_table({"id": ["found"], "location": os.path.relpath(again, catalog.properties.root)})
    catalog.metastore.collect(keep=timedelta(days=7))
    assert all(os.path.isdir(place) for place in (dropped, cascaded, kept, left, again))
    catalog.metastore.collect(keep=timedelta(0))
    assert [os.path.isdir(place) for place in (dropped, cascaded, kept, left, again)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert (count(catalog, "kept"), count(catalog, "found")) == (5, 3)
    assert opened(catalog, "kept", 1).count_rows() == 3
    assert code_of(lambda: catalog.metastore.run(lambda tx: tx.undrop(["dropped"]))) == 4
    assert [(item.kind, item.note) for item in catalog.verify()] == [("unfinished_creation", True)]


def test_a_declared_table_that_is_renamed_while_it_is_filled_is_not_made_twice(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.declare_table({"id": ["t"]})
    other: Any = MetastoreNamespace(root=catalog.properties.root)
    stage_rows = Creation._stage

    def renamed_meanwhile(*args: Any) -> Any:
        monkeypatch.undo()
        other.rename_table({"id": ["t"], "new_table_name": "moved"})
        return stage_rows(*args)

    monkeypatch.setattr(Creation, "_stage", renamed_meanwhile)
    assert code_of(lambda: catalog.insert_into_table({"id": ["t"]}, stream(rows(9)))) == 14
    assert (catalog.list_tables({}).tables, catalog.verify()) == (["moved"], [])
    monkeypatch.setattr(Creation, "_stage", lambda *args: renamed_back(*args))

    def renamed_back(*args: Any) -> Any:
        monkeypatch.undo()
        other.rename_table({"id": ["moved"], "new_table_name": "t"})
        return stage_rows(*args)

    assert code_of(lambda: catalog.create_table({"id": ["moved"]}, stream(rows(9)))) == 14
    assert (catalog.list_tables({}).tables, catalog.verify()) == (["t"], [])


def test_an_alias_resolves_everywhere_and_is_not_listed(catalog: Any) -> None:
    catalog.create_namespace({"id": ["prod"]})
    make(catalog, "prod", "t")
    catalog.metastore.run(lambda tx: (tx.alias(["prod"], "live"), tx.alias(["prod", "t"], "u")))
    assert count(catalog, "live", "u") == 3
    found = catalog.describe_table({"id": ["live", "u"]})
    assert (found.namespace, found.table) == (["prod"], "t")
    lance.write_dataset(rows(1), namespace_client=catalog, table_id=["live", "u"], mode="append")
    assert count(catalog, "prod", "t") == 4
    assert catalog.list_namespaces({"id": []}).namespaces == ["prod"]
    assert catalog.list_tables({"id": ["live"]}).tables == ["t"]
    assert code_of(lambda: catalog.create_table({"id": ["prod", "u"]}, stream(rows()))) == 5
    catalog.rename_namespace({"id": ["live"], "new_id": ["other"]})
    assert count(catalog, "live", "u") == 4
    catalog.rename_table({"id": ["live", "u"], "new_table_name": "v"})
    assert catalog.list_tables({"id": ["other"]}).tables == ["v"]
    assert count(catalog, "other", "u") == 4
    assert catalog.verify() == []


def test_names_are_changed_in_one_line(catalog: Any) -> None:
    friendly = headwater.Catalog(catalog)
    friendly.create_table("prod.t", [{"a": 1}])
    friendly.alias("prod.t", "u")
    friendly.alias("prod", "live")
    assert friendly["live.u"].count() == 1
    friendly.rename_namespace("prod", "other")
    friendly.alias("other.t", "other.w")
    assert friendly["live.w"].count() == 1
    friendly.unalias("other.t", "u")
    assert "other.u" not in friendly
    assert code_of(lambda: friendly.alias("other.t", "t")) == 5
    assert code_of(lambda: friendly.alias("other.t", "elsewhere.x")) == 13
    assert code_of(lambda: friendly.unalias("other.t", "no")) == 4
    with friendly.transaction("why") as tx:
        tx.alias("other.t", "in_tx")
        assert friendly.tables("other") == ["t"]
    assert friendly["other.in_tx"].count() == 1
    assert code_of(lambda: friendly.at(friendly.slot).alias("other.t", "past")) == 13


def test_tables_that_are_named_as_versions_are_found_as_tables(catalog: Any) -> None:
    catalog.create_namespace({"id": ["a"]})
    for name in ("2", "3"):
        make(catalog, "a", name, versions=2)
    ids = [ObjectId(names) for names in (("a", "1"), ("a", "2"), ("a", "2", "1"), ("a", "2", "9"), ("a", "3", "2"))]
    found = catalog.registry.find(ids)
    assert [type(found[id]).__name__ if id in found else None for id in ids] == [
        None,
        "Table",
        "Version",
        None,
        "Version",
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_crash_at_any_write_of_a_creation_leaves_all_or_nothing(tmp_path: Path, after: bool) -> None:
    for step in range(1, 12):
        catalog = MetastoreNamespace(root=str(tmp_path / f"{step}"))
        make(catalog, "t", versions=2)
        request = stage(catalog, "t", 3)  # type: ignore[arg-type]
        dying = reopened(catalog)
        dying.describe_table({"id": ["t"]})
        store = CrashesAtStore(dying.store, step, after)
        dying.metastore._log.store = dying.versions.store = dying.versions.managed.store = store
        crashed = True
        try:
            dying.create_table_version(request)
            crashed = False
        except (Crash, LanceNamespaceError, OSError):
            pass
        survivor = reopened(catalog)
        found = numbers(survivor)
        assert found in ([2, 1], [3, 2, 1])
        assert crashed or found == [3, 2, 1]
        assert survivor.metastore.verify() == []
        survivor.create_table_version(stage(survivor, "t", len(found) + 1))
        assert numbers(survivor) == list(range(len(found) + 1, 0, -1))
        if not crashed:
            return
    raise AssertionError("every step crashed: count on")


def test_what_a_killed_creator_left_is_collected_once_it_is_old(catalog: Any) -> None:
    make(catalog, "t")
    root = Path(catalog.properties.root)
    left, young = root / "0123abcd_dead" / "data" / "x.lance", root / "0123abce_young" / "data" / "x.lance"
    foreign = root / "mine" / "data" / "x.lance"
    for path in (left, young, foreign):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"rows")
    for path in (left, foreign, *(Path(folder_of(catalog)) / "data").iterdir()):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    catalog.metastore.collect(keep=timedelta(days=7))
    assert [path.exists() for path in (left, young, foreign)] == [False, True, True]
    assert count(catalog, "t") == 3


def test_a_namespace_is_renamed_through_a_server_by_who_may_write_at_both_ends(catalog: Any) -> None:
    for name in ("a", "mine"):
        catalog.create_namespace({"id": [name]})
    make(catalog, "a", "t")
    with start_in_thread(catalog) as server:
        client = headwater.connect("rest", {"uri": server.url})
        client.rename_namespace({"id": ["a"], "new_id": ["mine", "b"]})  # type: ignore[attr-defined]
        assert count(client, "mine", "b", "t") == 3
        moved = partial(client.rename_namespace, {"id": ["a"], "new_id": ["c"]})  # type: ignore[attr-defined]
        assert code_of(moved) == 1
    call = SimpleNamespace(
        route=BY_EXTENSION["RenameNamespace"],
        request=RenameNamespaceRequest(new_id=["other"]),
        id=ObjectId(("mine",)),
        chosen_table=None,
    )
    assert [need.id for need in needs(call)] == [ObjectId(("mine",)), ObjectId(("other",))]  # type: ignore[arg-type]


def test_the_command_line_repairs_what_lost_a_slot(catalog: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(catalog, "t", versions=2)
    root = catalog.properties.root
    assert main(["repair", root]) == 0
    assert "Nothing was missing" in capsys.readouterr().out
    os.unlink(os.path.join(root, slot_key(2)))
    assert main(["repair", root]) == 0
    assert slot_key(2) in capsys.readouterr().out
    assert main(["repair", os.path.join(root, "nowhere")]) != 0
    assert numbers(reopened(catalog)) == [2, 1]


def test_a_catalog_is_pickled_by_its_properties(catalog: Any) -> None:
    make(catalog, "t")
    copy = pickle.loads(pickle.dumps(catalog))
    assert count(copy, "t") == 3
    assert "MetastoreNamespace" in copy.namespace_id()


def test_properties_that_a_metastore_has_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="manifest_enabled"):
        headwater.connect("metastore", {"root": str(tmp_path), "manifest_enabled": "true"})
    with pytest.raises(InvalidInputError, match="root"):
        headwater.connect("metastore", {})


def test_the_published_layout_tells_the_same_names_and_properties(catalog: Any) -> None:
    catalog.create_namespace({"id": ["n"], "properties": {"owner": "ml"}})
    catalog.create_table({"id": ["n", "t"], "properties": {"k": "v"}}, stream(rows()))
    seen = {path: found[:2] for path, found in read_names(catalog.properties.root).items()}
    assert seen == {("n",): ("namespace", {"owner": "ml"}), ("n", "t"): ("table", {"k": "v"})}


def read_names(root: str) -> dict[tuple[str, ...], Any]:
    """The independent reader, which asks for a delta stream: plain tables have a lance one."""
    import tests.metastore.published_reader as reader

    original = reader.read_deltas
    try:
        reader.read_deltas = lambda root, table, format="lance": original(root, table, "lance")
        return read(root)
    finally:
        reader.read_deltas = original


def test_a_root_that_lost_its_private_part_is_the_same_catalog(catalog: Any) -> None:
    make(catalog, "t", versions=3)
    catalog.close()
    shutil.rmtree(os.path.join(catalog.properties.root, ".headwater"))
    again = reopened(catalog)
    assert (numbers(again), count(again, "t")) == ([3, 2, 1], 5)
    append(again, "t", 1)
    assert again.metastore.verify() == []


def test_two_tables_of_one_name_or_location_are_refused(catalog: Any) -> None:
    make(catalog, "t")
    operations = [{"declare_table": {"id": ["x"]}}, {"declare_table": {"id": ["x"]}}]
    assert code_of(lambda: catalog.batch_commit_tables({"operations": operations})) == 5
    catalog.declare_table({"id": ["x"], "location": "somewhere/inner"})
    for place in ("somewhere/inner", "somewhere", "somewhere/inner/deeper"):
        assert code_of(lambda place=place: catalog.declare_table({"id": ["y"], "location": place})) == 13
    other = ObjectId(("y",))
    with pytest.raises(ConcurrentModificationError):
        catalog.registry.commit([RequireLocation("somewhere", other), Add(Table(other, "somewhere"))])


@pytest.mark.parametrize("kind", ["V1", "V2", "compat", "made"])
def test_the_root_of_a_directory_catalog_is_not_opened_as_a_metastore(tmp_path: Path, kind: str) -> None:
    flags = {"V1": ("false", "true"), "V2": ("true", "false"), "compat": ("true", "true")}
    root = str(tmp_path / "lake")
    if kind == "made":
        Path(root, ".headwater").mkdir(parents=True)
        Path(root, ".headwater", "directory").touch()
    else:
        manifest, listing = flags[kind]
        there = DirectoryNamespace(root=root, manifest_enabled=manifest, dir_listing_enabled=listing)
        there.create_table(CreateTableRequest(id=["t"]), stream(rows(1)))
    before = sorted(os.walk(root))
    with pytest.raises(InvalidInputError, match="headwater upgrade"):
        MetastoreNamespace(root=root)
    assert sorted(os.walk(root)) == before
