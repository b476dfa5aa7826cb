"""Rows that keep their ids: our manifest says what Lance's own commit would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.fragment import RowIdSequence, write_fragments

from headwater.lance_manifest import manifest_message
from headwater.metastore import Metastore
from headwater.protobuf import parse
from headwater.streams import StreamTable
from headwater.streams.serving import compaction
from headwater.streams.serving.row_ids import KeptIds, created_versions, id_sequence, kept, with_kept
from headwater.tables.handle import fragment_of

COLUMNS = ["id", "v", "_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


@pytest.mark.parametrize(
    "ids",
    [
        [0],
        [7],
        list(range(100)),
        [1, 3, 5],
        [*range(5, 60), *range(61, 200)],
        [0, 1 << 40],
        [5, 1 << 20, 1 << 31],
        np.sort(np.random.default_rng(1).choice(10_000, 3_000, replace=False)).tolist(),
        np.sort(np.random.default_rng(2).choice(10_000, 9_990, replace=False)).tolist(),
        np.sort(np.random.default_rng(3).choice(1_000_000, 50, replace=False) + (1 << 40)).tolist(),
    ],
)
def test_ids_are_written_as_lance_writes_them(ids: list[int]) -> None:
    theirs = bytes(json.loads(RowIdSequence(ids).to_inline_metadata().json())["Inline"])
    assert kept(np.array(ids), np.ones(len(ids), np.int64)).ids == theirs


def test_what_is_kept_travels_as_text() -> None:
    known = kept(np.array([1, 5, 9]), np.array([1, 1, 4]))
    assert KeptIds.from_json(json.loads(json.dumps(known.to_json()))) == known


def _version(folder: Path) -> Path:
    return min((folder / "_versions").glob("*.manifest"))  # of the newest version


def _rows(dataset: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = dataset.scanner(columns=COLUMNS).to_table().to_pylist()
    return sorted(rows, key=lambda row: row["_rowid"])


def _committed(folder: Path, ids: Any, new: int, ours: bool, turn: int) -> Any:
    """One update of rows by id and some new rows: as Lance commits it, or with the manifest completed by us."""
    dataset = lance.dataset(folder)
    found = dataset.scanner(columns=["id"], with_row_id=True, with_row_address=True).to_table()
    place = {row["_rowid"]: (row["_rowaddr"], row["id"]) for row in found.to_pylist()}
    addresses = np.array([place[id][0] for id in ids])
    rows = pa.table({"id": [place[id][1] for id in ids], "v": [turn] * len(ids)})
    added = pa.table({"id": np.arange(new) + 1000 * turn, "v": [turn] * new})
    fragments = [*write_fragments(added, dataset, mode="append"), *write_fragments(rows, dataset, mode="append")]
    changed = [
        fragment_of(dataset, id).delete_rows((addresses[addresses >> 32 == id] & 0xFFFFFFFF).tolist())
        for id in np.unique(addresses >> 32).tolist()
    ]
    metadata = {each.fragment_id: each.metadata for each in dataset.get_fragments()}
    if not ours:
        fragments[1].row_id_meta = RowIdSequence(list(ids)).to_inline_metadata()
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=[],
        updated_fragments=[each for each in changed if each is not None],
        new_fragments=fragments,
    )
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    if ours:
        versions = created_versions(metadata, addresses)
        assert versions is not None
        newest = _version(folder)
        newest.write_bytes(with_kept(newest.read_bytes(), {fragments[1].files[0].path: kept(np.array(ids), versions)}))


def _plain(folder: Path) -> list[Any]:
    """The fields of the newest manifest without what differs by itself: names of files, times, the transaction."""
    found: list[Any] = []
    for field, value, _ in parse(manifest_message(_version(folder).read_bytes())):
        if field == 2:
            assert isinstance(value, bytes)
            found.append(sorted((inner, content) for inner, content, _ in parse(value) if inner not in (2, 3)))
        elif field not in (7, 12, 23):
            found.append((field, value))
    return found


def test_a_completed_manifest_is_the_one_that_lance_makes(tmp_path: Path) -> None:
    """Over several versions, so that rows of one update were created in different ones, with compactions between."""
    for name in ("ours", "theirs"):
        rows = pa.table({"id": np.arange(400), "v": np.zeros(400, np.int64)})
        lance.write_dataset(rows, tmp_path / name, enable_stable_row_ids=True, max_rows_per_file=100)
        lance.dataset(tmp_path / name).create_scalar_index("id", "BTREE")
    count = 400
    for turn in range(1, 6):
        ids = np.sort(np.random.default_rng(turn).choice(count, 60, replace=False)).tolist()
        for name in ("ours", "theirs"):
            _committed(tmp_path / name, ids, turn, name == "ours", turn)
        count += turn
        assert _plain(tmp_path / "ours") == _plain(tmp_path / "theirs")
        assert _rows(lance.dataset(tmp_path / "ours")) == _rows(lance.dataset(tmp_path / "theirs"))
        for name in ("ours", "theirs") if turn % 2 else ():  # of what is left of runs, Lance says the old places
            options: Any = {"materialize_deletions_threshold": 0.1}
            lance.dataset(tmp_path / name).optimize.compact_files(target_rows_per_fragment=100, **options)


@pytest.mark.parametrize("parts", [1, 3, 100])
@pytest.mark.parametrize("step", [1, 2, 40, 1 << 20])
def test_the_ids_of_rows_are_told_as_lance_reads_them(tmp_path: Path, parts: int, step: int) -> None:
    random = np.random.default_rng(parts)
    ids = np.concatenate(
        [np.sort(random.choice(900 * step, 300, replace=False)) + 900 * step * part for part in range(parts, 0, -1)]
    )
    fragment = write_fragments(pa.table({"n": np.arange(len(ids))}), tmp_path / "t", enable_stable_row_ids=True)[0]
    compaction._identify([fragment], ids)
    operation = lance.LanceOperation.Overwrite(pa.schema({"n": pa.int64()}), [fragment])
    made = lance.LanceDataset.commit(tmp_path / "t", operation, enable_stable_row_ids=True)
    found = made.scanner(columns=["n"], with_row_id=True).to_table()
    assert found["_rowid"].to_pylist() == ids.tolist()
    assert made._take_rows([int(ids[7])], columns=["n"])["n"].to_pylist() == [7]
    assert (id_sequence(ids) is None) == (parts == 100)


def test_a_published_row_keeps_its_id_and_the_version_it_was_created_in(tmp_path: Path) -> None:
    """Through updates, inserts, deletes, an undo and fragments that are written anew, and no id is used up."""
    with Metastore(tmp_path) as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "v": "int64"}, keys="id")
        born: dict[int, tuple[int, int]] = {}
        random = np.random.default_rng(5)
        for turn in range(10):
            ids = random.choice(200, 60, replace=False).tolist()
            table.upsert(pa.table({"id": ids, "v": [turn] * len(ids)}), source=f"turn {turn}")
            gone = random.choice(200, 5, replace=False).tolist()
            table.delete(gone)
            if turn == 5:
                table.undo(source="turn 4")
            table.publish()
            dataset = lance.dataset(f"{table._lake().uri}/{table.opened()[0].serving}")
            rows = dataset.scanner(columns=["id", "_row_created_at_version"], with_row_id=True).to_table().to_pylist()
            now = {row["id"]: (row["_rowid"], row["_row_created_at_version"]) for row in rows}
            for id in now.keys() & born.keys():
                assert now[id] == born[id]
            assert len({row["_rowid"] for row in rows}) == len(rows)
            assert dataset.to_table(filter="id = 7").num_rows == (7 in now)
            born = now
        assert max(row for row, _ in born.values()) < 400  # 200 keys, and those that came back
        assert table.verify() == []


def test_a_version_of_indices_on_top_gives_out_no_id_again(tmp_path: Path) -> None:
    with Metastore(tmp_path) as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "v": "int64"}, keys="id")
        for first, end in ((0, 100), (90, 160), (150, 180)):  # the second makes the index lag
            table.upsert(pa.table({"id": np.arange(first, end), "v": np.full(end - first, first)}))
            table.publish()
        uri = f"{table._lake().uri}/{table.opened()[0].serving}"
        rows = lance.dataset(uri).scanner(columns=["id"], with_row_id=True).to_table()
        assert sorted(rows.column("_rowid").to_numpy().tolist()) == list(range(180))
        assert table.published is not None
        assert table.published.version > 4
