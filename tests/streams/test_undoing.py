"""Undo of a batch and the rows of it that were quarantined: they go as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog import Catalog
from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Transaction
from headwater.pipeline.lineage import latest
from headwater.rest.page.kept_facts import lineage_of
from headwater.streams import table as table_module
from headwater.streams.log.landing import UPSERT, BatchOrigin, Landing, LandingReport
from headwater.streams.log.source_ledger import Ledger, LedgerEntry
from headwater.streams.log.undo import undo_transaction
from headwater.streams.reading import change_feed
from headwater.streams.rows.input_rows import as_input_rows
from headwater.streams.stream_lookup import open_in
from headwater.streams.table import StreamTable


def orders(metastore: Metastore) -> StreamTable:
    return StreamTable.create(metastore, ["orders"], {"id": "int64", "at": "int64"}, keys="id", sequence="at")


def test_lineage_lists_no_file_that_was_undone(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("orders", {"id": "int64"}, keys="id")
    files = [str(tmp_path / f"{name}.json") for name in "abc"]

    def take(number: int) -> None:
        Path(files[number]).write_text(f'{{"id": {number}}}\n')
        table.ingest(files[number], source="shop")

    def known() -> list[str]:
        origin = latest(catalog, "orders")
        namespace: Any = catalog.namespace
        page = lineage_of(namespace.metastore.now(), ["orders"])["sources"]
        assert origin is not None
        assert list(origin.sources) == page
        return [Path(file).stem for source in origin.sources for file in source["files"]]

    for number in (0, 1):
        take(number)
        table.publish()
    table.undo(source="shop", file=files[1])
    table.publish()
    assert known() == ["a"]
    assert table.lineage()["undone"] == [{"source": "shop", "files": [files[1]]}]
    take(1)
    take(2)
    table.undo(source="shop", file=files[2])
    table.publish()
    assert known() == ["a", "b"]
    table.undo(source="shop", file=files[0])
    table.publish()
    assert known() == ["b"]
    assert table.lineage()["undone"] == [{"source": "shop", "files": [files[0]]}]
    table.undo(source="shop")
    table.publish()
    assert (known(), table.count()) == ([], 0)


def test_what_is_undone_takes_its_quarantined_rows_along_and_taken_again_they_are_there_once(
    metastore: Metastore, tmp_path: Path
) -> None:
    table = orders(metastore)
    files = [tmp_path / f"{name}.json" for name in ("mixed", "bad", "good")]
    bad = '{"id": null, "at": %d}\n'
    files[0].write_text('{"id": 1, "at": 1}\n' + bad % 1)
    files[1].write_text(bad % 2 + bad % 3)
    files[2].write_text('{"id": 2, "at": 1}\n' + bad % 4)

    def take() -> list[int]:
        return [table.ingest(str(file), source="s").quarantined for file in files if not known(file)]

    def known(file: Path) -> bool:
        return str(file) in table.files("s")

    assert take() == [1, 2, 1]
    table.ingest([{"id": None, "at": 9}], source="other", token="t")
    table.publish()
    for file, (position, deltas, rows) in zip(files, [(3, 1, 1), (3, 0, 2), (4, 1, 1)], strict=True):
        done = table.undo(source="s", file=str(file))
        assert (done.position, done.rows, done.quarantined) == (position, deltas, rows)
        assert not known(file)
        with pytest.raises(LanceNamespaceError, match="keeps no delta"):
            table.undo(source="s", file=str(file))
    assert (table.count(), table.quarantine()["row"].to_pylist()) == (0, ['{"id": null, "at": 9}'])
    assert take() == [1, 2, 1]
    assert (table.count(), table.quarantine().num_rows) == (2, 5)
    assert table.undo(source="s").quarantined == 4
    assert table.undo(token="t").quarantined == 1
    assert (table.count(), table.quarantine().num_rows) == (0, 0)
    assert not table.ingest([{"id": None, "at": 9}], source="other", token="t").duplicate
    table.publish()
    assert (table.verify(), table.quarantine().num_rows) == ([], 1)


def test_a_file_of_a_transaction_is_undone_without_the_quarantined_rows_of_another(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("t", {"id": "int64"}, keys=["id"])
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for file in files:
        file.write_text('{"id": null}\n')
    with catalog.transaction("several") as tx:
        for file in files:
            tx["t"].ingest(str(file), source="s")
        tx["t"].upsert([{"id": 8}], token="a", source="s")
    table.undo(token="a")
    assert (list(table.files("s")), table.count()) == ([str(file) for file in files], 0)
    table.undo(file=str(files[0]))
    assert (list(table.files("s")), table.quarantine()["source"].to_pylist()) == ([str(files[1])], [str(files[1])])


def test_a_transaction_whose_rows_were_all_quarantined_is_undone_and_a_dry_run_tells_of_it(
    metastore: Metastore,
) -> None:
    table = orders(metastore)
    bad = [[{"id": None, "at": at}] for at in range(3)]
    for number, rows in enumerate(bad):
        table.ingest(rows, source="s", token=str(number))
    txn = [entry.txn for entry in metastore.log() if entry.message.endswith("into orders")][1]
    told = undo_transaction(metastore, txn, dry_run=True).steps
    assert {(step.action, step.path) for step in told} == {("void", ("orders__quarantine",)), ("update", ("orders",))}
    assert table.quarantine().num_rows == 3
    undo_transaction(metastore, txn)
    assert (table.quarantine().num_rows, table.position) == (2, 0)
    with pytest.raises(LanceNamespaceError, match="undone already"):
        undo_transaction(metastore, txn)
    assert [table.ingest(rows, source="s", token=str(n)).duplicate for n, rows in enumerate(bad)] == [True, False, True]
    assert table.quarantine().num_rows == 3


def test_the_first_batch_of_a_source_is_undone_and_taken_again_also_where_nothing_of_it_was_taken(
    metastore: Metastore, tmp_path: Path
) -> None:
    """What it made is given back and not dropped: the id of a record is never used twice."""
    table, empty = orders(metastore), tmp_path / "empty.json"
    empty.write_text("")
    batches: tuple[Callable[[], LandingReport], ...] = (
        lambda: table.ingest([{"id": None, "at": 1}], source="s", token="1"),
        lambda: table.ingest(str(empty), source="t"),
    )
    for take in batches:
        for _ in range(2):
            assert not take().duplicate
            undo_transaction(metastore, list(metastore.log())[-1])
            assert table.quarantine().num_rows == 0


def test_an_undo_is_refused_where_the_quarantined_rows_cannot_be_taken_out_any_more(metastore: Metastore) -> None:
    table = orders(metastore)
    table.ingest([{"id": 1, "at": 1}, {"id": None, "at": 1}], source="s", token="1")
    beside = StreamTable(metastore, [f"{table.name}__quarantine"])
    beside.publish()
    table.ingest([{"id": None, "at": 2}], source="s", token="2")
    beside.collect(now_ms=metastore.clock.now_ms() + 10**11)
    with pytest.raises(LanceNamespaceError, match="collected"):
        table.undo(token="1")
    assert (table.count(), table.quarantine().num_rows) == (1, 2)
    assert table.undo(token="2").quarantined == 1


def test_a_batch_is_undone_by_its_token_also_where_only_the_record_of_its_source_knows_it(metastore: Metastore) -> None:
    """As a streaming query lands one: several parts, none of which has the token."""
    table = orders(metastore)

    def work(tx: Transaction, batch: int) -> None:
        for place in range(2):
            rows = as_input_rows([{"id": 2 * batch + place, "at": 1}, {"id": None, "at": batch}])
            Landing(metastore, table.path, rows, UPSERT, None, origin=BatchOrigin("spark:q"))(tx)
        stream = open_in(tx, table.path)
        entry = LedgerEntry(str(batch), tx.id, 0, 2, 2)
        Ledger(tx, stream.path, stream.version, "spark:q").take_token(str(batch), entry)

    for batch in range(2):
        metastore.run(lambda tx, batch=batch: work(tx, batch))  # type: ignore[misc]
    assert table.undo(source="spark:q", token="0").quarantined == 2
    assert (table.to_arrow().sort_by("id")["id"].to_pylist(), table.quarantine().num_rows) == ([2, 3], 2)


@pytest.mark.parametrize(("first", "look"), [("undo", "collectable"), ("collect", "take_out")])
def test_an_undo_and_a_collection_of_the_log_at_once_leave_a_table_that_can_be_read(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch, first: str, look: str
) -> None:
    """The simulator's finding (profile streams, seed 89): the collection dropped what the undo had to fold again."""
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1}], token="first")
    table.upsert([{"id": 2, "at": 1}])
    table.publish()
    late = metastore.clock.now_ms() + 10**11
    verbs: dict[str, Callable[[], object]] = {
        "undo": lambda: table.undo(token="first"),
        "collect": lambda: table.collect(late),
    }
    original = getattr(table_module, look)
    overtaken: list[str] = []

    def overtake(*args: Any) -> Any:
        found = original(*args)
        if not overtaken:
            overtaken.append(first)
            verbs[first]()
        return found

    monkeypatch.setattr(table_module, look, overtake)
    if first == "undo":
        assert verbs["collect"]() == []
    else:
        with pytest.raises(LanceNamespaceError, match="collected"):
            verbs["undo"]()
    assert table.to_arrow().sort_by("id")["id"].to_pylist() == ([2] if first == "undo" else [1, 2])
    assert table.verify() == []


def test_a_reader_that_begins_while_a_log_is_collected_reads_what_it_began_with(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "at": 1}])
    table.publish()
    original = change_feed.collectable
    begun: list[int] = []

    def overtake(*args: Any) -> Any:
        found = original(*args)
        if not begun:
            begun.append(table.changes(reader="r").num_rows)
        return found

    monkeypatch.setattr(table_module, "collectable", overtake)
    assert table.collect(metastore.clock.now_ms() + 10**11) == []
    assert (begun, table.deltas()[0].position) == ([1], 1)
