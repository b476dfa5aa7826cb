"""Only the fields of a struct that a query asks for are read, and nulls at every level stay what they were."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.lance import bytes_read_counter
from pyspark.sql import DataFrame, SparkSession

from headwater.names import ObjectId
from headwater.tables.handle import TableHandle
from headwater.tables.scan import prune as nested
from headwater.tables.scan import table_scan as scans
from headwater.tables.scan.parts import Fragments, ScanPart, Slice, WholeTable
from headwater.tables.scan.table_scan import Scan

PAIR = "STRUCT<a: INT, b: STRING>"
DEEP = "STRUCT<p: DOUBLE, q: STRING, d: STRUCT<u: DATE, w: BINARY>>"
SHAPE = f"id INT, s STRUCT<x: INT, y: STRING, n: {DEEP}, l: ARRAY<{PAIR}>>, l ARRAY<{PAIR}>, m MAP<STRING, {PAIR}>"
EXPRESSIONS = (
    "id", "s.x", "s.y", "s.n.p", "s.n.d.u", "s.n.d.w", "s IS NULL", "s.n IS NULL", "s.n.d IS NULL", "s.n", "s.n.d",
    "s", "s.l", "s.l.a", "get(s.l, 0).b", "l.a", "get(l, 0).b", "m['k'].a", "map_values(m).b",
    "coalesce(s.y, 'none')", "struct(s.x, s.n.q)",
)  # fmt: skip
FILTERS = (
    "true", "s.x > 1", "s.x IS NULL", "s IS NOT NULL", "s IS NULL", "s.n IS NULL AND s.y = 'b'", "id % 50 = 7",
    "s.n.p < 2 OR s.n.q = 'a'", "s.n.d.u > date'2020-01-02' AND id > 20", "size(s.l) = 1", "s.n.d IS NOT NULL",
)  # fmt: skip


def row(chance: random.Random, number: int) -> tuple[Any, ...]:
    """A row of SHAPE, with nulls at every level."""

    def some(*values: Any) -> Any:
        return chance.choice([*values, None])

    def pair() -> Any:
        return some((some(1, 2), some("v", "w")), (3, "z"))

    deep = some((some(dt.date(2020, 1, 2), dt.date(2020, 1, 5)), some(b"\0x")), (None, b""))
    below = some((some(1.5, 2.5), some("a", "b"), deep), (0.5, None, deep))
    whole = some((some(1, 2, 3), some("a", "b"), below, some([pair(), pair()], [pair()], [])), (4, "d", below, None))
    return number, whole, some([pair()], [pair(), pair()]), some({"k": pair()}, {})


@pytest.fixture(scope="module")
def twins(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, DataFrame]:
    """The same rows as a table of three fragments, one with deleted rows, and as Parquet."""
    chance = random.Random(11)
    folder = tmp_path_factory.mktemp("nested") / "twin"
    spark.createDataFrame([row(chance, number) for number in range(300)], SHAPE).write.parquet(str(folder))
    parquet = spark.read.parquet(str(folder))
    parquet.where("id < 100").coalesce(1).writeTo("lake.t.nested").create()
    parquet.where("id >= 100 AND id < 200").coalesce(1).writeTo("lake.t.nested").append()
    parquet.where("id >= 200").coalesce(1).writeTo("lake.t.nested").append()
    spark.sql("DELETE FROM lake.t.nested WHERE id % 9 = 4 AND id < 100")
    return spark.table("lake.t.nested"), parquet.where("NOT (id % 9 = 4 AND id < 100)")


@pytest.mark.parametrize("queries", [8, pytest.param(24, marks=pytest.mark.long)])
def test_any_fields_of_a_struct_are_what_they_are_in_parquet(twins: tuple[DataFrame, DataFrame], queries: int) -> None:
    ours, theirs = twins
    verdicts = [f"coalesce({each}, false) AS f{number}" for number, each in enumerate(FILTERS)]
    known = theirs.selectExpr(*[f"{each} AS e{number}" for number, each in enumerate(EXPRESSIONS)], *verdicts).collect()
    chance = random.Random(5)
    for number in range(queries):
        chosen = chance.sample(range(len(EXPRESSIONS)), chance.choice([1, 1, 2, 3]))
        filter = number % len(FILTERS) if number % 3 else 0
        expected = [repr([row[f"e{each}"] for each in chosen]) for row in known if row[f"f{filter}"]]
        frame = ours.where(FILTERS[filter]).selectExpr(*[f"{EXPRESSIONS[each]} AS e{each}" for each in chosen])
        assert sorted(repr(list(row)) for row in frame.collect()) == sorted(expected), frame.columns


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_fields_that_are_not_asked_for_are_in_no_plan(twins: tuple[DataFrame, DataFrame]) -> None:
    assert 'columns ["s"] of which {"s":{"x":null}}' in plan(twins[0].select("s.x"))
    both = plan(twins[0].selectExpr("s.n.d.u", "s IS NULL", "id").where("s.y = 'a'"))
    assert '["s","id"] of which {"s":{"n":{"d":{"u":null}}}}' in both or '["id","s"] of which' in both
    assert "of which" not in plan(twins[0].select("s"))
    assert "of which" not in plan(twins[0].select("l.a"))


def test_rows_found_by_an_index_hold_what_they_hold_in_parquet_whole_and_in_part(
    spark: SparkSession, twins: tuple[DataFrame, DataFrame]
) -> None:
    spark.sql("CALL lake.system.create_index('t.nested', 'id', 'BTREE')")
    ours = spark.table("lake.t.nested").where("id IN (1, 5, 22, 150, 151, 152, 299, 300)")
    theirs = twins[1].where("id IN (1, 5, 22, 150, 151, 152, 299, 300)").orderBy("id").collect()
    assert "LocalTableScan" in plan(ours)
    assert sorted(ours.collect(), key=lambda row: row.id) == theirs
    some = ours.selectExpr("id", "s.n.d.u", "s IS NULL AS none").collect()
    found = {row.id: (row.s and row.s.n and row.s.n.d and row.s.n.d.u, row.s is None) for row in theirs}
    assert {row.id: (row.u, row.none) for row in some} == found
    assert len(ours.limit(3).collect()) == 3
    assert spark.table("lake.t.nested").where("id = 1000").collect() == []


def test_a_field_of_a_struct_is_updated_and_merged_as_the_rest_of_it_stays(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (id INT, s STRUCT<x: INT, y: STRING>)")
    spark.sql(f"INSERT INTO {ns}.t VALUES (1, struct(1, 'a')), (2, NULL), (3, struct(NULL, 'c'))")
    spark.sql(f"UPDATE {ns}.t SET s.x = 9 WHERE s.y = 'c' AND length(s.y) + id > 1")
    spark.sql(f"DELETE FROM {ns}.t WHERE s IS NULL AND id + 1 = 3")
    assert sorted(map(tuple, spark.table(f"{ns}.t").collect())) == [(1, (1, "a")), (3, (9, "c"))]


# Without Spark -------------------------------------------------------------------------------------------------------

ARROW = pa.struct(
    [
        ("x", pa.int64()),
        ("y", pa.string()),
        ("n", pa.struct([("p", pa.float32()), ("q", pa.string())])),
        ("l", pa.list_(pa.int8())),
    ]
)
TREES = ({"x": None}, {"n": {"q": None}}, {"y": None, "n": {"p": None}}, {"l": None, "n": None})


def values(chance: random.Random, rows: int) -> pa.Table:
    def some(*values: Any) -> Any:
        return chance.choice([*values, None])

    def struct() -> Any:
        below = some({"p": some(0.5), "q": some("a", "b")})
        return some({"x": some(1, 2, 3), "y": some("c" * 50), "n": below, "l": some([1, None], [])})

    return pa.table({"id": pa.array(range(rows)), "s": pa.array([struct() for _ in range(rows)], ARROW)})


def only(value: Any, tree: Any) -> Any:
    return value if value is None or tree is None else {name: only(value[name], tree[name]) for name in tree}


@pytest.mark.parametrize(
    ("storage", "stable"),
    [
        ("2.1", True),
        ("2.2", False),
        pytest.param("2.1", False, marks=pytest.mark.long),
        pytest.param("2.2", True, marks=pytest.mark.long),
    ],
)
def test_a_part_holds_the_same_rows_whatever_fields_are_asked_for(tmp_path: Path, storage: str, stable: bool) -> None:
    chance = random.Random(storage + str(stable))
    uri = str(tmp_path / "t.lance")
    for number in range(4):
        mode = "append" if number else "create"
        options: dict[str, Any] = {"data_storage_version": storage, "enable_stable_row_ids": stable}
        lance.write_dataset(values(chance, 150), uri, mode=mode, **options)
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 17 OR (id > 100 AND s.x = 2)")
    dataset.optimize.compact_files(target_rows_per_fragment=250)
    dataset.insert(values(chance, 100), **options)
    dataset.delete("id = 20")
    dataset.insert(values(chance, 100), **options)
    dataset = lance.dataset(uri)
    assert {bool(fragment.num_deletions) for fragment in dataset.get_fragments()} == {False, True}
    table = TableHandle(ObjectId(("t",)), uri, version=dataset.version)
    ids = [fragment.fragment_id for fragment in dataset.get_fragments()]
    parts: list[ScanPart] = [WholeTable(), *(Fragments((id,)) for id in ids), *(Slice((id,), 20, 31) for id in ids)]
    for filter in (None, "id < 90", "s.x = 1 OR s.y IS NULL", "id IN (5, 77, 149)", "id = 10000"):
        for part in parts if filter is None else [part for part in parts if not isinstance(part, Slice)]:
            for tree in TREES:
                whole = scans.read(Scan(table, ("id", "_rowid", "_rowaddr", "s"), filter), part)
                some = scans.read(Scan(table, ("id", "_rowid", "_rowaddr", "s"), filter, fields={"s": tree}), part)
                expected = [{**row, "s": only(row["s"], tree)} for batch in whole for row in batch.to_pylist()]
                found = [row for batch in some for row in batch.to_pylist()]
                assert found == expected


def test_a_limit_takes_no_more_rows_than_asked_for(tmp_path: Path) -> None:
    dataset = lance.write_dataset(values(random.Random(1), 100), str(tmp_path / "t.lance"), max_rows_per_file=40)
    for filter in (None, "id > 10"):
        scan = Scan(
            TableHandle(ObjectId(("t",)), dataset.uri, version=1), ("s",), filter, limit=55, fields={"s": {"x": None}}
        )
        assert sum(batch.num_rows for batch in scans.read(scan, Fragments((0, 1, 2)))) == 55


def test_fields_that_are_not_asked_for_are_neither_read_nor_sent(tmp_path: Path) -> None:
    rows = 20_000
    chance = random.Random(2)
    text = pa.array([chance.randbytes(100).hex() for _ in range(rows)])
    struct = pa.StructArray.from_arrays(
        [pa.array(range(rows)), text], ["x", "y"], mask=pa.array([number % 3 == 0 for number in range(rows)])
    )
    dataset = lance.write_dataset(pa.table({"s": struct}), str(tmp_path / "t.lance"))
    scan = Scan(TableHandle(ObjectId(("t",)), dataset.uri, version=1), ("s",), "s.x != 7", fields={"s": {"x": None}})
    assert scans.output_schema(scan).field("s").type == pa.struct([("x", pa.int64())])
    before = bytes_read_counter()
    sent = list(scans.read(scan, Fragments((0,))))
    read = bytes_read_counter() - before
    assert sum(batch.num_rows for batch in sent) == sum(number % 3 != 0 and number != 7 for number in range(rows))
    assert 0 < sum(batch.nbytes for batch in sent) < 20 * rows
    assert 0 < read < 20 * rows


def test_fields_are_read_from_among_deleted_rows(tmp_path: Path) -> None:
    """A take by position from such a fragment does not end in pylance 14.0.2."""
    rows = 120_000
    struct = pa.StructArray.from_arrays([pa.array(range(rows)), pa.array(range(rows))], ["x", "y"])
    dataset = lance.write_dataset(pa.table({"id": pa.array(range(rows)), "s": struct}), str(tmp_path / "t.lance"))
    dataset.delete("id = 5 OR id = 100005")
    for filter in (None, "id >= 50000 AND id < 60000"):
        scan = Scan(TableHandle(ObjectId(("t",)), dataset.uri, version=2), ("s",), filter, fields={"s": {"x": None}})
        read: Any = pa.Table.from_batches(scans.read(scan, Fragments((0,)))).column("s").combine_chunks()
        expected = [row for row in range(rows) if row not in (5, 100005)] if filter is None else range(50000, 60000)
        assert read.field("x").to_pylist() == list(expected)


def test_packed_structs_blobs_and_fields_of_another_version_are_read_whole() -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    inner = pa.field("s", pa.struct([pa.field("x", pa.int8()), blob]))
    assert nested.paths(pa.schema([inner]), ["s"], {"s": {"x": None}}) == ["`s`.`x`"]
    assert nested.paths(pa.schema([inner]), ["s"], {"s": {"b": None}}) is None
    assert nested.paths(pa.schema([inner]), ["s"], {"s": {"gone": None}}) is None
    packed = inner.with_metadata({"lance-encoding:packed": "true"})
    assert nested.paths(pa.schema([packed]), ["s"], {"s": {"x": None}}) is None
