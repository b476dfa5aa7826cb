"""The embedded engine answers Spark SQL as Spark does, or refuses it by name: nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.errors import InvalidInputError
from headwater.sql.embedded import EmbeddedEngine, opened
from headwater.sql.spark_parser import UnsupportedSqlError
from tests.spark import dialect

REFUSED, FAILED = "refused", "failed"
Answer = tuple[pa.Schema | None, Any]


@pytest.fixture
def engine() -> Iterator[EmbeddedEngine]:
    with opened() as engine:
        yield engine


def embedded(engine: EmbeddedEngine, sql: str) -> Any:
    """Return the rows, or the words REFUSED or FAILED."""
    try:
        return engine.query(sql)
    except UnsupportedSqlError:
        return REFUSED
    except InvalidInputError:
        return FAILED


def by_spark(spark: SparkSession, sql: str) -> Any:
    try:
        return spark.sql(sql).toArrow()
    except (PySparkException, Py4JError):
        return FAILED


def kind(arrow: Any) -> Any:
    """Return an Arrow type without what differs in its layout alone."""
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return ("list", kind(arrow.value_type))
    if pa.types.is_map(arrow):
        return ("map", kind(arrow.key_type), kind(arrow.item_type))
    if pa.types.is_struct(arrow):
        return ("struct", tuple((field.name, kind(field.type)) for field in arrow))
    return "timestamp" if pa.types.is_timestamp(arrow) and arrow.tz else arrow


def plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {name: plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def numbered(column: Any) -> Any:
    """Return dates and timestamps as numbers: Python has no year 10000."""
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def facts(rows: pa.Table, ordered: bool = False) -> tuple[Any, Any]:
    columns = [numbered(column).to_pylist() for column in rows.columns]
    found = [tuple(plain(value) for value in row) for row in zip(*columns, strict=True)]
    kinds = [kind(field.type) for field in rows.schema]
    return kinds, found if ordered else sorted(found, key=repr)


def offered(spark: SparkSession, engine: EmbeddedEngine, name: str, rows: pa.Table) -> None:
    engine.add(name, rows)
    spark.createDataFrame(rows).createOrReplaceTempView(name)


def unequal(spark: SparkSession, engine: EmbeddedEngine, asked: Sequence[str], source: str) -> list[str]:
    """Return the expressions of which the engines answer differently over the rows of a table."""
    wrong, together = [], {}
    for text in asked:
        own = embedded(engine, f"SELECT id, {text} AS x FROM {source}")
        if isinstance(own, pa.Table):
            together[text] = own
        elif own == FAILED and by_spark(spark, f"SELECT id, {text} AS x FROM {source}") is not FAILED:
            wrong.append(f"{text}: the embedded engine alone fails")
    shown = ", ".join(f"{text} AS x{place}" for place, text in enumerate(together))
    every = by_spark(spark, f"SELECT id, {shown} FROM {source} t")
    for place, (text, own) in enumerate(together.items()):
        theirs = every
        if theirs is FAILED:
            theirs = by_spark(spark, f"SELECT id, {text} AS x FROM {source}")
        else:
            theirs = theirs.select(["id", f"x{place}"])
        if theirs is FAILED:
            wrong.append(f"{text}: Spark alone fails")
        elif facts(own) != facts(theirs):
            wrong.append(f"{text}: {_difference(own, theirs)}")
    return wrong


def _difference(own: pa.Table, theirs: pa.Table) -> str:
    (kinds, rows), (their_kinds, their_rows) = facts(own), facts(theirs)
    if kinds != their_kinds:
        return f"is {kinds[1:]}, in Spark {their_kinds[1:]}"
    pairs = [(a, b) for a, b in zip(rows, their_rows, strict=False) if a != b]
    return f"{pairs[:2]}" if pairs else f"{len(rows)} rows and {len(their_rows)}"


def test_common_expressions_answer_as_in_spark(spark: SparkSession, engine: EmbeddedEngine) -> None:
    offered(spark, engine, "t", dialect.table(40, 1))
    assert unequal(spark, engine, dialect.expressions()[::6], "t") == []


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_every_expression_answers_as_in_spark_or_is_refused(
    spark: SparkSession, engine: EmbeddedEngine, seed: int
) -> None:
    assert len(dialect.expressions()) >= 80
    offered(spark, engine, "t", dialect.table(60, seed))
    assert unequal(spark, engine, dialect.expressions(), "t") == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_extreme_values_answer_or_fail_as_in_spark(spark: SparkSession, engine: EmbeddedEngine, seed: int) -> None:
    offered(spark, engine, "t", dialect.table(3, seed, wild=True).slice(seed % 3, 1))
    assert unequal(spark, engine, dialect.expressions(), "t") == []


def unequal_views(spark: SparkSession, engine: EmbeddedEngine, asked: Sequence[str]) -> list[str]:
    wrong = []
    for sql in asked:
        own = embedded(engine, sql)
        if own == REFUSED:
            continue
        theirs = by_spark(spark, sql)
        if FAILED in (own, theirs) if not isinstance(own, pa.Table) else theirs is FAILED:
            if own is not theirs:
                wrong.append(f"{sql}: {'the embedded engine' if own == FAILED else 'Spark'} alone fails")
            continue
        ordered = "ORDER BY" in sql.rpartition(")")[2]
        if own.schema.names != theirs.schema.names or facts(own, ordered) != facts(theirs, ordered):
            wrong.append(f"{sql}: {_difference(own, theirs)}")
    return wrong


def test_common_views_answer_as_in_spark(spark: SparkSession, engine: EmbeddedEngine) -> None:
    offered(spark, engine, "t", dialect.table(30, 3))
    offered(spark, engine, "u", dialect.other(9, 3))
    assert unequal_views(spark, engine, dialect.views()[::12]) == []


@pytest.mark.long
@pytest.mark.parametrize("count", [0, 50])
def test_every_view_answers_as_in_spark_or_is_refused(spark: SparkSession, engine: EmbeddedEngine, count: int) -> None:
    assert len(dialect.views()) >= 30
    offered(spark, engine, "t", dialect.table(count, 5))
    offered(spark, engine, "u", dialect.other(count // 4, 5))
    assert unequal_views(spark, engine, dialect.views()) == []


@pytest.mark.long
def test_most_of_the_dialect_is_known(engine: EmbeddedEngine) -> None:
    engine.add("t", dialect.table(20, 1))
    engine.add("u", dialect.other(5, 1))
    refused = [text for text in dialect.expressions() if embedded(engine, f"SELECT {text} AS x FROM t") == REFUSED]
    assert len(dialect.expressions()) - len(refused) >= 80, refused
    assert sum(embedded(engine, sql) == REFUSED for sql in dialect.views()) <= len(dialect.views()) - 30
