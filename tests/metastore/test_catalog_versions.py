"""Versions of Lance tables in a metastore: each is a delta, made once, whoever appends, moves or deletes meanwhile."""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pytest

import headwater
from headwater import MetastoreNamespace
from headwater.errors import (
    TableNotFoundError,
)
from headwater.metastore import Metastore
from headwater.model import RegistryFacts, Table
from headwater.names import ObjectId
from headwater.store import CountingStore
from tests.children import PROCESSES
from tests.metastore.published_reader import read_deltas
from tests.metastore.samples import code_of, count, make, reopened
from tests.metastore.writers import append_wherever_it_is
from tests.versions.samples import append, folder_of, numbers, opened, rows, stage, stream


def test_a_lance_version_is_the_delta_at_that_position(catalog: Any) -> None:
    make(catalog, "t", versions=3)
    told = catalog.describe_table({"id": ["t"]})
    assert (told.managed_versioning, told.version) == (True, 3)
    store = Metastore(catalog.properties.root)
    deltas = store.deltas(["t"], format="lance")
    assert [delta.position for delta in deltas] == [1, 2, 3] == numbers(catalog)[::-1]
    assert all(os.path.exists(os.path.join(catalog.properties.root, delta.files[0].path)) for delta in deltas)
    assert [stream.id for stream in store.now().streams(["t"])] == ["lance"]
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
        Table(ObjectId(("t",)), Path(folder_of(other, "moved")).name, {}, RegistryFacts(managed=True)), None
    )
    assert catalog.list_tables({}).tables == ["moved"]
    assert (numbers(catalog, "moved"), count(catalog, "moved")) == ([2, 1], 4)
    assert opened(catalog, "moved", 1).count_rows() == 3
    assert catalog.verify() == []


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
    monkeypatch.setattr("headwater.metastore.state.index.CHECKPOINT_CHANGES", 8)
    monkeypatch.setattr("headwater.metastore.commit.group_commit.aside", lambda work: work())
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


def test_processes_append_while_the_table_and_its_namespace_are_renamed(catalog: Any) -> None:
    catalog.create_namespace({"id": ["n"]})
    make(catalog, "n", "t")
    table = catalog.metastore.get(["n", "t"]).id
    writers = [
        PROCESSES.Process(target=append_wherever_it_is, args=(catalog.properties.root, table, first))
        for first in (100, 200, 300)
    ]
    for writer in writers:
        writer.start()
    names, here = itertools.cycle(["m", "n"]), "n"
    while any(writer.is_alive() for writer in writers):
        there = next(names)
        if there != here and all(writer.is_alive() for writer in writers) and catalog.metastore.slot > 3:
            catalog.rename_namespace({"id": [here], "new_id": [there]})
            here = there
        time.sleep(0.05)
    assert [writer.exitcode for writer in writers] == [0] * 3
    found = lance.dataset(namespace_client=reopened(catalog), table_id=[here, "t"]).to_table().column("a").to_numpy()
    expected = [1, 2, 3, *(first + number for first in (100, 200, 300) for number in range(4))]
    assert sorted(found) == sorted(expected)
    assert catalog.metastore.verify() == []


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


def test_a_commit_looks_at_the_finalized_versions_of_its_own_table_alone(catalog: Any) -> None:
    """A process may have created thousands of tables: none of them makes a commit to another one dearer."""

    class NotIterated(dict[Any, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("a commit has looked at the versions of every table")

        items = values = keys = __iter__

    for name in ("t", "u", "v"):
        make(catalog, name)
    finalized = catalog.versions.managed._finalized
    finalized.by_id = NotIterated(finalized.by_id)
    append(catalog, "u")
    assert numbers(catalog, "u") == [2, 1]
    assert len(finalized.by_id) == 3  # the first version of u was tidied: its second follows it
