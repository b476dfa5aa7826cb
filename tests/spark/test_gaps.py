"""Versions cleaned up by pylance itself before a stream read them: every row exactly once, or a clear stop."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import lance
import msgspec
import pyarrow as pa
import pytest

from headwater.errors import LanceNamespaceError, TableVersionNotFoundError
from headwater.names import ObjectId
from headwater.spark import stream
from headwater.spark.wire_values import WireScan
from headwater.tables.handle import TableHandle
from headwater.tables.scan.changes import next_row_id
from headwater.tables.scan.table_scan import read
from headwater.types import spark_schema

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
FEW_SEEDS = (0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8)))


class Reader:
    """A stream as Spark drives it: an offset, a tag at the last version read, and the ids it has emitted."""

    def __init__(self, path: Path, tagged: bool = True) -> None:
        self.table = TableHandle(ObjectId(("t",)), str(path), version=1)
        self.tagged = tagged
        self.offset: stream.Offset = {"version": 1}
        self.seen: list[int] = []
        self.tag()

    def tag(self) -> None:
        if self.tagged:
            stream.move_tag(lance.dataset(self.table.uri), "headwater-stream-x", self.offset["version"])

    def next_offset(self, max_rows: int | None = None) -> stream.Offset:
        newest = lance.dataset(self.table.uri).version
        return stream.latest(self.table, newest, self.offset, {}, None, max_rows)

    def batch(self, end: stream.Offset) -> list[int]:
        parts = stream.plan(self.table, self.offset, end, 2, skip=False)
        asked = {"table": self.table.to_json(), "columns": ["id"], "schema": spark_schema(SCHEMA.remove(1))}
        scan, found = msgspec.convert(asked, WireScan).engine(), list[int]()
        for part in parts:
            for batch in read(scan, part):
                found += batch.column("id").to_numpy().tolist()
        return found

    def run(self) -> None:
        while (end := self.next_offset(max_rows=7)) != self.offset:
            self.seen += self.batch(end)
            self.offset = end
            self.tag()


def append(path: Path, first: int, rows: int) -> None:
    data = pa.table({"id": list(range(first, first + rows)), "n": [0] * rows}, schema=SCHEMA)
    lance.write_dataset(data, str(path), mode="append")


def clean_up(path: Path) -> None:
    """pylance's own clean-up of everything but the newest version and tagged ones."""
    lance.dataset(str(path)).cleanup_old_versions(dt.timedelta(0), error_if_tagged_old_versions=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    lance.write_dataset(SCHEMA.empty_table(), str(tmp_path / "t"), enable_stable_row_ids=True)
    return tmp_path / "t"


def change(path: Path, chance: random.Random, first: int, kinds: str) -> int:
    """One random commit; the first id that is free after it."""
    kind, dataset = chance.choice(kinds), lance.dataset(str(path))
    if kind == "c":
        dataset.optimize.compact_files()
    elif kind == "i" and dataset.count_rows():
        dataset.create_scalar_index("id", "BTREE", replace=True)
    elif kind == "d":
        dataset.delete(f"id = {chance.randrange(first)}")
    elif kind == "u":
        dataset.update({"n": "n + 1"}, where=f"id = {chance.randrange(first)}")
    else:
        append(path, first, rows := chance.randint(1, 6))
        return first + rows
    return first


@pytest.mark.long
@pytest.mark.parametrize("seed", FEW_SEEDS)
@pytest.mark.parametrize("tagged", [True, False])
def test_a_stream_reads_every_appended_row_once_across_the_clean_ups_of_another_client(
    path: Path, seed: int, tagged: bool
) -> None:
    chance, first = random.Random(seed), 1
    append(path, 0, 1)
    reader = Reader(path, tagged)
    for _ in range(25):
        first = change(path, chance, first, "aaaaci")
        if chance.random() < 0.4:
            clean_up(path)
        if chance.random() < 0.3:
            reader.run()
    reader.run()
    assert sorted(reader.seen) == list(range(first))


@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_with_changes_in_between_a_stream_reads_every_row_once_or_stops_before_it_emits_any(
    path: Path, seed: int
) -> None:
    chance, first = random.Random(seed), 1
    append(path, 0, 1)
    reader = Reader(path)
    for _ in range(12):
        first = change(path, chance, first, "aaaacdu")
        if chance.random() < 0.5:
            clean_up(path)
        read_all = chance.random() < 0.5
        try:
            reader.run() if read_all else None
        except LanceNamespaceError:
            break
        assert not read_all or sorted(reader.seen) == list(range(first))
    assert len(set(reader.seen)) == len(reader.seen)


@pytest.mark.parametrize(
    "statement", ["delete of an old row", "delete of a new row", "update of a new row", "overwrite"]
)
def test_a_gap_in_which_rows_changed_is_not_guessed(path: Path, statement: str) -> None:
    append(path, 0, 5)
    reader = Reader(path)
    reader.run()
    append(path, 5, 5)
    dataset = lance.dataset(str(path))
    if statement.startswith("delete"):
        dataset.delete("id = 1" if "old" in statement else "id = 9")
        dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
    elif statement.startswith("update"):
        dataset.update({"n": "7"}, where="id = 7")
    else:
        lance.write_dataset(dataset.to_table(), str(path), mode="overwrite")
    append(path, 10, 1)
    clean_up(path)
    with pytest.raises(TableVersionNotFoundError, match=r"cleaned up.*changed or deleted.*startingVersion = "):
        reader.run()
    assert reader.seen == [0, 1, 2, 3, 4]


def test_a_batch_replayed_after_its_own_end_was_cleaned_up_has_the_same_rows(path: Path) -> None:
    append(path, 0, 3)
    reader = Reader(path)
    end = reader.next_offset()
    planned = reader.batch(end)
    append(path, 3, 3)
    lance.dataset(str(path)).optimize.compact_files()
    clean_up(path)
    assert reader.batch(end) == planned == [0, 1, 2]
    reader.seen, reader.offset = planned, end  # the tag stays where it was: that version is gone
    reader.run()
    assert sorted(reader.seen) == list(range(6))


def test_without_stable_row_ids_a_gap_is_named_with_what_to_do(tmp_path: Path) -> None:
    lance.write_dataset(SCHEMA.empty_table(), str(tmp_path / "t"))
    reader = Reader(tmp_path / "t")
    append(tmp_path / "t", 0, 3)
    append(tmp_path / "t", 3, 3)
    clean_up(tmp_path / "t")
    with pytest.raises(
        TableVersionNotFoundError, match=r"version 2 was cleaned up.*no stable row ids.*system\.cleanup"
    ):
        reader.run()


def test_the_next_row_id_is_the_number_of_rows_ever_made(path: Path) -> None:
    assert next_row_id(lance.dataset(str(path))) == 0
    append(path, 0, 300)
    lance.dataset(str(path)).delete("id < 100")
    append(path, 300, 2)
    assert next_row_id(lance.dataset(str(path))) == 302
