"""Stream tables and the past of a catalog, used alike on disk and through a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableTagNotFoundError,
    UnsupportedOperationError,
)
from headwater.rest.server import start_in_thread
from tests.streams.histories import History, histories, python_rows
from tests.streams.oracle import Oracle, sorted_rows

FIELDS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())]
SCHEMA = pa.schema(FIELDS)


def names(rows: pa.Table) -> dict[object, object]:
    return dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))


def test_a_stream_table_gives_its_rows_in_every_form_that_a_table_does(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys=["id"], sequence=["at"])
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    row = {"id": 1, "name": "Ada", "at": 1}
    assert list(orders) == orders.to_polars().to_dicts() == pa.table(orders).to_pylist() == orders.head(3).to_pylist()
    assert orders.to_batches(["id", "name", "at"], "id = 1").read_all().to_pylist() == [row]
    assert (len(orders), len(orders.to_pandas()), orders.to_duckdb().shape[0]) == (1, 1, 1)
    assert (orders.is_stream, orders.serving.is_stream) == (True, False)
    copied = either.create_table("copy", orders)
    assert (copied.count(), copied.serving) == (1, copied)


def test_changes_land_are_read_fresh_and_published(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys=["id"], sequence=["at"])
    report = orders.upsert([{"id": 1, "name": "Ada", "at": 1}, {"id": 2, "name": "Grace", "at": 1}], token="a")
    assert (report.position, report.rows, report.duplicate) == (1, 2, False)
    again = orders.upsert([{"id": 1, "name": "Ada", "at": 1}, {"id": 2, "name": "Grace", "at": 1}], token="a")
    assert (again.position, again.duplicate) == (1, True)
    with pytest.raises(InvalidInputError, match="token"):
        orders.upsert([{"id": 1, "name": "other", "at": 1}], token="a")
    assert names(either["raw.orders"].to_arrow()) == {1: "Ada", 2: "Grace"}
    assert orders.published is None
    published = either["raw.orders"].publish()
    assert (published.version >= 1, published.position) == (True, 1)
    orders.upsert(pa.table({"id": [2], "name": ["Grace H."], "at": [2]}))
    orders.delete([1])
    assert names(orders.to_arrow()) == {2: "Grace H."}
    assert names(orders.to_arrow(position=1)) == {1: "Ada", 2: "Grace"}
    assert orders.to_arrow(columns=["name"], filter="id = 2", limit=1).to_pydict() == {"name": ["Grace H."]}
    assert names(orders.serving.to_arrow()) == {1: "Ada", 2: "Grace"}, "as published"
    assert [each.position for each in either.publish(["raw.orders"])] == [3]
    assert (len(orders), orders.serving.count(), orders.position) == (1, 1, 3)
    assert getattr(orders.published, "position", None) == 3
    assert [delta.position for delta in orders.deltas(after=1)] == [2, 3]


def test_no_rows_and_rows_without_columns_are_judged_as_on_disk(either: Catalog) -> None:
    orders = either.create_stream_table("orders", SCHEMA, keys="id")
    assert [orders.upsert([]).position, orders.ingest([]).position, orders.delete([]).position] == [0, 0, 0]
    with pytest.raises(InvalidInputError, match="'id'"):
        orders.upsert([{}])


def test_keys_to_delete_are_taken_in_every_form_that_holds_values(either: Catalog) -> None:
    orders = either.create_stream_table("orders", SCHEMA, keys="id")
    orders.upsert([{"id": number} for number in range(9)])
    array = pa.array([0])
    for left, keys in enumerate(
        [8, (7,), {6}, range(5, 6), (key for key in [4]), {3: None}.keys(), array.to_numpy() + 2, pa.array([1])][::-1]
    ):
        orders.delete(keys)
        assert orders.count() == 8 - left, keys
    orders.delete(pa.chunked_array([array]))
    assert [published.rows for published in either.publish("orders")] == [0], "one name is one name"


def test_missing_is_not_null_and_values_that_do_not_fit_are_judged_as_on_disk(either: Catalog) -> None:
    orders = either.create_stream_table("orders", SCHEMA, keys="id")
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}, {"id": 2, "name": "Grace", "at": 1}])
    orders.upsert([{"id": 1, "name": None}, {"id": 2, "at": 5}])
    assert sorted(map(str, orders.to_arrow().to_pylist())) == [
        "{'id': 1, 'name': None, 'at': 1}",
        "{'id': 2, 'name': 'Grace', 'at': 5}",
    ]
    report = orders.ingest(
        [{"id": 3, "name": "x", "at": "five"}, {"id": None, "name": "y", "at": 1}, {"id": 4, "at": 2}]
    )
    assert (report.rows, report.quarantined) == (1, 2)
    assert sorted(orders.quarantine().column("reason").to_pylist()) == ["bad_value", "null_key"]
    with pytest.raises(InvalidInputError, match="nope"):
        orders.upsert([{"id": 3, "nope": 1}])
    with pytest.raises(InvalidInputError, match="append"):
        orders.append([{"id": 3}])
    orders.delete("at >= 2")
    assert len(orders) == 1


def test_every_kind_of_python_value_arrives(either: Catalog) -> None:
    fields: list[tuple[str, pa.DataType]] = [
        ("id", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("when", pa.timestamp("us", "UTC")),
        ("data", pa.binary()),
        ("tags", pa.list_(pa.string())),
    ]
    table = either.create_stream_table("things", pa.schema(fields), keys="id")
    row = {
        "id": 1,
        "price": Decimal("12.50"),
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "data": b"\x00\xff",
        "tags": ["a", None],
    }
    table.upsert([row])
    assert table.to_arrow().to_pylist() == [row]


def test_formats_and_files_are_taken_once(either: Catalog, tmp_path: Path) -> None:
    orders = either.create_stream_table("orders", SCHEMA, keys=["id"], sequence=["at"])
    pq.write_table(pa.table({"id": [1], "name": ["Ada"], "at": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"id": 2, "name": "Grace", "at": 1}\nbroken\n')
    assert orders.ingest(str(tmp_path / "a.parquet"), source="files").rows == 1
    assert orders.ingest(str(tmp_path / "a.parquet"), source="files").duplicate
    assert orders.ingest(tmp_path / "b.jsonl", source="files").quarantined == 1
    (tmp_path / "c.csv").write_text("id,name,at\n1\n")
    assert orders.ingest(tmp_path / "c.csv", source="files").quarantined == 1
    sources = orders.quarantine().sort_by("source").column("source").to_pylist()
    assert sources == [str(tmp_path / "b.jsonl"), str(tmp_path / "c.csv")], "not a file of the server's"
    with pytest.raises(InvalidInputError, match="no file"):
        orders.ingest(str(tmp_path / "missing.parquet"))
    orders.ingest([{"op": "D", "id": 1, "at": 5}, {"op": "u", "id": 3, "name": "Edsger", "at": 1}], format="op")
    message = {"op": "c", "after": {"id": 4, "name": "Barbara", "at": 1}, "source": {"lsn": 1}}
    orders.ingest([message], format="debezium")
    orders.ingest(json.dumps({**message, "after": {"id": 5, "name": "Tony", "at": 1}}), format="debezium")
    assert names(orders.to_arrow()) == {2: "Grace", 3: "Edsger", 4: "Barbara", 5: "Tony"}
    with pytest.raises(InvalidInputError, match="format"):
        orders.ingest([], format="nope")


def test_changes_readers_evolution_properties_and_undo(either: Catalog) -> None:
    orders = either.create_stream_table(
        "orders", SCHEMA, keys=["id"], partition_by=["name"], properties={"late": "ignore"}
    )
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    assert orders.changes(reader="mail").column("_change_type").to_pylist() == ["insert"]
    with pytest.raises(InvalidInputError, match="ends before it begins"):
        orders.changes(after=1, until=0)
    orders.upsert([{"id": 1, "name": "Ada L.", "at": 2}], source="s")
    kinds = orders.changes(reader="mail").column("_change_type").to_pylist()
    assert sorted(kinds) == ["update_postimage", "update_preimage"]
    assert orders.readers() == {"mail": orders.position}, "as far as this process was handed changes"
    assert orders.commit_reader("mail") == orders.position
    assert orders.readers() == {"mail": orders.position}
    assert len(orders.changes(reader="mail")) == 0
    orders.drop_reader("mail")
    assert orders.readers() == {}
    orders.evolve(add={"tags": pa.list_(pa.string()), "note": "string"}, rename={"at": "moment"})
    assert orders.schema.names == ["id", "name", "moment", "tags", "note"]
    assert orders.set_properties({"contract": "freeze"}).contract == "freeze"
    orders.undo(source="s")
    assert names(orders.to_arrow()) == {1: "Ada"}
    with pytest.raises(TableAlreadyExistsError):
        either.create_stream_table("orders", SCHEMA)


def test_a_reader_that_dies_gets_what_it_was_handed_again(served: Catalog) -> None:
    log = served.create_stream_table("handed", pa.schema([pa.field("line", pa.string())]))
    log.append([{"line": "one"}])
    assert len(log.changes(reader="mail")) == 1
    anew = Catalog(served.namespace.at(served.slot)._properties["uri"])  # type: ignore[attr-defined]
    assert len(anew["handed"].changes(reader="mail")) == 1, "another process of that name"
    assert len(log.changes(reader="mail")) == 0


def test_the_past_is_told(either: Catalog) -> None:
    log = either.create_stream_table("raw.log", pa.schema([pa.field("line", pa.string())]))
    start = either.slot
    log.append([{"line": "one"}])
    either.drop_table("raw.log")
    with pytest.raises(TableNotFoundError):
        either["raw.log"]
    assert [item.path for item in either.diff(start, either.slot).removed] == [("raw", "log")]
    either.undrop("raw.log")
    assert either["raw.log"].count() == 1
    entries = list(either.log(after=start))
    assert [entry.slot for entry in entries] == list(range(start + 1, either.slot + 1))
    assert {change.operation for entry in entries for change in entry.changes} >= {"create", "delete"}
    assert [entry.operation for entry in either.history("raw.log")][-1] == "create"
    assert either.history("raw.log")[1].position == 1
    assert either.verify() == []
    told = either.collect(timedelta(0), timedelta(0), dry_run=True)
    assert (told.boundary, told.removed != ()) == (either.slot, True)
    assert either.history("raw.log")[0].slot <= start, "a dry run forgets nothing"


def test_every_name_and_row_is_read_as_it_was(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    either.create_table("plain", pa.table({"id": [1, 2]}), properties={"a": "1"})
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    slot = either.slot
    either.snapshot("then")
    orders.publish()
    orders.upsert([{"id": 1, "name": "later", "at": 2}])
    either["plain"].delete("id = 1")
    either.rename_table("plain", "moved")
    either.rename_namespace("raw", "cooked")
    for moment in (slot, "then"):
        past = either.at(moment)
        assert list(past) == ["plain", "raw.orders"]
        assert sorted(past["plain"].to_arrow().column("id").to_pylist()) == [1, 2]
        assert past["plain"].properties["a"] == "1"
        assert names(past["raw.orders"].to_arrow()) == {1: "Ada"}
        assert (past["raw.orders"].position, past["raw.orders"].published) == (1, None)
        changes: list[Any] = [
            lambda it: it["raw.orders"].upsert([{"id": 2, "name": "x", "at": 1}]),
            lambda it: it["raw.orders"].publish(),
            lambda it: it["plain"].append([{"id": 3}]),
            lambda it: it.create_table("new", pa.table({"id": [1]})),
            lambda it: it.drop_table("plain"),
        ]
        for change in changes:
            with pytest.raises(InvalidInputError, match="as it was"):
                change(past)
    assert list(either) == ["cooked.orders", "moved"]
    with pytest.raises(InvalidInputError):
        list(either.at(slot + 1000))


def test_a_moment_that_is_none_is_refused_when_it_is_asked_for(either: Catalog) -> None:
    either.create_namespace("a")
    either.create_namespace("b")
    either.snapshot("1")
    assert either.at("1").namespaces() == ["a", "b"]
    assert either.at(1).namespaces() == ["a"]
    assert either.diff(1, "1").added[0].path == ("b",)
    for moment in (-1, 99, True, None, [1], datetime.now()):
        with pytest.raises(InvalidInputError):
            either.at(moment)  # type: ignore[arg-type]
    with pytest.raises(TableTagNotFoundError):
        either.at("2")
    either.collect(keep=timedelta(0), grace=timedelta(0))
    with pytest.raises(InvalidInputError, match="can be read at"):
        either.at(1)


def test_what_is_no_transaction_is_not_undone(either: Catalog) -> None:
    either.create_namespace("a")
    for nothing in (5, None):
        with pytest.raises(InvalidInputError):
            either.undo(nothing)  # type: ignore[arg-type]
    assert either.namespaces() == ["a"]


def test_what_a_reader_was_handed_is_of_one_table_and_of_none_that_gets_its_name(either: Catalog) -> None:
    def made(name: str, rows: int) -> Any:
        stream = either.create_stream_table(name, SCHEMA, keys="id")
        for number in range(rows):
            stream.upsert([{"id": number}])
        return stream

    first, second = made("first", 3), made("second", 2)
    assert len(first.changes(reader="mail")) == 3
    assert len(second.changes(reader="mail")) == 2, "a reader of that name was handed three positions of another table"
    assert (first.readers(), second.readers()) == ({"mail": 3}, {"mail": 2})
    either.drop_table("first")
    anew = made("first", 3)
    with pytest.raises((ConcurrentModificationError, InvalidInputError), match=r"another table|handed nothing"):
        anew.commit_reader("mail")
    assert (anew.readers(), len(anew.changes(reader="mail"))) == ({}, 3)
    assert len(anew.changes(reader="mail")) == 0


def test_the_past_begins_no_transaction(either: Catalog) -> None:
    either.create_namespace("a")
    past = either.at(either.slot)
    with pytest.raises(InvalidInputError):
        past.run(lambda tx: tx.create_namespace("b"))
    with pytest.raises(InvalidInputError), past.transaction("now") as tx:
        tx.create_namespace("b")
    assert either.namespaces() == ["a"]


def test_what_two_transactions_land_in_a_table_never_conflicts(either: Catalog) -> None:
    either.create_stream_table("s", SCHEMA, keys=["id"])
    with either.transaction() as one, either.transaction() as other:
        one["s"].upsert([{"id": 1}])
        other["s"].upsert([{"id": 2}])
    assert either["s"].count() == 2


def test_a_transaction_publishes_what_it_lands_at_its_own_slot(either: Catalog) -> None:
    for name in ("s", "t"):
        either.create_stream_table(name, SCHEMA, keys=["id"], properties={"history": "scd2"} if name == "t" else {})
    either["s"].upsert([{"id": 1, "name": "Ada"}])
    slot = either.slot
    with either.transaction("land and publish") as tx:
        tx["s"].upsert([{"id": 1, "name": "Ada L."}, {"id": 2, "name": "Grace"}])
        tx["t"].evolve(add={"more": "int64"})
        tx["t"].upsert([{"id": 3, "name": "Mary", "more": 1}])
        assert [each.position for each in tx.publish(["s", "t"])] == [2, 1]
        assert (tx["s"].published.position, names(tx["s"].to_arrow())) == (2, {1: "Ada L.", 2: "Grace"})
        with pytest.raises(InvalidInputError, match="named twice"):
            tx.publish(["s", "s"])
        assert not either["s"].published
    assert either.slot == slot + 1
    assert names(either["s"].serving.to_arrow()) == {1: "Ada L.", 2: "Grace"}
    assert (either["s"].position, either["s"].published.position, either["s"].count()) == (2, 2, 2)
    assert either["t"].serving.to_arrow().column("more").to_pylist() == [1]
    assert either["t__history"].count() == 1
    assert either.verify() == []


def test_a_transaction_publishes_a_table_as_often_as_it_likes_and_shows_no_half_of_what_it_lands(
    either: Catalog,
) -> None:
    options: dict[str, Any] = {"sequence": ["at"], "properties": {"history": "scd2", "late": "quarantine"}}
    stream = either.create_stream_table("s", pa.schema([("id", pa.int64()), ("at", pa.int64())]), ["id"], **options)
    stream.upsert([{"id": 1, "at": 5}])
    with suppress(ZeroDivisionError), either.transaction() as tx:
        for place in range(2):
            tx["s"].upsert([{"id": 1, "at": 6 + place}])
            tx["s"].publish()
        raise ZeroDivisionError
    assert (stream.published, stream.position) == (None, 1)
    with either.transaction("twice") as tx:
        assert tx["s"].publish().position == 1
        tx["s"].upsert([{"id": 1, "at": 6}, {"id": 2, "at": 6}, {"id": 3, "at": 6}])
        assert tx["s"].publish().position == 2
        tx["s"].upsert([{"id": 1, "at": 4}, {"id": 2, "at": 7}])
        tx["s"].delete([{"id": 3, "at": 8}])
        tx["s"].evolve(add={"more": "int64"})
        done = tx["s"].publish()
        assert (done.position, done.late, tx["s"].publish().version) == (4, 1, done.version)
        assert sorted(row["id"] for row in tx["s"].serving) == [1, 2]
    shown = stream.serving
    assert [(row["id"], row["at"]) for row in sorted(shown, key=lambda row: row["id"])] == [(1, 6), (2, 7)]
    counts = {len(shown.at(each.version)) for each in shown.versions()}
    assert counts == {1, 2}
    assert either["s__quarantine"].count() == 1
    assert either["s__history"].count() == 5
    stream.upsert([{"id": 9, "at": 9}])
    assert (stream.publish().version > done.version, stream.serving.count()) == (True, 3)
    assert either.verify() == []


def test_a_transaction_that_publishes_a_table_between_two_landings_is_refused_and_published_again_it_is_not(
    either: Catalog,
) -> None:
    streams = [either.create_stream_table(name, SCHEMA, keys=["id"]) for name in ("s", "t")]
    streams[0].upsert([{"id": 1}])
    slot = either.slot

    def land(tx: Any) -> None:
        tx["s"].publish()  # of a position before the transaction: that one stays
        tx.create_stream_table("gone", SCHEMA, keys=["id"])
        for name in ("s", "t", "gone"):
            tx[name].upsert([{"id": 2}])
        tx.publish(["t", "gone"])
        for name in ("t", "gone"):
            tx[name].upsert([{"id": 3}])
        tx.drop_table("gone")

    with pytest.raises(InvalidInputError, match="publishes t and lands rows in it afterwards"):
        either.run(land)
    assert (either.slot, [each.position for each in streams], either["t"].published) == (slot, [1, 0], None)
    with either.transaction() as tx:
        land(tx)
        tx["t"].publish()
    assert (either.slot, [each.position for each in streams]) == (slot + 1, [2, 2])
    assert [(each.published.position, each.serving.count()) for each in streams] == [(1, 1), (2, 2)]
    assert {len(streams[1].serving.at(each.version)) for each in streams[1].serving.versions()} == {2}
    assert either.verify() == []


def test_a_version_of_an_open_transaction_has_no_final_name_whoever_reads_it_there(
    either: Catalog, tmp_path: Path
) -> None:
    def shown() -> list[str]:
        return sorted(path.name for path in (tmp_path / "lake").rglob("_versions/*.manifest"))

    stream = either.create_stream_table("s", SCHEMA, keys=["id"])
    stream.upsert([{"id": 1}])
    stream.publish()
    before = shown()
    with suppress(ZeroDivisionError), either.transaction() as tx:
        tx["s"].upsert([{"id": 2}])
        version = tx["s"].publish().version
        tx["s"].serving.tags["new"] = version
        assert (tx["s"].serving.at(tag="new").count(), len(tx["s"].serving.versions())) == (2, version)
        assert shown() == before
        raise ZeroDivisionError
    assert (shown(), either.verify()) == (before, [])


def test_no_tag_stands_on_a_version_with_half_of_what_a_transaction_lands(either: Catalog) -> None:
    stream = either.create_stream_table("s", SCHEMA, keys=["id"])
    with either.transaction() as tx:
        tx["s"].upsert([{"id": 1}])
        tx["s"].serving.tags["half"] = tx["s"].publish().version
        tx["s"].upsert([{"id": 2}])
        with pytest.raises(InvalidInputError, match="The tag 'half' stands on version"):
            tx["s"].publish()
        del tx["s"].serving.tags["half"]
        tx["s"].serving.tags["whole"] = tx["s"].publish().version
    assert (stream.serving.at(tag="whole").count(), list(stream.serving.tags)) == (2, ["whole"])
    assert either.verify() == []


def test_tables_and_their_quarantines_are_published_by_one_transaction_in_any_order(either: Catalog) -> None:
    stream = either.create_stream_table("s", SCHEMA, keys=["id"], sequence=["at"], properties={"late": "quarantine"})
    stream.upsert([{"id": 1, "at": 5}])
    with either.transaction() as tx:
        tx["s"].ingest([{"id": 1, "at": 4}, {"id": None, "at": 4}])
        assert [each.position for each in tx.publish(["s__quarantine", "s"])] == [2, 2]
    assert sorted(row["reason"] for row in either["s__quarantine"].serving) == ["late", "null_key"]
    assert either.verify() == []


def test_a_publish_in_a_transaction_is_bound_to_the_log_only_where_that_lands_too(either: Catalog) -> None:
    stream = either.create_stream_table("s", SCHEMA, keys=["id"])
    stream.upsert([{"id": 1}])
    with either.transaction() as tx:
        tx["s"].publish()
        stream.upsert([{"id": 2}])
    assert (stream.published.position, stream.position) == (1, 2)
    landing, publishing = either.transaction(), either.transaction()
    inside = landing.__enter__()
    inside["s"].upsert([{"id": 3}])
    inside["s"].publish()
    publishing.__enter__()["s"].publish()
    stream.upsert([{"id": 4}])
    stream.publish()
    for overtaken in (landing, publishing):
        with pytest.raises(ConcurrentModificationError, match=r"\(s\)"):
            overtaken.__exit__(None, None, None)
    assert (stream.published.position, stream.count(), either.verify()) == (3, 3, [])


def test_a_snapshot_is_read_after_a_collection(either: Catalog, tmp_path: Path) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    either.create_table("plain", pa.table({"id": [1]}))
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    orders.publish()
    taken = either.snapshot("monday")
    assert taken is not None
    assert {table.path: table.position for table in taken.tables}[("raw", "orders")] == 1
    orders.upsert([{"id": 1, "name": "later", "at": 2}])
    either["plain"].delete("id = 1")
    either.drop_table("plain")
    either.collect(timedelta(0), timedelta(0))
    assert either.snapshots() == [taken]
    near = Catalog(MetastoreNamespace(root=str(tmp_path / "lake"))).at("monday")
    assert names(near["raw.orders"].to_arrow()) == {1: "Ada"}
    assert near["plain"].to_arrow().to_pydict() == {"id": [1]}
    either.drop_snapshot("monday")
    assert either.snapshots() == []


def test_a_transaction_is_undone_with_what_it_landed(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    orders.upsert([{"id": 1, "name": "Ada", "at": 1}])
    start = either.slot
    orders.upsert([{"id": 1, "name": "wrong", "at": 2}, {"id": 2, "name": "x", "at": 1}], token="t")
    (entry,) = either.log(after=start)
    told = either.undo(entry, dry_run=True)
    assert (told.slot, names(orders.to_arrow())) == (None, {1: "wrong", 2: "x"})
    assert either.undo(entry.txn).slot == either.slot
    assert names(orders.to_arrow()) == {1: "Ada"}
    assert not orders.upsert([{"id": 2, "name": "x", "at": 1}], token="t").duplicate, "its token is free again"
    orders.publish()
    publish = list(either.log(after=start))[-1]
    with pytest.raises(InvalidTableStateError):
        either.undo(publish)


def test_a_stream_table_comes_back_with_its_quarantine(either: Catalog) -> None:
    orders = either.create_stream_table("raw.orders", SCHEMA, keys="id")
    orders.ingest([{"id": None, "name": "?", "at": 1}, {"id": 1, "name": "Ada", "at": 1}])
    either.drop_table("raw.orders")
    assert list(either) == []
    either.undrop("raw.orders")
    assert list(either) == ["raw.orders", "raw.orders__quarantine"]
    assert (len(orders), len(orders.quarantine())) == (1, 1)


def test_an_alias_is_found_and_not_listed(either: Catalog) -> None:
    either.create_stream_table("raw.orders", SCHEMA, keys="id").upsert([{"id": 1, "name": "Ada", "at": 1}])
    either.alias("raw.orders", "sales")
    assert (either["raw.sales"].count(), either.tables("raw")) == (1, ["orders"])
    either["raw.sales"].upsert([{"id": 2, "name": "Grace", "at": 1}])
    assert either["raw.orders"].publish().rows == 2
    either.rename_namespace("raw", "cooked")
    assert len(either["cooked.sales"]) == 2
    either.unalias("cooked.orders", "sales")
    assert "cooked.sales" not in either


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    server = start_in_thread(MetastoreNamespace(root=str(tmp_path_factory.mktemp("served") / "lake")))
    yield Catalog(server.url)
    server.stop()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(max_batches=4), st.data())
def test_random_histories_through_a_server_agree_with_the_oracle(
    served: Catalog, history: History, data: st.DataObject
) -> None:
    rules = history.rules
    options = {} if rules.lateness is None else {"lateness": str(rules.lateness)}
    name = f"t{len(served)}"
    table = served.create_stream_table(name, rules.schema, rules.keys, rules.sequence, (), options)
    expected = Oracle(rules.schema.names, rules.keys, rules.sequence, rules.lateness)
    states = [sorted_rows([])]
    for batch in history.batches:
        events = python_rows(rules, batch)
        rows = [{**event.row, "op": "delete" if event.delete else "upsert"} for event in events]
        assert table.ingest(rows, format="op").position == len(states)
        states.append(sorted_rows(expected.take(events).state()))
        if data.draw(st.booleans()):
            table.publish()
    for position, state in enumerate(states):
        assert sorted_rows(table.to_arrow(position=position).to_pylist()) == state
    table.publish()
    assert sorted_rows(table.serving.to_arrow().to_pylist()) == states[-1]


def test_a_server_of_a_directory_has_no_stream_tables(tmp_path: Path) -> None:
    server = start_in_thread(DirectoryNamespace(root=str(tmp_path)))
    try:
        catalog = Catalog(server.url)
        catalog.create_table("t", pa.table({"id": [1]}))
        assert catalog["t"].count() == 1
        calls: list[Any] = [lambda: catalog.create_stream_table("s", SCHEMA), lambda: catalog.history("t")]
        for call in calls:
            with pytest.raises(UnsupportedOperationError, match="metastore"):
                call()
    finally:
        server.stop()
