"""Stream tables, used alike on disk and through a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
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
    TableAlreadyExistsError,
    UnsupportedOperationError,
)
from headwater.pipeline import ingest
from headwater.rest.server import start_in_thread
from tests.catalog.samples import SCHEMA, names
from tests.streams.histories import History, histories, python_rows
from tests.streams.oracle import Oracle, sorted_rows


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
    retried = orders.retry_quarantined(reason="bad_value")
    assert (retried.rows, retried.quarantined, orders.drop_quarantined(reason="null_key")) == (0, 1, 1)
    assert orders.quarantine().column("reason").to_pylist() == ["bad_value"]
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


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    server = start_in_thread(MetastoreNamespace(root=str(tmp_path_factory.mktemp("served") / "lake")))
    yield Catalog(server.url)
    server.stop()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(max_batches=4, truncates=False), st.data())
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
        # An `op` says delete or read, not both: a delete of a snapshot, never too late, is none that can be sent.
        events = [replace(event, read=event.read and not event.delete) for event in python_rows(rules, batch)]
        ops = ["delete" if event.delete else "r" if event.read else "upsert" for event in events]
        rows = [{**event.row, "op": op} for event, op in zip(events, ops, strict=True)]
        assert table.ingest(rows, format="op").position == len(states)
        states.append(sorted_rows(expected.take(events).state()))
        if data.draw(st.booleans()):
            table.publish()
    for position, state in enumerate(states):
        assert sorted_rows(table.to_arrow(position=position).to_pylist()) == state
    table.publish()
    assert sorted_rows(table.serving.to_arrow().to_pylist()) == states[-1]


@pytest.mark.parametrize("way", ["table", "job"])
def test_files_of_one_call_are_one_batch_of_a_table_with_lateness(either: Catalog, tmp_path: Path, way: str) -> None:
    """Before, each file sent to a server was its own batch: the rows of the second were too late for the first."""
    loose = either.create_stream_table("raw.loose", SCHEMA, "id", "at")
    table = either.create_stream_table("raw.t", SCHEMA, "id", "at", (), {"lateness": "10"})
    for name, row in {"a": {"id": 1, "at": 100}, "b": {"id": 2, "at": 1}, "c": {"id": 3, "at": 95}}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")

    def take(into: Any, names: str) -> tuple[int, int]:
        files = str(tmp_path / names)
        if way == "job":
            report = ingest(None, either, into.name, files, name="s")
            return report.rows, report.too_late
        done = into.ingest(files, source="s")
        return done.rows, done.too_late

    assert take(table, "[ab].jsonl") == (2, 0)
    assert len({delta.txn for delta in table.deltas()}) == 1
    assert sorted(table.files("s")) == [str(tmp_path / f"{name}.jsonl") for name in "ab"]
    assert take(table, "c.jsonl") == (1, 0)
    assert table.publish().too_late == 0
    assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == [1, 2, 3]
    table.undo("s", file=str(tmp_path / "b.jsonl"))
    assert sorted(row["id"] for row in table.to_arrow().to_pylist()) == [1, 3]
    assert take(loose, "[ab].jsonl") == (2, 0)
    assert len({delta.txn for delta in loose.deltas()}) == 2, "without a lateness each file is a transaction"


def test_of_files_that_are_one_batch_none_is_taken_if_one_cannot_be_read(either: Catalog, tmp_path: Path) -> None:
    table = either.create_stream_table("raw.t", SCHEMA, "id", "at", (), {"lateness": "10"})
    (tmp_path / "a.jsonl").write_text('{"id": 1, "at": 100}\n')
    (tmp_path / "b.parquet").write_text("no Parquet")
    with pytest.raises(InvalidInputError, match=r"b\.parquet"):
        table.ingest([str(tmp_path / "a.jsonl"), str(tmp_path / "b.parquet")], source="s")
    assert (table.position, table.files("s")) == (0, {})


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
