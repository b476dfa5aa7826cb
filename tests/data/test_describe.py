"""What a table says of itself: facts, statistics, schemas as JSON, field paths."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance.namespace import DirectoryNamespace
from lance_namespace import CreateTableTagRequest, DescribeTableRequest, GetTableStatsRequest, InsertIntoTableRequest

from headwater.errors import (
    InvalidInputError,
    TableBranchNotFoundError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)
from headwater.names import ObjectId
from headwater.namespace import data
from headwater.namespace.versions.schemas import SchemaCache
from headwater.tables.columns.fields import find_field, format_path, parse_path
from headwater.tables.handle import TableHandle
from tests.data.samples import ID, ROWS, body, rows

TYPES: list[pa.DataType] = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
    pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(),
    pa.large_binary(), pa.binary(4), pa.date32(), pa.date64(), pa.decimal128(10, 2), pa.decimal256(50, 3),
    pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(pa.float32(), 3),
    pa.struct([("a", pa.int32()), pa.field("b", pa.list_(pa.string()), nullable=False)]),
]  # fmt: skip
LOSSY: list[pa.DataType] = [
    pa.time32("s"), pa.time64("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.duration("ms"),
    pa.dictionary(pa.int32(), pa.string()), pa.map_(pa.string(), pa.int32()), pa.string_view(), pa.binary_view(),
    pa.uuid(), pa.bool8(), pa.fixed_shape_tensor(pa.float32(), [2, 2]),
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES + LOSSY, ids=str)
def test_a_schema_is_described_as_pylance_describes_it(tmp_path: Any, kind: pa.DataType) -> None:
    uri = str(tmp_path / "t.lance")
    schema = pa.schema([pa.field("c", kind, metadata={"k": "v"})], metadata={"m": "n"})
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), uri)
    ours = data.describe_data(TableHandle(ObjectId(("t",)), uri)).schema
    theirs = DirectoryNamespace(root=str(tmp_path)).describe_table(
        DescribeTableRequest(id=ID, load_detailed_metadata=True)
    )
    assert ours is not None
    assert theirs.var_schema is not None
    assert ours.fields == theirs.var_schema.fields


NESTED: list[pa.DataType] = [
    pa.list_(pa.struct([("x", pa.int8())])), pa.list_(pa.list_(pa.string())), pa.large_list(pa.struct([("y", pa.map_(
    pa.string(), pa.list_(pa.timestamp("ms"))))])), pa.dictionary(pa.int8(), pa.large_string()),
    pa.struct([("a", pa.struct([("b", pa.list_(pa.float32(), 2)), pa.field("c", pa.int8(), False)]))]),
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES + LOSSY + NESTED, ids=str)
def test_a_manifest_tells_the_schema_that_the_open_table_has(tmp_path: Any, kind: pa.DataType) -> None:
    uri = str(tmp_path / "t.lance")
    fields = [pa.field("a", pa.int64(), False), pa.field("c", kind, metadata={"k": "v"}), pa.field("z", kind)]
    schema = pa.schema(fields, metadata={"m": "n"})
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, []), uri)
    (manifest,) = (tmp_path / "t.lance" / "_versions").glob("*.manifest")
    cache = SchemaCache()
    told = cache.learn("d", manifest.read_bytes())
    assert told == data.describe_data(TableHandle(ObjectId(("t",)), uri)).schema
    assert cache.find("d") is told
    assert cache.learn("e", manifest.read_bytes()) is told  # versions with the same columns share one
    assert cache.learn("f", b"no manifest") is None


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_type_comes_back_from_its_json(kind: pa.DataType) -> None:
    found = data.schema_to_json(pa.schema([pa.field("c", kind)])).fields[0].type
    assert data.type_from_json(found.to_dict()) == kind


@pytest.mark.parametrize("spelled", ["timestamp:us:UTC", "string", "double", "decimal:128:10:2", {"type": "time64"}])
def test_lances_own_spelling_of_a_type_is_understood(spelled: Any) -> None:
    assert isinstance(data.type_from_json(spelled), pa.DataType)


@pytest.mark.parametrize(
    "wrong",
    [None, 7, {}, {"type": 7}, "bogus", {"type": "list"}, {"type": "fixed_size_list", "fields": [], "length": 2},
     {"type": "decimal128", "length": 99999}, {"type": "fixed_size_binary", "length": -1},
     {"type": "struct", "fields": [{"name": 3}]}],
    ids=str,
)  # fmt: skip
def test_what_is_no_type_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInputError):
        data.type_from_json(wrong)


def test_facts_are_told_at_a_version_a_tag_and_a_branch(table: TableHandle) -> None:
    lance.dataset(table.uri).delete("id < 3")
    lance.dataset(table.uri).update_metadata({"owner": "me"})
    data.create_table_tag(table, CreateTableTagRequest(id=ID, tag="old", version=1))
    facts = data.describe_data(table)
    assert facts.version == 3
    assert facts.metadata == {"owner": "me"}
    assert facts.stats is not None
    assert (facts.stats.num_deleted_rows, facts.stats.num_fragments) == (3, 1)
    assert facts.arrow_schema == rows().schema
    assert data.describe_data(table, version=1).version == data.describe_data(table, tag="old").version == 1
    short = data.describe_data(table, load_detailed_metadata=False)
    assert (short.version, short.schema, short.stats, short.metadata) == (3, None, None, None)
    for fields, error in (
        ({"version": 99}, TableVersionNotFoundError),
        ({"tag": "nope"}, TableTagNotFoundError),
        ({"branch": "nope"}, TableBranchNotFoundError),
        ({"tag": "old", "version": 1}, InvalidInputError),
        ({"tag": "../x"}, InvalidInputError),
    ):
        with pytest.raises(error):
            data.describe_data(table, **fields)


def test_statistics_are_those_pylance_gives(table: TableHandle, twin: DirectoryNamespace) -> None:
    for count in (5, 17, 40, 100, 2, 9):
        sent = body(rows(ROWS, count))
        data.insert_into_table(table, InsertIntoTableRequest(id=ID), sent)
        twin.insert_into_table(InsertIntoTableRequest(id=ID), sent)
    ours = data.get_table_stats(table, GetTableStatsRequest(id=ID))
    assert ours == twin.get_table_stats(GetTableStatsRequest(id=ID))


def test_deleted_rows_are_not_counted_in_statistics(table: TableHandle) -> None:
    lance.dataset(table.uri).delete("id < 100")
    found = data.get_table_stats(table, GetTableStatsRequest(id=ID))
    assert found.num_rows == found.fragment_stats.lengths.max == ROWS - 100


def test_rows_of_one_value_have_bytes(tmp_path: Any) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(pa.table({"n": [7, 7]}), uri)
    found = data.get_table_stats(TableHandle(ObjectId(("t",)), uri), GetTableStatsRequest(id=ID))
    assert found.total_bytes == sum(file.stat().st_size for file in (tmp_path / "t.lance" / "data").iterdir())


def test_the_statistics_of_an_empty_table_are_zero(tmp_path: Any) -> None:
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows().schema.empty_table(), uri)
    found = data.get_table_stats(TableHandle(ObjectId(("t",)), uri), GetTableStatsRequest(id=ID))
    assert (found.num_rows, found.fragment_stats.num_fragments, found.fragment_stats.lengths.p99) == (0, 0, 0)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_field_path_comes_back_as_it_was_written(segments: list[str]) -> None:
    assert parse_path(format_path(segments)) == tuple(segments)


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "`a", "`a`b", "``", "a.`", "x" * 5000])
def test_what_is_no_field_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_path(path)


def test_fields_are_found_through_structs_and_lists_and_by_any_case() -> None:
    schema = pa.schema([("Top", pa.list_(pa.struct([("in.ner", pa.int8())]))), ("x", pa.int8())])
    for path in ("Top.`in.ner`", "top.`IN.ner`"):
        found = find_field(schema, path)
        assert found is not None
        assert found[0] == "Top.`in.ner`"
    assert find_field(schema, "Top.nope") is None
    assert find_field(schema, "x.y") is None
