"""Debezium messages by the types of their columns, in every wrapping; what is no message is refused or kept whole."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.decoding.bounds import Bounds
from headwater.errors import InvalidInputError
from headwater.metastore import Metastore
from headwater.streams.definition import Definition, define
from headwater.streams.log.batches import shape
from headwater.streams.sources.debezium import take_debezium
from headwater.streams.sources.files import find_files, read_lines, read_rows
from headwater.streams.sources.message_values import read_value
from headwater.streams.table import StreamTable
from tests.streams.samples import rows_of

UNSENT = "__debezium_unavailable_value"
MOMENT = pa.timestamp("us", "UTC")
UNSENT_FORMS = [
    UNSENT,
    base64.b64encode(UNSENT.encode()).decode(),
    [UNSENT],
    list(UNSENT.encode()),
    ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    {UNSENT: UNSENT},
    json.dumps({UNSENT: UNSENT}, separators=(",", ":")),
]


def message(op: str, lsn: int, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn, **source}, "ts_ms": 5}


def documents(metastore: Metastore, **columns: Any) -> StreamTable:
    schema = {"id": "int64", "_lsn": "int64", "title": "string", "body": "string", **columns}
    return StreamTable.create(metastore, ["documents"], schema, keys="id", sequence="_lsn")


def landed(kind: Any, value: Any, is_text: bool, **options: Any) -> Any:
    """The value that a column of this type has after a message; "bad" where it is quarantined."""
    definition = define(pa.schema([("id", pa.int64()), ("_lsn", pa.int64()), ("v", kind)]), ["id"], ["_lsn"])
    found = [message("c", 1, None, {"id": 1, "v": value})]
    data = "\n".join(json.dumps(each) for each in found) if is_text else found
    batch = shape(definition, take_debezium(definition, data, **options).data, "evolve")
    return "bad" if batch.bad else batch.events.rows.column("v").to_pylist()[0]


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.list_(pa.float32()), [1.0, 2, None], [1.0, 2.0, None]),
        (pa.list_(pa.float32(), 2), [1.5, 2.0], [1.5, 2.0]),
        (pa.list_(pa.float32(), 2), [1.5], "bad"),
        (pa.list_(pa.float32()), "[1,2.5,-3e-05]", [1.0, 2.5, pytest.approx(-3e-05)]),
        (pa.list_(pa.float32()), [1e300], "bad"),
        (pa.list_(pa.float64()), ["Infinity", "-Infinity"], [float("inf"), float("-inf")]),
        (pa.float64(), "NaN", pytest.approx(float("nan"), nan_ok=True)),
        (pa.float64(), "1.5", "bad"),
        (
            pa.struct([("x", pa.float64()), ("on", pa.date32())]),
            {"x": 1.5, "on": 1},
            {"x": 1.5, "on": date(1970, 1, 2)},
        ),
        (pa.struct([("x", pa.float64())]), '{"x": 2.5}', {"x": 2.5}),
        (pa.struct([("x", pa.float64())]), {"y": 2.5}, "bad"),
        (pa.map_(pa.string(), pa.float32()), {"a": 0.5}, [("a", 0.5)]),
        (pa.map_(pa.string(), pa.string()), '{"a":null}', [("a", None)]),
        (pa.list_(pa.int64()), [9007199254740993, 2.0], [9007199254740993, 2]),
        (pa.list_(pa.int64()), [1.5], "bad"),
        (pa.list_(pa.decimal128(12, 2)), ["0.25", 1.5, None], [Decimal("0.25"), Decimal("1.50"), None]),
        (pa.decimal128(30, 3), {"scale": 3, "value": base64.b64encode(b"\x04\xd2").decode()}, Decimal("1.234")),
        (pa.decimal128(12, 2), "NaN", "bad"),
        (pa.list_(pa.date32()), [0, "2000-02-29", "2000-02-29Z"], [date(1970, 1, 1)] + [date(2000, 2, 29)] * 2),
        (pa.date32(), "1969-12-29Z", date(1969, 12, 29)),
        (pa.date32(), -2147472692, "bad"),
        (pa.time64("us"), "10:34:56.5Z", time(10, 34, 56, 500000)),
        (pa.time64("us"), "01:00:00+02:00", time(23, 0)),
        (pa.list_(MOMENT), ["2000-01-01T00:00:00.25Z"], [datetime(2000, 1, 1, 0, 0, 0, 250000, UTC)]),
        (pa.list_(MOMENT), [1_000_000], [datetime(1970, 1, 1, 0, 0, 1, 0, UTC)]),
        (MOMENT, "infinity", "bad"),
        (pa.list_(pa.binary()), [base64.b64encode(b"\0x").decode()], [b"\0x"]),
        (pa.list_(pa.list_(pa.float32())), [[1.5], None], [[1.5], None]),
    ],
)
def test_values_are_read_by_the_type_of_their_column_at_any_depth(
    kind: Any, value: Any, expected: Any, is_text: bool
) -> None:
    assert landed(kind, value, is_text, time_unit="us") == expected


def test_a_decimal_of_the_schema_keeps_every_digit() -> None:
    schema = {"name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "9"}}
    digits = 12345678901234567891123456789
    value = base64.b64encode(digits.to_bytes(16, "big", signed=True)).decode()
    assert read_value(value, schema) == Decimal("12345678901234567891.123456789")


@pytest.mark.parametrize("form", UNSENT_FORMS, ids=str)
@pytest.mark.parametrize("is_text", [True, False])
def test_a_value_that_was_not_sent_is_missing_in_every_form(form: Any, is_text: bool) -> None:
    definition = define({"id": "int64", "_lsn": "int64", "v": "string"}, "id", "_lsn")
    data: Any = [message("u", 1, None, {"id": 1, "v": form}), message("u", 2, None, {"id": 2, "v": "x"})]
    data = "\n".join(map(json.dumps, data)) if is_text else data
    assert take_debezium(definition, data).data.present["v"].tolist() == [False, True]


# What messages come in


def kafka(*messages: Any) -> dict[str, list[Any]]:
    return {"key": [b"{}" for _ in messages], "value": [json.dumps(each).encode() for each in messages]}


EVENTS = [message("c", 1, None, {"id": 1, "title": "a"}), message("u", 2, None, {"id": 1, "title": "b"})]
CLOUD = {
    "id": "1", "specversion": "1.0", "type": "DataChangeEvent", "iodebeziumop": "u", "iodebeziumlsn": "2",
    "data": {"before": None, "after": {"id": 1, "title": "b"}},
}  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        pa.table(kafka(*EVENTS)),
        pa.table(kafka(*EVENTS)).to_batches(1),
        pa.table({"value": pa.array(map(json.dumps, EVENTS), pa.string()).dictionary_encode()}),
        pd.DataFrame(kafka(*EVENTS)),
        pl.DataFrame(kafka(*EVENTS)),
        pa.Table.from_pylist(EVENTS),
        pa.table({"value": pa.array(EVENTS)}),
        pa.table({"payload": pa.array(EVENTS)}),
        pa.table({"id": [1], "title": ["b"], "__op": ["u"], "__lsn": [2]}),
        [{"key": {"id": 1}, "value": json.dumps(each)} for each in EVENTS],
        [{"key": None, "value": {"schema": None, "payload": each}, "offset": 3} for each in EVENTS] + [{"value": None}],
        [{"topic": "t", "offset": 1, "key": "1", "payload": json.dumps(each)} for each in EVENTS],
        [CLOUD],
        [{**CLOUD, "data": json.dumps({"schema": None, "payload": CLOUD["data"]})}],
        [json.dumps(each, indent=1) for each in EVENTS],
        (each for each in EVENTS),
    ],
    ids=lambda data: type(data).__name__,
)
def test_messages_are_taken_in_every_form_they_come_in(data: Any) -> None:
    definition = define({"id": "int64", "_lsn": "int64", "title": "string", "body": "string"}, "id", "_lsn")
    taken = take_debezium(definition, data)
    assert taken.bad == ()
    last = taken.data.row(taken.data.length - 1)
    assert (last["id"], last["_lsn"], last["title"]) == (1, 2, "b")


def test_a_parquet_file_of_messages_is_taken(metastore: Metastore, tmp_path: Path) -> None:
    table = documents(metastore)
    pq.write_table(pa.table(kafka(*EVENTS)), tmp_path / "topic.parquet")
    assert table.ingest(str(tmp_path / "topic.parquet"), format="debezium").rows == 2


def test_what_is_no_message_is_refused_before_anything_moves(metastore: Metastore) -> None:
    table = documents(metastore)
    for data in (pa.table({"id": [1]}), pd.DataFrame({"text": ["{}"]}), [1, 2], 7, [object()]):
        with pytest.raises(InvalidInputError, match=r"[Mm]essage"):
            table.ingest(data, format="debezium")
    assert table.position == 0
    assert table.quarantine().num_rows == 0


def test_a_message_that_cannot_be_understood_is_quarantined_whole(metastore: Metastore) -> None:
    table = documents(metastore)
    strange = {"what": ["x" * 100] * 50}
    report = table.ingest(pa.table({"value": [json.dumps(strange), "no json", None]}), format="debezium")
    assert (report.rows, report.quarantined) == (0, 2)
    rows: list[Any] = table.quarantine()["row"].to_pylist()
    assert json.loads(rows[1] if rows[0] == "no json" else rows[0])["message"] == strange


# What the envelope offers


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize(
    "broken",
    [
        {"op": "c", "after": {"id": 2}, "source": 3},
        {"schema": 3, "payload": {"op": "c", "after": {"id": 2}}},
        {"schema": {"fields": 3}, "payload": {"op": "c", "after": {"id": 2}}},
        {"schema": {"fields": [{"field": "after", "fields": [3]}]}, "payload": {"op": "c", "after": {"id": 2}}},
    ],
    ids=str,
)
def test_a_source_or_schema_that_is_none_is_quarantined_beside_the_others(
    metastore: Metastore, broken: Any, is_text: bool
) -> None:
    """It was an AttributeError, and of a server Internal: no event of the file could be taken."""
    table = StreamTable.create(metastore, ["t"], {"id": "int64", "_lsn": "int64"}, keys="id", sequence="_lsn")
    events = [{"op": "c", "after": {"id": 1}, "source": {"lsn": 1}}, broken]
    data = "\n".join(map(json.dumps, events)) if is_text else events
    report = table.ingest(data, format="debezium")
    assert (report.rows, report.quarantined) == (1, 1)
    assert table.quarantine()["reason"].to_pylist() == ["parse"]


def test_the_envelopes_of_other_databases_fill_columns(metastore: Metastore) -> None:
    columns = {
        "id": "int64", "_ts_ms": "int64", "_file": "string", "_file_no": "int64", "_pos": "int64", "_row": "int32",
        "_scn": "decimal(38,0)", "_change_lsn": "string", "_ord": "int64", "_txid": "string",
    }  # fmt: skip
    table = StreamTable.create(metastore, ["others"], columns, keys="id", sequence=["_file_no", "_pos", "_row"])
    mysql = {"file": "binlog.1000000", "pos": 4, "row": 1, "ts_ms": 7}
    oracle = {"scn": "12345678901234567890123", "file": "a.9", "pos": 1, "row": 0, "txId": "0800"}
    server = {"change_lsn": "00000027:00000ac0:0002", "event_serial_no": 2, "file": "b.3", "pos": 1, "row": 0}
    found = [{"op": "c", "after": {"id": n}, "source": each} for n, each in enumerate([mysql, oracle, server])]
    table.ingest("\n".join(map(json.dumps, found)), format="debezium")
    rows = {row["id"]: row for row in rows_of(table)}
    assert (rows[0]["_file_no"], rows[0]["_row"], rows[0]["_ts_ms"]) == (1000000, 1, 7)
    assert (rows[1]["_scn"], rows[1]["_txid"]) == (Decimal("12345678901234567890123"), "0800")
    assert (rows[2]["_change_lsn"], rows[2]["_ord"]) == ("00000027:00000ac0:0002", 2)


def test_files_of_a_log_are_ordered_by_their_numbers(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["t"], {"id": "int64", "_file_no": "int64", "_pos": "int64", "v": "int64"},
                               keys="id", sequence=["_file_no", "_pos"])  # fmt: skip
    places = [("binlog.999999", 9), ("binlog.1000000", 4)]
    found = [
        {"op": "c", "after": {"id": 1, "v": v}, "source": {"file": file, "pos": pos}}
        for v, (file, pos) in enumerate(places)
    ]
    table.ingest(found[::-1], format="debezium")
    assert rows_of(table)[0]["v"] == 1


# Changed keys


def test_a_row_whose_key_changed_takes_what_was_not_sent_from_the_row_before(metastore: Metastore) -> None:
    table = documents(metastore, words="array<string>")
    table.ingest([message("c", 1, None, {"id": 1, "title": "a", "body": "long", "words": ["x"]})], format="debezium")
    moved = {"id": 2, "title": "a", "body": UNSENT, "words": [UNSENT]}
    events = [message("d", 5, {"id": 1, "title": None}), message("c", 5, None, moved)]
    assert table.ingest(events, format="debezium").quarantined == 0
    assert rows_of(table) == [{"id": 2, "_lsn": 5, "title": "a", "body": "long", "words": ["x"]}]
    again = table.ingest("\n".join(map(json.dumps, events)), format="debezium")  # delivered twice
    assert again.quarantined == 0
    assert rows_of(table) == [{"id": 2, "_lsn": 5, "title": "a", "body": "long", "words": ["x"]}]


@pytest.mark.parametrize("is_text", [True, False])
def test_a_key_may_change_often_within_a_batch(metastore: Metastore, is_text: bool) -> None:
    table = documents(metastore)
    events: Any = [
        message("c", 1, None, {"id": 1, "title": "a", "body": "long"}),
        message("u", 2, None, {"id": 1, "title": "b", "body": "longer"}),
        message("u", 3, {"id": 1}, {"id": 2, "title": "c", "body": UNSENT}),
        message("d", 4, {"id": 2}),
        message("c", 4, None, {"id": 3, "title": "c", "body": UNSENT}),
        message("u", 5, {"id": 3, "body": "whole"}, {"id": 4, "title": "d", "body": UNSENT}),
    ]
    data = "\n".join(map(json.dumps, events)) if is_text else events
    assert table.ingest(data, format="debezium").quarantined == 0
    assert rows_of(table) == [{"id": 4, "_lsn": 5, "title": "d", "body": "whole"}]


def test_a_new_row_without_its_values_is_quarantined_where_the_row_before_is_not_known(metastore: Metastore) -> None:
    table = documents(metastore)
    lost = message("c", 5, None, {"id": 2, "title": "a", "body": UNSENT})
    report = table.ingest([message("d", 4, {"id": 1}), lost, message("c", 6, None, {"id": 3})], format="debezium")
    assert report.quarantined == 1
    (bad,) = table.quarantine().to_pylist()
    assert (bad["reason"], bad["column"], json.loads(bad["row"])["title"]) == ("missing_value", "body", "a")
    assert [row["id"] for row in rows_of(table)] == [3]


# Files


def test_files_of_a_glob_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (1, 2, 10, 9, 100):
        (tmp_path / f"changes-{number}.json").write_text("{}")
    found = [Path(file.path).name for file in find_files(str(tmp_path / "*.json"))]
    assert found == [f"changes-{number}.json" for number in (1, 2, 9, 10, 100)]


@pytest.mark.parametrize("packing", ["gz", "zst", "bz2"])
def test_compressed_json_is_taken_and_a_part_of_it_is_an_error(
    metastore: Metastore, tmp_path: Path, packing: str
) -> None:
    names: dict[str, Any] = {"gz": "gzip", "zst": "zstd", "bz2": "bz2"}
    text = "\n".join(json.dumps({"id": n, "_lsn": 1, "title": str(n * 7919)}) for n in range(2000)).encode()
    path = tmp_path / f"rows.jsonl.{packing}"
    with pa.output_stream(path, compression=names[packing]) as stream:
        stream.write(text)
    table = documents(metastore)
    assert table.ingest(str(path)).rows == 2000
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidInputError, match=r"rows\.jsonl"):
        table.ingest(str(path))
    assert table.position == 1


@pytest.mark.parametrize("packing", ["gz", "zst", "bz2"])
def test_a_small_file_does_not_become_a_huge_one(tmp_path: Path, packing: str) -> None:
    """The bounds are those of the one who sent the file, whatever reads it."""
    path = tmp_path / f"bomb.json.{packing}"
    with pa.output_stream(path, compression="gzip" if packing == "gz" else "zstd" if packing == "zst" else "bz2") as to:
        to.write(b" " * (1 << 22))
    (found,) = find_files(str(path))
    sent = replace(found, bounds=Bounds(1 << 20))
    for read in (read_lines, lambda file: read_rows(file, Definition(()))):
        assert read(found) is not None
        with pytest.raises(InvalidInputError, match=r"bomb\.json.*unpacks to"):
            read(sent)
