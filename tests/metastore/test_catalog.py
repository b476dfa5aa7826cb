"""The metastore as a catalog of Lance tables: what it does beyond the conformance suite."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import pytest
from lance_namespace import CountTableRowsRequest, CreateTableRequest

import headwater
from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.cli.main import main
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    TableNotFoundError,
)
from headwater.metastore import Metastore
from headwater.metastore.layout import slot_key
from headwater.model import Add, Known, RequireLocation, Table
from headwater.names import ObjectId
from headwater.namespace.creation import Creation
from headwater.namespace.requests import RenameNamespaceRequest
from headwater.rest.auth.access import needs
from headwater.rest.extensions import EXTENSIONS
from headwater.rest.server import start_in_thread
from headwater.store import CountingStore, Crash, CrashesAtStore
from tests.metastore.published_reader import read, read_deltas
from tests.versions.samples import append, folder_of, numbers, opened, rows, stage, stream

BY_EXTENSION = {extension.route.operation: extension.route for extension in EXTENSIONS}


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return headwater.connect("metastore", {"root": str(tmp_path / "lake")})


def make(catalog: Any, *id: str, versions: int = 1) -> str:
    catalog.create_table({"id": list(id)}, stream(rows()))
    for value in range(1, versions):
        lance.write_dataset(rows(value), namespace_client=catalog, table_id=list(id), mode="append")
    return str(catalog.describe_table({"id": list(id)}).location)


def count(catalog: Any, *id: str) -> int:
    answer = catalog.count_table_rows(CountTableRowsRequest(id=list(id)))
    return int(getattr(answer, "count", answer))


def code_of(action: Any) -> int:
    with pytest.raises(LanceNamespaceError) as caught:
        action()
    return int(caught.value.code)


def reopened(catalog: MetastoreNamespace) -> Any:
    return MetastoreNamespace(root=catalog.properties.root)


def test_a_lance_version_is_the_delta_at_that_position(catalog: Any) -> None:
    make(catalog, "t", versions=3)
    assert catalog.describe_table({"id": ["t"]}).managed_versioning is True
    store = Metastore(catalog.properties.root)
    deltas = store.deltas(["t"], format="lance")
    assert [delta.position for delta in deltas] == [1, 2, 3] == numbers(catalog)[::-1]
    assert all(os.path.exists(os.path.join(catalog.properties.root, delta.files[0].path)) for delta in deltas)
    assert [stream.id for stream in store.streams(["t"])] == ["lance"]
    home = os.path.join(catalog.properties.root, store.get(["t"]).home)
    published = read_deltas(catalog.properties.root, home, "lance")
    assert [int(path.rsplit("/", 1)[1].split(".")[0]) for path in published] == [2**64 - 1 - n for n in (1, 2, 3)]
    assert catalog.verify() == []
    assert opened(catalog).count_rows() == opened(reopened(catalog)).count_rows() == 5


def test_a_version_is_created_once_and_its_repeat_is_answered_alike(catalog: Any) -> None:
    make(catalog, "t")
    first, second = stage(catalog, "t", 2), stage(catalog, "t", 2)
    Path("/" + second["manifest_path"].lstrip("/")).write_bytes(b"other" + b"x" * 10)
    made = catalog.create_table_version(first)
    assert made.version.version == 2
    again = reopened(catalog).create_table_version(first)
    assert again.version.version == 2
    assert numbers(catalog) == [2, 1]
    third = stage(catalog, "t", 2, source=1)
    assert code_of(lambda: catalog.create_table_version({**third, "version": 4})) in (13, 14)
    assert catalog.metastore.slot == 2


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
    catalog.metastore.undrop(["t"])
    assert folder_of(catalog) == second
    catalog.rename_table({"id": ["t"], "new_table_name": "u"})
    catalog.metastore.undrop(["t"])
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
    assert code_of(lambda: catalog.metastore.undrop(["dropped"])) == 4
    assert [item.kind for item in catalog.verify()] == ["unreferenced_folder"]


def test_a_version_written_beside_the_catalog_is_not_shown_blocks_nothing_and_is_named(catalog: Any) -> None:
    place = make(catalog, "t")
    lance.write_dataset(rows(7, 8), place, mode="append")
    assert (numbers(catalog), count(catalog, "t")) == ([1], 3)
    assert {item.kind for item in catalog.verify()} == {"unrecorded_version"}
    append(catalog, "t", 5)
    assert (numbers(catalog), count(catalog, "t")) == ([2, 1], 4)
    assert {item.kind for item in catalog.verify()} == {"unrecorded_version"}


def test_a_writer_that_knew_a_table_by_its_old_name_neither_moves_its_versions_nor_makes_it_anew(
    catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(catalog, "t")
    other: Any = MetastoreNamespace(root=catalog.properties.root)
    handle = catalog.handle

    def moved_first(table: Table) -> Any:
        other.rename_table({"id": ["t"], "new_table_name": "moved"})
        append(other, "moved", 5)
        return handle(table)

    monkeypatch.setattr(catalog, "handle", moved_first)
    assert code_of(lambda: catalog.insert_into_table({"id": ["t"]}, stream(rows(9)))) in (4, 14)
    monkeypatch.undo()
    catalog.versions.begin_append(
        Table(ObjectId(("t",)), Path(folder_of(other, "moved")).name, {}, Known(managed=True)), None
    )
    assert catalog.list_tables({}).tables == ["moved"]
    assert (numbers(catalog, "moved"), count(catalog, "moved")) == ([2, 1], 4)
    assert opened(catalog, "moved", 1).count_rows() == 3
    assert catalog.verify() == []


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


def test_batches_are_one_transaction(catalog: Any) -> None:
    make(catalog, "t")
    make(catalog, "u")
    slot = catalog.metastore.slot
    both = [stage(catalog, name, 2) for name in ("t", "u")]
    answer = catalog.batch_create_table_versions({"entries": both})
    assert [item.version for item in answer.versions] == [2, 2]
    assert catalog.metastore.slot == slot + 1
    bad = [stage(catalog, "t", 3), stage(catalog, "u", 2)]
    assert code_of(lambda: catalog.batch_create_table_versions({"entries": bad})) in (13, 14)
    assert (numbers(catalog), numbers(catalog, "u")) == ([2, 1], [2, 1])
    operations = [{"declare_table": {"id": ["new"]}}, {"create_table_version": stage(catalog, "t", 3)}]
    catalog.batch_commit_tables({"operations": operations})
    assert catalog.metastore.slot == slot + 2
    assert catalog.describe_table({"id": ["new"], "check_declared": True}).is_only_declared is True
    assert {item.kind for item in catalog.verify()} <= {"staged_leftover"}


def test_deleted_versions_are_gone_and_their_numbers_go_on_or_come_again(catalog: Any) -> None:
    make(catalog, "t", versions=4)
    ranges = [{"start_version": 1, "end_version": 3}]
    assert catalog.batch_delete_table_versions({"id": ["t"], "ranges": ranges}).deleted_count == 2
    assert numbers(catalog) == [4, 3]
    newest = [{"start_version": 4, "end_version": -1}]
    assert catalog.batch_delete_table_versions({"id": ["t"], "ranges": newest}).deleted_count == 1
    assert (numbers(catalog), count(catalog, "t")) == ([3], 5)
    append(catalog, "t", 9)
    assert (numbers(catalog), numbers(reopened(catalog))) == ([4, 3], [4, 3])
    assert count(catalog, "t") == 6
    assert catalog.metastore.verify() == []


def test_versions_go_on_after_the_deltas_of_many_are_sealed(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.metastore.index.CHECKPOINT_CHANGES", 8)
    monkeypatch.setattr("headwater.metastore.commit.aside", lambda work: work())
    make(catalog, "t", versions=12)
    other = reopened(catalog)
    assert numbers(other) == list(range(12, 0, -1))
    assert numbers(other, limit=3) == [12, 11, 10]
    assert numbers(other, descending=False, limit=2) == [1, 2]
    assert opened(other, version=5).count_rows() == 7
    assert other.verify() == []


def test_threads_and_catalogs_append_without_losing_a_row(catalog: Any) -> None:
    make(catalog, "t")
    catalogs = [catalog, reopened(catalog)]

    def work(number: int) -> None:
        append(catalogs[number % 2], "t", number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(12)))
    assert count(reopened(catalog), "t") == 15
    assert numbers(catalog) == list(range(13, 0, -1))
    assert catalog.metastore.verify() == []


def test_a_manifest_that_was_recorded_and_not_finalized_is_finished_by_the_next_reader(catalog: Any) -> None:
    place = make(catalog, "t")
    staged = stage(catalog, "t", 2)
    managed = catalog.versions.managed
    finish = managed.finish
    managed.finish = lambda staged: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        catalog.create_table_version(staged)
    managed.finish = finish
    final = Path(place, "_versions", f"{2**64 - 1 - 2:020d}.manifest")
    assert not final.exists()
    other = reopened(catalog)
    assert numbers(other) == [2, 1]
    assert final.exists()
    assert {item.kind for item in other.verify()} <= {"staged_leftover"}


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


def test_reads_are_one_freshness_check_and_a_version_is_one_slot(catalog: Any) -> None:
    catalog.create_namespace({"id": ["n"]})
    make(catalog, "n", "t")
    root = catalog.properties.root
    counting = CountingStore(catalog.store)
    catalog.metastore._log.store = counting
    for read_one in (
        lambda: bool(catalog.registry.find([ObjectId(("n", "t"))])),
        lambda: catalog.describe_namespace({"id": ["n"]}),
        lambda: catalog.describe_table({"id": ["n", "t"]}),
        lambda: catalog.table_exists({"id": ["n", "t"]}),
    ):
        counting.reset()
        read_one()
        assert counting.counts == {"get": 1}
    staged = {**stage_of(catalog, ["n", "t"], 2)}
    counting.reset()
    catalog.create_table_version(staged)
    written = [(verb, key) for verb, key in counting.requests if verb in ("put", "put_all")]
    assert [verb for verb, _ in written] == ["put", "put_all"]
    assert root


def stage_of(catalog: Any, id: list[str], version: int) -> dict[str, Any]:
    catalog.metastore.run(lambda tx: tx.alias(["n"], "alias"))
    catalog.rename_table({"id": id, "new_table_name": "t", "new_namespace_id": []})
    return stage(catalog, "t", version)


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
        route=BY_EXTENSION["RenameNamespace"], request=RenameNamespaceRequest(new_id=["other"]), id=ObjectId(("mine",))
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


WRITER = """
import sys, lance, pyarrow as pa
from headwater import DirectoryNamespace, MetastoreNamespace
root, table, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
catalog = MetastoreNamespace(root=root)
def landed(value):
    path = list(catalog.metastore.by_id(table).path)
    try:
        return value in lance.dataset(namespace_client=catalog, table_id=path).to_table().column("a").to_pylist()
    except Exception:
        return landed(value)  # renamed between the look-up and the read
for value in range(first, first + 4):
    while not landed(value):
        path = list(catalog.metastore.by_id(table).path)
        rows = pa.table({"a": pa.array([value], pa.int64())})
        try:
            lance.write_dataset(rows, namespace_client=catalog, table_id=path, mode="append")
        except Exception:
            pass  # renamed meanwhile: the client cannot know whether it landed, so it looks
print("done")
"""


def test_processes_append_while_the_table_and_its_namespace_are_renamed(catalog: Any) -> None:
    catalog.create_namespace({"id": ["n"]})
    make(catalog, "n", "t")
    table = catalog.metastore.get(["n", "t"]).id
    command = [sys.executable, "-c", WRITER, catalog.properties.root, table]
    writers = [subprocess.Popen([*command, str(first)], stdout=subprocess.PIPE, text=True) for first in (100, 200, 300)]
    names, here = itertools.cycle(["m", "n"]), "n"
    while any(writer.poll() is None for writer in writers):
        there = next(names)
        if there != here and all(writer.poll() is None for writer in writers) and catalog.metastore.slot > 3:
            catalog.rename_namespace({"id": [here], "new_id": [there]})
            here = there
        time.sleep(0.2)
    assert [writer.communicate()[0].strip() for writer in writers] == ["done"] * 3
    found = lance.dataset(namespace_client=reopened(catalog), table_id=[here, "t"]).to_table().column("a").to_pylist()
    expected = [1, 2, 3, *(first + number for first in (100, 200, 300) for number in range(4))]
    assert sorted(found) == sorted(expected)
    assert catalog.metastore.verify() == []


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


@pytest.mark.parametrize("leave", ["rename_table", "drop_table"])
@pytest.mark.parametrize("change", ["append", "delete"])
def test_a_change_of_rows_that_a_move_or_drop_overtakes_is_known_not_to_have_landed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, leave: str
) -> None:
    """pylance cannot look at the version then that it was refused, and takes the commit's fate for unknown."""
    catalog = headwater.Catalog(str(tmp_path / "lake"), impl="metastore")
    table = catalog.create_table("a.t", [{"id": 1}])
    other, create_version = headwater.Catalog(str(tmp_path / "lake")), headwater.MetastoreNamespace.create_table_version

    def overtaken(namespace: Any, request: Any) -> Any:
        if "a.t" in other:
            getattr(other, leave)(*("a.t", "a.u")[: 2 if leave == "rename_table" else 1])
        return create_version(namespace, request)

    monkeypatch.setattr(headwater.MetastoreNamespace, "create_table_version", overtaken)
    with pytest.raises(TableNotFoundError, match="does not exist"):
        table.append([{"id": 2}]) if change == "append" else table.delete("id = 1")
    other.undrop("a.t") if leave == "drop_table" else other.rename_table("a.u", "a.t")
    assert [row["id"] for row in other["a.t"]] == [1]
