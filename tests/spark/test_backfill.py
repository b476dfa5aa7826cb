"""A new column filled by a Python function on executors: every live row, one commit, whatever others do meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import pandas_udf

from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.spark import backfill, python_jobs
from headwater.spark.access_file import ACCESS_FILE, ENVIRONMENT, write_access
from headwater.spark.python_jobs import ARROW, PANDAS_ITERATOR, ROW, Function, filler, function_of
from headwater.work import SparkRunner


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def version(spark: SparkSession, table: str) -> int:
    return int(dict(rows(spark, f"SHOW TBLPROPERTIES {table}"))["version"])


@pytest.fixture
def table(spark: SparkSession, ns: str) -> str:
    """Three fragments, two of them with deleted rows."""
    name = f"{ns}.t"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, word STRING)")
    for start in (0, 100, 200):
        spark.sql(f"INSERT INTO {name} SELECT id, concat('w', id) FROM range({start}, {start + 100}, 1, 1)")
    spark.sql(f"DELETE FROM {name} WHERE id < 150 AND id % 3 = 0")
    return name


def test_a_function_fills_every_live_row_in_one_version(spark: SparkSession, table: str) -> None:
    before = version(spark, table)

    def twice(ids: Any, words: Any) -> Any:
        return pc.add(pc.multiply(ids, 2), pc.utf8_length(words).cast("int64"))

    done = backfill(spark, table, "n", twice, columns=["id", "word"], type="bigint", rows=7)
    assert done == {"fragments": 3, "version": before + 1}
    assert rows(spark, f"SELECT id FROM {table} WHERE n IS NULL OR n <> id * 2 + length(word)") == []
    assert rows(spark, f"SELECT count(*), sum(id) FROM {table}") == [(250, 41175)]
    with pytest.raises(InvalidInputError, match="has a column 'n' already"):
        backfill(spark, table, "n", twice, columns=["id", "word"], type="bigint")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_functions_made_by_spark_are_called_as_spark_calls_them(spark: SparkSession, table: str) -> None:
    @pandas_udf("array<float>")  # type: ignore[call-overload,untyped-decorator]  # its types know columns, not iterators
    def vectors(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for ids in batches:
            yield pd.Series([[float(id), 1.0] for id in ids])

    backfill(spark, table, "v", vectors, columns=["id"], type=pa.list_(pa.float32(), 2))
    backfill(spark, table, "w", udf(lambda id, word: f"{word}-{id}", "string"), columns=["id", "word"])
    backfill(spark, table, "x", "id + 1")
    assert rows(spark, f"SELECT v, w, x FROM {table} WHERE id = 151") == [([151.0, 1.0], "w151-151", 152)]
    assert rows(spark, f"SELECT count(*) FROM {table} WHERE w = concat(word, '-', id) AND v[0] = id") == [(250,)]
    found = rows(spark, f"SELECT id FROM vector_search('{table}', 'v', array(200.4, 1), 1)")
    assert found == [(200,)]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something between the tasks of a job and its commit."""

    def plan(action: Callable[[], object]) -> None:
        run = SparkRunner.run

        def then(*arguments: Any) -> Any:
            results = run(*arguments)
            action()
            return results

        monkeypatch.setattr(SparkRunner, "run", then)

    return plan


@pytest.mark.long
def test_rows_written_meanwhile_have_null_and_rows_deleted_meanwhile_stay_deleted(
    spark: SparkSession, table: str, meanwhile: Callable[[Callable[[], object]], None]
) -> None:
    def others() -> None:
        spark.sql(f"INSERT INTO {table} VALUES (1000, 'late')")
        spark.sql(f"DELETE FROM {table} WHERE id >= 200 AND id < 1000")
        spark.sql(f"DELETE FROM {table} WHERE id = 1")
        spark.sql(f"UPDATE {table} SET word = 'changed' WHERE id = 2")

    meanwhile(others)
    backfill(spark, table, "n", lambda ids: ids, columns=["id"], type="bigint")
    assert rows(spark, f"SELECT id, word FROM {table} WHERE n IS NULL ORDER BY id") == [(2, "changed"), (1000, "late")]
    assert rows(spark, f"SELECT count(*) FROM {table} WHERE n = id") == [(148,)]
    spark.sql(f"UPDATE {table} SET n = id WHERE n IS NULL")
    assert rows(spark, f"SELECT count(*) FROM {table} WHERE n = id") == [(150,)]


@pytest.mark.parametrize("change", ["CALL lake.system.compact('{}')", "ALTER TABLE {} ADD COLUMN other INT"])
def test_a_table_rewritten_meanwhile_is_a_conflict_and_nothing_changes(
    spark: SparkSession, table: str, meanwhile: Callable[[Callable[[], object]], None], change: str
) -> None:
    meanwhile(lambda: spark.sql(change.format(table)))
    with pytest.raises(ConcurrentModificationError, match=r"was rewritten by another writer.*run it again"):
        backfill(spark, table, "n", lambda ids: ids, columns=["id"], type="bigint")
    assert "n" not in spark.table(table).columns
    assert rows(spark, f"SELECT count(*) FROM {table}") == [(250,)]


def test_an_empty_table_gets_the_column_and_a_wrong_call_says_what_is_missing(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.e (id BIGINT)")
    assert backfill(spark, f"{ns}.e", "n", lambda ids: ids, columns=["id"], type="double")["fragments"] == 0
    assert spark.table(f"{ns}.e").dtypes == [("id", "bigint"), ("n", "double")]
    with pytest.raises(InvalidInputError, match="Give the type"):
        backfill(spark, f"{ns}.e", "m", lambda ids: ids, columns=["id"])
    with pytest.raises(InvalidInputError, match="Name the columns"):
        backfill(spark, f"{ns}.e", "m", lambda ids: ids, type="double")
    with pytest.raises(InvalidInputError, match="no Headwater catalog 'nowhere'"):
        backfill(spark, "nowhere.t", "m", "1")


class Settings:
    """A session that tells its settings, as a Connect server does."""

    def __init__(self, uri: str) -> None:
        self.conf = self
        self.getAll = {"spark.sql.catalog.far.uri": uri, "spark.sql.catalog.far.token": "*********(redacted)"}


def test_a_token_the_session_keeps_to_itself_is_the_callers_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = Settings("http://far")
    elsewhere: Any = Settings("http://elsewhere")
    with pytest.raises(InvalidInputError, match=r"does not hand out the token.*configure\(\)"):
        python_jobs.catalog_options(session, "far")
    mine = write_access({"uri": "http://far", "token": "own"})
    monkeypatch.setenv(ENVIRONMENT + "far", mine)
    assert python_jobs.catalog_options(session, "far") == {ACCESS_FILE: mine}
    with pytest.raises(InvalidInputError, match="does not hand out"):
        python_jobs.catalog_options(elsewhere, "far")


FIELD = pa.field("n", pa.float32())
BATCH = pa.RecordBatch.from_pydict({"a": [1, 2, None], "b": ["x", "y", "z"]})


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda a: pc.cast(a, pa.float64()), ARROW),
        (lambda a: pa.chunked_array([a]), ARROW),
        (lambda a: a.to_numpy(zero_copy_only=False), ARROW),
        (lambda a: a.to_pandas(), ARROW),
        (lambda a: a, ROW),
        (lambda batches: (series + 0 for series in batches), PANDAS_ITERATOR),
    ],
)
def test_whatever_a_function_answers_becomes_the_columns_type(call: Callable[..., Any], kind: str) -> None:
    fill = filler(Function(call, kind), ["a"], FIELD)
    for _ in range(2):
        assert fill(BATCH).column("n").to_pylist() == [1.0, 2.0, None]


def test_a_two_dimensional_answer_is_a_vector_per_row() -> None:
    field = pa.field("v", pa.list_(pa.float32(), 2))
    fill = filler(Function(lambda a: np.ones((len(a), 2))), ["a"], field)
    assert fill(BATCH).column("v").to_pylist() == [[1.0, 1.0]] * 3


def test_an_answer_of_the_wrong_length_or_type_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="2 values for 3 rows"):
        filler(Function(lambda a: a[:2]), ["a"], FIELD)(BATCH)
    with pytest.raises(InvalidInputError, match="does not fit"):
        filler(Function(lambda b: b.to_pylist()), ["b"], FIELD)(BATCH)
    with pytest.raises(InvalidInputError, match="ended before its input"):
        filler(Function(lambda batches: iter(()), PANDAS_ITERATOR), ["a"], FIELD)(BATCH)
    with pytest.raises(InvalidInputError, match="Give a function"):
        function_of(7)
