"""A transaction can do what the catalog can, near and far: undo, snapshots and keeping house (refs stand apart)."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.catalog.streams import CatalogStream
from headwater.catalog.table import CatalogTable
from headwater.errors import (
    ConcurrentModificationError,
    InvalidTableStateError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
)
from headwater.metastore.records.layout import SNAPSHOTS
from tests.catalog.samples import ROWS

SCHEMA = pa.table({"k": [0], "v": [""]}).schema
NOW = timedelta(0)


READS = {
    Catalog: "at by_id describe diff find history is_there level log namespace_properties namespaces objects query "
    "slot snapshots tables tree verify",
    CatalogTable: "at branch branches count dataset describe head indices is_stream metadata name properties schema "
    "search serving stats table_versions tags to_arrow to_batches to_duckdb to_pandas to_polars version versions",
    CatalogStream: "changes count coverage definition deltas expect files has_log head is_stream lineage name opened "
    "position published quarantine readers report schema search serving stale table_versions to_arrow to_batches "
    "to_duckdb to_pandas to_polars verify version_id",
}
CHANGES = {
    Catalog: "alias alter_namespace batch create_namespace create_stream_table create_table declare_table "
    "deregister_table drop_namespace drop_snapshot drop_table mirror publish register_table rename_namespace "
    "rename_table snapshot unalias undo undrop",
    CatalogTable: "add_columns append cast_columns clean_up create_index delete delete_versions drop_columns merge "
    "optimize overwrite rename_columns restore set_metadata update upsert",
    CatalogStream: "append apply backfill commit_reader compact create create_index delete drop_quarantined "
    "drop_reader evolve ingest ingest_file ingest_files land_together publish retry_quarantined run set_properties "
    "take undo update_indices upsert",
}
ALONE = {Catalog: "close collect follow run transaction", CatalogTable: "", CatalogStream: "collect"}
"""What is no change of what the catalog holds, or cannot be taken back: not in a transaction."""


@pytest.mark.parametrize("face", READS)
def test_every_public_method_reads_or_can_be_part_of_a_transaction_or_is_named_here(face: Any) -> None:
    """Whoever adds one says which it is; a change is tried in a transaction below, or in test_transactions."""
    known = f"{READS[face]} {CHANGES[face]} {ALONE[face]}".split()
    assert sorted(known) == [name for name in dir(face) if not name.startswith("_")]


def ids(catalog: Catalog, name: str) -> set[int]:
    return {row["id"] for row in catalog[name]}


def test_a_snapshot_that_a_transaction_takes_is_of_its_own_slot_with_all_it_did(
    catalog: Catalog, near: Catalog, lake: Path
) -> None:
    begun = catalog.transaction("release")
    with begun as tx:
        tx.snapshot("all")
        tx.snapshot("one", ["a.u"])
        tx["a.t"].append([{"id": 4}])
        tx.create_namespace("b", exist_ok=True)
        tx.rename_table("a.u", "b.moved")
        assert {found.name: found.slot for found in tx.snapshots()} == {"all": 0, "one": 0}
        with pytest.raises(TableTagAlreadyExistsError):
            tx.snapshot("all")
        near["a.t"].append([{"id": 100}])
        assert near.snapshots() == []
    assert {found.name: found.slot for found in near.snapshots()} == {"all": begun.slot, "one": begun.slot}
    near["a.t"].delete("true")
    near.drop_table("b.moved")
    near.collect(keep=NOW, grace=NOW)
    for found in (near, Catalog(MetastoreNamespace(root=str(lake)))):
        assert ids(found.at("all"), "a.t") == {1, 2, 3, 4, 100}
        assert list(found.at("one")) == ["b.moved"]
    with catalog.transaction() as tx:
        tx.drop_snapshot("all")
        tx.drop_snapshot("one")
        tx.snapshot("one", [])
        assert [found.name for found in tx.snapshots()] == ["one"]
        with pytest.raises(TableTagNotFoundError):
            tx.drop_snapshot("all")
    assert list(near.at("one")) == []
    near.collect(keep=NOW, grace=NOW)
    assert near.verify() == []


def test_two_transactions_that_take_a_snapshot_of_one_name_are_a_conflict_of_one(
    catalog: Catalog, near: Catalog
) -> None:
    begun = catalog.transaction()
    tx = begun.__enter__()
    tx.snapshot("same")
    near.snapshot("same", ["a.t"])
    with pytest.raises(ConcurrentModificationError):
        begun.__exit__(None, None, None)
    assert [len(found.tables) for found in near.snapshots()] == [1]


def test_a_snapshot_whose_file_was_never_written_is_read_and_kept_all_the_same(tmp_path: Path) -> None:
    namespace: Any = MetastoreNamespace(root=str(tmp_path))
    near = Catalog(namespace)
    near.create_table("a.t", ROWS)
    with near.transaction() as tx:
        tx["a.t"].append([{"id": 4}])
        tx.snapshot("kept")
    for entry in list(namespace.store.list(SNAPSHOTS)):
        namespace.store.delete(entry.key)
    again = Catalog(MetastoreNamespace(root=namespace.properties.root))
    assert ids(again.at("kept"), "a.t") == {1, 2, 3, 4}
    assert again.verify() == []
    again.undo(list(again.log())[-1])
    again.undo(list(again.log())[-1])
    again["a.t"].delete("true")
    for entry in list(namespace.store.list(SNAPSHOTS)):
        namespace.store.delete(entry.key)
    again.collect(keep=NOW, grace=NOW)
    assert len(list(namespace.store.list(SNAPSHOTS))) == 1
    for found in (again, Catalog(MetastoreNamespace(root=namespace.properties.root))):
        assert ids(found.at("kept"), "a.t") == {1, 2, 3, 4}
    assert again.verify() == []


def test_an_undo_is_part_of_a_transaction_with_what_else_it_does(catalog: Catalog, near: Catalog) -> None:
    near["a.t"].append([{"id": 4}])
    append = list(near.log())[-1]
    near.rename_table("a.u", "a.w")
    rename = list(near.log())[-1]
    slot = near.slot
    with catalog.transaction("undo both") as tx:
        assert [step.action for step in tx.undo(append.txn, dry_run=True).steps] == ["restore"]
        assert ids(tx, "a.t") == {1, 2, 3, 4}
        undone = tx.undo(append.txn)
        assert (undone.slot, [step.action for step in undone.steps]) == (None, ["restore"])
        tx.undo(rename.txn)
        assert list(tx) == ["a.t", "a.u"]
        assert ids(tx, "a.t") == {1, 2, 3}
        tx["a.t"].append([{"id": 5}])
    assert near.slot == slot + 1
    assert ids(near, "a.t") == {1, 2, 3, 5}
    near.undo(list(near.log())[-1])
    assert list(near) == ["a.t", "a.w"]
    assert ids(near, "a.t") == {1, 2, 3, 4}
    assert near.verify() == []


def test_an_undo_in_a_transaction_that_has_written_there_is_refused_and_leaves_it_as_it_was(
    catalog: Catalog, near: Catalog
) -> None:
    near["a.t"].append([{"id": 4}])
    append = list(near.log())[-1]
    near["a.u"].delete("id = 1")
    delete = list(near.log())[-1]
    with catalog.transaction() as tx:
        tx["a.t"].append([{"id": 5}])
        tx["a.u"].delete("id = 2")
        for undone in (append, delete):
            with pytest.raises(InvalidTableStateError, match="transaction"):
                tx.undo(undone.txn)
    assert (ids(near, "a.t"), ids(near, "a.u")) == ({1, 2, 3, 4, 5}, {3})


def test_an_undo_in_a_transaction_conflicts_with_who_writes_there_meanwhile(catalog: Catalog, near: Catalog) -> None:
    near["a.t"].append([{"id": 4}])
    begun = catalog.transaction()
    begun.__enter__().undo(list(near.log())[-1].txn)
    near["a.t"].append([{"id": 100}])
    with pytest.raises(ConcurrentModificationError, match=r"a\.t"):
        begun.__exit__(None, None, None)
    assert ids(near, "a.t") == {1, 2, 3, 4, 100}


def test_what_a_transaction_landed_is_voided_in_another_with_what_that_lands(catalog: Catalog, near: Catalog) -> None:
    near.create_stream_table("log", SCHEMA, keys=["k"])
    near["log"].upsert([{"k": 1, "v": "one"}])
    near["log"].upsert([{"k": 2, "v": "two"}], source="crm")
    undone = list(near.log())[-1]
    with catalog.transaction() as tx:
        tx.undo(undone.txn)
        tx["log"].upsert([{"k": 3, "v": "three"}])
        assert sorted(row["k"] for row in tx["log"].to_arrow().to_pylist()) == [1, 3]
    assert sorted(row["k"] for row in near["log"].to_arrow().to_pylist()) == [1, 3]
    with pytest.raises(InvalidTableStateError, match="undone already"):
        near.undo(undone)
    near["log"].publish()
    assert near.verify() == []


def test_fragments_are_merged_in_a_transaction_and_old_versions_go_once_it_is_committed(
    catalog: Catalog, near: Catalog
) -> None:
    for number in range(4, 8):
        near["a.t"].append([{"id": number}])
        near["a.u"].append([{"id": number}])
    near["a.u"].create_index("id")
    with catalog.transaction("tidy") as tx:
        tx["a.t"].append([{"id": 8}])
        tx["a.u"].append([{"id": 8}])
        done = tx["a.t"].optimize(keep_versions=1, grace_seconds=0)
        assert tx["a.t"].stats().fragment_stats.num_fragments == 1
        assert dict(done if isinstance(done, dict) else vars(done))["fragments_removed"] == 6
        tx["a.u"].optimize(keep_versions=2, grace_seconds=0)
        tx["a.t"].tags["kept"] = 1
        tx.rename_table("a.t", "a.moved")
        assert len(near["a.t"].versions()) == 5
    assert [found.version for found in near["a.moved"].versions()] == [1, 7]
    assert [found.version for found in near["a.u"].versions()] == [7, 8]
    assert ids(near, "a.moved") == ids(near, "a.u") == set(range(1, 9))
    assert near["a.u"].indices.stats("id_idx").num_unindexed_rows == 0
    assert near["a.u"].to_arrow(filter="id = 8").num_rows == 1
    assert near.verify() == []


def test_merged_fragments_do_not_meet_those_that_others_append_meanwhile(catalog: Catalog, near: Catalog) -> None:
    near["a.t"].append([{"id": 4}])

    def tidy() -> None:
        with catalog.transaction("tidy") as tx:
            assert len(tx["a.t"]) == 4
            near["a.t"].append([{"id": 5}])
            near["a.t"].clean_up(keep_versions=9)  # its newest version has its final name, where Lance looks
            tx["a.t"].optimize()

    with pytest.raises(ConcurrentModificationError):
        tidy()
    assert ids(near, "a.t") == {1, 2, 3, 4, 5}


def test_nothing_is_deleted_by_a_transaction_that_is_not_committed(catalog: Catalog, near: Catalog) -> None:
    for number in (4, 5):
        near["a.t"].append([{"id": number}])
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx["a.t"].delete_versions(1, 1)
        tx["a.t"].clean_up(keep_versions=1, grace_seconds=0)
        assert [found.version for found in tx["a.t"].versions()] == [2, 3]
        raise ZeroDivisionError
    assert [len(near["a.t"].at(version)) for version in (1, 2, 3)] == [3, 4, 5]
    with catalog.transaction() as tx:
        tx["a.t"].delete_versions(1, 1)
    assert [found.version for found in near["a.t"].versions()] == [2, 3]
    assert "18446744073709551614.manifest" not in os.listdir(f"{near['a.t'].describe().location}/_versions")
    assert near.verify() == []


def test_a_stream_table_is_kept_in_order_inside_a_transaction(near: Catalog) -> None:
    log = near.create_stream_table("log", SCHEMA, keys=["k"])
    log.upsert([{"k": number, "v": "old"} for number in range(100)])
    log.publish()
    with near.transaction() as tx:
        tx["log"].delete("k < 40")
        tx["log"].publish()
        tx["log"].create_index("v", "BTREE")
        assert tx["log"].serving.stats().num_rows == 60
        tx["log"].compact()
        tx["log"].update_indices()
        assert near["log"].serving.stats().num_rows == 100
    assert len(near["log"].to_arrow()) == near["log"].serving.stats().num_rows == 60
    assert near["log"].serving.dataset().get_fragments()[0].count_rows() == 60
    assert near.verify() == []
