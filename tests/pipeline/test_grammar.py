"""Pipeline files: the whole grammar is understood, and what is not understood is refused by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headwater.errors import InvalidInputError
from headwater.pipeline import parse_pipeline, run_pipeline
from headwater.schema_text import parse_schema
from headwater.sql.spark_parser import names_in, table_names, with_tables
from headwater.streams.log.checks import Check
from tests.pipeline.shop import PIPELINE, Shop

HEAD = '[pipeline]\nname = "p"\ncatalog = "lake"\n'
HERE = Path(".")
CIRCLE = """[view."m.a"]
sql = "SELECT k FROM m.b"
keys = ["k"]
[view."m.b"]
sql = "SELECT k FROM m.a"
keys = ["k"]
"""


def test_a_pipeline_file_is_read_in_full() -> None:
    found = parse_pipeline(PIPELINE, HERE)
    orders, products = found.table("raw.orders"), found.table("raw.products")
    assert (found.name, found.catalog) == ("shop", "./lake")
    source = found.sources[0]
    assert (source.name, source.format, source.into) == ("orders_cdc", "debezium", "raw.orders")
    assert orders.schema is not None
    assert orders.schema.field("total").type == pa.decimal128(12, 2)
    assert not orders.schema.field("id").nullable
    assert orders.properties == {"lateness": "1000000", "contract": "evolve", "history": "scd2"}
    assert orders.checks[1] == Check("has_customer", "customer IS NOT NULL", "drop")
    assert '"shop_features:embed"' in products.properties["column.embedding"]
    assert products.indices[0].column == "text"
    assert [view.keys for view in found.views] == [("customer",)]
    assert found.publish == ("raw.orders", "raw.products")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pipelin]\n", "Did you mean 'pipeline'"),
        (HEAD + '[table."a.b"]\nkeyz = ["id"]\n', "Did you mean 'keys'"),
        (HEAD + '[[source]]\nname = "s"\npath = "x"\ninto = "a.b"\nformat = "xml"\n', "'xml' is no format"),
        (HEAD + '[[source]]\nname = "s"\npath = "x"\n', "into is a text, and must be there"),
        (HEAD + '[table."a.b"]\nstored_as_scd_type = 3\n', "1 or 2, not 3"),
        (HEAD + '[table."a.b"]\nschema = "id"\n', "'id' is not a column"),
        (HEAD + '[view."a.v"]\nsql = "SELECT 1"\n', "needs keys"),
        (HEAD + '[publish]\ntables = ["no.table"]\n', "not a table of this file"),
        (HEAD + '[table."a.b"]\nexpect = { x = "" }\n', "must be there"),
        (HEAD + '[table."a.b"]\nexpect = { x = "a" }\nexpect_or_drop = { x = "b" }\n', "named 'x'"),
        ("name = ", "is not TOML"),
        (HEAD + '[table."a.b"]\nschema = "id BIGGG"\n', r'toml: \[table."a.b"\]: .BIGGG. is not a type'),
        (HEAD + '[table."a.b"]\nschema = "id BIGINT"\nkeys = ["no"]\n', r'toml: \[table."a.b"\]: The key column .no.'),
        (HEAD + '[[table."a.b".index]]\ncolumn = "x"\ntype = "FLOT"\n', r'toml: \[table."a.b"\] index: .* .FLOT. is'),
        (HEAD + '[[source]]\nname = "s"\npath = "x"\ninto = "a.b"\nformat = "x"\n', r"toml: \[\[source\]\] number 1: "),
        (HEAD + CIRCLE, r'toml: \[view."m.a"\], \[view."m.b"\] read each other in a circle'),
    ],
)
def test_what_is_not_understood_is_refused_and_says_what_was_meant(text: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        parse_pipeline(text, HERE)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("shop_features:embed", "nowhere:embed", r'toml: \[table."raw.products".columns.embedding\]: .*nowhere:embed'),
        ("shop_features:embed", "shop_features:no", r'toml: \[table."raw.products".columns.embedding\]: .*features:no'),
        (
            "total >= 0",
            "totl >= 0",
            r'toml: \[table."raw.orders"\]: The check .positive.[^/]*There is no column `totl`[^/]*$',
        ),
    ],
)
def test_code_that_cannot_run_is_refused_before_anything_is_done(tmp_path: Path, old: str, new: str, says: str) -> None:
    shop = Shop(tmp_path)
    with pytest.raises(InvalidInputError, match=says):
        run_pipeline(parse_pipeline(PIPELINE.replace(old, new), tmp_path))
    assert not (shop.folder / "lake").exists()


def test_columns_are_written_as_in_sql() -> None:
    found = parse_schema("a BIGINT NOT NULL, `b c` decimal(12, 2), d array<int>, e float32[3]")
    assert found.names == ["a", "b c", "d", "e"]
    assert found.field("b c").type == pa.decimal128(12, 2)
    assert not found.field("a").nullable


def test_the_tables_of_a_sql_text_are_found_without_those_in_texts_and_comments() -> None:
    known = ["raw.orders", "raw.items", "other"]
    sql = """SELECT o.id, 'raw.items', "raw.orders" -- other
             FROM RAW.orders o /* raw.items */ JOIN `raw` . `items` i ON true"""
    assert names_in(sql, known) == {"raw.orders", "raw.items"}
    assert names_in("SELECT 'x' FROM t", known) == set()
    assert table_names(sql) == {"RAW.orders", "raw.items"}
    assert names_in("WITH other AS (SELECT 1) SELECT * FROM other", known) == set()
    text = "SELECT raw.orders.id, 'raw.orders' FROM raw.orders"
    assert with_tables(text, {"raw.orders": "t0"}) == "SELECT orders.id, 'raw.orders' FROM `t0` AS `orders`"
