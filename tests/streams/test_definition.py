"""What a stream table can be, and how it may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.schema_text import parse_type
from headwater.streams.definition import (
    Column,
    Definition,
    define,
    evolve,
    from_properties,
    to_properties,
    with_properties,
)
from headwater.streams.rows.column_types import common, may_cast, widens

FIELDS: list[Any] = [
    pa.field("id", pa.int32(), nullable=False),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("note", pa.string()),
    pa.field("tags", pa.list_(pa.string())),
]
SCHEMA = pa.schema(FIELDS)


def orders(**changed: Any) -> Definition:
    given: dict[str, Any] = {"keys": ["id"], "sequence": "at", "properties": {"lateness": "7 days"}, **changed}
    return define(SCHEMA, **given)


def test_a_definition_is_read_back_as_it_was_stored() -> None:
    text = '{"function": "m:f", "inputs": ["note"], "type": "float32[4]", "version": "2"}'
    made = orders(partition_by=["note", ("at", "days")], properties={"column.v": text, "owner": "ml"})
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(to_properties(made)))
    assert from_properties(stored) == made
    assert made.derived[0].type == pa.list_(pa.float32(), 4)
    assert from_properties({"owner": "ml"}) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"keys": ["nope"]},
        {"keys": ["tags"]},
        {"keys": ["id", "id"]},
        {"sequence": ["tags"]},
        {"sequence": (), "properties": {"lateness": "1 day"}},
        {"sequence": "note", "properties": {"lateness": "1 day"}},
        {"properties": {"late": "drop"}},
        {"properties": {"contract": "loose"}},
        {"properties": {"history": "scd1"}},
        {"keys": (), "properties": {"history": "scd2"}},
        {"properties": {"log_retention": "forever"}},
        {"properties": {"column.v": "{}"}},
        {"properties": {"column.v": '{"function": "m:f", "inputs": ["nope"], "type": "int64"}'}},
        {"properties": {"column.id": '{"function": "m:f", "inputs": ["note"], "type": "int64"}'}},
        {"properties": {"owner": 1}},
        {"partition_by": ["tags"]},
    ],
)
def test_a_table_that_cannot_be_is_refused_when_it_is_made(changed: dict[str, Any]) -> None:
    with pytest.raises(LanceNamespaceError):
        orders(**changed)


def test_a_float_is_no_key() -> None:
    with pytest.raises(InvalidInputError, match="'x'"):
        define({"x": "double"}, keys="x")


@pytest.mark.parametrize("name", ["", "_position", "__hw_row", "_rowoffset", "a.b", "a`b", "a\0b"])
def test_names_of_its_own_are_not_a_users_columns(name: str) -> None:
    with pytest.raises(InvalidInputError):
        define({name: "int64", "b": "int64"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("key", "keys"),
        ("Keys", "keys"),
        ("primary_key", "keys"),
        ("keys", "keys"),
        ("sequence_by", "sequence"),
        ("sequences", "sequence"),
        ("partitioned_by", "PARTITIONED BY"),
        ("latenes", "'lateness'"),
        ("Late", "'late'"),
        ("log-retention", "'log_retention'"),
        ("contrct", "'contract'"),
        ("histroy", "'history'"),
        ("columns.embedding", "'column.embedding'"),
        ("expect_or_dropped.a", "'expect_or_drop.a'"),
    ],
)
def test_a_property_that_nearly_is_one_of_ours_is_refused_and_the_right_one_named(name: str, meant: str) -> None:
    with pytest.raises(InvalidInputError, match=meant):
        orders(properties={name: "id"})
    with pytest.raises(InvalidInputError, match=meant):
        with_properties(orders(), {name: "id"})


def test_properties_of_users_have_any_other_name() -> None:
    own = ("owner", "date", "rate", "latest", "latency", "contact", "retention", "historic", "a.key", "team.keys", "k")
    free = dict.fromkeys(own, "x")
    assert orders(properties=free).properties == free
    old = replace(orders(), properties={"key": "id"})  # from before they were refused
    assert with_properties(old, {"owner": "me"}).properties == {"key": "id", "owner": "me"}
    assert with_properties(old, {"key": None}).properties == {}


def test_no_two_columns_differ_only_in_case() -> None:
    embed = '{"function": "m:f", "inputs": ["id"], "type": "int64"}'
    table = define({"id": "int64", "total": "int64"}, keys="id")
    wrong: tuple[Callable[[], Definition], ...] = (
        lambda: define({"id": "int64", "total": "int64", "Total": "int64"}),
        lambda: evolve(table, add={"Total": "int64"}),
        lambda: evolve(table, add={"a": "int64", "A": "int64"}),
        lambda: evolve(table, add={"x": "int64"}, rename={"total": "ID"}),
        lambda: with_properties(table, {"column.Total": embed}),
    )
    for change in wrong:
        with pytest.raises(InvalidInputError, match="differ only in upper and lower case"):
            change()
    assert evolve(table, rename={"total": "Total"}).schema.names == ["id", "Total"]
    twin = replace(table, columns=(*table.columns, Column(3, "Total", pa.int64())), next_id=4)  # from before
    assert evolve(twin, add={"x": "int64"}).schema.names == ["id", "total", "Total", "x"]


def test_a_history_has_its_own_columns() -> None:
    assert define({"id": "int64", "valid_to": "date"}, "id").schema.names == ["id", "valid_to"]
    with pytest.raises(InvalidInputError, match="'valid_to'"):
        define({"id": "int64", "valid_to": "date"}, "id", properties={"history": "scd2"})
    with pytest.raises(InvalidInputError, match="'valid_from'"):
        evolve(define({"id": "int64"}, "id", properties={"history": "scd2"}), add={"valid_from": "date"})


def test_types_without_a_place_in_files_are_refused_and_twins_are_kept_as_one_that_has_it() -> None:
    for kind in (pa.month_day_nano_interval(), pa.struct([]), pa.list_(pa.struct([]))):
        with pytest.raises(InvalidInputError, match="'x'"):
            define(pa.schema([pa.field("id", pa.int64()), pa.field("x", kind)]), "id")
        with pytest.raises(InvalidInputError, match="'x'"):
            evolve(define({"id": "int64"}, "id"), add={"x": kind})
    fields: list[Any] = [
        pa.field("id", pa.dictionary(pa.int32(), pa.string_view())),
        pa.field("texts", pa.list_view(pa.string_view())),
        pa.field("pair", pa.list_(pa.string(), 2)),
        pa.field("word", pa.dictionary(pa.int32(), pa.string())),
    ]
    kept = define(pa.schema(fields), "id").schema
    twins = [pa.string(), pa.list_(pa.string()), pa.list_(pa.string()), pa.dictionary(pa.int32(), pa.string())]
    assert kept.types == twins


@pytest.mark.parametrize("text", ["bucket(4, id)", " BUCKET ( 4 , `id` ) ", "bucket(id, 4)"])
def test_partitions_are_written_as_sql_writes_them(text: str) -> None:
    assert orders(partition_by=[text, "days(at)"]) == orders(partition_by=[("id", "bucket", 4), ("at", "days")])


def test_partitions_are_given_as_one_text_like_keys() -> None:
    assert orders(partition_by="note") == orders(partition_by=["note"])
    listed = orders(partition_by=["note", ("id", "bucket", 4), ("at", "days")])
    assert orders(partition_by="note, bucket(4, id), days(at)") == listed
    assert orders(partition_by="") == orders()


def test_the_values_of_a_partition_have_the_names_and_texts_of_show_partitions() -> None:
    made = orders(partition_by="note, bucket(4, id), days(at)")
    assert made.partition_texts(("eu", 3, 20_484)) == {"note": "eu", "id_bucket": "3", "at_days": "2026-01-31"}
    assert made.partition_texts((None, None, None)) == {"note": None, "id_bucket": None, "at_days": None}
    assert orders().partition_texts(None) == {}


def test_a_dropped_and_added_column_is_another_one() -> None:
    before = orders()
    after = evolve(evolve(before, drop=["note"]), add={"note": "string"})
    assert before.by_name["note"].id != after.by_name["note"].id
    assert (before.schema_id, after.schema_id) == (1, 3)


def test_renames_are_done_at_once_and_keep_the_column() -> None:
    before = orders()
    after = evolve(before, rename={"note": "tags", "tags": "note"})
    assert after.by_name["tags"].id == before.by_name["note"].id
    assert after.by_name["note"].type == pa.list_(pa.string())


@pytest.mark.parametrize(
    "change",
    [
        {"drop": ["id"]},
        {"drop": ["at"]},
        {"rename": {"id": "key"}},
        {"widen": {"id": "int16"}},
        {"widen": {"note": "int64"}},
        {"add": {"id": "int64"}},
        {"drop": ["nope"]},
        {"add": {"x": "what"}},
    ],
)
def test_a_change_that_would_lose_something_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LanceNamespaceError):
        evolve(orders(), **change)


def test_a_key_may_be_widened() -> None:
    assert evolve(orders(), widen={"id": "bigint"}).by_name["id"].type == pa.int64()


def test_nothing_to_change_is_no_new_schema() -> None:
    assert evolve(orders(), widen={"id": "int32"}) == orders()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int64", pa.int64()),
        ("BIGINT", pa.int64()),
        ("decimal(12,2)", pa.decimal128(12, 2)),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp[ns]", pa.timestamp("ns")),
        ("float32[8]", pa.list_(pa.float32(), 8)),
        ("STRING", pa.string()),
        ("date", pa.date32()),
    ],
)
def test_types_are_written_as_arrow_sql_and_spark_write_them(text: str, expected: Any) -> None:
    assert parse_type(text) == expected


def test_what_widens_and_what_may_be_cast() -> None:
    assert widens(pa.decimal128(10, 2), pa.decimal128(12, 4))
    assert not widens(pa.decimal128(10, 2), pa.decimal128(10, 4))
    assert widens(pa.uint32(), pa.int64())
    assert not widens(pa.uint64(), pa.int64())
    assert common(pa.decimal128(10, 2), pa.decimal128(8, 4)) == pa.decimal128(12, 4)
    assert common(pa.int64(), pa.string()) is None
    assert may_cast(pa.int64(), pa.int8())
    assert not may_cast(pa.string(), pa.int64())
    assert not may_cast(pa.int64(), pa.string())
    assert may_cast(pa.list_(pa.float64()), pa.list_(pa.float32(), 4))


@pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal128(2, 5), pa.list_(pa.decimal128(5, -2))])
def test_a_decimal_that_files_have_no_place_for_is_refused_with_the_table(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInputError, match="'v' has the type"):
        define(pa.schema([("id", pa.int64()), ("v", kind)]), "id")
