"""Sessions of other kinds, each in a process of its own: without the jar, under Connect, a declarative pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidInputError
from headwater.spark import build
from headwater.spark.session import settings

TOP = Path(__file__).parents[2]

WITHOUT_JAR = """
import sys, warnings
import headwater.spark.session as session
from headwater.spark import backfill
from pyspark.sql import SparkSession

session.ensure_jar = lambda: None
root, checkpoint = sys.argv[1:3]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.session.timeZone", "UTC")
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    builder = session.configure(builder, "lake", root=root, impl="dir")
assert any("no Spark jar" in str(warning.message) for warning in told), told
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
options = {"catalog": "lake"}
frame = spark.range(100).selectExpr("id", "concat('n', id) name", "array(float(id)) v", "CAST(id AS DECIMAL(9,2)) d",
                                    "named_struct('a', id, 'b', timestamp_seconds(id)) s")
frame.write.format("headwater").options(**options).mode("overwrite").save("t")
frame.write.format("headwater").options(**options).mode("append").save("t")
read = spark.read.format("headwater").options(**options)
assert read.load("t").count() == 200
assert sorted(read.load("t").distinct().collect()) == sorted(frame.collect())
assert read.load("t").where("id = 5 AND s.a = 5 AND name LIKE 'n%'").count() == 2
assert read.option("columns", "name,id").load("t").columns == ["name", "id"]
spark.range(0).selectExpr("id", "'' name").write.format("headwater").options(**options).mode("overwrite").save("copy")
for _ in range(2):
    stream = spark.readStream.format("headwater").options(**options, columns="id,name", consumer="c").load("t")
    writer = stream.writeStream.format("headwater").options(**options).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start("copy").awaitTermination()
assert spark.read.format("headwater").options(**options).load("copy").count() == 200
backfill(spark, "lake.t", "twice", lambda ids: [2 * id.as_py() for id in ids], columns=["id"], type="bigint")
assert spark.read.format("headwater").options(**options).load("t").where("twice = 2 * id").count() == 200
try:
    spark.sql("SELECT * FROM lake.t")
except Exception as error:
    assert "TABLE_OR_VIEW_NOT_FOUND" in str(error)
print("DONE")
"""

CONNECT = """
import sys
from pyspark.sql import SparkSession
from headwater.spark import backfill, configure

builder = configure(SparkSession.builder.remote("local[2]"), "lake", root=sys.argv[1], impl="dir")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
spark.sql("CREATE TABLE lake.t AS SELECT id, 0 AS n FROM range(100)")
spark.sql("UPDATE lake.t SET n = 1 WHERE id < 10")
spark.range(100, 110).selectExpr("id", "2 AS n").writeTo("lake.t").append()
spark.sql("CALL lake.system.create_index('t', 'id', 'BTREE')").collect()
assert spark.table("lake.t").where("id = 105").collect() == [(105, 2)]
backfill(spark, "lake.t", "twice", lambda ids: [2 * id.as_py() for id in ids], columns=["id"], type="bigint")
assert spark.sql("SELECT sum(twice) FROM lake.t").first() == (11990,)
spark.sql("ALTER TABLE lake.t DROP COLUMN twice")
assert spark.read.format("headwater").option("catalog", "lake").load("t").count() == 110
query = spark.readStream.table("lake.t").writeStream.option("checkpointLocation", sys.argv[2])
query.trigger(availableNow=True).toTable("lake.copy").awaitTermination()
assert spark.sql("SELECT count(*), sum(n) FROM lake.copy").first() == (110, 30)
print("DONE")
spark.stop()
"""


def run(*command: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(TOP), "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=cwd
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.long
def test_without_the_jar_data_frames_and_streams_work_and_a_message_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WITHOUT_JAR)
    assert "DONE" in run("program.py", str(tmp_path / "lake"), str(tmp_path / "ck"), cwd=tmp_path)


@pytest.mark.long
def test_everything_works_under_spark_connect(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(CONNECT)
    assert "DONE" in run("program.py", str(tmp_path / "lake"), str(tmp_path / "ck"), cwd=tmp_path)


@pytest.mark.long
def test_a_declarative_pipeline_reads_and_writes_headwater_tables(tmp_path: Path) -> None:
    told = run(str(TOP / "examples" / "pipeline" / "run.py"), str(tmp_path / "lake"), cwd=tmp_path)
    assert "clean orders: 135 of 150" in told
    assert "[('c0', 45.0), ('c1', 45.0), ('c2', 45.0)]" in told


@pytest.mark.long  # every session of the tests builds it too, when sources are newer
def test_the_jar_is_built_from_the_sources_beside_it_and_knows_them(tmp_path: Path) -> None:
    if build.javac() is None:
        pytest.skip("no JDK on this machine: the jar cannot be built here")
    jar = build.build(tmp_path / "some.jar")
    folder = build.source_folder()
    assert folder is not None
    with zipfile.ZipFile(jar) as archive:
        assert archive.read(build.STAMP).decode() == build.digest(folder)
        assert "headwater/spark/HeadwaterCatalog.class" in archive.namelist()


def test_no_jdk_is_said_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "javac", lambda: None)
    with pytest.raises(build.JarNotBuiltError, match=r"no `javac`.*a JRE has none"):
        build.build()


def test_a_catalog_is_either_embedded_or_behind_a_server() -> None:
    refused: list[dict[str, Any]] = [{}, {"root": "a", "uri": "http://b"}, {"root": "a", "path": "a"}]
    for given in refused:
        with pytest.raises(InvalidInputError, match=r"either root= .* or uri="):
            settings("lake", **given)
    with pytest.raises(InvalidInputError, match="token= is for a server"):
        settings("lake", root="a", token="secret-token")
    assert "spark.headwater.python" not in settings("far", uri="https://catalog.example", local=False)
