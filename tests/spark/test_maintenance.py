"""Procedures on executors, search functions, and what each version changed."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import lance
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession


@pytest.fixture
def docs(spark: SparkSession, ns: str) -> str:
    return make_docs(spark, ns)


@pytest.fixture(scope="module")
def only_read(spark: SparkSession) -> str:
    """The same table, for tests that change nothing."""
    spark.sql("CREATE NAMESPACE lake.t.searched")
    return make_docs(spark, "lake.t.searched")


def make_docs(spark: SparkSession, ns: str) -> str:
    spark.sql(f"CREATE TABLE {ns}.docs (id BIGINT, body STRING, v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = '4')")
    for start in (0, 500):
        spark.sql(
            f"INSERT INTO {ns}.docs SELECT id, concat('word', id % 7, ' text'), array(float(id), 1F, 2F, 3F) "
            f"FROM range({start}, {start + 500}, 1, 2)"
        )
    return f"{ns}.docs"


def test_compact_makes_few_fragments_and_keeps_rows_and_indices(spark: SparkSession, docs: str) -> None:
    spark.sql(f"CALL lake.system.create_index('{docs}', 'id', 'BTREE')")
    done = spark.sql(f"CALL lake.system.compact('{docs}')").collect()[0]
    assert (done.fragments_removed, done.fragments_added) == (4, 1)
    assert spark.sql(f"SELECT count(*), sum(id) FROM {docs}").collect()[0] == (1000, 499500)
    assert spark.table(docs).where("id = 77").count() == 1
    assert spark.sql(f"CALL lake.system.compact('{docs}')").collect()[0].fragments_removed == 0


@pytest.mark.parametrize(
    ("column", "kind", "options"),
    [
        ("id", "BTREE", ""),
        pytest.param("id", "BITMAP", "", marks=pytest.mark.long),
        ("body", "INVERTED", ""),
        ("v", "IVF_FLAT", '{"num_partitions": 2}'),
    ],
)
def test_every_kind_of_index_is_built_on_executors(
    spark: SparkSession, docs: str, column: str, kind: str, options: str
) -> None:
    done = spark.sql(
        f"CALL lake.system.create_index(table => '{docs}', column => '{column}', type => '{kind}', "
        f"options => {repr(options) if options else 'NULL'})"
    ).collect()[0]
    assert done.index_name == f"{column}_idx"
    with pytest.raises(IllegalArgumentException, match="has an index"):
        spark.sql(f"CALL lake.system.create_index('{docs}', '{column}', '{kind}')")
    spark.sql(f"CALL lake.system.drop_index('{docs}', '{column}_idx')")
    assert spark.table(docs).count() == 1000


def test_a_btree_built_in_pieces_is_one_segment_and_leaves_no_other_file(spark: SparkSession, ns: str) -> None:
    for start in (0, 300_000):
        spark.range(start, start + 300_000, 1, 1).selectExpr("id", "id % 1000 AS k").write.saveAsTable(
            f"{ns}.t", format="headwater", mode="append"
        )
    done = spark.sql(f"CALL lake.system.create_index('{ns}.t', 'id', 'BTREE')").collect()[0]
    uri = spark.sql(f"DESCRIBE TABLE EXTENDED {ns}.t").where("col_name = 'Location'").collect()[0][1]
    location = Path(unquote(urlsplit(uri).path))
    index = lance.dataset(uri).describe_indices()[0]
    assert (done.segments, len(index.segments), index.num_rows_indexed) == (1, 1, 600_000)
    files = [path.parent.name for path in (location / "_indices").rglob("*") if path.is_file()]
    assert set(files) == {str(index.segments[0].uuid)}
    assert sorted(spark.sql(f"SELECT k FROM {ns}.t WHERE id IN (5, 599999)").collect()) == [(5,), (999,)]


def test_a_column_is_backfilled_per_fragment_in_one_version(spark: SparkSession, docs: str) -> None:
    done = spark.sql(f"CALL lake.system.backfill('{docs}', 'twice', 'id * 2')").collect()[0]
    assert done.fragments == 4
    assert spark.sql(f"SELECT sum(twice) FROM {docs}").collect()[0] == (999000,)


def test_rollback_makes_an_older_version_the_newest(spark: SparkSession, docs: str) -> None:
    spark.sql(f"CALL lake.system.rollback('{docs}', 2)")
    assert spark.table(docs).count() == 500


def test_wrong_calls_say_what_is_wrong(spark: SparkSession, only_read: str) -> None:
    docs = only_read
    with pytest.raises(IllegalArgumentException, match="'NOPE' is not known"):
        spark.sql(f"CALL lake.system.create_index('{docs}', 'id', 'nope')")
    with pytest.raises(IllegalArgumentException, match="no column 'missing'"):
        spark.sql(f"CALL lake.system.create_index('{docs}', 'missing', 'BTREE')")
    with pytest.raises(AnalysisException, match="nope"):
        spark.sql(f"CALL lake.system.nope('{docs}')")
    assert spark.sql("SHOW PROCEDURES FROM lake.system").count() == 10


def test_vector_search_finds_the_nearest_with_and_without_an_index(spark: SparkSession, docs: str) -> None:
    query = f"SELECT id FROM vector_search('{docs}', 'v', array(10.2, 1, 2, 3), 3) ORDER BY _distance"
    assert spark.sql(query).collect() == [(10,), (11,), (9,)]
    spark.sql(f"CALL lake.system.create_index('{docs}', 'v', 'IVF_FLAT', NULL, '{{\"num_partitions\": 1}}')")
    assert spark.sql(query).collect() == [(10,), (11,), (9,)]


def test_vector_search_is_served_by_an_ivf_pq_index_built_on_executors(spark: SparkSession, ns: str) -> None:
    """256 vectors train 256 codes; a vector far from all others is found first by any index."""
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT, v ARRAY<FLOAT>) TBLPROPERTIES ('vector.v' = '16')")
    items = ", ".join(f"float(sin(id * {place} + {place}))" for place in range(1, 17))
    spark.sql(f"INSERT INTO {ns}.t SELECT id, array({items}) FROM range(0, 1000, 1, 2)")
    spark.sql(f"INSERT INTO {ns}.t SELECT 5000, array_repeat(9F, 16)")
    options = '{"num_partitions": 2, "num_sub_vectors": 4}'
    done = spark.sql(f"CALL lake.system.create_index('{ns}.t', 'v', 'IVF_PQ', NULL, '{options}')").collect()[0]
    uri = spark.sql(f"DESCRIBE TABLE EXTENDED {ns}.t").where("col_name = 'Location'").collect()[0][1]
    dataset = lance.dataset(uri)
    index = dataset.describe_indices()[0]
    assert (index.name, index.index_type, index.num_rows_indexed, done.segments) == ("v_idx", "IVF_PQ", 1001, 1)
    nearest = {"column": "v", "q": [8.0] * 16, "k": 1}
    assert "ANNIvf" in dataset.scanner(nearest=nearest).explain_plan()
    query = f"SELECT id FROM vector_search('{ns}.t', 'v', array_repeat(8F, 16), 1)"
    assert spark.sql(query).collect() == [(5000,)]


def test_an_ivf_pq_index_needs_no_options(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t (id BIGINT, v ARRAY<FLOAT>, w ARRAY<FLOAT>, b ARRAY<FLOAT>) "
              "TBLPROPERTIES ('vector.v' = '16', 'vector.w' = '3')")  # fmt: skip
    spark.sql(f"INSERT INTO {ns}.t SELECT id, array_repeat(float(id), 16), array_repeat(float(id), 3), NULL "
              "FROM range(0, 300, 1, 1)")  # fmt: skip
    for column, kind in (("v", "IVF_PQ"), ("w", "IVF_HNSW_PQ")):
        spark.sql(f"CALL lake.system.create_index('{ns}.t', '{column}', '{kind}')")
        size = 16 if column == "v" else 3
        found = spark.sql(
            f"SELECT id FROM vector_search('{ns}.t', '{column}', array_repeat(299F, {size}), 5)"
        ).collect()
        assert len(found) == 5
    for arguments, reason in (
        ("'b', 'IVF_PQ'", "needs vectors"),
        ("'v', 'IVF_PQ', 'other', 'not json'", "options of an index are JSON"),
        ("'v', 'IVF_PQ', 'other', '[1]'", "options of an index are JSON"),
    ):
        with pytest.raises(Exception, match=reason):
            spark.sql(f"CALL lake.system.create_index('{ns}.t', {arguments})")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("vector_search('{docs}', 'nope', array(1, 2, 3, 4), 3)", "no column"),
        ("vector_search('{docs}', 'v', array(1, 2), 3)", "size 2"),
        ("vector_search('{docs}', 'body', array(1, 2, 3, 4), 3)", "body"),
        ("vector_search('{docs}', 'v', 'text', 3)", "array of numbers"),
        ("vector_search('{docs}', 'v', array('a', 'b'), 3)", "array of numbers"),
        ("vector_search('{docs}', 'v', array(1, 2, 3, NULL), 3)", "NULL at position 3"),
        ("vector_search('{docs}', 'v', array(1, 2, 3, 4), 0)", "from 1 on"),
        ("vector_search('{docs}', 'v', array(1, 2, 3, 4), 'three')", "from 1 on"),
        ("vector_search('{docs}', 'v', array(1, 2, 3, 4), 3, 'nope > 1')", "nope"),
        ("vector_search('{docs}', NULL, array(1, 2, 3, 4), 3)", "no NULL"),
        ("vector_search('lake.t.none', 'v', array(1), 3)", "no table lake.t.none"),
        ("vector_search('nowhere.t', 'v', array(1), 3)", "no Headwater catalog nowhere"),
        ("vector_search('t', 'v', array(1), 3)", "catalog.namespace.table"),
        ("text_search('{docs}', 'id', 'word', 3)", "id"),
        ("text_search('{docs}', 'nope', 'word', 3)", "no column"),
    ],
)
def test_a_search_that_cannot_be_run_is_one_line(spark: SparkSession, only_read: str, call: str, says: str) -> None:
    with pytest.raises(Exception, match=says) as told:
        spark.sql(f"SELECT id FROM {call.format(docs=only_read)}").collect()
    text = str(told.value).strip()
    assert "\n" not in text
    assert "/rust/" not in text
    assert "Exception" not in text


def test_a_filter_inside_the_search_comes_before_it_and_one_around_it_after(
    spark: SparkSession, only_read: str
) -> None:
    inside = f"SELECT id FROM vector_search('{only_read}', 'v', array(10, 1, 2, 3), 2, 'id > 100')"
    assert sorted(spark.sql(inside).collect()) == [(101,), (102,)]
    around = f"SELECT id FROM vector_search('{only_read}', 'v', array(10, 1, 2, 3), 2) WHERE id > 100"
    assert spark.sql(around).collect() == []


def test_text_search_finds_words(spark: SparkSession, docs: str) -> None:
    spark.sql(f"CALL lake.system.create_index('{docs}', 'body', 'INVERTED')")
    found = spark.sql(f"SELECT id, body, _score FROM text_search('{docs}', 'body', 'word3', 5)").collect()
    assert len(found) == 5
    assert all(row.id % 7 == 3 and row._score > 0 for row in found)


def test_a_search_joins_and_takes_no_columns_of_a_row(spark: SparkSession, only_read: str) -> None:
    docs = only_read
    joined = f"SELECT d.id FROM vector_search('{docs}', 'v', array(5, 1, 2, 3), 1) s JOIN {docs} d ON d.id = s.id + 1"
    assert spark.sql(joined).collect() == [(6,)]
    with pytest.raises(Exception, match="takes"):
        spark.sql(f"SELECT * FROM vector_search('{docs}', 'v')").collect()


def test_changes_tell_inserts_updates_and_deletes_by_version(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT id, 'a' AS name FROM range(5)")
    spark.sql(f"INSERT INTO {ns}.t VALUES (5, 'b')")
    spark.sql(f"UPDATE {ns}.t SET name = 'u' WHERE id = 1")
    spark.sql(f"DELETE FROM {ns}.t WHERE id = 2")
    spark.sql(
        f"MERGE INTO {ns}.t t USING (SELECT 3L AS id UNION ALL SELECT 9L) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET name = 'm' WHEN NOT MATCHED THEN INSERT (id, name) VALUES (s.id, 'n')"
    )
    spark.sql(f"CALL lake.system.compact('{ns}.t')")
    found = spark.sql(
        f"SELECT _commit_version, _change_type, id, name FROM {ns}.t CHANGES FROM VERSION 2 TO VERSION 5"
    ).collect()
    assert sorted(map(tuple, found)) == [
        (2, "insert", 5, "b"),
        (3, "update_postimage", 1, "u"),
        (3, "update_preimage", 1, "a"),
        (4, "delete", 2, "a"),
        (5, "insert", 9, "n"),
        (5, "update_postimage", 3, "m"),
        (5, "update_preimage", 3, "a"),
    ]
    later = spark.sql(f"SELECT id FROM {ns}.t CHANGES FROM VERSION 5 EXCLUSIVE").collect()
    assert later == []
    with pytest.raises(Exception, match="from version 3 to version 2: the range ends before it begins"):
        spark.sql(f"SELECT id FROM {ns}.t CHANGES FROM VERSION 3 TO VERSION 2").collect()
    with pytest.raises(Exception, match="has no version"):
        spark.sql(f"SELECT id FROM {ns}.t CHANGES FROM VERSION 99").collect()


def test_net_changes_of_a_range_are_one_per_row(spark: SparkSession, ns: str) -> None:
    spark.sql(f"CREATE TABLE {ns}.t AS SELECT id, 0 AS n FROM range(3)")
    for _ in range(2):
        spark.sql(f"UPDATE {ns}.t SET n = n + 1 WHERE id = 1")
    spark.sql(f"DELETE FROM {ns}.t WHERE id = 2")
    found = spark.sql(
        f"SELECT _change_type, id, n FROM {ns}.t CHANGES FROM VERSION 2 TO VERSION 4 "
        "WITH (deduplicationMode = 'netChanges', computeUpdates = 'true')"
    ).collect()
    assert sorted(map(tuple, found)) == [("delete", 2, 0), ("update_postimage", 1, 2), ("update_preimage", 1, 0)]
