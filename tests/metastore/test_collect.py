"""Collection takes what nothing needs, says why, and never what a tag, a branch, a snapshot or a reader stands on."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pytest

import headwater
from headwater.clock import SeededClock
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    ServiceUnavailableError,
    TableNotFoundError,
)
from headwater.metastore import Metastore, Removal, Transaction
from headwater.metastore.commit.log import Log
from headwater.metastore.upkeep import collect as collect_module
from headwater.metastore.upkeep.collect import Collection
from headwater.metastore.upkeep.garbage import Folders, Garbage, kept_by
from headwater.store import Crash, CrashesAtStore, LocalStore, Store
from tests.metastore.samples import code_of, count, make
from tests.metastore.test_undo import state_of
from tests.versions.samples import numbers, rows

NOW = timedelta(0)
DAY = timedelta(days=1)
YEARS_LATER = 4_000_000_000_000


@pytest.fixture
def catalog(tmp_path: Path) -> Any:
    return headwater.connect("metastore", {"root": str(tmp_path / "lake")})


def later(catalog: Any, hours: int = 0) -> Metastore:
    """The metastore of a catalog, at a time when every file in it is old, and so many hours after that."""
    return lake(catalog.properties.root, after=hours)


def files_in(root: Any) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()}


def test_what_dead_writers_left_in_a_dataset_goes_and_its_rows_stay(catalog: Any) -> None:
    folder = Path(make(catalog, "t", versions=3))
    before = files_in(folder)
    left = ["data/dead.lance", "_deletions/9-9-9.arrow", "_transactions/9-dead.txn", "_indices/dead/page.lance"]
    left += ["_versions/18446744073709551600.manifest-dead", "_staged/dead/18446744073709551600.manifest"]
    for name in left:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"left")
    assert Metastore(catalog.properties.root).collect().removed == (), "too young"
    found = later(catalog).collect(grace=DAY)
    mine = {removal.key.split("/", 1)[1]: removal.why for removal in found.removed if removal.kind != "published"}
    assert set(left) <= mine.keys()
    assert all("writer died" in mine[name] for name in left)
    assert files_in(folder) == before
    assert (count(catalog, "t"), numbers(catalog)) == (5, [3, 2, 1])
    assert catalog.verify() == []


def test_a_manifest_that_is_not_understood_keeps_every_file(catalog: Any) -> None:
    folder = Path(make(catalog, "t"))
    (folder / "data/dead.lance").write_bytes(b"left")
    (folder / "_versions/18446744073709551600.manifest").write_bytes(b"from the future")
    later(catalog).collect(grace=DAY)
    assert (folder / "data/dead.lance").exists()


def test_a_tag_and_a_branch_keep_what_they_stand_on(catalog: Any) -> None:
    folder = make(catalog, "t", versions=3)
    dataset = lance.dataset(folder)
    dataset.tags.create("last", 3)
    store = Metastore(catalog.properties.root)
    with pytest.raises(InvalidTableStateError, match="the tag 'last' stands on version 3 of t"):
        store.undo(list(store.log())[-1])
    branch = dataset.create_branch("side", 1)
    branch = lance.write_dataset(rows(9), branch.uri, mode="append")
    expected = branch.to_table().to_pylist()
    later(catalog).collect(keep=NOW, grace=NOW)
    assert lance.dataset(folder, version="last").count_rows() == 5
    assert lance.dataset(branch.uri).to_table().to_pylist() == expected
    assert count(catalog, "t") == 5


def test_an_undone_version_is_gone_and_its_number_is_written_again(catalog: Any) -> None:
    make(catalog, "t", versions=3)
    store = Metastore(catalog.properties.root)
    store.undo(list(store.log())[-1])
    assert (count(catalog, "t"), numbers(catalog)) == (4, [2, 1])
    lance.write_dataset(rows(7), namespace_client=catalog, table_id=["t"], mode="append")
    lance.write_dataset(rows(8), namespace_client=catalog, table_id=["t"], mode="append")
    assert numbers(catalog) == [4, 3, 2, 1]
    later(catalog).collect(keep=NOW, grace=NOW)
    assert count(catalog, "t") == 6
    assert {problem.kind for problem in catalog.verify()} <= {"unrecorded_version"}, "what the undone version was"


def test_a_snapshot_of_lance_tables_is_read_after_drop_and_collection_and_holds_its_versions(catalog: Any) -> None:
    make(catalog, "t", versions=2)
    catalog.metastore.snapshot("s")
    for value in (5, 6):
        lance.write_dataset(rows(value), namespace_client=catalog, table_id=["t"], mode="append")
    ranges = [{"start_version": 2, "end_version": 3}]
    with pytest.raises(InvalidInputError, match="the snapshot 's' stands on it"):
        catalog.batch_delete_table_versions({"id": ["t"], "ranges": ranges})
    catalog.drop_table({"id": ["t"]})
    later(catalog).collect(keep=NOW, grace=NOW)
    past = catalog.at("s")
    assert count(past, "t") == 4
    assert code_of(lambda: count(catalog, "t")) in (1, 4)
    catalog.metastore.drop_snapshot("s")
    later(catalog, hours=1).collect(keep=NOW, grace=NOW)
    assert not any(name.endswith(".lance") for name in files_in(catalog.properties.root))
    assert catalog.metastore.verify() == []


def lake(root: str | Path | Store, clock: SeededClock | None = None, after: int = 0) -> Metastore:
    """A metastore years later, and so many hours after that."""
    return Metastore(root, clock=clock or SeededClock(after, start_ms=YEARS_LATER + after * 3_600_000))


def stream_table(store: Metastore, retention: str = "1 day") -> str:
    """Three changes, a publish with tombstones of the first two, and an unpublished tail; the tombstones' file."""
    with store.transaction() as tx:
        table = tx.create_table(["t"], formats=("delta", "lance"))
        tx.update_table_version(["t"], "1", {"stream": {}, "log_retention": retention})
    for name in "abc":
        store.store.put(f"{table.home}/data/{name}.parquet", b"rows")
        store.run(lambda tx, name=name: tx.append_delta(["t"], [f"{table.home}/data/{name}.parquet"]))  # type: ignore[misc]
    marks = f"{table.home}/data/x.tombstones.parquet"
    store.store.put(marks, b"marks")
    with store.transaction() as tx:
        known = {"position": 2, "tombstones": [[marks, 1, 5]]}
        tx.append_delta(["t"], [f"{table.home}/m"], format="lance", position=1, properties=known)
    return marks


def positions(store: Metastore) -> list[int]:
    return [delta.position for delta in store.deltas(["t"])]


def test_change_logs_are_kept_for_their_retention_and_the_unpublished_tail_for_ever(tmp_path: Path) -> None:
    clock = SeededClock(start_ms=YEARS_LATER)
    store = lake(tmp_path, clock)
    marks = stream_table(store)
    store.collect(keep=NOW, grace=NOW)
    assert positions(store) == [1, 2, 3]
    clock.sleep(3 * 86_400)
    told = store.collect(keep=NOW, grace=NOW, dry_run=True)
    assert [removal.key for removal in told.removed if removal.kind == "delta"] == ["t@1", "t@2"]
    assert positions(store) == [1, 2, 3]
    store.collect(keep=NOW, grace=NOW)
    store.collect(keep=NOW, grace=NOW)
    assert positions(store) == [3]
    names = {name.rsplit("/", 1)[-1] for name in files_in(tmp_path) if "/data/" in name}
    assert names == {"c.parquet", marks.rsplit("/", 1)[-1]}
    assert store.verify() == []


def reader(tx: Transaction) -> None:
    tx.create_stream(["t"], "reader", id="readers")
    tx.update_stream(["t"], "readers", {"slow": 1})


def voiding(tx: Transaction) -> None:
    tx.append_delta(["t"], [], properties={"voids": [2]})


@pytest.mark.parametrize("need", [reader, voiding])
def test_what_a_reader_or_an_undone_ingest_still_needs_of_a_change_log_stays(tmp_path: Path, need: Any) -> None:
    clock = SeededClock(start_ms=YEARS_LATER)
    store = lake(tmp_path, clock)
    stream_table(store)
    store.run(need)
    clock.sleep(3 * 86_400)
    store.collect(keep=NOW, grace=NOW)
    assert positions(store)[:3] == [1, 2, 3]


def prepared(root: Path | Store) -> Metastore:
    """Something of every kind that a collection takes, and a snapshot of what it must leave."""
    store = lake(root)
    stream_table(store)
    store.snapshot("s", [["t"]])
    with store.transaction() as tx:
        gone = tx.create_table(["gone"], formats=("delta", "lance"))
        store.store.put(f"{gone.home}/data/gone.parquet", b"rows")
        store.store.put(f"{gone.home}/1.lance/data/gone.lance", b"rows")
        tx.append_delta(["gone"], [f"{gone.home}/data/gone.parquet"])
    store.store.put("0123abcd_dead/data/x.lance", b"rows")
    store.store.put(f"{store.get(['t']).home}/data/orphan.parquet", b"rows")
    store.store.put(".headwater/snapshots/dead", b"half")
    store.run(lambda tx: (tx.drop(["gone"]), tx.rename(["t"], ["u"])))
    return store


def test_a_dry_run_tells_what_a_collection_then_removes_and_changes_nothing(tmp_path: Path) -> None:
    store = prepared(tmp_path)
    before, slot = files_in(tmp_path), store.slot
    told = store.collect(keep=NOW, grace=NOW, dry_run=True)
    assert (files_in(tmp_path), store.slot) == (before, slot)
    done = store.collect(keep=NOW, grace=NOW)
    assert told == done
    kinds = {removal.kind for removal in done.removed}
    assert kinds >= {"published", "slot", "data", "folder", "snapshot"}
    assert Removal("folder", "0123abcd_dead", "its creator died: it has no version, and was not touched since") in (
        done.removed
    )
    assert store.collect(keep=10**6, grace=NOW).removed == ()
    with pytest.raises(InvalidInputError, match="grace"):
        store.collect(grace=timedelta(-1))


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_collection_that_dies_at_any_step_leaves_nothing_torn_and_the_next_one_ends_it(
    tmp_path: Path, after: bool
) -> None:
    prepared(tmp_path / "whole")
    counting = CrashesAtStore(LocalStore(tmp_path / "whole"), step=0)
    shutil.copytree(tmp_path / "whole", tmp_path / "start")
    lake(counting, after=1).collect(keep=NOW, grace=NOW)
    pinned = state_of(lake(tmp_path / "whole").at("s"))
    for step in range(1, counting.writes + 1, 3):
        root = tmp_path / f"{step}"
        shutil.copytree(tmp_path / "start", root)
        with pytest.raises(Crash):
            lake(CrashesAtStore(LocalStore(root), step, after), after=1).collect(keep=NOW, grace=NOW)
        survivor = lake(root, after=2)
        assert survivor.verify() == []
        assert state_of(survivor.at("s")) == pinned
        assert [os.path.exists(root / file.path) for d in survivor.deltas(["u"]) for file in d.files] == [True] * 3
        survivor.collect(keep=NOW, grace=NOW)
        assert survivor.verify() == []
        left = {name for name in files_in(root) if "gone" in name or "dead" in name or "orphan" in name}
        assert left == set()
        assert state_of(survivor.at("s")) == pinned


def test_folders_overlap_as_their_paths_say() -> None:
    folders = Folders(["a/b", "c/"])
    assert [folders.overlap(one) for one in ("a", "a/b", "a/b/c", "c", "c/d", "ab", "a/bc", "d")] == [
        *[True] * 5,
        *[False] * 3,
    ]
    assert [folders.around(key) for key in ("a/b", "a/b/c", "a/bc")] == [False, True, False]


def test_a_drop_that_a_collection_passes_does_not_come_back_by_a_transaction_that_began_before(tmp_path: Path) -> None:
    catalog = headwater.Catalog(str(tmp_path / "lake"), impl="metastore")
    catalog.create_table("a.t", [{"id": 1}])
    catalog.drop_table("a.t")
    catalog.create_namespace("b")
    near = catalog.namespace
    assert isinstance(near, headwater.MetastoreNamespace)
    tx = near.metastore.transaction()
    tx.undrop(["a", "t"])
    assert near.metastore.collect(keep=0).boundary == tx.draft.base.at
    with pytest.raises(ConcurrentModificationError, match="a collection has forgotten"):
        tx.commit()
    with pytest.raises(TableNotFoundError):
        catalog.undrop("a.t")
    assert near.verify() == []


def test_a_table_that_a_transaction_made_and_dropped_or_did_not_commit_goes_with_the_next_collection(
    tmp_path: Path,
) -> None:
    catalog = headwater.Catalog(str(tmp_path / "lake"), impl="metastore")
    catalog.create_table("a.kept", [{"id": 1}])
    with catalog.transaction() as tx:
        tx.create_table("a.passing", [{"id": 1}])
        tx.drop_table("a.passing")
    with suppress(ZeroDivisionError), catalog.transaction() as tx:
        tx.create_table("a.undecided", [{"id": 1}])
        raise ZeroDivisionError
    assert {(problem.kind, problem.note) for problem in catalog.verify()} == {("unfinished_creation", True)}
    removed = later(catalog.namespace).collect(grace=NOW).removed
    assert sorted(removal.key[9:] for removal in removed if removal.kind == "folder") == ["a$passing", "a$undecided"]
    assert catalog.verify() == []
    assert catalog["a.kept"].count() == 1


def test_the_folder_of_a_dropped_table_that_a_killed_collection_left_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boundary is past the drop, and the next collection deletes the folder. Before, verify called it a finding."""
    catalog = headwater.Catalog(str(tmp_path / "lake"), impl="metastore")
    catalog.create_table("a.t", [{"id": 1}])
    catalog.drop_table("a.t")
    with monkeypatch.context() as patched:
        patched.setattr(Collection, "_delete", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            catalog.collect(keep=timedelta(0))
    assert [(problem.kind, problem.note) for problem in catalog.verify()] == [("unfinished_drop", True)]
    catalog.collect()
    assert catalog.verify() == []


def test_a_collection_takes_no_slot_that_its_checkpoint_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator's finding (commits, seed 49871): the boundary of another collection, which died after its commit,
    was folded by another thread between the checkpoint and the deletion. The catalog could not be opened."""
    near, other = Metastore(tmp_path / "lake"), Metastore(tmp_path / "lake")
    near.run(lambda tx: tx.create_namespace(["a"]))
    judged = kept_by

    def overtake(*args: Any) -> Any:
        monkeypatch.setattr(collect_module, "kept_by", judged)
        for name in "bcd":
            tx = other.transaction()
            tx.create_namespace([name])
            tx.commit()
        with monkeypatch.context() as patched, suppress(ZeroDivisionError):
            patched.setattr(collect_module, "_fresh_checkpoint", lambda *_: 1 / 0)
            other.collect(keep=0)
        near.now()
        return judged(*args)

    monkeypatch.setattr(collect_module, "kept_by", overtake)
    near.collect(keep=10)
    again = Metastore(tmp_path / "lake")
    assert [found.name for found in again.list()] == list("abcd")
    assert again.verify() == []


@pytest.mark.parametrize("error", [ServiceUnavailableError, InvalidTableStateError])
def test_a_slot_that_cannot_be_read_ends_a_collection_before_it_deletes_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    with Metastore(tmp_path / "lake") as metastore:
        for number in range(4):
            with metastore.transaction("make") as tx:
                tx.create_table((f"t{number}",))
        metastore.collect(keep=2)
        with metastore.transaction("make") as tx:
            tx.create_table(("last",))
        read = Log.read_slot
        judging: list[int] = []

        def failing(self: Log, number: int) -> Any:
            if judging and number == metastore.slot:
                raise error("The storage did not answer.")
            return read(self, number)

        judge = Garbage.judge

        def judged(self: Garbage, *args: Any) -> Any:
            judging.append(1)
            return judge(self, *args)

        monkeypatch.setattr(Log, "read_slot", failing)
        monkeypatch.setattr(Garbage, "judge", judged)
        with pytest.raises(error):
            metastore.collect(keep=1)
        monkeypatch.undo()
        assert judging
        assert metastore.verify() == []
