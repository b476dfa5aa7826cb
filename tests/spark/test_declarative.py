"""Spark Declarative Pipelines: stream tables are a source, plain tables a target, AUTO CDC flows included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from headwater.catalog import Catalog
from headwater.spark.session import settings

SPEC = """
name: shop
catalog: lake
database: mart
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.temporary_view(name="events")
def events():
    return spark.readStream.table("lake.raw.events")


@dp.temporary_view(name="orders_changes")
def orders_changes():
    changes = spark.readStream.changes("lake.raw.orders")
    return changes.where("_change_type <> 'update_preimage'")


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers", source="events", keys=["id"], sequence_by="at",
    apply_as_deletes="op = 'd'", except_column_list=["op", "at"], stored_as_scd_type=1,
)
dp.create_streaming_table("customers_history")
dp.create_auto_cdc_flow(
    target="customers_history", source="events", keys=["id"], sequence_by="at",
    apply_as_deletes="op = 'd'", except_column_list=["op", "at"], stored_as_scd_type=2,
)
dp.create_streaming_table("orders_copy")
dp.create_auto_cdc_flow(
    target="orders_copy", source="orders_changes", keys=["id"], sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'", column_list=["id", "total"], stored_as_scd_type=1,
)


@dp.materialized_view(name="spend")
def spend():
    return spark.read.table("lake.raw.orders").groupBy("customer").agg(F.sum("total").alias("spent"))
"""


def run_pipeline(folder: Path, conf: dict[str, str]) -> None:
    (folder / "spark-pipeline.yml").write_text(SPEC + f"storage: {(folder / 'storage').as_uri()}\n")
    (folder / "transformations").mkdir(exist_ok=True)
    (folder / "transformations" / "flows.py").write_text(FLOWS)
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(folder / "conf")}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "PYSPARK_PYTHON": sys.executable}
    command = [str(home / "bin" / "spark-pipelines"), "run", "--remote", "local[2]"]
    command += ["--spec", str(folder / "spark-pipeline.yml")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=800
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.long
def test_flows_out_of_stream_tables_into_plain_ones_with_auto_cdc(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    catalog = Catalog(str(root))
    catalog.create_namespace("mart")
    events = catalog.create_stream_table(
        "raw.events", {"id": "bigint", "at": "bigint", "name": "string", "op": "string"}
    )
    orders = catalog.create_stream_table(
        "raw.orders", {"id": "bigint", "customer": "bigint", "total": "bigint"}, keys=["id"]
    )
    conf = settings("lake", root=str(root)) | {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    events.append([{"id": n, "at": 1, "name": f"a{n}", "op": "c"} for n in range(4)])
    events.append([{"id": 1, "at": 3, "name": "b1", "op": "u"}, {"id": 2, "at": 2, "name": None, "op": "d"}])
    orders.upsert([{"id": n, "customer": n % 2, "total": 10} for n in range(6)])
    orders.publish()
    orders.upsert([{"id": 5, "customer": 1, "total": 50}])
    run_pipeline(tmp_path, conf)

    def rows(name: str, *columns: str) -> list[tuple[object, ...]]:
        found = catalog[f"mart.{name}"].to_arrow().select(list(columns)).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=str)

    assert rows("customers", "id", "name") == [(0, "a0"), (1, "b1"), (3, "a3")]
    assert rows("orders_copy", "id", "total") == [(n, 50 if n == 5 else 10) for n in range(6)]
    assert rows("spend", "customer", "spent") == [(0, 30), (1, 70)]
    events.append([{"id": 1, "at": 2, "name": "late", "op": "u"}, {"id": 3, "at": 5, "name": "b3", "op": "u"}])
    orders.delete([0])
    orders.upsert([{"id": 7, "customer": 0, "total": 1}])
    run_pipeline(tmp_path, conf)
    assert rows("customers", "id", "name") == [(0, "a0"), (1, "b1"), (3, "b3")]
    assert rows("orders_copy", "id", "total") == [(1, 10), (2, 10), (3, 10), (4, 10), (5, 50), (7, 1)]
    assert rows("spend", "customer", "spent") == [(0, 21), (1, 70)]
    history = rows("customers_history", "id", "name", "__START_AT", "__END_AT")
    assert history == sorted(
        [(0, "a0", 1, None), (1, "a1", 1, 2), (1, "late", 2, 3), (1, "b1", 3, None), (2, "a2", 1, 2),
         (3, "a3", 1, 5), (3, "b3", 5, None)],
        key=str,
    )  # fmt: skip
