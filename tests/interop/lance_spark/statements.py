"""Everyday statements of lance-spark in a catalog that is a REST server. Run in lance-spark's own environment.

Prints one JSON object: each statement, and its rows or its failure.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

STATEMENTS = (
    "CREATE NAMESPACE {c}.prod",
    "SHOW NAMESPACES IN {c}",
    "CREATE TABLE {c}.prod.users AS SELECT 1L AS id, 'ann' AS name, 0.5D AS score",
    "INSERT INTO {c}.prod.users VALUES (2L, 'bo', 1.5D), (3L, 'cy', 2.5D)",
    "SELECT * FROM {c}.prod.users ORDER BY id",
    "SELECT name FROM {c}.prod.users WHERE id > 1 AND score < 2.0",
    "UPDATE {c}.prod.users SET name = 'anna' WHERE id = 1",
    "DELETE FROM {c}.prod.users WHERE id = 2",
    "MERGE INTO {c}.prod.users t USING (SELECT 3L AS id, 'cyd' AS name, 9.0D AS score UNION ALL "
    "SELECT 4L, 'di', 1.0D) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    "SELECT id, name FROM {c}.prod.users ORDER BY id",
    "SELECT count(*) FROM {c}.prod.users VERSION AS OF 2",
    "DESCRIBE TABLE {c}.prod.users",
    "CREATE OR REPLACE TABLE {c}.prod.one AS SELECT 1 AS one",
    "INSERT OVERWRITE {c}.prod.one VALUES (7)",
    "SELECT * FROM {c}.prod.one",
    "SHOW TABLES IN {c}.prod",
    "DROP TABLE {c}.prod.one",
    "SHOW TABLES IN {c}.prod",
    "CREATE TABLE {c}.prod.empty (id BIGINT, name STRING)",
    "INSERT INTO {c}.prod.empty VALUES (1L, 'ann')",
    "SELECT * FROM {c}.prod.empty",
)


def main(jars: str, catalogs: dict[str, dict[str, str]]) -> None:
    """Run every statement in every catalog, each given as its properties."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraClassPath", jars).config("spark.driver.memory", "1g")
    builder = builder.config("spark.sql.extensions", "org.lance.spark.extensions.LanceSparkSessionExtensions")
    for name, properties in catalogs.items():
        builder = builder.config(f"spark.sql.catalog.{name}", "org.lance.spark.LanceNamespaceSparkCatalog")
        for key, value in properties.items():
            builder = builder.config(f"spark.sql.catalog.{name}.{key}", value)
    spark = builder.getOrCreate()
    print(json.dumps({name: [_run(spark, text.format(c=name)) for text in STATEMENTS] for name in catalogs}))
    spark.stop()


def _run(spark: SparkSession, statement: str) -> list[object]:
    try:
        return [statement, [list(row) for row in spark.sql(statement).collect()]]
    except Exception as error:
        return [statement, f"{type(error).__name__}: {str(error)[:400]}"]


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
