"""Spark SQL in the embedded engine: what it means without a JVM. test_dialect.py compares it with Spark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, UnsupportedOperationError

pytest.importorskip("duckdb")
pytest.importorskip("sqlglot")

from headwater.sql.embedded import EmbeddedEngine, opened
from headwater.sql.functions import AGGREGATES, FUNCTIONS, WINDOWS
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError, parse_condition, parse_query
from headwater.sql.text_functions import re2_pattern

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int32()),
        "zero": pa.array([0, 0, None], pa.int32()),
        "m": pa.array([Decimal("1.25"), None, Decimal("-0.50")], pa.decimal128(12, 2)),
        "s": ["b", None, "a"],
        "xs": [[1, 2], [], None],
        "embedding": pa.array([[1.0, 2.0]] * 3, pa.list_(pa.float32(), 2)),
        "small": pa.array([200, 1, 2], pa.uint8()),
        "half": pa.array([1, 2, 3], pa.time64("us")),
    }
)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with opened() as engine:
        engine.add("raw.t", ROWS)
        yield engine


@pytest.mark.parametrize(
    ("expression", "values", "kind"),
    [
        ("id / 2", [0.5, 1.0, 1.5], pa.float64()),
        ("m * 2", [Decimal("2.50"), None, Decimal("-1.00")], pa.decimal128(14, 2)),
        ("sum(id) OVER ()", [6, 6, 6], pa.int64()),
        ("row_number() OVER (ORDER BY s, id)", [3, 1, 2], pa.int32()),
        ("CAST(1.7D AS INT) + id", [2, 3, 4], pa.int32()),
        ("small + 1", [201, 2, 3], pa.int32()),
        ("size(embedding)", [2, 2, 2], pa.int32()),
        ("id > 1 OR 1 / zero > 0", [None, True, True], pa.bool_()),
        ("CASE WHEN size(xs) > 0 THEN xs[1] END", [2, None, None], pa.int64()),
        ("half IS NULL", [False, False, False], pa.bool_()),
    ],
)
def test_values_have_the_types_of_spark(engine: EmbeddedEngine, expression: str, values: list[Any], kind: Any) -> None:
    if "zero" in expression:
        with pytest.raises(SqlError, match="DIVIDE_BY_ZERO"):
            engine.query(f"SELECT {expression} AS x FROM raw.t")
        expression = expression.replace("1 / zero", "1 / nullif(zero, 0)")
    found = engine.query(f"SELECT id, {expression} AS x FROM raw.t ORDER BY id").column("x")
    assert (found.to_pylist(), found.type) == (values, kind)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("SELECT epoch_ms(id) FROM raw.t", r"the function epoch_ms\(\)"),
        ("SELECT s RLIKE '(?i)a' FROM raw.t", "rlike"),
        ("SELECT m / 2 FROM raw.t", "'/' of decimals"),
        ("SELECT s = 1 FROM raw.t", "'=' of STRING and INT"),
        ("SELECT half + 1 FROM raw.t", r"TIME\(6\)"),
        ("SELECT read_csv('x') FROM raw.t", r"read_csv\(\)"),
        ("SELECT * FROM range(3)", "a FROM of something else than tables"),
        ("SELECT id, count(*) AS n FROM raw.t GROUP BY GROUPING SETS ((id), ())", "GROUPING"),
        ("SELECT id FROM raw.t TABLESAMPLE (1 ROWS)", "SAMPLE"),
        ("SELECT id AS a, a + 1 AS b FROM raw.t", "`a`, a result"),
        ("SELECT upper('Straße') AS x FROM raw.t", "letters that Java changes"),
        ("SELECT instr(s) FROM raw.t", r"instr\(STRING\)"),  # these raised a TypeError
        ("SELECT mod(id, 2, 3) FROM raw.t", r"mod\(INT, INT, INT\)"),
        ("SELECT unix_timestamp(s, 'dd.MM.yyyy') FROM raw.t", r"unix_timestamp\("),
        ("SELECT dateadd(DATE '2024-01-31', 1, 2) FROM raw.t", "date_?add"),  # the last was left out in silence
        ("SELECT isnull(s, id) FROM raw.t", r"isnull\("),
        ("SELECT upper(s, id) FROM raw.t", r"upper\("),
        ("SELECT " + "id / (" * 40 + "id" + ")" * 40 + " AS x FROM raw.t", "nested this deep"),
    ],
)
def test_what_has_another_meaning_is_refused_by_its_name(engine: EmbeddedEngine, sql: str, what: str) -> None:
    with pytest.raises(UnsupportedSqlError, match=what):
        engine.query(sql)


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ('SELECT "s" FROM raw.t', "write `s` for the column"),
        ("SELECT nothing FROM raw.t", "no column `nothing`"),
        ("SELECT id FROM raw.u", "no table raw.u"),
        ("SELECT id FROM raw.t WHERE s", "not true or false"),
        ("SELECT CAST(s AS INT) FROM raw.t", "CAST_INVALID_INPUT"),
        ("SELECT id + 2147483647 FROM raw.t", "[Oo]verflow"),
        ("SELECT xs[5] FROM raw.t", "INVALID_ARRAY_INDEX"),
        ("DELETE FROM raw.t", "one SELECT"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "too deep"),
    ],
)
def test_mistakes_are_told(engine: EmbeddedEngine, sql: str, told: str) -> None:
    with pytest.raises(SqlError, match=told):
        engine.query(sql)


@pytest.mark.parametrize(
    "text", ["", "a > 1, b > 2", "*", "a AS b", "a > 1; SELECT 1", "a IN (SELECT 1)", "a > 1 FROM t"]
)
def test_a_condition_is_one_expression(text: str) -> None:
    with pytest.raises(SqlError):
        parse_condition(text)


def test_nothing_outside_the_tables_is_reached_by_a_name_that_is_a_path(engine: EmbeddedEngine, tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    with pytest.raises(SqlError, match="There is no table"):
        engine.query(f"SELECT * FROM `{tmp_path}/secret.csv`")


def test_a_catalog_is_queried_in_spark_sql_or_on_request_in_that_of_duckdb(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("a.b.c.d", ROWS.select(["id", "s"]))
    assert catalog.query("SELECT max(id) AS n FROM a.b.c.d").to_pylist() == [{"n": 3}]
    native = 'SELECT list(id ORDER BY id) AS ids FROM "a.b.c.d"'
    assert catalog.query(native, dialect="duckdb").to_pylist() == [{"ids": [1, 2, 3]}]
    with pytest.raises(UnsupportedOperationError, match=r'the function list\(\).*dialect="duckdb"'):
        catalog.query("SELECT list(id) AS ids FROM a.b.c.d")
    with pytest.raises(InvalidInputError, match="the dialect spark or duckdb"):
        catalog.query("SELECT 1", dialect="mysql")


@pytest.mark.parametrize(
    "sql",
    [
        r"SELECT E'\'', current_setting('home_directory') --'",
        r"SELECT E'\'', * FROM duckdb_settings() --'",
        "/* /* */ ' */ SELECT current_setting('home_directory') --'",
        "SELECT $a$ ' $a$, current_setting('home_directory') --'",
        "SELECT current_setting\u00a0('home_directory')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM duckdb_settings()'))",
        "SELECT * FROM enable_logging(storage = 'file', storage_path = 'log')",
    ],
)
def test_sql_of_duckdb_is_divided_into_words_as_duckdb_does_it(tmp_path: Path, sql: str) -> None:
    """A text with a backslash, or a comment in a comment, hid the rest of a query from the guard."""
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("t", ROWS.select(["id", "s"]))
    with pytest.raises(InvalidInputError, match=r"A query does not (call|read) "):
        catalog.query(sql, dialect="duckdb")
    harmless = "SELECT E'\\' duckdb_settings()' AS a, \"s\" AS version /* getenv('x') */ FROM t -- current_setting('x')"
    assert catalog.query(harmless, dialect="duckdb").num_rows == 3


def test_the_page_names_every_function_that_the_engine_knows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
    for row, known in (("functions", {*FUNCTIONS, "struct"}), ("aggregates", {*AGGREGATES}), ("windows", {*WINDOWS})):
        line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
        assert set(re.findall(r"`([a-z_0-9]+)`", line)) == known


def test_a_text_is_parsed_once() -> None:
    assert parse_query("SELECT 1 AS one") is parse_query("SELECT 1 AS one")


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", r"\bfoo", "a*+", "(a*)*", "[a-z&&[b]]", r"\p{L}", r"(a)\1", "(?=a)", r"\Q.\E", "[[:alpha:]]", "a{3,2}",
     "(a", "a)", "[a", "x{2}{3}", "[%-z]", "(x{99}){99}", "^*", "[]a]", "(" * 40 + "a" + ")" * 40],
)  # fmt: skip
def test_a_pattern_that_re2_reads_differently_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        re2_pattern(pattern)
