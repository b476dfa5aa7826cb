"""Formats of change data: op, Debezium in all its forms, snapshots, files."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import InvalidInputError
from headwater.metastore import Metastore
from headwater.streams.sources import formats
from headwater.streams.sources.formats import take_snapshot
from headwater.streams.sources.message_values import read_value
from headwater.streams.table import StreamTable
from tests.streams.samples import rows_of

SCHEMA = {"id": "int64", "_lsn": "int64", "total": "decimal(12,2)", "note": "string"}


def orders(metastore: Metastore, **changed: Any) -> StreamTable:
    options: dict[str, Any] = {"keys": "id", "sequence": "_lsn", **changed}
    return StreamTable.create(metastore, ["orders"], SCHEMA, **options)


def message(op: str, lsn: int, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"lsn": lsn, **source}, "ts_ms": 5}


def lines(*messages: Any) -> str:
    return "\n".join(json.dumps(each) for each in messages) + "\n"


# op


def test_op_takes_every_word_in_any_case(metastore: Metastore) -> None:
    table = orders(metastore)
    words = ["insert", "UPDATE", "Upsert", "c", "U", "r", "delete", "D", "what"]
    rows = [{"id": n, "_lsn": 1, "op": word} for n, word in enumerate(words)]
    report = table.ingest(rows, format="op")
    assert [row["id"] for row in rows_of(table)] == [0, 1, 2, 3, 4, 5]
    assert (report.rows, report.quarantined) == (8, 1)
    assert table.quarantine()["reason"].to_pylist() == ["unknown_op"]
    table.ingest(pa.table({"id": [0], "_lsn": [2], "kind": ["d"]}), format="op", op_column="kind")
    assert len(rows_of(table)) == 5
    with pytest.raises(InvalidInputError, match="'op'"):
        table.ingest([{"id": 1, "_lsn": 1}], format="op")


# Debezium


def test_debezium_events_are_put_in_the_order_of_the_log(metastore: Metastore) -> None:
    table = orders(metastore)
    row = {"id": 1, "total": "1.50", "note": "a"}
    text = lines(
        message("u", 9, None, {**row, "note": "c"}),
        None,
        message("c", 3, None, row),
        message("r", 3, None, {**row, "note": "read"}),
        message("d", 11, {"id": 2}, None),
        message("c", 4, None, {"id": 2, "total": "2.00", "note": "gone"}),
    )
    assert table.ingest(text, format="debezium").rows == 5
    assert rows_of(table) == [{"id": 1, "_lsn": 9, "total": Decimal("1.50"), "note": "c"}]


@pytest.mark.parametrize("form", ["u", "d + c"])
def test_a_change_of_the_key_moves_the_row(metastore: Metastore, form: str) -> None:
    table = orders(metastore)
    table.ingest(lines(message("c", 1, None, {"id": 1, "note": "a"})), format="debezium")
    moved = {"id": 7, "note": "a"}
    changes = [message("u", 2, {"id": 1, "note": "a"}, moved)]
    if form == "d + c":
        changes = [message("d", 2, {"id": 1, "note": "a"}), message("c", 2, None, moved)]
    table.ingest(lines(*changes), format="debezium")
    assert [row["id"] for row in rows_of(table)] == [7]
    assert len(table.deltas()) == 2


def test_a_value_that_was_not_sent_is_missing_and_stays(metastore: Metastore) -> None:
    table = orders(metastore)
    table.ingest([message("c", 1, None, {"id": 1, "note": "long text", "total": 1})], format="debezium")
    change = message("u", 2, None, {"id": 1, "note": "__debezium_unavailable_value", "total": 2})
    table.ingest([change], format="debezium")
    assert rows_of(table) == [{"id": 1, "_lsn": 2, "total": Decimal("2.00"), "note": "long text"}]


def test_values_are_read_by_the_schema_part(metastore: Metastore) -> None:
    schema = {
        "id": "int64",
        "_lsn": "int64",
        "total": "decimal(12,2)",
        "day": "date",
        "at": "timestamp",
        "t": "time64[us]",
    }
    table = StreamTable.create(metastore, ["o"], schema, "id", "_lsn")
    fields = [
        {"field": "id", "type": "int64"},
        {
            "field": "total",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2"},
        },
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "t", "type": "int64", "name": "io.debezium.time.MicroTime"},
    ]
    parts = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    total = base64.b64encode((-12345).to_bytes(3, "big", signed=True)).decode()
    after = {"id": 1, "total": total, "day": 19000, "at": 1_700_000_000_000_001, "t": 3_600_000_000}
    wrapped = {"schema": {"type": "struct", "fields": parts}, "payload": message("c", 1, None, after)}
    table.ingest(json.dumps(wrapped), format="debezium")
    assert table.to_arrow().to_pylist() == [
        {
            "id": 1,
            "_lsn": 1,
            "total": Decimal("-123.45"),
            "day": date(2022, 1, 8),
            "at": datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC),
            "t": time(1, 0),
        }
    ]


@pytest.mark.parametrize("form", ["text", "messages"])
@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_of_messages_without_a_schema_are_in_the_unit_that_is_told(
    metastore: Metastore, form: str, unit: str, factor: int
) -> None:
    kinds = {"id": "int64", "at": "timestamp", "day": "date32", "hour": "time64[us]"}
    table = StreamTable.create(metastore, ["times"], kinds, keys="id", sequence="at")
    moment = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    number = int(moment.timestamp()) * factor
    row = {"at": number, "day": 20_487, "hour": (4 * 3600 + 5) * factor}
    messages = [
        message("c", 1, after={"id": 1, **row}),
        message("c", 2, after={"id": 2, **row, "at": moment.isoformat(), "hour": None}),
        message("c", 3, after={"id": 3, **row, "at": 2**62}),
    ]
    data: Any = lines(*messages) if form == "text" else messages
    report = table.ingest(data, format="debezium", time_unit=unit)
    first, second, *_ = rows_of(table)
    assert (first["at"], first["day"], first["hour"]) == (moment, date(2026, 2, 3), time(4, 0, 5))
    assert (second["at"], second["hour"]) == (moment, None)
    if unit != "ns":  # as nanoseconds it is a year that has a calendar
        assert (report.rows, table.quarantine()["column"].to_pylist()) == (2, ["at"])


def test_a_number_is_no_time_where_no_unit_is_told(metastore: Metastore) -> None:
    table = StreamTable.create(metastore, ["times"], {"id": "int64", "at": "timestamp"}, keys="id", sequence="at")
    data = lines(message("c", 1, after={"id": 1, "at": 1_700_000_000_000}))
    assert table.ingest(data, format="debezium").rows == 0
    assert table.quarantine()["reason"].to_pylist() == ["bad_value"]
    for wrong in ("minutes", 3):
        with pytest.raises(InvalidInputError, match="time_unit"):
            table.ingest(data, format="debezium", time_unit=wrong)
    assert table.ingest(data + " ", format="debezium", time_unit="ms").rows == 1


def test_nanoseconds_are_kept_as_text() -> None:
    assert read_value(1_000_000_001, {"name": "io.debezium.time.NanoTimestamp"}) == "1970-01-01T00:00:01.000000001Z"
    assert read_value({"scale": 1, "value": "Cg=="}, {"name": "io.debezium.data.VariableScaleDecimal"}) == Decimal(
        "1.0"
    )
    assert read_value("###", {"type": "bytes"}) == "###"


def test_a_duration_is_no_time_of_a_day_and_a_number_beyond_all_floats_is_none(metastore: Metastore) -> None:
    for name, unit in {"Time": 10**3, "MicroTime": 10**6, "NanoTime": 10**9}.items():
        for hours in (-1, 24, 25):  # as MySQL has them
            number = hours * 3600 * unit
            assert read_value(number, {"name": f"io.debezium.time.{name}"}) == number
    table = StreamTable.create(
        metastore, ["t"], {"id": "int64", "_lsn": "int64", "x": "double", "d": "decimal(9,2)"}, "id"
    )
    report = table.ingest('{"id": 1, "_lsn": 1, "x": 1e400, "d": 0.5}\n{"id": 2, "_lsn": 1, "x": 1e300}\n')
    assert (report.rows, table.quarantine()["reason"].to_pylist()) == (1, ["bad_value"])
    events = StreamTable.create(metastore, ["e"], {"id": "int64", "_lsn": "int64", "x": "double"}, "id", "_lsn")
    sent = [message("c", 1, after={"id": 1}), message("c", 2, after={"id": 2})]
    text = lines(*sent).replace('{"id": 1}', '{"id": 1, "x": -1e400}')
    for data in (text, text.splitlines()):
        assert events.ingest(data, format="debezium").quarantined == 1
    assert [row["id"] for row in rows_of(events)] == [2]


def test_flattened_records_say_their_kind_beside_the_row(metastore: Metastore) -> None:
    table = orders(metastore)
    flat = [
        {"id": 1, "note": "a", "__op": "c", "__lsn": 1},
        {"id": 2, "note": "b", "__deleted": "false", "__lsn": 2},
        {"id": 1, "note": None, "__deleted": "true", "__lsn": 3},
    ]
    table.ingest(flat, format="debezium")
    assert [(row["id"], row["_lsn"]) for row in rows_of(table)] == [(2, 2)]


def test_a_truncation_is_an_error_unless_it_is_to_be_applied(metastore: Metastore) -> None:
    table = orders(metastore)
    table.ingest([message("c", 1, None, {"id": 1}), message("c", 2, None, {"id": 2})], format="debezium")
    text = lines(message("c", 3, None, {"id": 3}), message("t", 4), message("c", 5, None, {"id": 4}))
    with pytest.raises(InvalidInputError, match="apply_as_truncates"):
        table.ingest(text, format="debezium")
    table.ingest(text, format="debezium", apply_as_truncates=True)
    assert [row["id"] for row in rows_of(table)] == [4]


def test_what_is_no_message_is_quarantined(metastore: Metastore) -> None:
    table = orders(metastore)
    text = '{"broken\n' + lines(5, {"x": 1}, message("q", 1, None, {"id": 1}), message("c", 1, None, None))
    report = table.ingest(text + lines(message("c", 1, None, {"id": 1})), format="debezium")
    assert (report.rows, report.quarantined) == (1, 5)
    assert table.quarantine()["reason"].to_pylist() == ["parse", "parse", "unknown_op", "unknown_op", "parse"]


def test_debezium_into_a_keyed_table_without_an_order_is_refused(metastore: Metastore) -> None:
    with pytest.raises(InvalidInputError, match="sequence"):
        orders(metastore, sequence=()).ingest([message("c", 1, None, {"id": 1})], format="debezium")


# Snapshots


def test_a_snapshot_is_compared_with_the_state(metastore: Metastore) -> None:
    table = orders(metastore)
    rows = [{"id": n, "_lsn": 1, "total": n, "note": f"n{n}"} for n in range(4)]
    table.ingest(rows, format="snapshot", source="s", token="1")
    table.publish()
    changed = [*rows[:2], {**rows[2], "_lsn": 2, "note": "new"}, {"id": 9, "_lsn": 1, "total": 9, "note": "n9"}]
    assert table.ingest(changed, format="snapshot", source="s", token="2").rows == 3
    assert [(row["id"], row["note"]) for row in rows_of(table)] == [(0, "n0"), (1, "n1"), (2, "new"), (9, "n9")]
    assert table.ingest(changed, format="snapshot", source="s", token="2").duplicate
    assert table.ingest(changed, format="snapshot").rows == 0
    with pytest.raises(InvalidInputError, match="allow_empty"):
        table.ingest([], format="snapshot")
    assert table.count() == 4
    table.ingest([], format="snapshot", allow_empty=True)
    assert table.count() == 0


def test_a_snapshot_is_compared_again_when_others_land_meanwhile(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = StreamTable.create(metastore, ["t"], {"id": "int64", "name": "string"}, "id")
    table.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    compare, left = take_snapshot, [1]

    def overtaken(*given: Any, **options: Any) -> Any:
        taken = compare(*given, **options)
        if left:
            left.clear()
            table.upsert([{"id": 1, "name": "other"}, {"id": 3, "name": "other"}])
        return taken

    monkeypatch.setattr(formats, "take_snapshot", overtaken)
    table.ingest(iter([{"id": 1, "name": "a"}]), format="snapshot")
    assert rows_of(table) == [{"id": 1, "name": "a"}]


def test_rows_of_a_snapshot_are_not_too_late_for_each_other(metastore: Metastore) -> None:
    """One that is older than another row of the snapshot by more than the lateness is there, and not deleted."""
    schema = {"id": "int64", "at": "int64", "note": "string"}
    table = StreamTable.create(metastore, ["t"], schema, "id", "at", properties={"lateness": "4"})
    table.upsert([{"id": 1, "at": 9, "note": "a"}, {"id": 2, "at": 10, "note": "b"}])
    assert (
        table.ingest([{"id": 2, "at": 10, "note": "b"}, {"id": 1, "at": 2, "note": "a"}], format="snapshot").rows == 1
    )
    assert [(row["id"], row["at"]) for row in rows_of(table)] == [(1, 9), (2, 10)]
    published = table.publish()
    assert (published.late, published.too_late) == (1, 0)
    table.ingest([{"id": 1, "at": 11, "note": "a"}, {"id": 3, "at": 90, "note": "new"}], format="snapshot")
    assert [row["at"] for row in rows_of(table)] == [11, 90], "taken in the order they were given"


def test_a_snapshot_that_changed_nothing_is_not_taken_again_when_the_state_is_another(
    metastore: Metastore, tmp_path: Path
) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "_lsn": 1, "total": 1, "note": "a"}])
    file = tmp_path / "all.jsonl"
    file.write_text('{"id": 1, "_lsn": 1, "total": 1, "note": "a"}')
    assert table.ingest(str(file), format="snapshot").rows == 0
    table.upsert([{"id": 2, "_lsn": 2, "total": 2, "note": "b"}])
    assert table.ingest(str(file), format="snapshot").duplicate
    assert table.count() == 2


def test_a_bad_row_of_a_snapshot_is_not_a_row_that_is_gone(metastore: Metastore) -> None:
    table = orders(metastore)
    table.upsert([{"id": 1, "_lsn": 1, "note": "a"}, {"id": 2, "_lsn": 1, "note": "b"}])
    report = table.ingest([{"id": 1, "_lsn": 2, "note": 5}], format="snapshot")
    assert (report.quarantined, [row["id"] for row in rows_of(table)]) == (1, [1])


# Files


def test_a_file_is_taken_once_and_another_content_is_another_file(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    file = tmp_path / "a.jsonl"
    file.write_text('{"id": 1, "_lsn": 1}\n{"id": \n{"id": 2, "_lsn": 1}\n')
    first = table.ingest(file, source="s")
    assert (first.rows, first.quarantined, first.duplicate) == (2, 1, False)
    assert table.ingest(str(tmp_path / "*.jsonl"), source="s").duplicate
    file.write_text('{"id": 1, "_lsn": 2, "note": "second"}\n')
    assert not table.ingest(file, source="s").duplicate
    assert rows_of(table)[0]["note"] == "second"
    table.undo(source="s", file=str(file))
    assert table.count() == 0
    assert not table.ingest(file, source="s").duplicate


def test_files_are_read_by_their_ending(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    pq.write_table(pa.table({"id": [1], "_lsn": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id,_lsn,total,note\n2,1,1.5,x\n3,1,oops,y\n4,1,,\ntoo,many,of,these,fields\n")
    (tmp_path / "c.json").write_text('[{"id": 5, "_lsn": 1, "total": 2.25}]')
    with pa.OSFile(str(tmp_path / "d.arrow"), "wb") as sink:
        data = pa.table({"id": [6], "_lsn": [1]})
        with pa.ipc.new_file(sink, data.schema) as writer:
            writer.write_table(data)
    report = table.ingest(str(tmp_path / "*.*"))
    assert [row["id"] for row in rows_of(table)] == [1, 2, 4, 5, 6]
    assert rows_of(table)[1]["total"] == Decimal("1.50")
    assert sorted(row["reason"] for row in table.quarantine().to_pylist()) == ["bad_value", "parse"]
    assert (report.rows, report.quarantined) == (5, 2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"PAR1 not at all"),
        ("a.jsonl", b'{"id": 1, "_lsn": 1}\n{"id": 2, "_ls'),
        ("a.jsonl", b'{"id": 1, "_lsn": 1, "note": "\xff"}\n'),
        ("a.csv", b"id,_lsn\n1,\xff\n"),
        ("a.what", b""),
    ],
)
def test_a_broken_file_is_an_error_that_names_it_and_nothing_of_it_is_taken(
    metastore: Metastore, tmp_path: Path, name: str, content: bytes
) -> None:
    table = orders(metastore)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInputError, match=name):
        table.ingest(tmp_path / name)
    assert table.position == 0
    with pytest.raises(InvalidInputError, match="no file"):
        table.ingest(tmp_path / "missing.csv")


HOSTILE = {
    "cut.json": b'[{"id":1,"_lsn":1},{"id":2',
    "scalars.json": b'[1,null,{"id":3,"_lsn":1}]',
    "deep.json": b"[" * 100_000,
    "deep_line.json": b'{"id":1,"_lsn":' + b"[" * 5000 + b"]" * 5000 + b"}\n",
    "deep_value.json": b'{"id":1,"_lsn":' + b"[" * 900 + b"]" * 900 + b"}\n",
    "surrogate.json": b'{"id":1,"_lsn":1,"note":"\\ud800"}\n',
    "large_number.json": b'{"id":123456789012345678901234567890,"_lsn":1}\n',
    "zipped.json": b"\x1f\x8b\x08\x00",
    "twice.csv": b"id,id,_lsn\n1,2,3\n",
    "headless.csv": b"1,2\n3,4\n",
    "ragged.csv": b"id,_lsn\n1\n2,3\n4,5,6\n",
    "open_quote.csv": b'id,_lsn\n1,"abc\n',
    "nothing.csv": b"",
    "nothing.parquet": b"",
    "nothing.arrow": b"",
}


@pytest.mark.parametrize("format", ["rows", "op", "debezium", "snapshot"])
def test_hostile_files_end_in_the_quarantine_or_in_an_error_that_names_them(
    metastore: Metastore, tmp_path: Path, format: str
) -> None:
    table = orders(metastore)
    refused: dict[Path, tuple[str, bool]] = {}
    for name, content in HOSTILE.items():
        path = tmp_path / name
        path.write_bytes(content)
        before = table.position
        try:
            table.ingest(path, format=format, source="s")
        except InvalidInputError as error:
            refused[path] = (str(error), table.position == before)
    assert refused
    assert [path for path, (told, is_untouched) in refused.items() if str(path) not in told or not is_untouched] == []
    assert table.verify() == []


def test_a_text_of_json_is_taken_as_a_file_of_it_is_and_numbers_keep_every_digit(metastore: Metastore) -> None:
    schema = {"id": "int64", "x": "double", "price": "decimal(38,10)"}
    table = StreamTable.create(metastore, ["t"], schema, "id")
    text = '{"id": 1, "x": 0.5, "price": 12345678901234567890.1234567891}\n{broken\n{"id": 2, "price": 0.1}'
    assert table.ingest(text).quarantined == 1
    assert table.ingest(b'[{"id": 3, "op": "c"}, {"id": 2, "op": "d"}]', format="op").rows == 2
    assert [row["id"] for row in rows_of(table)] == [1, 3]
    assert rows_of(table)[0] == {"id": 1, "x": 0.5, "price": Decimal("12345678901234567890.1234567891")}
    with pytest.raises(InvalidInputError, match="not JSON"):
        table.ingest('[{"id": 4}')


def test_one_array_of_debezium_messages_is_taken_as_lines_of_them_are(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    sent = [{"op": "c", "after": {"id": n, "note": "a\nb"}, "source": {"lsn": n}} for n in range(1, 4)]
    path = tmp_path / "a.json"
    for content in (json.dumps([*sent, None]), json.dumps([*sent, 5], indent=2).replace("\n", "\r\n")):
        path.write_text(content)
        report = table.ingest(path, format="debezium", source="s")
        assert (report.rows, report.quarantined) == (3, "5" in content)
    assert table.ingest(json.dumps(sent), format="debezium").rows == 3
    assert [(row["id"], row["note"]) for row in rows_of(table)] == [(n, "a\nb") for n in range(1, 4)]
    before = table.position
    path.write_text(json.dumps(sent)[:-5])
    with pytest.raises(InvalidInputError, match=r"a\.json.*Nothing of it was loaded"):
        table.ingest(path, format="debezium", source="s")
    assert table.position == before


def test_names_of_files_may_be_a_list(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    for number in (1, 2):
        (tmp_path / f"{number}.jsonl").write_text(f'{{"id": {number}, "_lsn": 1}}')
    assert table.ingest([str(tmp_path / "1.jsonl"), str(tmp_path / "2.jsonl")]).rows == 2


def test_a_file_may_begin_with_a_byte_order_mark(metastore: Metastore, tmp_path: Path) -> None:
    table = orders(metastore)
    for name, text in {"a.json": '{"id": 1, "_lsn": 1}\n', "b.csv": "id,_lsn\n2,1\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert table.ingest(tmp_path / name).quarantined == 0
    assert [row["id"] for row in rows_of(table)] == [1, 2]


def test_an_unknown_format_or_option_is_named(metastore: Metastore) -> None:
    table = orders(metastore)
    with pytest.raises(InvalidInputError, match="'avro'"):
        table.ingest([], format="avro")
    with pytest.raises(InvalidInputError, match="'colour'"):
        table.ingest([], colour="red")
