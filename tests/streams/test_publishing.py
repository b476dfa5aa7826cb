"""Publishing: what a version keeps of the one before it, the feed and its readers, the serving copy and its proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.metastore import Metastore
from headwater.streams.table import StreamTable
from tests.streams.samples import orders, rows_of


def test_a_table_evolves_between_deltas_and_publishes(metastore: Metastore) -> None:
    schema = {"id": "int32", "at": "int64", "a": "string", "b": "string", "n": "int32", "d": "decimal(10,2)"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at")
    table.upsert([{"id": 1, "at": 1, "a": "A", "b": "B", "n": 1, "d": 1.5}])
    table.publish()
    table.upsert([{"id": 2, "at": 1, "a": "A2", "b": "B2", "n": 2, "d": 2.5}])
    table.evolve(rename={"a": "b", "b": "a"}, widen={"n": "int64", "id": "int64", "d": "decimal(12,4)"})
    table.evolve(add={"c": "double"}, drop=["b"])
    table.evolve(add={"b": "int64"})
    expected = [
        {"id": 1, "at": 1, "a": "B", "n": 1, "c": None, "b": None},
        {"id": 2, "at": 1, "a": "B2", "n": 2, "c": None, "b": None},
    ]

    def shown() -> list[dict[str, Any]]:
        return [{name: row[name] for name in expected[0]} for row in rows_of(table)]

    assert shown() == expected
    version = table.publish().version
    assert shown() == expected
    table.upsert([{"id": 2**40, "at": 1, "c": 1.0, "b": 7}, {"id": 1, "at": 2, "n": 2**40}])
    table.publish()
    assert rows_of(table)[0]["n"] == 2**40
    assert rows_of(table)[2]["id"] == 2**40
    table.evolve(add={"z": "string"})
    assert table.publish().version > version
    assert table.publish().schema_id == table.definition.schema_id


def test_a_publish_keeps_the_row_ids_of_rows_that_stay(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    table.upsert([{"id": n, "at": 1} for n in range(10)])
    table.publish()
    before = _row_ids(table)
    table.upsert([{"id": 3, "at": 2, "note": "changed"}, {"id": 50, "at": 1}])
    table.delete([4])
    table.publish()
    after = _row_ids(table)
    assert {key: after[key] for key in after if key in before} == {key: before[key] for key in before if key != 4}
    assert 50 in after


def _row_ids(table: StreamTable) -> dict[int, int]:
    import lance

    stream, _ = table.opened()
    found = lance.dataset(f"{table._lake().uri}/{stream.serving}").scanner(columns=["id"], with_row_id=True).to_table()
    return dict(zip(found["id"].to_numpy().tolist(), found["_rowid"].to_numpy().tolist(), strict=True))


def test_a_replayed_row_is_not_written_again(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1, "note": "a"}])
    first = table.publish()
    table.upsert([{"id": 1, "at": 1, "note": "a"}])
    second = table.publish()
    assert (second.digest, second.rows, second.version > first.version) == (first.digest, 1, True)
    assert table.changes(1).num_rows == 0


def test_a_change_that_hashes_as_the_row_before_it_is_a_change(metastore: Metastore) -> None:
    """A hash of places and powers cannot tell a Thue-Morse text from its mirror; what it finds alike is compared."""
    text = "a"
    for _ in range(11):
        text += text.translate(str.maketrans("ab", "ba"))
    mirror = text.translate(str.maketrans("ab", "ba"))
    schema: dict[str, Any] = {"id": pa.int64(), "note": pa.string(), "codes": pa.list_(pa.int64())}
    table = StreamTable.create(metastore, ["t"], schema, "id")
    for row in (text, mirror):
        table.upsert([{"id": 1, "note": row, "codes": []}, {"id": 2, "note": "", "codes": list(map(ord, row))}])
        table.publish()
        assert rows_of(table) == [
            {"id": 1, "note": row, "codes": []},
            {"id": 2, "note": "", "codes": list(map(ord, row))},
        ]
    assert table.changes(1).num_rows == 4


def test_a_zero_that_changes_its_sign_is_a_change(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["z"], {"id": "int64", "x": "double"}, "id")
    table.upsert([{"id": 1, "x": 0.0}])
    table.publish()
    table.upsert([{"id": 1, "x": -0.0}])
    table.publish()
    assert repr(table.to_arrow()["x"].to_pylist()) == "[-0.0]"
    assert (table.changes(1).num_rows, table.verify()) == (2, [])


def test_readers_go_on_where_they_stopped(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1}])
    assert table.changes(reader="etl")["_change_type"].to_pylist() == ["insert"]
    assert table.changes(reader="etl").num_rows == 0
    table.upsert([{"id": 1, "at": 2}])
    assert table.changes(reader="etl")["_change_type"].to_pylist() == ["update_preimage", "update_postimage"]
    assert (table.readers(), table.readers(kept=True)) == ({"etl": 2}, {"etl": 1})
    assert table.commit_reader("etl") == 2
    assert table.readers(kept=True) == {"etl": 2}
    table.drop_reader("etl")
    assert table.readers() == {}
    with pytest.raises(InvalidInputError, match="'etl'"):
        table.drop_reader("etl")
    with pytest.raises(InvalidInputError, match="'etl'"):
        table.commit_reader("etl")


def test_a_reader_that_dies_with_changes_in_hand_gets_them_again(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1}])
    assert table.changes(reader="etl").num_rows == 1
    for _ in range(2):
        with Metastore(tmp_path / "lake") as next_process:
            again = StreamTable(next_process, table.path)
            assert again.changes(reader="etl").num_rows == 1
    with Metastore(tmp_path / "lake") as next_process:
        again = StreamTable(next_process, table.path)
        again.commit_reader("etl", 1)
        assert again.changes(reader="etl").num_rows == 0
        again.commit_reader("etl", 0)
        assert again.changes(reader="etl").num_rows == 1
        with pytest.raises(InvalidInputError, match="0 to 1"):
            again.commit_reader("etl", 7)


def test_the_serving_copy_is_proved_from_the_log(metastore: Metastore) -> None:
    table = orders(metastore)
    assert table.verify() == []
    table.upsert([{"id": n, "at": 1, "note": f"n{n}"} for n in range(5)], token="1", source="s")
    table.publish()
    table.delete([1])
    table.upsert([{"id": 2, "at": 3, "note": "new"}])
    table.publish()
    assert table.verify() == []
    table.undo(token="1")
    table.publish()
    assert table.verify() == []
    other = StreamTable.create(metastore, ["other"], {"id": "int64", "at": "int64", "note": "string"}, "id", "at")
    other.upsert([{"id": 2, "at": 3, "note": "forged"}])
    store = metastore.store
    store.put(table.deltas(2)[0].files[0].path, store.get(other.deltas()[0].files[0].path))
    assert table.verify() == [f"The log of orders from position 0 on does not give version {table.publish().version}."]


def test_small_fragments_are_joined_and_indices_follow(metastore: Metastore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.streams.serving.compaction.due.__defaults__", (-1, 3, None))
    table = orders(metastore)
    table.upsert([{"id": n, "at": 1} for n in range(20)])
    table.publish()
    for number in range(6):
        table.upsert([{"id": number, "at": 2, "note": "new"}, {"id": 100 + number, "at": 1}])
        table.publish()
    fragments = _dataset(table).get_fragments()
    assert len(fragments) <= 6
    assert table.count() == 26
    assert min(table.coverage().values()) >= 0.75
    before = _row_ids(table)
    table.delete(list(range(10)))
    table.publish()
    assert not table.compact()
    assert sum(fragment.num_deletions for fragment in _dataset(table).get_fragments()) == 0
    assert _row_ids(table) == {key: id for key, id in before.items() if key >= 10}
    assert table.verify() == []
    table.upsert([{"id": 15, "at": 9, "note": "after"}])
    table.publish()
    assert table.to_arrow(filter="note = 'after'").num_rows == 1
    assert table.count() == 16


@pytest.mark.parametrize("keyed", [True, False])
def test_a_serving_copy_is_proven_after_its_columns_changed(metastore: Metastore, keyed: bool) -> None:
    table = orders(metastore, **({} if keyed else {"keys": (), "sequence": ()}))
    land = table.upsert if keyed else table.append
    for change in ({}, {"add": {"more": "string"}}, {"drop": ["note"]}, {"rename": {"more": "text"}}):
        table.evolve(**change)
        table.publish()
        assert table.verify() == []
        land([{"id": 1, "at": 2}, {"id": 2, "at": 2}])
        table.publish()
        assert table.verify() == []


def test_a_publish_writes_a_fragment_anew_that_lost_a_fifth_of_its_rows_and_no_other(metastore: Metastore) -> None:
    table = orders(metastore)
    for start in (0, 100):
        table.upsert([{"id": n, "at": 1} for n in range(start, start + 100)])
        table.publish()
    first, second = _dataset(table).get_fragments()
    ids, changed = _row_ids(table), _updated(table)
    table.delete(list(range(20)))
    table.publish()
    assert [each.fragment_id for each in _dataset(table).get_fragments()] == [first.fragment_id, second.fragment_id]
    table.delete([20])
    published = table.publish()
    fragments = _dataset(table).get_fragments()
    assert [each.num_deletions for each in fragments] == [0, 0]
    assert fragments[0].data_files()[0].path == second.data_files()[0].path
    assert first.fragment_id not in [each.fragment_id for each in fragments]
    assert _row_ids(table) == {key: id for key, id in ids.items() if key > 20}
    assert _updated(table) == {key: version for key, version in changed.items() if key > 20}
    assert table.to_arrow(filter="id = 50").num_rows == _dataset(table).count_rows("id = 50") == 1
    assert (published.rows, table.verify(), metastore.verify()) == (179, [], [])


def _updated(table: StreamTable) -> dict[int, int]:
    found = _dataset(table).scanner(columns=["id", "_row_last_updated_at_version"]).to_table()
    return dict(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _dataset(table: StreamTable) -> Any:
    import lance

    return lance.dataset(f"{table._lake().uri}/{table.opened()[0].serving}")


def test_deltas_are_kept_as_long_as_something_needs_them(metastore: Metastore) -> None:
    table = orders(metastore, properties={"log_retention": "1 day"})
    day = 24 * 3600 * 1000
    for at in (1, 2, 3, 4):
        table.upsert([{"id": 1, "at": at}, {"id": at, "at": at}], token=str(at))
        if at < 4:
            table.publish()
    now = metastore.clock.now_ms()
    assert table.collect(now_ms=now) == []
    assert table.collect(now_ms=now + 2 * day, dry_run=True) == [1, 2, 3]
    table.changes(until=1, reader="slow")
    assert table.collect(now_ms=now + 2 * day, dry_run=True) == []
    table.commit_reader("slow")
    assert table.collect(now_ms=now + 2 * day, dry_run=True) == [1]
    assert table.collect(now_ms=now + 2 * day, pins=[0], dry_run=True) == []
    table.drop_reader("slow")
    assert table.collect(now_ms=now + 2 * day) == [1, 2, 3]
    assert table.count() == 4
    assert table.count(position=3) == 3
    with pytest.raises(LanceNamespaceError, match="collected"):
        table.changes(0)
    for after in (0, 9, -1):  # a reader that cannot begin is not noted: it would keep the log for ever
        with pytest.raises(LanceNamespaceError):
            table.changes(after, reader="new")
    with pytest.raises(LanceNamespaceError):
        table.commit_reader("new", 0)
    assert table.readers() == {}
    with pytest.raises(LanceNamespaceError, match="keeps no delta"):
        table.undo(token="2")
    table.publish()
    assert (table.verify(), table.position) == ([], 4)
