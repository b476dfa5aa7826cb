"""The quarantine as a queue: what fits now is taken again in one commit with its removal, or dropped; nothing is lost
and nothing is taken twice."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.metastore import Metastore, Transaction
from headwater.store import Crash, CrashesAtStore, LocalStore
from headwater.streams.log.checks import DROP, Check
from headwater.streams.log.landing import LandingReport
from headwater.streams.log.undo import undo_transaction
from headwater.streams.table import StreamTable

CHECK = "expect_or_drop.positive"
LINES = '{"id": 1, "at": 1, "total": 5}\n{"id": 2, "at": 1, "total": -2}\n{"id": 3, "at": 1, "total": -30}\nbroken\n'


def orders(metastore: Metastore, **properties: str) -> StreamTable:
    known = {CHECK: "total >= 0", **properties}
    schema = {"id": "int64", "at": "int64", "total": "int32"}
    return StreamTable.create(metastore, ["orders"], schema, keys="id", sequence="at", properties=known)


def ids(table: StreamTable) -> list[Any]:
    return sorted(row["id"] for row in table.to_arrow().to_pylist())


def waiting(table: StreamTable) -> list[tuple[str, str]]:
    return sorted((row["reason"], row["source"]) for row in table.quarantine().to_pylist())


def taken(report: LandingReport) -> tuple[int, int]:
    return report.rows, report.quarantined


def landed(metastore: Metastore, folder: Path) -> tuple[StreamTable, str]:
    """Return a table with one good and three bad rows of a file."""
    file = folder / "1.jsonl"
    file.write_text(LINES)
    table = orders(metastore)
    assert taken(table.ingest(str(file), source="files")) == (1, 3)
    return table, str(file)


def test_rows_that_fit_after_a_mend_are_taken_once_and_those_that_do_not_stay(
    metastore: Metastore, tmp_path: Path
) -> None:
    table, file = landed(metastore, tmp_path)
    before = table.quarantine().sort_by("row")
    slot = metastore.now().slot
    assert taken(table.retry_quarantined()) == (0, 3)
    assert metastore.now().slot == slot, "a retry that takes nothing commits nothing"
    table.set_properties({CHECK: "total >= -10"})
    assert taken(table.retry_quarantined()) == (1, 2)
    assert (ids(table), table.position) == ([1, 2], 2)
    after = table.quarantine().sort_by("row")
    assert after.equals(before.filter(pa.array([row["row"].find('"id": 2,') < 0 for row in before.to_pylist()])))
    assert taken(table.retry_quarantined()) == (0, 2)
    table.set_properties({CHECK: None})
    assert taken(table.retry_quarantined(reason="parse")) == (0, 1)
    assert taken(table.retry_quarantined(source=file)) == (1, 1)
    assert (ids(table), waiting(table)) == ([1, 2, 3], [("parse", file)])
    table.publish()
    assert table.verify() == []
    assert file in str(table.lineage())


@pytest.mark.parametrize("partly", [False, True])
def test_an_undo_of_the_file_takes_retried_rows_out_and_the_file_can_be_taken_again(
    metastore: Metastore, tmp_path: Path, partly: bool
) -> None:
    table, file = landed(metastore, tmp_path)
    table.ingest([{"id": 9, "at": 1, "total": -1}], source="other", token="t")
    table.set_properties({CHECK: "total >= -10" if partly else None})
    assert table.retry_quarantined().rows == (2 if partly else 3)
    table.publish()
    table.undo(source="files", file=file)
    assert (ids(table), waiting(table)) == ([9], [])
    assert file not in table.files("files")
    assert table.undo(source="other", token="t").rows == 1
    assert ids(table) == []
    table.publish()
    assert table.verify() == []
    assert table.ingest(file, source="files").rows == (2 if partly else 3)


def test_a_file_of_bad_rows_only_is_undone_by_what_was_retried_of_it(metastore: Metastore, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"id": 2, "at": 1, "total": -2}\n')
    table = orders(metastore)
    table.ingest(str(file), source="files")
    table.set_properties({CHECK: None})
    assert table.retry_quarantined().rows == 1
    digest = next(iter(table.files("files").values()))[0].digest
    table.undo(digest=digest)
    assert (ids(table), table.files("files")) == ([], {})
    assert table.ingest(str(file), source="files").rows == 1


def test_undoing_the_transaction_of_the_file_takes_retried_rows_out_too(metastore: Metastore, tmp_path: Path) -> None:
    orders(metastore).ingest([{"id": 0, "at": 1, "total": -99}], source="before")
    file = tmp_path / "1.jsonl"
    file.write_text(LINES)
    table = StreamTable(metastore, ["orders"])
    table.ingest(str(file), source="files")
    first = table.deltas()[0].txn
    table.set_properties({CHECK: "total >= -10"})
    table.retry_quarantined()
    undo_transaction(metastore, first)
    assert (ids(table), waiting(table)) == ([], [("check:positive", "before")])
    with pytest.raises(LanceNamespaceError, match="undone already"):
        undo_transaction(metastore, first)


def test_deletes_are_retried_as_deletes_and_partial_rows_keep_what_they_lack(metastore: Metastore) -> None:
    table = StreamTable.create(
        metastore, ["t"], {"id": "int64", "at": "int64", "n": "int8", "note": "string"}, keys="id", sequence="at"
    )
    table.set_properties({"contract": "freeze"})
    table.upsert([{"id": id, "at": 1, "n": 1, "note": "kept"} for id in (1, 2)])
    changes = [{"id": 1, "at": 5, "n": 900, "op": "delete"}, {"id": 2, "at": 5, "n": 900, "op": "u"}]
    assert taken(table.ingest(changes, "op", source="s")) == (0, 2)
    table.evolve(widen={"n": "int64"})
    assert taken(table.retry_quarantined()) == (2, 0)
    assert table.to_arrow().to_pylist() == [{"id": 2, "at": 5, "n": 900, "note": "kept"}]


def test_a_row_with_an_unknown_column_stays_while_the_contract_is_frozen(metastore: Metastore) -> None:
    table = orders(metastore)
    table.ingest([{"id": 1, "at": 1, "total": -1, "extra": 1}, {"id": 2, "at": 1, "total": -1}], source="s")
    table.evolve(drop=["extra"])
    table.set_properties({CHECK: None, "contract": "freeze"})
    assert taken(table.retry_quarantined()) == (1, 1)
    table.set_properties({"contract": "discard"})
    assert taken(table.retry_quarantined()) == (1, 0)
    assert ids(table) == [1, 2]


def test_late_rows_are_taken_when_what_made_them_late_is_undone_and_too_late_ones_when_the_line_moves(
    metastore: Metastore,
) -> None:
    table = orders(metastore, late="quarantine", lateness="2")
    table.ingest([{"id": 1, "at": 10, "total": 1}], source="a", token="a")
    table.ingest([{"id": 1, "at": 9, "total": 2}, {"id": 2, "at": 7, "total": 3}], source="b", token="b")
    table.publish()
    assert [reason for reason, _ in waiting(table)] == ["late", "too_late"]
    assert taken(table.retry_quarantined()) == (0, 2)
    table.undo(source="a")
    assert ids(table) == [1], "the late row stands again, the one too late waits for a retry"
    assert taken(table.retry_quarantined(reason="late")) == (1, 0)
    assert (ids(table), table.position) == ([1], 3), "what stands only leaves the quarantine"
    assert taken(table.retry_quarantined(reason="too_late")) == (1, 0)
    table.publish()
    assert (ids(table), waiting(table), table.verify()) == ([1, 2], [], [])
    table.undo(source="b")
    assert ids(table) == []


def test_checks_of_the_landing_hold_for_the_retry_unless_others_are_given(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["t"], {"id": "int64", "n": "int64"}, keys="id")
    check = Check("small", "n < 10", DROP)
    table.ingest([{"id": 1, "n": 50}], source="s", checks=[check])
    assert taken(table.retry_quarantined()) == (0, 1)
    assert taken(table.retry_quarantined(checks=[Check("small", "n < 20", DROP)])) == (0, 1)
    assert taken(table.retry_quarantined(checks=[Check("small", "n < 100", DROP)])) == (1, 0)


def test_columns_that_were_renamed_or_dropped_since_are_known_by_what_they_are(metastore: Metastore) -> None:
    """By its text alone a row brought a renamed column back, and a dropped one, beside those of the table."""
    schema = {"id": "int64", "a": "int64", "b": "int64", "gone": "string"}
    table = StreamTable.create(metastore, ["t"], schema, keys="id")
    row = {"id": 1, "a": 10, "b": 20, "gone": "x", "new": 5}
    table.ingest([row], checks=[Check("none", "id > 9", DROP)])
    table.evolve(rename={"a": "b", "b": "a"}, drop=["gone"], add={"later": "string"})
    table.ingest([{"id": 2, "a": 1}], checks=[Check("none", "id > 9", DROP)])  # of the names of now
    assert taken(table.retry_quarantined(checks=[])) == (2, 0)
    assert table.to_arrow().sort_by("id").select(["id", "a", "b", "later", "new"]).to_pylist() == [
        {"id": 1, "a": 20, "b": 10, "later": None, "new": 5},
        {"id": 2, "a": 1, "b": None, "later": None, "new": None},
    ]
    assert "gone" not in table.definition.by_name


def test_dropped_rows_are_gone_and_others_stay(metastore: Metastore, tmp_path: Path) -> None:
    table, file = landed(metastore, tmp_path)
    assert table.drop_quarantined(reason="parse") == 1
    assert waiting(table) == [("check:positive", file)] * 2
    assert table.drop_quarantined(source="elsewhere") == 0
    assert table.drop_quarantined() == 2
    assert waiting(table) == []
    table.set_properties({CHECK: None})
    assert taken(table.retry_quarantined()) == (0, 0)
    table.undo(source="files")
    assert ids(table) == []


def test_a_retry_that_dies_at_any_step_loses_nothing_and_takes_nothing_twice(tmp_path: Path) -> None:
    with Metastore(tmp_path / "prepared") as metastore:
        table, file = landed(metastore, tmp_path)
        table.set_properties({CHECK: "total >= -10"})
    for step in range(1, 50):
        for after in (False, True) if step < 4 else (False,):
            place = tmp_path / f"{step}-{after}"
            shutil.copytree(tmp_path / "prepared", place)
            store = CrashesAtStore(LocalStore(place), step, after)
            with contextlib.suppress(Crash):
                StreamTable(Metastore(store), ["orders"]).retry_quarantined()
            with Metastore(place) as metastore:
                found = StreamTable(metastore, ["orders"])
                assert (ids(found), found.quarantine().num_rows) in (([1], 3), ([1, 2], 2))
                found.retry_quarantined()
                assert (ids(found), found.quarantine().num_rows, found.position) == ([1, 2], 2, 2)
                assert metastore.verify() == []
                found.undo(source="files", file=file)
                assert (ids(found), found.quarantine().num_rows) == ([], 0)
        if not store.dead:
            assert step > 3
            return
    raise AssertionError("it never got through")


def test_retries_drops_and_undos_that_race_take_each_row_once(tmp_path: Path) -> None:
    with Metastore(tmp_path / "lake") as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "n": "int64"})
        for batch in range(4):
            rows = [{"id": batch * 10 + id, "n": 50} for id in range(10)]
            table.ingest(rows, source=f"s{batch}", token="t", checks=[Check("small", "n < 10", DROP)])
    taken: dict[str, Any] = {"retry": 0, "drop": 0}
    start = threading.Barrier(4)

    def work(what: str) -> None:
        with Metastore(tmp_path / "lake") as metastore:
            found = StreamTable(metastore, ["t"])
            start.wait()
            if what == "retry":
                taken[what] += found.retry_quarantined(checks=[]).rows
            elif what == "drop":
                taken[what] += found.drop_quarantined(source="s1")
            else:
                with contextlib.suppress(LanceNamespaceError):
                    found.undo(source="s0")

    threads = [threading.Thread(target=work, args=(what,)) for what in ("retry", "retry", "drop", "undo")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Metastore(tmp_path / "lake") as metastore:
        found = StreamTable(metastore, ["t"])
        kept = ids(found)
        assert len(set(kept)) == len(kept)
        assert (found.quarantine().num_rows, [id for id in kept if id < 10]) == (0, []), "s0 is undone"
        assert taken["drop"] in (0, 10)
        assert len([id for id in kept if 10 <= id < 20]) + taken["drop"] == 10
        assert [id for id in kept if id >= 20] == list(range(20, 40))
        assert metastore.verify() == []


def test_a_retry_joins_an_open_transaction_or_goes_with_it(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("a.t", {"id": "int64", "n": "int64"}, properties={"expect_or_drop.n": "n < 5"})
    table.ingest([{"id": 1, "n": 9}], source="s")
    table.set_properties({"expect_or_drop.n": None})
    with contextlib.suppress(ZeroDivisionError), catalog.transaction() as tx:
        assert (tx["a.t"].retry_quarantined().rows, tx["a.t"].quarantine().num_rows, tx["a.t"].count()) == (1, 0, 1)
        raise ZeroDivisionError
    assert (table.quarantine().num_rows, table.count()) == (1, 0)
    with catalog.transaction() as tx:
        tx["a.t"].ingest([{"id": 2, "n": 1}], source="s")
        tx["a.t"].retry_quarantined()
    assert (table.quarantine().num_rows, table.count(), table.retry_quarantined().rows) == (0, 2, 0)


def test_what_an_older_version_quarantined_stays_until_it_is_dropped(metastore: Metastore) -> None:
    table = orders(metastore)
    assert taken(table.retry_quarantined()) == (0, 0)
    table.ingest([{"id": 1, "at": 1, "total": -1}], source="s")

    def work(tx: Transaction) -> None:
        delta = tx.deltas(["orders__quarantine"])[0]
        known = {name: value for name, value in delta.properties.items() if name != "kind"}
        tx.append_delta(["orders__quarantine"], list(delta.files), "append", properties=known)

    metastore.run(work, "as an older version wrote it: nothing says what kind of row it is")
    table.set_properties({CHECK: None})
    assert taken(table.retry_quarantined()) == (1, 1)
    assert table.drop_quarantined() == 1


def test_a_table_of_the_users_with_the_name_of_the_quarantine_is_told(metastore: Metastore) -> None:
    """A read raised a KeyError of a column, and a retry said that nothing waits."""
    table = orders(metastore)
    StreamTable.create(metastore, ["orders__quarantine"], {"id": "int64"}, keys="id").upsert([{"id": 1}])
    for verb in (table.quarantine, table.retry_quarantined, table.drop_quarantined):
        with pytest.raises(InvalidInputError, match="is not the quarantine of orders, which must have this name"):
            verb()
