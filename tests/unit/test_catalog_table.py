"""Everything a person does with a table, in one line each; on disk and behind a server alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import polars
import pyarrow as pa
import pytest

from headwater import Catalog, CatalogTable, DirectoryNamespace
from headwater.catalog.results import WriteResult
from headwater.catalog.table_parts import index_type_of
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableSchemaValidationError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.rest.server import start_in_thread
from headwater.tables.columns.fields import sql_type

ROWS = pa.table({"id": [1, 2, 3], "name": ["Ada", "Grace", "Edsger"]})
WORDS = ["the quick brown fox", "a lazy dog", "the dog and the fox", "nothing here"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = start_in_thread(DirectoryNamespace(root=str(tmp_path_factory.mktemp("served"))))
    yield server.url
    server.stop()


@pytest.fixture(params=["on disk", "served"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    if request.param == "on disk":
        return Catalog(str(tmp_path))
    found = Catalog(str(request.getfixturevalue("served")))
    for name in found.tables():
        found.drop_table(name)
    return found


@pytest.fixture
def table(catalog: Catalog) -> CatalogTable:
    return catalog.create_table("t", ROWS)


def test_rows_come_out_as_people_want_them(table: CatalogTable) -> None:
    assert table.to_arrow(columns=["name"], filter="id > 1", limit=1).to_pydict() == {"name": ["Grace"]}
    assert table.head(2).num_rows == 2
    assert table.to_arrow(limit=0).num_rows == 0
    assert next(iter(table)) == {"id": 1, "name": "Ada"}
    assert len(table) == 3
    assert pa.table(table) == ROWS
    assert polars.DataFrame(table).shape == (3, 2)
    assert list(table.to_pandas().columns) == ["id", "name"]
    assert table.to_polars(columns=["id"]).shape == (3, 1)
    assert table.to_duckdb().filter("id > 1").fetchall() == [(2, "Grace"), (3, "Edsger")]
    assert table.to_batches().schema == table.schema == ROWS.schema


def test_a_library_that_is_not_there_is_named(table: CatalogTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(UnsupportedOperationError, match="pip install duckdb"):
        table.to_duckdb()


def test_rows_are_updated_by_values_and_by_expressions(table: CatalogTable) -> None:
    assert table.update({"name": "it's"}, where="id = 1").updated == 1
    assert table.update(id="id * 10").updated == 3
    table.update({"name": None}, where="id = 20")
    assert table.to_polars().sort("id").to_dicts() == [
        {"id": 10, "name": "it's"},
        {"id": 20, "name": None},
        {"id": 30, "name": "Edsger"},
    ]
    with pytest.raises(UnsupportedOperationError, match="'name' is of type object"):
        table.update({"name": object()})


def test_a_column_of_any_type_is_set_to_a_python_value(catalog: Catalog) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    values: dict[str, tuple[pa.DataType, object]] = {
        "day": (pa.date32(), moment.date()),
        "at": (pa.timestamp("us", "UTC"), moment),
        "local": (pa.timestamp("us"), moment.replace(tzinfo=None)),
        "time": (pa.time64("us"), moment.time()),
        "raw": (pa.binary(), b"\x00\xff"),
        "vector": (pa.list_(pa.float32(), 2), [0.5, 1.5]),
        "words": (pa.list_(pa.string()), ["a", "it's", None]),
        "none": (pa.list_(pa.int64()), []),
        "price": (pa.decimal128(10, 2), Decimal("1.5E+2")),
        "far": (pa.float64(), float("-inf")),
        "pair": (pa.struct([("a", pa.int64())]), {"a": 5}),
        "sure": (pa.bool_(), True),
    }
    table = catalog.create_table("t", schema=pa.schema({name: kind for name, (kind, _) in values.items()}))
    table.append([dict.fromkeys(values)])
    told = {name: value for name, (_, value) in values.items()}
    assert table.update(told).updated == 1
    assert table.to_arrow().to_pylist() == [told]
    table.update({"vector": numpy.array([2.5, 3.5])})
    assert table.to_arrow()["vector"].to_pylist() == [[2.5, 3.5]]


def test_batches_are_taken_as_they_come(catalog: Catalog) -> None:
    batch = pa.RecordBatch.from_pydict({"id": [1, 2]})
    table = catalog.create_table("t", iter([batch, batch]))
    table.append([batch])
    assert table.count() == 6
    for wrong in (pa.RecordBatch.from_pydict({"other": [1]}), {"id": 3}):
        with pytest.raises(InvalidInputError, match="Batch 2 is none, or of another schema"):
            table.append(iter([batch, wrong]))
    assert table.count() == 6


def test_a_merge_does_what_it_is_told_and_no_more(table: CatalogTable) -> None:
    new = [{"id": 3, "name": "E."}, {"id": 4, "name": "Barbara"}]
    table.merge(new, "id", insert=True)
    assert table.count("name = 'E.'") == 0
    table.merge(new, "id", update=True, delete="id < 2")
    assert set(table.to_arrow().column("id").to_pylist()) == {2, 3, 4}
    assert table.count("name = 'E.'") == 1
    table.overwrite(ROWS)
    assert table.to_arrow() == ROWS


def test_a_table_is_read_at_a_version_a_tag_and_a_time(table: CatalogTable) -> None:
    table.append([{"id": 4, "name": "Barbara"}])
    versions = table.versions()
    assert [item.version for item in versions] == [1, 2]
    table.tags["first"] = 1
    assert table.at(1).to_arrow() == table.at(tag="first").to_arrow() == table.to_arrow(version=1) == ROWS
    assert table.at(1).count() == 3
    assert versions[1].time is not None
    assert table.at(time=versions[1].time).version == 2
    assert repr(table.at(1)) == "CatalogTable('t', version=1)"
    with pytest.raises(TableVersionNotFoundError, match="no version as old"):
        table.at(time=datetime.now(UTC) - timedelta(days=1))
    with pytest.raises(TableVersionNotFoundError):
        table.at(7)
    with pytest.raises(InvalidInputError, match="time zone"):
        table.at(time=datetime(2026, 1, 1))
    with pytest.raises(InvalidInputError, match="Say one"):
        table.at(1, tag="first")
    with pytest.raises(InvalidInputError, match="open at version 1"):
        table.at(1).append(ROWS)
    table.restore(1)
    assert table.to_arrow() == ROWS


def test_tags_are_a_mapping(table: CatalogTable) -> None:
    table.append(ROWS)
    table.tags["best"] = 1
    table.tags["best"] = 2
    assert dict(table.tags) == {"best": 2}
    assert "other" not in table.tags
    assert table.tags.get("other") is None
    with pytest.raises(TableTagNotFoundError):
        table.tags["other"]
    with pytest.raises(LanceNamespaceError):
        table.tags.create("best", 1)
    del table.tags["best"]
    assert len(table.tags) == 0


def test_a_branch_is_written_beside_the_table(table: CatalogTable) -> None:
    table.branches.create("trial", version=1)
    table.at(branch="trial").append([{"id": 9, "name": "x"}])
    assert list(table.branches) == ["trial"]
    assert table.branches["trial"].parent_version == 1
    assert (table.at(branch="trial").count(), table.count()) == (4, 3)
    del table.branches["trial"]
    assert len(table.branches) == 0


def test_a_branch_or_an_index_that_is_not_there_is_a_named_error_that_a_mapping_knows(table: CatalogTable) -> None:
    with pytest.raises(TableBranchNotFoundError, match="t has no branch 'trial'"):
        table.branches["trial"]
    with pytest.raises(TableIndexNotFoundError, match="t has no index 'id_idx'"):
        table.indices["id_idx"]
    assert "trial" not in table.branches
    assert table.indices.get("id_idx") is None


def test_columns_come_go_and_change(table: CatalogTable) -> None:
    table.add_columns({"double": "id * 2", "v": pa.list_(pa.float32(), 2)})
    assert table.schema.field("v").type == pa.list_(pa.float32(), 2)
    assert table.to_arrow(columns=["double"]).to_pydict() == {"double": [2, 4, 6]}
    table.rename_columns({"double": "twice"})
    table.cast_columns({"twice": pa.int32()})
    table.drop_columns("v", "name")
    assert table.schema.names == ["id", "twice"]
    assert table.schema.field("twice").type == pa.int32()
    table.add_columns(pa.schema([pa.field("when", pa.timestamp("us", "UTC"))]))
    assert table.schema.field("when").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("values", "kind", "made"),
    [
        ([1, 2, None], pa.float64(), [1.0, 2.0, None]),
        ([1, 2, None], pa.string(), ["1", "2", None]),
        ([1, 2**53 + 1], pa.float64(), None),
        ([1, 20], pa.decimal128(4, 2), [Decimal("1.00"), Decimal("20.00")]),
        ([1.0, 2.0], pa.int64(), [1, 2]),
        ([1.5], pa.int64(), None),
        (["7", None], pa.int32(), [7, None]),
        (["x"], pa.int32(), None),
        ([True], pa.string(), ["true"]),
        ([datetime(2026, 1, 2)], pa.date32(), [datetime(2026, 1, 2).date()]),
        ([datetime(2026, 1, 2, 3)], pa.date32(), None),
        ([], pa.string(), []),
    ],
)
def test_a_column_is_cast_where_every_value_fits(catalog: Catalog, values: list[Any], kind: Any, made: Any) -> None:
    rows = pa.table({"id": list(range(len(values))), "a": values, "z": ["z"] * len(values)})
    if not values:
        rows = rows.set_column(1, "a", pa.array([], pa.int64()))
    table = catalog.create_table("t", rows)
    if made is None:
        with pytest.raises(TableSchemaValidationError, match="'a'"):
            table.cast_columns({"a": kind})
        made, kind = values, rows.schema.field("a").type
    else:
        table.cast_columns({"a": kind})
    found = table.to_arrow()
    assert (found.schema.names, found.schema.field("a").type) == (["id", "a", "z"], kind)
    assert found["a"].to_pylist() == made


def test_a_cast_keeps_deleted_rows_gone_comments_and_neighbours(catalog: Catalog) -> None:
    field = pa.field("a", pa.int64(), metadata={"comment": "how many"})
    inner = pa.struct([("a", pa.int64())])
    schema = pa.schema([pa.field("s", inner), field, pa.field("b", pa.string())])
    rows = [{"s": {"a": n}, "a": n, "b": str(n)} for n in range(3)]
    table = catalog.create_table("t", rows, schema=schema)
    table.append([{"s": {"a": 9}, "a": 9, "b": "no number"}])
    table.delete("a = 9 or a = 1")
    table.cast_columns({"a": pa.string(), "b": pa.int64()})
    assert table.to_arrow().to_pylist() == [{"s": {"a": n}, "a": str(n), "b": n} for n in (0, 2)]
    assert (table.schema.field("a").metadata or {}).get(b"comment") == b"how many"
    table.append([{"s": {"a": 4}, "a": "four", "b": 4}])
    assert table.count("a = 'four'") == 1
    table.create_index("b", "BTREE")
    with pytest.raises(TableSchemaValidationError, match="drop the index"):
        table.cast_columns({"b": pa.string()})


def test_a_type_that_sql_cannot_say_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="struct"):
        sql_type(pa.struct([pa.field("a", pa.int32())]))


def test_vectors_words_and_both_are_searched(catalog: Catalog) -> None:
    rows = [{"id": n, "words": words, "vector": [float(n), 0.0]} for n, words in enumerate(WORDS)]
    table = catalog.create_table("docs", rows)
    table.create_index("words")
    table.create_index("id")
    assert sorted(item.columns[0] for item in table.indices.values()) == ["id", "words"]
    assert table.search([2.9, 0.0], k=2, columns=["id"]).column("id").to_pylist() == [3, 2]
    assert table.search([2.9, 0.0], k=1, filter="id < 2").column("id").to_pylist() == [1]
    assert table.search("fox").num_rows == 2
    both = table.search(text="fox", vector=[0.0, 0.0], k=2)
    assert both.column("id").to_pylist() == [0, 2]
    assert "_relevance" in both.schema.names
    assert "_rowid" not in both.schema.names
    with pytest.raises(InvalidInputError, match="a vector or a text"):
        table.search()
    with pytest.raises(InvalidInputError, match="at least 1"):
        table.search("fox", k=0)
    with pytest.raises(TableColumnNotFoundError, match="id, words, vector"):
        table.create_index("nope")
    for name in list(table.indices):
        del table.indices[name]
    assert dict(table.indices) == {}


def test_the_index_of_a_column_is_the_one_people_mean() -> None:
    assert index_type_of(pa.list_(pa.float32(), 4)) == "IVF_PQ"
    assert index_type_of(pa.list_(pa.string())) == "LABEL_LIST"
    assert index_type_of(pa.string()) == "FTS"
    assert index_type_of(pa.bool_()) == "BITMAP"
    assert index_type_of(pa.int64()) == "BTREE"


def test_metadata_properties_and_stats_are_shown(catalog: Catalog) -> None:
    table = catalog.create_table("t", ROWS, properties={"team": "ml"})
    assert table.properties["team"] == "ml"
    table.set_metadata({"k": "v"})
    assert table.metadata["k"] == "v"
    assert table.stats().num_rows == 3


def test_a_table_is_made_empty_by_its_schema(catalog: Catalog) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.list_(pa.float32(), 2))])
    assert catalog.create_table("empty", schema=schema).schema == schema
    table = catalog.create_table("typed", [{"id": 1, "v": [1.0, 2.0]}], schema=schema)
    assert table.schema == schema
    assert len(table) == 1


def test_a_catalog_is_walked_by_its_names(catalog: Catalog) -> None:
    catalog.create_table("t", ROWS)
    catalog.create_table("a.b.u", ROWS)
    try:
        assert list(catalog) == ["a.b.u", "t"]
        assert len(catalog) == 2
        assert catalog.namespace_properties("a") == {}
        assert "create_table" in dir(catalog)
        assert not [name for name in dir(catalog) if name.startswith("_")]
    finally:
        catalog.drop_namespace("a", cascade=True)


def test_a_batch_is_made_all_at_once_or_not_at_all(catalog: Catalog) -> None:
    catalog.create_table("there", ROWS)
    with catalog.batch() as batch:
        batch.declare_table("one")
        batch.declare_table("two")
    assert catalog.tables() == ["one", "there", "two"]
    batch = catalog.batch()
    batch.declare_table("there")
    with pytest.raises(TableAlreadyExistsError):
        batch.commit()
    with suppress(ZeroDivisionError), catalog.batch() as batch:
        batch.declare_table("four")
        raise ZeroDivisionError
    assert catalog.tables() == ["one", "there", "two"]


def test_a_deregistered_table_is_registered_again_without_moving_data(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    catalog.create_table("a.t", ROWS)
    location = catalog.deregister_table("a.t")
    assert "a.t" not in catalog
    assert catalog.register_table("b.u", Path(location).name).to_arrow() == ROWS


def test_names_are_joined_by_the_delimiter_that_is_given(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path), delimiter="::")
    catalog.create_table("a::b.c", ROWS)
    assert list(catalog) == ["a::b.c"]
    assert catalog.tables("a") == ["b.c"]


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.to_arrow(filter="nonsense ("),
        lambda table: table.to_arrow(columns=["nope"]),
        lambda table: table.count("nope > 1"),
        lambda table: table.update(id="nope"),
        lambda table: table.add_columns({"x": "nope + 1"}),
        lambda table: table.update(name="[]"),
    ],
)
def test_a_mistake_is_a_named_error_without_a_path(
    table: CatalogTable, tmp_path: Path, call: Callable[[CatalogTable], object]
) -> None:
    with pytest.raises(LanceNamespaceError) as caught:
        call(table)
    assert str(tmp_path) not in str(caught.value)
    assert ".rs:" not in str(caught.value)
    assert "LanceError" not in str(caught.value)


def test_a_search_is_described_step_by_step_and_run_once(tmp_path: Path) -> None:
    rows = pa.table(
        {"id": [1, 2, 3, 4], "vector": pa.array([[float(n), 0.0] for n in range(4)], pa.list_(pa.float32(), 2))}
    )
    table = Catalog(str(tmp_path / "lake")).create_table("t", rows)
    search = table.search([0.0, 0.0]).where("id > 1").where("id < 4").limit(2)
    assert [row["id"] for row in search] == [row["id"] for row in search.to_list()] == [2, 3]
    assert search.select(["id", "_distance"]).to_arrow().column_names == ["id", "_distance"]
    assert search.to_arrow() is search.to_arrow()
    assert (search.num_rows, len(search), search["id"].to_pylist()) == (2, 2, [2, 3])
    worst = table.search([0.0, 0.0]).limit(1).rerank(lambda found: found["_distance"].to_pylist())
    assert worst.to_list()[0] | {"vector": None} == {"id": 4, "vector": None, "_distance": 9.0, "_relevance": 9.0}
    with pytest.raises(InvalidInputError, match="2 numbers for 4 rows"):
        table.search([0.0, 0.0]).rerank(lambda found: [1.0, 2.0]).to_arrow()
    with pytest.raises(InvalidInputError):
        table.search([0.0, 0.0]).limit(0).to_arrow()


def test_a_write_says_which_version_it_made_and_what_became_of_the_rows(tmp_path: Path) -> None:
    table = Catalog(str(tmp_path / "lake")).create_table("t", pa.table({"id": [1, 2]}))
    assert table.append(pa.table({"id": [3]})) == WriteResult(2, inserted=1)
    assert table.upsert(pa.table({"id": [3, 4]}), on="id") == WriteResult(3, inserted=1, updated=1, deleted=0)
    assert table.delete("id > 2") == WriteResult(4, deleted=2)
    assert table.update({"id": 9}, where="id = 1") == WriteResult(5, updated=1)
    assert table.overwrite(pa.table({"id": [7]})) == WriteResult(6, inserted=1)
