"""What publishes write beside their changes: fragments anew, as much as the changes pay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from headwater.lance_manifest import read_contents
from headwater.metastore import Metastore
from headwater.store.local import LocalStore
from headwater.streams import StreamTable
from headwater.streams.reading.position_views import newest_published
from headwater.streams.serving import compaction
from headwater.streams.serving.serving_copy import open_version

WIDE, ROWS, PARTS = 256, 4_000, 4
CHANGED, PUBLISHES = 400, 10


def rows(ids: Any, turn: int) -> pa.Table:
    """Rows whose bytes are those of their text, which nothing compresses."""
    raw = np.random.default_rng(turn).bytes(len(ids) * WIDE)
    texts = [raw[at : at + WIDE].hex()[:WIDE] for at in range(0, len(raw), WIDE)]
    return pa.table({"id": np.asarray(ids), "v": texts})


def fragment(number: int, rows: int, deleted: int) -> Any:
    return SimpleNamespace(
        fragment_id=number, metadata=SimpleNamespace(id=number, physical_rows=rows, num_deletions=deleted)
    )


def dataset(*fragments: Any) -> Any:
    return SimpleNamespace(get_fragments=lambda: list(fragments))


def test_a_publish_writes_the_cheapest_fragments_anew_and_no_more_than_its_change_pays() -> None:
    million = 1_000_000
    found = dataset(
        fragment(0, million, 250_000),
        fragment(1, million, 300_000),
        fragment(2, million, 100_000),
        fragment(3, million, 210_000),
    )
    assert compaction.due(found) == [0, 1, 3]
    assert compaction.due(found, changed=10) == []
    assert compaction.due(found, changed=700_000) == [1]
    assert compaction.due(found, changed=1_450_000) == [0, 1]
    assert compaction.due(found, changed=5 * million) == [0, 1, 3]


def test_a_fragment_that_has_lost_half_waits_no_longer_and_one_is_written_at_a_time() -> None:
    million = 1_000_000
    found = dataset(fragment(0, million, 510_000), fragment(1, million, 600_000), fragment(2, million, 800_000))
    assert compaction.due(found, changed=10) == [2]
    assert compaction.due(found, changed=200_000) == [1, 2]
    assert compaction.due(dataset(fragment(0, million, 510_000)), changed=10) == [0]


def test_small_fragments_are_joined_in_their_order_as_far_as_it_is_paid() -> None:
    small = [fragment(number, 60_000, 0) for number in range(compaction.MANY + 1)]
    assert compaction.due(dataset(*small[:-1]), changed=240_000) == []
    assert compaction.due(dataset(*small), changed=300_000) == [0, 1, 2, 3, 4]


def test_a_run_of_publishes_writes_a_bounded_multiple_of_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SMALL_ROWS", 10)
    monkeypatch.setattr(compaction, "FREE", 0)
    with Metastore(tmp_path) as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "v": "string"}, keys="id")
        part = ROWS // PARTS
        for start in range(0, ROWS, part):
            table.upsert(rows(np.arange(start, start + part), 1000 + start))
            table.publish()
        folder = Path(f"{table._lake().uri}/{table.opened()[0].serving}")
        known = {file: file.stat().st_size for file in (folder / "data").iterdir()}
        row = sum(known.values()) / ROWS
        written = []
        for turn in range(PUBLISHES):
            table.upsert(rows(np.random.default_rng(turn).choice(ROWS, CHANGED, replace=False), turn))
            table.publish()
            now = {file: file.stat().st_size for file in (folder / "data").iterdir()}
            written.append(sum(size for file, size in now.items() if file not in known))
            known = {**known, **now}
        change, half = row * CHANGED, row * part / 2
        slack = 1.1  # heads and feet of files
        assert max(written) < ((1 + compaction.PAID) * change + half) * slack
        assert sum(written) < (1 + compaction.PAID) * change * PUBLISHES * slack
        assert any(size > 1.5 * change for size in written)  # fragments were written anew
        copy = lance.dataset(folder)
        assert sum(each.metadata.physical_rows for each in copy.get_fragments()) < 2 * copy.count_rows()
        assert table.verify() == []


LARGE = (6400, 3200, 1600, 800)


@pytest.mark.parametrize(
    ("sizes", "added", "joined"),
    [
        ([], 5, 0), ([100], 5, 0), ([100, 9, 9, 9, 9, 9, 9], 5, 0), ([*LARGE, 400, 200, 100, 50], 5, 0),
        ([*LARGE, 400, 200, 100, 9], 5, 1), ([*LARGE, 400, 100, 50, 9], 5, 1), ([*LARGE, 400, 100, 20, 9], 5, 2),
        ([8, 8, 8, 8, 30, 20, 9, 1], 5, 8), ([9, 9, 9, 9, 9, 9, 100, 9], 5, 1),
    ],
)  # fmt: skip
def test_many_segments_of_an_index_are_joined_until_each_has_twice_the_rows_of_all_after_it(
    sizes: list[int], added: int, joined: int
) -> None:
    assert compaction.last_to_join(sizes, added) == joined


def test_rows_are_added_to_the_index_of_the_key_before_a_lookup_has_many_to_look_through(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the table is: a part of its rows would grow with it."""
    monkeypatch.setattr(compaction, "LACKING", 10)
    table = StreamTable.create(metastore, ["t"], {"id": "bigint", "kind": "string", "n": "bigint"}, ["id", "kind"])
    table.upsert([{"id": number, "kind": "a", "n": 0} for number in range(1000)])
    table.publish()
    table.upsert([{"id": number, "kind": "b", "n": 0} for number in range(10)])
    table.publish()
    assert set(table.coverage().values()) == {1000 / 1010}
    table.upsert([{"id": 2000 + number, "kind": "b", "n": 0} for number in range(5)])
    table.publish()
    assert set(table.coverage().values()) == {1.0}
    opened, snapshot = table.opened()
    newest = newest_published(snapshot, opened)
    assert newest is not None
    dataset = open_version(table._lake(), opened, newest.version, newest.manifest)
    assert [len(index.segments) for index in dataset.describe_indices()] == [2, 2]
    table.upsert([{"id": 2001, "kind": "b", "n": 1}, {"id": 3, "kind": "a", "n": 1}, {"id": 3, "kind": "b", "n": 1}])
    table.publish()
    assert sorted(row["id"] for row in table.to_arrow().to_pylist() if row["n"]) == [3, 3, 2001]
    assert table.verify() == []


def test_all_that_a_published_version_refers_to_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, deletions, fragments that were written anew, segments of indices and the manifests themselves."""
    for name, value in {"SMALL_ROWS": 1, "FREE": 0, "LACKING": 100, "PAID": 5}.items():
        monkeypatch.setattr(compaction, name, value)
    synced: set[str] = set()
    sync = LocalStore.sync

    def noted(store: LocalStore, keys: Sequence[str]) -> None:
        synced.update(keys)
        sync(store, keys)

    monkeypatch.setattr(LocalStore, "sync", noted)
    with Metastore(tmp_path) as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "v": "string"}, keys="id")
        for turn in range(4):
            table.upsert(rows(np.arange(turn, 1000, 2 if turn else 1), turn))
            table.publish()
            opened, snapshot = table.opened()
            newest = newest_published(snapshot, opened)
            assert newest is not None
            assert newest.manifest in synced
            found = read_contents(metastore.store.get(newest.manifest))
            named = {f"{opened.serving}/{file}" for file in found.files if not file.startswith("_transactions")}
            for folder in found.folders:
                named |= {entry.key for entry in metastore.store.list(f"{opened.serving}/{folder}")}
            assert named <= synced
        assert any("_indices" in key for key in synced)
        assert any("_deletions" in key for key in synced)
        assert newest is not None
        assert newest.version > 2 * 4  # some were written anew, and added to the index
