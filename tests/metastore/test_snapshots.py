"""A named snapshot reads the same for ever, whatever happens to what it was taken of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.clock import SeededClock
from headwater.errors import InvalidInputError, TableNotFoundError, TableTagAlreadyExistsError, TableTagNotFoundError
from headwater.metastore import Metastore
from headwater.metastore.records.layout import PENDING_DELETES, SNAPSHOTS
from headwater.metastore.state import index as index_module
from headwater.store import LocalStore, Store, WrappedStore
from tests.metastore.test_undo import state_of

NOW = timedelta(0)


@pytest.fixture
def store(tmp_path: Path) -> Metastore:
    opened = Metastore(tmp_path, clock=SeededClock(start_ms=4_000_000_000_000))
    with opened.transaction("first") as tx:
        tx.create_namespace(["n"], {"v": 1})
        tx.alias(["n"], "other")
        for name in ("t", "u"):
            table = tx.create_table(["n", name], {"of": name}, formats=("delta", "lance"))
            key = f"{table.home}/data/{name}.parquet"
            opened.store.put(key, name.encode())
            tx.append_delta(["n", name], [key])
            tx.append_delta(["n", name], ["m"], format="lance", position=1)
    return opened


def wreck(store: Metastore) -> None:
    """Change, rename and drop all there is, and forget all of it."""
    for number in range(10):
        store.run(lambda tx, number=number: tx.update(["n"], {"v": number}))  # type: ignore[misc]
    store.run(lambda tx: tx.append_delta(["n", "u"], ["later"]))
    store.run(lambda tx: tx.rename(["n"], ["gone"]))
    store.run(lambda tx: tx.drop(["gone"], cascade=True))
    store.collect(keep=NOW, grace=NOW)


def test_a_snapshot_reads_the_same_after_everything_was_changed_dropped_and_collected(
    store: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "CHECKPOINT_CHANGES", 6)
    told = store.snapshot("release-1")
    assert (told.slot, [(t.path, t.version, t.position) for t in told.tables]) == (
        1,
        [(("n", "t"), 1, 1), (("n", "u"), 1, 1)],
    )
    before = state_of(store.at(1))
    wreck(store)
    assert store.list() == []
    for handle in (store, Metastore(store.store)):
        past = handle.at("release-1")
        assert state_of(past) == before
        assert past.get(["other", "t"]).properties == {"of": "t"}
        for name in ("t", "u"):
            file = past.deltas(["n", name])[0].files[0].path
            assert handle.store.get(file) == name.encode()
        assert handle.snapshots() == [told]
        assert handle.verify() == []


def test_a_snapshot_of_some_tables_holds_no_others_and_lets_their_files_go(store: Metastore) -> None:
    files = {name: store.deltas(["n", name])[0].files[0].path for name in ("t", "u")}
    told = store.snapshot("one", [["other", "t"]])
    assert [table.path for table in told.tables] == [("n", "t")]
    wreck(store)
    past = store.at("one")
    assert [child.path for child in past.list(["n"])] == [("n", "t")]
    assert store.store.head(files["t"]) is not None
    assert store.store.head(files["u"]) is None
    with pytest.raises(TableNotFoundError):
        past.get(["n", "u"])


def test_names_of_snapshots_are_taken_once_dropped_and_taken_again(store: Metastore) -> None:
    store.snapshot("s")
    with pytest.raises(TableTagAlreadyExistsError):
        store.snapshot("s")
    with pytest.raises(InvalidInputError):
        store.snapshot("a/b")
    with pytest.raises(TableTagNotFoundError, match="The catalog has s"):
        store.at("t")
    with pytest.raises(TableNotFoundError):
        store.snapshot("none", [["n", "none"]])
    store.drop_snapshot("s")
    assert store.snapshots() == []
    with pytest.raises(TableTagNotFoundError):
        store.drop_snapshot("s")
    assert store.snapshot("s").slot == 3
    assert [found.name for found in store.snapshots()] == ["s"]
    assert [child.name for child in store.list()] == ["n"], "a snapshot is no object of the tree"


def test_a_dropped_snapshot_lets_its_files_go_once_the_drop_is_past_its_window(store: Metastore) -> None:
    file = store.deltas(["n", "t"])[0].files[0].path
    store.snapshot("s")
    wreck(store)
    store.drop_snapshot("s")
    assert store.undo(next(e for e in store.log() if e.message == "drop snapshot s")).steps[0].action == "undrop"
    assert store.at("s").exists(["n", "t"])
    store.drop_snapshot("s")
    assert store.store.head(file) is not None
    store.collect(keep=NOW, grace=NOW)
    assert store.store.head(file) is None
    assert list(store.store.list(".headwater/snapshots")) == []
    assert store.verify() == []


def test_a_snapshot_is_read_from_its_last_publish_and_what_came_after(store: Metastore) -> None:
    for name in "bcd":
        store.run(lambda tx, name=name: tx.append_delta(["n", "t"], [name]))  # type: ignore[misc]
    with store.transaction() as tx:
        tx.append_delta(["n", "t"], ["p"], format="lance", position=2, properties={"position": 2})
        tx.append_delta(["n", "t"], ["q"], format="lance", position=3, properties={"position": 3})
    store.snapshot("published")
    past = store.at("published")
    assert [delta.position for delta in past.deltas(["n", "t"])] == [4]
    assert [delta.position for delta in past.deltas(["n", "t"], format="lance")] == [3]
    assert past.last_position(["n", "t"]) == 4
    store.run(lambda tx: tx.append_delta(["n", "t"], [], properties={"voids": [3]}))
    store.snapshot("voided")
    past = store.at("voided")
    assert [delta.position for delta in past.deltas(["n", "t"])] == [3, 4, 5]
    assert [delta.position for delta in past.deltas(["n", "t"], format="lance")] == [2, 3]


def test_diff_compares_snapshots_with_anything(store: Metastore) -> None:
    store.snapshot("s")
    wreck(store)
    found = store.diff("s", store.slot)
    assert [each.path for each in found.removed] == [("n",), ("n", "t"), ("n", "u")]
    assert store.diff("s", "s").removed == ()


class At(WrappedStore):
    """Does something else right before the first file of a folder is written."""

    def __init__(self, inner: Store, folder: str, work: Callable[[], Any]) -> None:
        super().__init__(inner)
        self.folder = folder
        self.work: Callable[[], Any] | None = work

    def around(self, verb: str, key: str, action: Callable[[], Any]) -> Any:
        if verb == "put" and key.startswith(self.folder) and self.work is not None:
            work, self.work = self.work, None
            work()
        return action()


def test_a_collection_that_overtakes_a_snapshot_makes_it_look_again(store: Metastore, tmp_path: Path) -> None:
    def overtake() -> None:
        store.run(lambda tx: tx.drop(["n", "u"]))
        store.collect(keep=NOW, grace=NOW)

    told = Metastore(At(LocalStore(tmp_path), SNAPSHOTS, overtake)).snapshot("s")
    assert [table.path for table in told.tables] == [("n", "t")]
    assert store.at("s").exists(["n", "t"])
    assert store.verify() == []


def test_a_snapshot_committed_while_a_collection_looks_keeps_its_files(store: Metastore, tmp_path: Path) -> None:
    wanted = state_of(store.now())
    files = [delta.files[0].path for name in ("t", "u") for delta in store.deltas(["n", name])]
    tx = store.transaction("a snapshot under way")
    tx.snapshot("s", file="its-file")
    store._snapshots.write("its-file", tx.draft.base, None)
    collector = At(LocalStore(tmp_path), PENDING_DELETES, tx.commit)
    opened = Metastore(collector, clock=SeededClock(1, start_ms=4_000_000_000_000 + 10**6))
    opened.run(lambda tx: (tx.drop(["n", "u"]), tx.drop_delta(["n", "t"], 1)))
    assert opened.collect(keep=NOW, grace=NOW).boundary == 2
    assert tx.slot == 3
    assert state_of(store.at("s")) == wanted
    assert all(store.store.head(file) is not None for file in files)
    store.drop_snapshot("s")
    Metastore(tmp_path, clock=SeededClock(2, start_ms=4_000_000_000_000 + 10**7)).collect(keep=NOW, grace=NOW)
    assert all(store.store.head(file) is None for file in files)
    assert store.verify() == []


def test_the_rows_of_a_stream_table_stay_as_they_were_in_a_snapshot(tmp_path: Path) -> None:
    catalog = headwater.Catalog(str(tmp_path / "lake"))
    fields: list[tuple[str, pa.DataType]] = [("k", pa.int64()), ("v", pa.string())]
    catalog.create_stream_table("t", pa.schema(fields), keys=["k"])
    table = catalog["t"]
    table.upsert(pa.table({"k": [1, 2, 3], "v": ["a", "b", "c"]}))
    table.delete(pa.table({"k": [2]}))
    table.publish()
    table.upsert(pa.table({"k": [4], "v": ["d"]}))
    catalog.snapshot("s")
    for number in range(3):
        table.upsert(pa.table({"k": [1, 9], "v": [f"{number}", "z"]}))
        table.publish()
    catalog.drop_table("t")
    for hours in (0, 1):
        clock = SeededClock(hours, start_ms=4_000_000_000_000 + hours * 3_600_000)
        Metastore(tmp_path / "lake", clock=clock).collect(keep=NOW, grace=NOW)
        rows = catalog.at("s")["t"].to_arrow().sort_by("k").to_pylist()
        assert rows == [{"k": 1, "v": "a"}, {"k": 3, "v": "c"}, {"k": 4, "v": "d"}]
    assert catalog.verify() == []
