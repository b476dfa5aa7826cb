"""Debezium as a live source, with a process that gives recorded events in place of the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.pipeline.grammar import Pipeline
from headwater.pipeline.live.debezium_reader import PYTHON, engine_orders, engine_settings, table_columns
from headwater.pipeline.live.live_runs import begin_source_again
from headwater.pipeline.live.live_source import LiveState, live_state
from headwater.pipeline.live.source_specs import DebeziumSpec
from headwater.streams.definition import define
from headwater.streams.rows.column_types import can_be_kept
from headwater.streams.sources import postgres
from headwater.streams.sources.formats import take_alone
from tests.interop.postgres.compared import SCHEMAS, differences
from tests.interop.postgres.recording import Recording, load

STAND_IN = Path(__file__).parent / "recorded_engine.py"
TEXT = """
[pipeline]
name = "database"
catalog = "./lake"
engine = "embedded"
[[source]]
name = "shop"
debezium = { connector = "postgres", host = "127.0.0.1", user = "u", database = "shop", password = "env:SHOP_PASSWORD" }
into = "raw.{table}"
"""


@pytest.fixture(scope="module")
def recording() -> Recording:
    return load()


class Given:
    """A pipeline whose engine gives these batches."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch = folder, patch
        (folder / "pipeline.toml").write_text(TEXT)
        patch.setenv("SHOP_PASSWORD", "secret")

    def batches(self, batches: list[list[Any]], dies_after: int = 0) -> Pipeline:
        (self.folder / "batches.json").write_text(json.dumps(batches))
        line = f"{sys.executable} {STAND_IN} {self.folder}/batches.json {self.folder}/acknowledged {dies_after}"
        script = self.folder / "engine"
        script.write_text(f"#!/bin/sh\nexec {line}\n")
        script.chmod(0o755)
        self.patch.setenv(PYTHON, str(script))
        return read_pipeline(self.folder / "pipeline.toml")

    @property
    def acknowledged(self) -> int:
        file = self.folder / "acknowledged"
        return int(file.read_text().split()[-1]) if file.exists() else 0

    @property
    def catalog(self) -> Catalog:
        return Catalog(str(self.folder / "lake"))


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(tmp_path, monkeypatch)


def recorded(recording: Recording, moments: int) -> list[list[Any]]:
    """The records of these moments, as the engine's process writes them."""
    found = []
    for lines in recording.lines["schemas"][:moments]:
        records = [json.loads(line) for line in lines]
        topics = [str(each["topic"]).replace("schemas.", "headwater.", 1) for each in records]
        kept = [[t, each["key"], each["value"]] for t, each in zip(topics, records, strict=True) if each["value"]]
        found += [kept[: len(kept) // 2], kept[len(kept) // 2 :]]
    return found


def check(catalog: Catalog, recording: Recording, moment: int) -> None:
    for table in SCHEMAS:
        rows = catalog[f"raw.{table}"].to_arrow()
        if table == "items":  # this recording has hstore as text
            place = rows.schema.names.index("attrs")
            rows = rows.set_column(place, "attrs", pa.nulls(rows.num_rows, pa.map_(pa.string(), pa.string())))
        else:  # Debezium has vectors of PostgreSQL as doubles
            place = rows.schema.names.index("embedding")
            rows = rows.set_column(place, "embedding", rows.column("embedding").cast(pa.list_(pa.float32())))
        found = differences(rows, recording.rows[moment][table], table)
        assert [each for each in found if each[1] != "attrs"] == []


def test_tables_made_by_the_schemas_of_messages_hold_what_the_database_selects(
    given: Given, recording: Recording
) -> None:
    for moment in range(len(recording.rows)):
        run_pipeline(given.batches(recorded(recording, moment + 1)))
        check(given.catalog, recording, moment)
    table = given.catalog["raw.items"]
    assert (table.definition.keys, table.definition.sequence) == (("id",), ("_lsn",))
    assert table.quarantine().num_rows == 0
    known = {column.name: column.type for column in table.definition.columns}
    wanted = {field.name: field.type for field in SCHEMAS["items"] if field.name != "attrs"}
    assert {name: known[name] for name in wanted} == wanted


def test_a_table_whose_first_message_is_a_truncation_has_the_keys_of_the_source(
    given: Given, recording: Recording
) -> None:
    """A truncation has no key: the table that it made had none, and no later truncation took a row out of it."""
    topic, key, value = recorded(recording, 1)[0][0]

    def record(lsn: int, op: str) -> list[str | None]:
        message = json.loads(value)
        message["payload"] |= {"op": op, "after": message["payload"]["after"] if op == "c" else None, "before": None}
        message["payload"]["source"]["lsn"] = lsn
        return [topic, key if op == "c" else None, json.dumps(message)]

    batches = [[record(10, "t")], [record(20, "t"), record(30, "c")], [record(40, "t")], [record(50, "c")]]
    for count, rows in ((1, None), (2, 1), (3, 0), (4, 1)):
        run_pipeline(given.batches(batches[:count]))
        name = "raw." + topic.rpartition(".")[2]
        assert (name in given.catalog) == (rows is not None)
        if rows is not None:
            table = given.catalog[name]
            assert (table.definition.keys, table.definition.sequence) == (("id",), ("_lsn",))
            assert table.count() == rows


@pytest.mark.parametrize("dies_after", [1, 2])
def test_an_engine_that_dies_before_its_acknowledgement_gives_nothing_twice(
    given: Given, recording: Recording, dies_after: int
) -> None:
    batches = recorded(recording, 3)
    pipeline = given.batches(batches, dies_after)
    lives = len(batches) // dies_after
    for _ in range(lives):
        with pytest.raises(ServiceUnavailableError, match=r"ended \(status 3\): the next run goes on"):
            run_pipeline(pipeline)
        state = live_state(given.catalog, "shop")
        assert state.offset is not None
        assert given.acknowledged <= state.offset[1]["lsn"]
    run_pipeline(pipeline)
    state = live_state(given.catalog, "shop")
    assert state.offset is not None
    assert (state.offset[1]["lsn"], state.commits) == (len(batches), len(batches))
    assert state.journal == tuple(f"ddl {number}" for number in range(1, len(batches) + 1))
    check(given.catalog, recording, 2)


def test_an_engine_that_is_missing_or_has_no_java_says_what_to_install(given: Given) -> None:
    pipeline = given.batches([])
    script = given.folder / "engine"
    script.write_text('#!/bin/sh\nread x\necho \'{"failed": "missing: No module named jpype"}\'\n')
    with pytest.raises(UnsupportedOperationError, match=r"pip install 'headwater\[debezium\]'"):
        run_pipeline(pipeline)
    script.write_text("#!/bin/sh\nread x\necho 'Error: no room' >&2\nexit 9\n")
    with pytest.raises(ServiceUnavailableError, match=r"status 9.*Error: no room"):
        run_pipeline(pipeline)


def test_without_the_client_of_ranges_the_engine_copies_unless_the_file_asks_for_ranges(
    given: Given, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "client", when_used("a_client_that_nobody_has"))
    pipeline = given.batches(recorded(recording, 1))
    run_pipeline(pipeline)
    assert given.catalog["raw.items"].count() > 0
    file = given.folder / "pipeline.toml"
    file.write_text(file.read_text().replace('connector = "postgres"', 'connector = "postgres", copy = "ranges"'))
    begin_source_again(given.catalog, "shop", [])
    with pytest.raises(UnsupportedOperationError, match=r"pip install 'headwater\[postgres\]'"):
        run_pipeline(read_pipeline(file))


def test_secrets_go_through_the_pipe_and_are_in_no_setting_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("P", "secret")
    spec = DebeziumSpec("postgres", "h", "u", "d", 5432, "env:P", ("public.a",), transactions=True)
    settings = engine_settings(spec, "slot")
    assert "secret" not in json.dumps(settings)
    assert "env:P" not in json.dumps(settings)
    assert {
        "slot.name": "slot",
        "publication.name": "slot",
        "table.include.list": "public.a",
    }.items() <= settings.items()
    orders = engine_orders(spec, "slot", LiveState(), tmp_path)
    assert (orders["password"], orders["settings"]["database.password"]) == ("secret", "secret")
    assert list(tmp_path.iterdir()) == []
    own = engine_orders(DebeziumSpec("mysql", "h", "u", "d", 3306), "slot", LiveState([{}, {}], ("a",)), tmp_path)
    assert own["settings"]["database.include.list"] == "d"
    assert own["settings"]["schema.history.internal.file.filename"] == own["history_file"]
    assert (own["history"], own["offset"]) == (["a"], [{}, {}])


def test_a_row_of_the_first_copy_is_older_than_a_change_that_the_log_had_before_it() -> None:
    """PostgreSQL sends a transaction that ends after the copy whole, also its changes from before."""
    definition = define(pa.schema([("id", pa.int64()), ("n", pa.int64()), ("_lsn", pa.int64())]), ["id"], ["_lsn"])
    read = {"op": "r", "after": {"id": 1, "n": 1}, "source": {"lsn": 12}}
    update = {"op": "u", "after": {"id": 1, "n": 2}, "source": {"lsn": 10}}
    text = "\n".join(map(json.dumps, (read, update)))
    for options, last in (({"reads_first": True}, 2), ({}, 1)):
        rows = take_alone(definition, text, "debezium", options).data
        places = list(rows.columns["_lsn"])
        newest = max(range(2), key=lambda place: places[place] if isinstance(places[place], int) else 0)
        assert list(rows.columns["n"])[newest] == last


def test_columns_follow_the_schema_of_messages() -> None:
    fields: list[dict[str, Any]] = [
        {"field": "id", "type": "int32"},
        {"field": "p", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
         "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
        {"field": "at", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "tags", "type": "array", "items": {"type": "string"}},
        {"field": "odd", "type": "string", "name": "io.debezium.data.Json"},
    ]  # fmt: skip
    found = table_columns({"fields": [{"field": "after", "type": "struct", "fields": fields}]}, ("_file_no", "_pos"))
    assert found == {
        "id": pa.int32(),
        "p": pa.decimal128(10, 2),
        "at": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
        "odd": pa.string(),
        "_file_no": pa.int64(),
        "_pos": pa.int64(),
    }


@pytest.mark.parametrize(
    ("digits", "scale", "kept"),
    [(5, -2, (7, 0)), (2, 5, (5, 5)), (20, 4, (20, 4)), (50, 20, (38, 20)), (60, 50, (38, 38))],
)
def test_a_decimal_of_the_source_becomes_one_that_files_have_a_place_for(
    digits: int, scale: int, kept: tuple[int, int]
) -> None:
    told = {"scale": str(scale), "connect.decimal.precision": str(digits)}
    field = {"field": "p", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": told}
    found = table_columns({"fields": [{"field": "after", "type": "struct", "fields": [field]}]}, ())
    assert found == {"p": pa.decimal128(*kept)}
    assert can_be_kept(found["p"])


def test_a_table_of_another_schema_goes_into_no_table_that_has_rows_of_the_first(given: Given) -> None:
    """Only two that came in one life of the process were told apart: after a restart they were mixed."""
    first = [["headwater.public.orders", *change(1)]]
    run_pipeline(given.batches([first]))
    other = [["headwater.old.orders", *change(2)]]
    with pytest.raises(InvalidInputError, match=r"has public\.orders and old\.orders, and both go into raw\.orders"):
        run_pipeline(given.batches([first, other]))
    assert given.catalog["raw.orders"].to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(InvalidInputError, match="both go into"):
        run_pipeline(given.batches([first, [*first, *other]]))  # in one batch


def change(id: int) -> list[str]:
    """Return the key and the value of an insert, as the engine writes them."""
    field = {"type": "int64", "optional": False, "field": "id"}
    row = {"type": "struct", "fields": [field], "optional": True}
    place = {"type": "struct", "field": "source", "fields": [{"type": "int64", "optional": True, "field": "lsn"}]}
    parts = [{**row, "field": "before"}, {**row, "field": "after"}, place]
    envelope = {"type": "struct", "fields": [*parts, {"type": "string", "field": "op"}]}
    value = {"before": None, "after": {"id": id}, "source": {"lsn": id}, "op": "c"}
    texts = ({"schema": {**row, "optional": False}, "payload": {"id": id}}, {"schema": envelope, "payload": value})
    return [json.dumps(each, separators=(",", ":")) for each in texts]
