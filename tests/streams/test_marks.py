"""Partial rows out of order: marks beside the log, added columns, truncations, versions of older rules, lateness."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import headwater.streams.reading.position_views as position_views
from headwater.errors import InvalidTableStateError
from headwater.metastore import Metastore
from headwater.streams.table import StreamTable
from tests.streams.test_history import history_of

SCHEMA = {"id": "int64", "at": "int64", "a": "string", "b": "string"}


def rows_of(table: StreamTable, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_arrow(**options).to_pylist())


def held(table: StreamTable) -> list[tuple[Any, ...]]:
    """Rows read in every way, which are one."""
    found = rows_of(table)
    table.publish()
    assert rows_of(table) == found
    assert table.verify() == []
    return found


@pytest.fixture
def table(metastore: Metastore) -> StreamTable:
    return StreamTable.create(metastore, ["t"], SCHEMA, "id", "at")


@pytest.mark.parametrize("published", [False, True])
def test_an_older_partial_row_fills_the_cells_that_no_newer_one_wrote(table: StreamTable, published: bool) -> None:
    for row in ({"at": 1, "a": "a1", "b": "b1"}, {"at": 10, "a": "a10"}, {"at": 2, "b": "b2"}, {"at": 3, "a": "late"}):
        table.upsert([{"id": 1, **row}])
        if published:
            table.publish()
    assert held(table) == [(1, 10, "a10", "b2")]
    assert table.published is not None
    table.delete([{"id": 1, "at": 5}])  # older than the row, newer than b
    assert held(table) == [(1, 10, "a10", None)]
    table.upsert([{"id": 1, "at": 4, "b": "b4"}])
    assert held(table) == [(1, 10, "a10", None)]
    assert [row[1:] for row in rows_of(table, position=table.position)] == [(10, "a10", None)]


def test_a_whole_row_takes_the_marks_away_and_no_table_of_whole_rows_has_any(table: StreamTable) -> None:
    table.upsert([{"id": id, "at": 1, "a": "x", "b": "y"} for id in range(4)])
    assert table.publish().tombstones == ()
    table.upsert([{"id": 1, "at": 2, "a": "x2"}])
    (file,) = table.publish().tombstones
    assert file.rows == 1
    table.upsert([{"id": 1, "at": 3, "a": "x3", "b": "y3"}])
    table.publish()
    table.upsert([{"id": 1, "at": 2, "b": "late"}])
    published = table.publish()
    assert (published.late, published.tombstones) == (1, ())
    assert held(table)[1] == (1, 3, "x3", "y3")


def test_undo_of_a_file_and_taking_it_again_give_the_same_table(table: StreamTable, tmp_path: Path) -> None:
    """Files 1, 2 and 10 in any order: each has what the others lack."""
    for number, row in ((1, {"a": "a1", "b": "b1"}), (2, {"b": "b2"}), (10, {"a": "a10"})):
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": 1, "at": number, **row}))
    for number in (1, 10, 2):
        table.ingest(tmp_path / f"{number}.json", source="s")
        table.publish()
    expected = [(1, 10, "a10", "b2")]
    assert held(table) == expected
    table.undo(source="s", file=str(tmp_path / "2.json"))
    assert held(table) == [(1, 10, "a10", "b1")]
    table.ingest(tmp_path / "2.json", source="s")
    assert held(table) == expected


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("null", [False, True])
def test_rows_from_before_a_column_was_added_never_wrote_it(table: StreamTable, published: bool, null: bool) -> None:
    table.upsert([{"id": 1, "at": 5, "a": "a", "b": "b"}, {"id": 2, "at": 5, "a": "a", "b": "b"}])
    if published:
        table.publish()
    table.evolve(add={"c": "string"})
    if published:
        table.publish()
    if null:
        table.upsert([{"id": 1, "at": 5, "a": "a", "b": "b", "c": None}])  # it says that there is nothing
        if published:
            table.publish()
    table.upsert([{"id": 1, "at": 3, "c": "c3"}, {"id": 2, "at": 3, "c": "c3"}])
    assert held(table) == [(1, 5, "a", "b", None if null else "c3"), (2, 5, "a", "b", "c3")]
    table.upsert([{"id": 1, "at": 2, "c": "c2"}, {"id": 2, "at": 2, "c": "c2"}])
    assert table.publish().late == 2


def truncation(at: int) -> str:
    return json.dumps({"op": "t", "source": {"lsn": at}})


def change(id: int, at: int, op: str = "c", **row: Any) -> str:
    side = "before" if op == "d" else "after"
    return json.dumps({"op": op, side: {"id": id, **row}, "source": {"lsn": at}})


@pytest.mark.parametrize("published", [False, True])
def test_a_truncation_is_of_every_key_known_or_not(metastore: Metastore, published: bool) -> None:
    schema = {"id": "int64", "_lsn": "int64", "a": "string"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "_lsn", (), {"history": "scd2"})

    def take(*lines: str) -> None:
        table.ingest("\n".join(lines) + "\n", format="debezium", source="s", apply_as_truncates=True)
        if published:
            table.publish()

    take(change(1, 1, a="old"), change(2, 9, a="new"))
    take(truncation(5))
    assert rows_of(table) == [(2, 9, "new")]
    take(change(1, 4, a="late"), change(3, 4, a="late"), change(4, 6, a="later"))
    assert held(table) == [(2, 9, "new"), (4, 6, "later")]
    take(truncation(3))
    assert held(table) == [(2, 9, "new"), (4, 6, "later")]
    changed = table.changes(0)["_change_type"].to_pylist()
    assert (changed.count("insert"), changed.count("delete")) == (3, 1)
    history = history_of(table)
    assert sorted((row["id"], row["valid_from"], row["valid_to"]) for row in history) == [
        (1, 1, 5),
        (2, 9, None),
        (4, 6, None),
    ]
    table.undo(source="s", txn=next(d.txn for d in table.deltas() if "truncates" in d.properties))
    assert held(table) == [(1, 4, "late"), (2, 9, "new"), (3, 4, "late"), (4, 6, "later")]


def test_a_late_cell_closes_the_open_row_at_its_own_sequence(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["t"], SCHEMA, "id", "at", (), {"history": "scd2"})
    for row in ({"at": 1, "a": "a1", "b": "b1"}, {"at": 10, "a": "a10"}, {"at": 2, "b": "b2"}):
        table.upsert([{"id": 1, **row}])
        table.publish()
    history = history_of(table)
    found = sorted((row["valid_from"], row["valid_to"] or 99, row["a"], row["b"]) for row in history)
    assert found == [(1, 10, "a1", "b1"), (10, 10, "a10", "b1"), (10, 99, "a10", "b2")]


def test_versions_of_older_rules_stay_readable_and_are_not_called_broken(
    table: StreamTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they were published before marks were kept: by this code, with its marks and its version taken away."""
    properties = position_views.Published.to_properties

    def older(self: Any) -> dict[str, Any]:
        found = properties(replace(self, tombstones=()))
        return {name: value for name, value in found.items() if name not in ("rules", "lines")}

    table.upsert([{"id": 1, "at": 1, "a": "a1", "b": "b1"}, {"id": 2, "at": 1, "a": "a1", "b": "b1"}], source="s")
    with monkeypatch.context() as patched:
        patched.setattr(position_views.Published, "to_properties", older)
        table.publish()
        table.upsert([{"id": 1, "at": 10, "a": "a10"}], source="s", token="old")
        table.publish()
    published = table.published
    assert published is not None
    assert (published.rules, table.verify()) == (1, [])
    table.upsert([{"id": 1, "at": 5, "b": "b5"}])  # only a mark could place it
    table.upsert([{"id": 2, "at": 5, "b": "b5"}])
    now = table.publish()
    assert rows_of(table) == [(1, 10, "a10", "b1"), (2, 5, "a1", "b5")]
    assert (now.rules, now.late, table.verify()) == (3, 1, [])
    (row,) = table.quarantine().to_pylist()
    assert (row["reason"], json.loads(row["row"])["at"]) == ("late_partial", 5)
    assert rows_of(table, position=2) == [(1, 10, "a10", "b1"), (2, 1, "a1", "b1")]
    with pytest.raises(InvalidTableStateError, match="older rules of the fold"):
        table.undo(source="s", token="old")
    table.upsert([{"id": 2, "at": 4, "b": "b4"}])
    assert table.publish().late == 1
    assert table.verify() == []


def test_verify_proves_the_marks(table: StreamTable, metastore: Metastore) -> None:
    for row in ({"at": 1, "a": "a1", "b": "b1"}, {"at": 10, "a": "a10"}):
        table.upsert([{"id": 1, **row}])
        table.publish()
    first = table.published
    assert first is not None
    table.upsert([{"id": 2, "at": 1, "a": "x"}])
    (file,) = [each for each in table.publish().tombstones if each not in first.tombstones]
    Path(table._lake().uri, file.path).write_bytes(metastore.store.get(first.tombstones[0].path))
    assert any("marks" in problem for problem in table.verify())


# Lateness -----------------------------------------------------------------------------------------------------------


def loaded(metastore: Metastore) -> StreamTable:
    schema = {"id": "int64", "at": "timestamp[us]", "v": "string"}
    return StreamTable.create(metastore, ["t"], schema, "id", "at", (), {"lateness": "7 days"})


def snapshot(days: range, op: str = "r") -> str:
    """Events in the order of their keys, which is not that of their times."""
    order = [day * 37 % len(days) for day in days]
    moments = [f"2026-0{1 + day // 28}-{1 + day % 28:02}T00:00:00" for day in order]
    return "\n".join(json.dumps({"op": op, "after": {"id": id, "at": at, "v": "x"}}) for id, at in enumerate(moments))


@pytest.mark.parametrize("op", ["r", "c"])
def test_a_first_load_is_whole_whatever_its_order(metastore: Metastore, op: str) -> None:
    table = loaded(metastore)
    report = table.ingest(snapshot(range(100), op) + "\n", format="debezium", source="db")
    assert (report.rows, report.quarantined, report.too_late, table.count()) == (100, 0, 0, 100)
    assert (table.publish().rows, table.verify()) == (100, [])


def test_all_files_of_a_call_are_one_batch_and_snapshot_reads_are_never_too_late(
    metastore: Metastore, tmp_path: Path
) -> None:
    table = loaded(metastore)
    for number, at in enumerate(("2026-03-01", "2026-01-01", "2026-02-01")):
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": number, "at": f"{at}T00:00:00", "v": "x"}) + "\n")
    assert table.ingest(str(tmp_path / "*.json"), source="s").rows == 3
    assert table.count() == 3
    assert len({delta.txn for delta in table.deltas()}) == 1
    assert next(delta.properties["high"] for delta in table.deltas()) == 1772323200000000
    old = json.dumps({"op": "c", "after": {"id": 9, "at": "2026-01-01T00:00:00"}})
    report = table.ingest(old + "\n", format="debezium", source="db")
    assert (report.rows, report.too_late, table.count()) == (1, 1, 3)
    table.ingest(old.replace('"c"', '"r"') + "\n", format="debezium", source="db")
    assert table.count() == 4
    assert (table.publish().too_late, table.quarantine()["reason"].to_pylist()) == (1, ["too_late"])
    table.ingest([{"id": 9, "at": datetime(2026, 1, 2), "v": "s"}], format="snapshot")
    assert rows_of(table, columns=["id"]) == [(9,)]


def test_what_was_quarantined_as_too_late_stays_so_when_the_batch_that_made_it_late_is_undone(
    metastore: Metastore,
) -> None:
    table = StreamTable.create(metastore, ["t"], SCHEMA, "id", "at", (), {"lateness": "10"})
    table.upsert([{"id": 1, "at": 100}], token="far", source="s")
    table.upsert([{"id": 2, "at": 1}], token="old", source="s")
    table.publish()
    assert table.quarantine().num_rows == 1
    table.undo(source="s", token="far")
    assert held(table) == []
    table.undo(source="s", token="old")
    table.upsert([{"id": 2, "at": 1}], token="old", source="s")  # a retry takes it
    assert held(table) == [(2, 1, None, None)]


def test_a_negative_zero_is_the_sequence_zero_to_verify(metastore: Metastore) -> None:
    """A mark keeps either of the two, as its batches came: verify called a healthy table broken for it."""
    table = StreamTable.create(metastore, ["z"], {"id": "int64", "at": "float64", "a": "int64"}, "id", "at")
    table.delete([{"id": 1, "at": 0.0}])
    table.publish()
    table.delete([{"id": 1, "at": -0.0}])
    table.upsert([{"id": 1, "at": 1.5}])
    table.publish()
    assert table.verify() == []
