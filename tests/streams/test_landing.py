"""Landing: what each verb takes, tokens, quarantine, contracts, deletes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError, LanceNamespaceError, TableColumnNotFoundError, TableNotFoundError
from headwater.metastore import Metastore
from headwater.streams.log.landing import UPSERT, BatchOrigin, Landing
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding, prepare
from headwater.streams.log.undo import undo_transaction
from headwater.streams.rows.input_rows import InputRows
from headwater.streams.sources.format_output import Taken
from headwater.streams.stream_lookup import drop_stream, rename_stream
from headwater.streams.table import StreamTable
from tests.streams.samples import orders, rows_of, values


def test_a_new_table_is_empty_and_its_first_publish_is_version_1(metastore: Metastore) -> None:
    table = orders(metastore)
    assert (table.position, table.published, table.count(), table.to_arrow().num_rows) == (0, None, 0, 0)
    published = table.publish()
    assert (published.version, published.position, published.rows) == (1, 0, 0)
    assert table.publish().version == 1


def test_keyless_tables_take_appends_and_keyed_ones_upserts(metastore: Metastore) -> None:
    keyed = orders(metastore)
    log = StreamTable.create(metastore, ["log"], {"x": "int64"})
    with pytest.raises(InvalidInputError, match="use upsert"):
        keyed.append([{"id": 1, "at": 1}])
    for call in (log.upsert, log.delete):
        with pytest.raises(InvalidInputError, match="append"):
            call([{"x": 1}])
    assert log.append([{"x": 1}, {"x": 1}]).position == 1
    log.publish()
    log.append(pa.table({"x": [2]}))
    assert values(log.to_arrow(), "x") == [1, 1, 2]
    assert log.count() == 3
    log.publish()
    assert values(log.to_arrow(), "x") == [1, 1, 2]


def test_a_repeated_token_answers_as_the_first_time_and_lands_nothing(metastore: Metastore) -> None:
    table = orders(metastore)
    first = table.upsert([{"id": 1, "at": 1, "note": "a"}], token="one")
    table.upsert([{"id": 2, "at": 1}])
    again = table.upsert(pa.table({"id": [1], "at": [1], "note": ["a"]}), token="one")
    assert (again.position, again.rows, again.duplicate, first.duplicate) == (first.position, 1, True, False)
    assert table.position == 2
    with pytest.raises(InvalidInputError, match="'one'"):
        table.upsert([{"id": 1, "at": 2}], token="one")
    assert not table.upsert([{"id": 1, "at": 2}], token="one", source="another").duplicate


def test_tokens_of_one_source_are_forgotten_after_ten_thousand(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.log.source_ledger.KEPT_TOKENS", 3)
    monkeypatch.setattr("headwater.streams.layout.PAGES", 1)
    table = orders(metastore)
    for number in range(5):
        table.upsert([{"id": 1, "at": number}], token=str(number))
    assert table.upsert([{"id": 1, "at": 4}], token="4").duplicate
    assert not table.upsert([{"id": 1, "at": 0}], token="0").duplicate


def test_a_call_without_effect_takes_no_position(metastore: Metastore) -> None:
    table = orders(metastore)
    assert table.upsert([]).position == 0
    assert table.delete([5]).position == 0
    assert metastore.slot == 1
    assert table.upsert(table.schema.empty_table(), token="x").position == 0
    assert table.upsert([], token="x").duplicate
    with pytest.raises(InvalidInputError, match="token"):
        table.upsert([{"id": 1, "at": 1}], token="x")
    assert table.position == 0


def test_bad_rows_of_an_ingest_are_quarantined_in_the_same_transaction(metastore: Metastore) -> None:
    table = orders(metastore)
    report = table.ingest([{"id": 1, "at": 1}, {"id": None, "at": 2, "note": "n"}, {"id": 3, "at": "x"}], source="s")
    assert (report.rows, report.quarantined, report.position) == (1, 2, 1)
    found = table.quarantine().to_pylist()
    assert [(row["reason"], row["column"], row["source"]) for row in found] == [
        ("null_key", "id", "s"),
        ("bad_value", "at", "s"),
    ]
    assert json.loads(found[0]["row"]) == {"id": None, "at": 2, "note": "n"}
    assert all(row["time"] is not None for row in found)
    slots = {delta.slot for delta in (*table.deltas(), *metastore.deltas(["orders__quarantine"]))}
    assert len(slots) == 1


def test_strict_refuses_the_whole_call(metastore: Metastore) -> None:
    table = orders(metastore)
    with pytest.raises(InvalidInputError, match="null_key"):
        table.ingest([{"id": 1, "at": 1}, {"id": None, "at": 2}], strict=True)
    assert table.position == 0
    assert not metastore.exists(["orders__quarantine"])


def test_a_new_column_that_differs_from_another_only_in_case_is_not_evolved(
    metastore: Metastore, tmp_path: Path
) -> None:
    table = orders(metastore)
    file = tmp_path / "a.json"
    file.write_text('{"id": 1, "at": 1, "Note": "x"}\n')
    with pytest.raises(InvalidInputError, match=r"a\.json.*'note' and 'Note' differ only in"):
        table.ingest(str(file), source="s")
    assert (table.position, table.files("s"), table.schema.names) == (0, {}, ["id", "at", "note"])
    table.set_properties({"contract": "discard"})
    assert table.ingest(str(file), source="s").discarded == 1


def test_the_contract_of_a_table_holds_for_ingest_and_not_for_upsert(metastore: Metastore) -> None:
    table = orders(metastore)
    report = table.ingest([{"id": 1, "at": 1, "new": 1.5}])
    assert report.added == ("new",)
    assert table.to_arrow().to_pylist() == [{"id": 1, "at": 1, "note": None, "new": 1.5}]
    with pytest.raises(InvalidInputError, match="'other'"):
        table.upsert([{"id": 1, "at": 1, "other": 1}])
    frozen = StreamTable.create(metastore, ["f"], {"id": "int64"}, "id", properties={"contract": "freeze"})
    with pytest.raises(InvalidInputError, match="'new'"):
        frozen.ingest([{"id": 1, "new": 1}])
    loose = StreamTable.create(metastore, ["d"], {"id": "int64"}, "id", properties={"contract": "discard"})
    assert loose.ingest([{"id": 1, "new": 1}, {"id": 2}]).discarded == 1


def test_deletes_by_key_rows_and_predicate(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": n, "at": n, "note": f"n{n}"} for n in range(1, 8)])
    table.publish()
    table.upsert([{"id": 1, "at": 10, "note": "later"}])
    assert table.delete(1).rows == 1
    assert table.delete([2, 99]).rows == 1
    assert table.delete([{"id": 3}]).rows == 1
    assert table.delete(pa.table({"id": [4], "at": [100]})).rows == 1
    assert table.delete("note = 'n5' OR id > 6").rows == 2
    assert [row["id"] for row in rows_of(table)] == [6]
    table.upsert([{"id": 4, "at": 99, "note": "late"}])
    assert [row["id"] for row in rows_of(table)] == [6]
    table.publish()
    assert [row["id"] for row in rows_of(table)] == [6]
    with pytest.raises(InvalidInputError, match="is not a key"):
        table.delete([(1, 2)])


def test_a_repeated_delete_answers_as_the_first_time_whatever_the_state_is_by_then(metastore: Metastore) -> None:
    """What a delete finds depends on the state, so it is known again by what was asked for."""
    table = orders(metastore)
    table.upsert([{"id": n, "at": 1, "note": "a"} for n in (1, 2)])
    for number, what in enumerate(([1], "id = 2", pa.table({"id": [3]}))):
        first = table.delete(what, token=f"d{number}")
        table.upsert([{"id": number + 1, "at": 5, "note": "again"}])
        again = table.delete(what, token=f"d{number}")
        assert (again.position, again.rows, again.duplicate) == (first.position, first.rows, True)
        with pytest.raises(InvalidInputError, match="token"):
            table.delete([77], token=f"d{number}")
    assert table.count() == 3


def test_keys_and_rows_with_a_sequence_are_deleted_in_one_call(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": n, "at": 5, "note": "a"} for n in range(5)])
    assert table.delete([{"id": 0}, {"id": 1, "at": 4}, {"id": 9}, {"id": 2, "at": 6}, {"id": 0}]).rows == 3
    assert [row["id"] for row in rows_of(table)] == [1, 3, 4]
    table.upsert([{"id": 0, "at": 5, "note": "as new"}, {"id": 2, "at": 5, "note": "older"}])
    assert [row["id"] for row in rows_of(table)] == [0, 1, 3, 4]
    with pytest.raises(InvalidInputError, match="'at' of row 0"):
        table.delete([{"id": 3, "at": None}, {"id": 4}])


def test_a_key_that_is_not_there_makes_no_event_in_a_table_without_sequence_either(metastore: Metastore) -> None:
    table = orders(metastore, sequence=())
    table.upsert([{"id": 1, "at": 5, "note": "a"}])
    assert (table.delete([2]).position, table.delete([{"id": 3, "at": 1}]).rows) == (1, 0)
    assert (table.delete([1, 2]).rows, table.position, table.count()) == (1, 2, 0)


def test_a_delete_is_late_when_a_newer_event_landed_first(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 5, "note": "newer"}])
    table.delete([{"id": 1, "at": 4}])
    assert rows_of(table)[0]["note"] == "newer"
    assert table.publish().late == 1


@pytest.mark.parametrize(("late", "expected"), [("ignore", []), ("quarantine", ["late"])])
def test_late_events_are_counted_once_and_quarantined_if_asked(
    metastore: Metastore, late: str, expected: list[str]
) -> None:
    table = orders(metastore, properties={"late": late})
    table.upsert([{"id": 1, "at": 5, "note": "newer"}])
    table.upsert([{"id": 1, "at": 4, "note": "late"}], source="s")
    assert table.publish().late == 1
    table.upsert([{"id": 2, "at": 4}])
    assert table.publish().late == 0
    found = table.quarantine().to_pylist()
    assert [row["reason"] for row in found] == expected
    assert [(row["position"], row["source"]) for row in found] == [(2, "s")] * len(expected)


def test_events_behind_the_lateness_are_always_quarantined(metastore: Metastore) -> None:
    table = orders(metastore, properties={"lateness": "10"})
    table.upsert([{"id": 1, "at": 100}])
    assert table.upsert([{"id": 2, "at": 89}, {"id": 3, "at": 90}]).too_late == 1
    assert [row["id"] for row in rows_of(table)] == [1, 3]
    assert table.publish().too_late == 1
    assert table.quarantine()["reason"].to_pylist() == ["too_late"]
    table.upsert([{"id": 2, "at": 89}])
    assert [row["id"] for row in rows_of(table)] == [1, 3]


def test_reads_take_columns_filter_and_limit_fresh_and_published(metastore: Metastore) -> None:
    table = orders(metastore)
    for _ in range(2):
        table.upsert([{"id": n, "at": 1, "note": f"n{n}"} for n in range(5)])
        assert table.to_arrow(columns=["note"], filter="id > 2").column_names == ["note"]
        assert values(table.to_arrow(["note"], "id > 2"), "note") == ["n3", "n4"]
        assert table.to_arrow(limit=2).num_rows == 2
        assert table.to_arrow(columns=[], limit=None).num_columns == 0
        table.publish()
        assert values(table.to_arrow(["note"], "id > 2"), "note") == ["n3", "n4"]
        assert table.to_arrow(limit=2).num_rows == 2
    with pytest.raises(TableColumnNotFoundError):
        table.to_arrow(["nope"])
    for position in (-1, 3):
        with pytest.raises(InvalidInputError, match="0 to 2"):
            table.to_arrow(position=position)


def test_a_row_rejected_while_landing_has_the_position_of_its_batch(metastore: Metastore) -> None:
    table = orders(metastore, properties={"late": "quarantine"})
    table.ingest([{"id": None, "at": 1}], source="s")  # nothing of it was taken, so it has no position
    for at in (5, 4):
        table.ingest([{"id": 1, "at": at}, {"id": None, "at": at}], source="s")
    table.publish()
    found = table.quarantine().to_pylist()
    assert sorted((row["reason"], row["position"] or 0) for row in found) == [
        ("late", 2),
        ("null_key", 0),
        ("null_key", 1),
        ("null_key", 2),
    ]
    assert table.quarantine().column_names == ["row", "reason", "column", "source", "time", "position"]


def test_what_is_no_position_is_refused_and_an_unknown_table_is_no_table(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1}])
    for wrong in ("x", 1.5, True, -1, 2):
        with pytest.raises(InvalidInputError, match="position"):
            table.to_arrow(position=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match=r"changes:? after"):
            table.changes(after=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="ends before it begins"):
        table.changes(after=1, until=0)
    with pytest.raises(TableNotFoundError, match="nope"):
        StreamTable(metastore, ["nope"]).publish()


def test_what_is_no_stream_table_says_so(metastore: Metastore) -> None:
    metastore.run(lambda tx: tx.create_table(["plain"]))
    with pytest.raises(InvalidInputError, match="not a stream table"):
        StreamTable(metastore, ["plain"]).upsert([{"a": 1}])
    with pytest.raises(LanceNamespaceError):
        StreamTable(metastore, ["missing"]).to_arrow()


def test_an_undo_says_what_it_cannot_do(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1}], token="a", source="s")
    with pytest.raises(InvalidInputError, match="Say what"):
        table.undo()
    with pytest.raises(LanceNamespaceError, match="keeps no delta"):
        table.undo(source="other")
    table.undo(source="s")
    assert table.count() == 0
    with pytest.raises(LanceNamespaceError, match="keeps no delta"):
        table.undo(source="s")
    assert not table.upsert([{"id": 1, "at": 1}], token="a", source="s").duplicate
    assert table.count() == 1


def test_an_undone_transaction_takes_its_quarantined_rows_along_and_leaves_later_ones_of_its_source(
    metastore: Metastore,
) -> None:
    table = StreamTable.create(metastore, ["o"], {"id": "int64", "ts": "int64"}, keys="id", sequence="ts")
    for number in range(4):
        table.ingest([{"id": number, "ts": 1}, {"id": None, "ts": number}], source="s", token=str(number))
    slots = [entry for entry in metastore.log() if entry.message.endswith(" into o")]
    table.publish()
    undo_transaction(metastore, slots[1].txn)
    assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == [0, 2, 3]
    found = table.quarantine()
    assert (found["row"].to_pylist(), found["position"].to_pylist()) == (
        ['{"id": null, "ts": 0}', '{"id": null, "ts": 2}', '{"id": null, "ts": 3}'],
        [1, 3, 4],
    )
    again = table.ingest([{"id": 1, "ts": 1}, {"id": None, "ts": 1}], source="s", token="1")
    assert (again.duplicate, again.rows, table.quarantine().num_rows) == (False, 1, 4)
    assert table.ingest([{"id": 3, "ts": 1}, {"id": None, "ts": 3}], source="s", token="3").duplicate


def test_files_that_were_written_for_a_table_never_land_in_another_of_its_name(metastore: Metastore) -> None:
    """They are in the folder of the first, and go with it when that is collected."""
    first = orders(metastore)
    given = {"id": pa.chunked_array([[1]]), "at": pa.chunked_array([[1]])}
    data, stream = InputRows(given, 1), first.opened()[0]
    prepared = prepare(metastore.store, metastore.clock, stream, Taken(data), BatchOrigin(), (), 0)
    assert prepared is not None
    landing = Landing(metastore, first.path, data, UPSERT)
    landing(metastore.transaction("given up"))
    metastore.run(lambda tx: drop_stream(tx, first.path))
    second = orders(metastore)
    with pytest.raises(EvolvedError):
        metastore.run(PreparedLanding(metastore, first.path, prepared, UPSERT, True, BatchOrigin()))
    metastore.run(landing)
    assert rows_of(second) == [{"id": 1, "at": 1, "note": None}]
    home = second.opened()[0].home
    assert all(file.path.startswith(f"{home}/") for delta in second.deltas() for file in delta.files)


def test_an_undo_in_a_log_without_keys_takes_its_rows_out(metastore: Metastore) -> None:
    log = StreamTable.create(metastore, ["log"], {"x": "int64"})
    log.append([{"x": 1}, {"x": 2}], source="a", token="1")
    log.publish()
    log.append([{"x": 2}, {"x": 3}], source="b", token="1")
    log.publish()
    log.undo(source="a")
    assert values(log.to_arrow(), "x") == [2, 3]
    log.publish()
    assert values(log.to_arrow(), "x") == [2, 3]
    found = log.changes(2).to_pylist()
    assert sorted((row["_change_type"], row["x"]) for row in found) == [("delete", 1), ("delete", 2)]


def test_a_lateness_is_set_before_rows_land(metastore: Metastore) -> None:
    """Another one would give other rows at positions that were read before."""
    table = orders(metastore)
    table.set_properties({"lateness": "5"})
    table.upsert([{"id": 1, "at": 100}])
    table.upsert([{"id": 2, "at": 1}])
    for other in ({"lateness": "200"}, {"lateness": None}):
        with pytest.raises(InvalidInputError, match="lateness"):
            table.set_properties(other)
    table.set_properties({"lateness": "5", "late": "quarantine"})
    assert [row["id"] for row in rows_of(table)] == [1]


def test_a_table_of_the_users_is_not_taken_for_a_quarantine_or_a_history(metastore: Metastore) -> None:
    for name in ("orders__quarantine", "orders__history"):
        StreamTable.create(metastore, [name], {"x": "int64"}).append([{"x": 1}])
    table = orders(metastore, properties={"history": "scd2"})
    with pytest.raises(InvalidInputError, match="orders__quarantine"):
        table.ingest([{"id": None, "at": 1}])
    table.upsert([{"id": 1, "at": 1}])
    with pytest.raises(InvalidInputError, match="orders__history"):
        table.publish()
    assert StreamTable(metastore, ["orders__history"]).count() == 1


def test_quarantine_and_history_follow_their_table(metastore: Metastore) -> None:
    table = orders(metastore, properties={"history": "scd2"})
    table.ingest([{"id": 1, "at": 1}, {"id": None, "at": 1}])
    table.publish()
    metastore.run(lambda tx: rename_stream(tx, ["orders"], ["sales"]))
    moved = StreamTable(metastore, ["sales"])
    assert (moved.quarantine().num_rows, moved.count()) == (1, 1)
    assert [each.name for each in metastore.list()] == ["sales", "sales__history", "sales__quarantine"]
    moved.upsert([{"id": 1, "at": 2}])
    moved.publish()
    metastore.run(lambda tx: drop_stream(tx, ["sales"]))
    assert metastore.list() == []


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"id": [1, [2]]}),
        pd.DataFrame({"id": [1, 2**70]}),
        pd.DataFrame({"id": [1, "\ud800"]}),
        [pa.record_batch({"id": [1]}), pa.record_batch({"id": ["x"]})],
    ],
    ids=["of no one type", "a number too large", "a text that is none", "batches of two schemas"],
)
def test_rows_that_are_no_table_are_refused_with_an_error_of_the_table(metastore: Metastore, rows: Any) -> None:
    table = StreamTable.create(metastore, ["t"], {"id": "int64"}, keys="id")
    for verb in (table.upsert, table.ingest):
        with pytest.raises(InvalidInputError, match="cannot be read as a table"):
            verb(rows)
