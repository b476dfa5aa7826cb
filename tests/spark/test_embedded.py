"""A catalog that the session serves itself takes every property of `connect`: here one on an S3 store of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater
from tests.spark.catalogs import learn


@pytest.fixture(scope="module")
def on_s3(spark: SparkSession, s3_server: str) -> tuple[str, dict[str, Any]]:
    """The recipe of docs/spark.md for MinIO and the like."""
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=s3_server, **keys).create_bucket(Bucket="spark-lake")
    storage: dict[str, Any] = {
        "storage.endpoint": s3_server,
        "storage.access_key_id": "testing",
        "storage.secret_access_key": "testing",
        "storage.region": "us-east-1",
        "storage.allow_http": "true",
        "storage.virtual_hosted_style_request": "false",
    }
    learn(spark, "minio", root="s3://spark-lake/lake", impl="dir", **storage)
    return "s3://spark-lake/lake", storage


@pytest.mark.long
def test_an_embedded_catalog_on_s3_is_written_changed_and_read(
    spark: SparkSession, on_s3: tuple[str, dict[str, Any]]
) -> None:
    root, storage = on_s3
    spark.sql("CREATE NAMESPACE minio.prod")
    spark.sql("CREATE TABLE minio.prod.t AS SELECT id, concat('n', id) AS name FROM range(100)")
    spark.sql("UPDATE minio.prod.t SET name = 'x' WHERE id < 10")
    spark.sql("CALL minio.system.create_index('prod.t', 'id', 'BTREE')")
    assert spark.sql("SELECT count(*) FROM minio.prod.t WHERE name = 'x'").first() == (10,)
    beside = headwater.Catalog(root, **storage)
    assert beside["prod.t"].count("name = 'x'") == 10
    beside["prod.t"].append(pa.table({"id": [1000], "name": ["beside"]}))
    assert spark.table("minio.prod.t").where("id = 1000").collect() == [(1000, "beside")]


def test_properties_of_the_catalog_reach_it(spark: SparkSession, tmp_path: Path) -> None:
    learn(spark, "kept", path=tmp_path / "kept", table_version_management="true")
    spark.sql("CREATE TABLE kept.t AS SELECT 1 AS id")
    described = headwater.Catalog(str(tmp_path / "kept"), table_version_management="true")["t"].describe()
    assert described.managed_versioning
