"""The guide's first pipeline as people run Spark: on a cluster of two workers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from examples.cluster.standalone import cluster, waited
from headwater.catalog import Catalog
from headwater.work import EMBEDDED
from headwater.work.tasks import PipelineEngine
from tests.docs.blocks import ROOT, blocks_of
from tests.spark.test_where import NotingShop

pytestmark = pytest.mark.long
CANARY = "canary-that-nobody-may-see"
EXECUTED = ("ingest", "publish", "index", "view")
"""The jobs that executors do, however few rows there are."""
PIPELINE = "docs/guides/first-pipeline.md"
TABLES = ("raw.orders", "raw.products", "mart.sales")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


def readme(folder: Path, more: str = "") -> Path:
    """The files of the first pipeline; `more` is added to its [pipeline]."""
    for block in blocks_of(PIPELINE):
        if block.about.startswith("file: "):
            path = folder / block.about.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body)
    file = folder / "pipeline.toml"
    file.write_text(file.read_text().replace("\n[[source]]", f"\n{more}\n[[source]]", 1))
    return file


@dataclass(frozen=True)
class Ended:
    """A process of the command line that has ended."""

    pid: int
    returncode: int
    stdout: str
    stderr: str


def headwater(*arguments: str, **environment: str) -> Ended:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "AWS_"))}
    values = {**kept, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, **environment}
    command = [sys.executable, "-m", "headwater", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=values, stdout=pipe, stderr=pipe, text=True) as process:
        stdout, stderr = process.communicate()
    return Ended(process.pid, process.returncode, stdout, stderr)


def rows_of(catalog: Catalog) -> dict[str, list[str]]:
    return {name: sorted(map(repr, catalog[name].serving.to_arrow().to_pylist())) for name in TABLES}


def jobs_in(log: Path) -> dict[str, int]:
    """The tasks that executors finished for the jobs of each description, as an event log has them."""
    found: dict[str, int] = {}
    stages: dict[int, str] = {}
    for file in sorted(log.rglob("events_*")):
        for line in file.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerJobStart":
                about = event["Properties"].get("spark.job.description", "")
                stages |= dict.fromkeys(event["Stage IDs"], about)
            if event["Event"] == "SparkListenerTaskEnd" and event["Task Info"]["Executor ID"] != "driver":
                about = stages[event["Stage ID"]]
                found[about] = found.get(about, 0) + 1
    return found


def test_the_readmes_pipeline_runs_on_a_cluster_and_no_secret_stands_in_its_log(
    master: str, tmp_path: Path, s3_root: str, s3_options: dict[str, str]
) -> None:
    (tmp_path / "log").mkdir()
    spark = f'[pipeline.spark]\ndriver_rows = 0\neventLog.enabled = true\neventLog.dir = "{tmp_path / "log"}"\n'
    spark += "eventLog.compress = false\n"
    file = readme(tmp_path / "on-spark", spark)
    file.write_text(file.read_text().replace('catalog = "./shop"', 'catalog = "shop"'))
    options = {**s3_options, "secret_access_key": CANARY}
    storage = {f"HEADWATER_CATALOG__SHOP__STORAGE__{name.upper()}": value for name, value in options.items()}
    done = headwater("run", str(file), "--master", master, "--json", HEADWATER_CATALOG__SHOP__ROOT=s3_root, **storage)
    assert done.returncode == 0, done.stderr
    reports: list[dict[str, Any]] = json.loads(done.stdout)["reports"]
    places = {report["job"]: report["where"]["place"] for report in reports if report["rows"]}
    assert {job: place for job, place in places.items() if job in EXECUTED} == dict.fromkeys(EXECUTED, "executors")
    jobs = jobs_in(tmp_path / "log")
    assert jobs["headwater: preflight"] >= 2, "executors were tried first"
    noted = {f"headwater: {report['job']} {report['table']}" for report in reports if report["where"]["tasks"]}
    assert all(any(about.startswith(each) for about in jobs) for each in noted), (noted, jobs)
    assert not [
        path for path in (tmp_path / "log").rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()
    ]
    here = readme(tmp_path / "embedded")
    told = headwater("run", str(here), "--engine", "embedded", "--json")
    assert told.returncode == 0, told.stderr
    assert {report["where"]["place"] for report in json.loads(told.stdout)["reports"]} == {"embedded"}
    on_spark = Catalog(s3_root, **{f"storage.{name}": value for name, value in s3_options.items()})
    assert rows_of(on_spark) == rows_of(Catalog(str(tmp_path / "embedded" / "shop")))


STEPS = (
    "take 1 file into raw.orders", "take 1 file into raw.products", "fold and write raw.orders",
    "fold and write raw.products", "history of raw.orders", "view mart.spend",
)  # fmt: skip
"""The jobs of each run of the shop, by words of their descriptions. The derived column is of raw.products."""
ONCE = ("index text",)


def test_executors_do_every_step_again_and_again_and_the_driver_calls_no_function(master: str, tmp_path: Path) -> None:
    """First all of the view, then its changes, in the driver or, with `driver_rows` of 0, on executors."""
    here, there = NotingShop(tmp_path / "here", 8), NotingShop(tmp_path / "there", 8)
    drivers = set()
    few = "fold and write raw.products", "view mart.spend"
    for number, (driver_rows, steps) in enumerate(((0, STEPS + ONCE), (0, STEPS), (10_000, few))):
        for shop in (here, there):
            shop.deliver(shop.change(40))
            shop.products([{"sku": f"p{n}", "title": "Lamp", "text": "a" * n} for n in range(number, 9 + number)])
        log = tmp_path / f"log-{number}"
        log.mkdir()
        spark = f'[pipeline.spark]\ndriver_rows = {driver_rows}\neventLog.enabled = true\neventLog.dir = "{log}"\n'
        spark += "eventLog.compress = false\n"
        text = here.file.read_text()
        there.file.write_text(text.replace("\n[[source]]", f"\n{spark}\n[[source]]", 1))
        done = headwater("run", str(there.file), "--master", master, "--json")
        assert done.returncode == 0, done.stderr
        drivers.add(done.pid)
        here.run(PipelineEngine(EMBEDDED))
        assert there.rows() == here.rows()
        found = jobs_in(log)
        assert [words for words in steps if not any(words in about for about in found)] == [], found
        assert "recomputed" not in done.stderr, "its changes, not all of it"
    assert there.noted("called")
    assert drivers.isdisjoint(there.noted("called"))
    assert_as_the_source(there)


def assert_as_the_source(shop: NotingShop) -> None:
    lake = Catalog(str(shop.folder / "lake"))
    orders = sorted(lake["raw.orders"].serving.to_arrow().to_pylist(), key=lambda row: row["id"])
    names = ("id", "customer", "total", "note", "updated_at")
    assert [{**{name: row[name] for name in names}, "total": str(row["total"])} for row in orders] == shop.orders()
    spend = lake["mart.spend"].serving.to_arrow().to_pylist()
    assert sorted((row["customer"], str(row["spent"]), row["orders"]) for row in spend) == shop.spend()
    assert [lake[name].verify() for name in ("raw.orders", "raw.products", "mart.spend")] == [[], [], []]


@contextmanager
def connect_server(folder: Path, master: str) -> Iterator[str]:
    """The address of a Spark Connect server on the cluster, as long as the block runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    submit, log = Path(pyspark.__file__).parent / "bin" / "spark-submit", folder / "connect.log"
    settings = {"spark.connect.grpc.binding.port": port, "spark.connect.grpc.binding.address": "127.0.0.1"}
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = [str(submit), "--master", master, "--class", name, *options, "spark-internal"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        waited(log, "(Spark Connect server started)")
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def test_the_command_line_runs_a_pipeline_through_a_connect_server_and_says_what_that_cannot(
    master: str, tmp_path: Path
) -> None:
    here, there = NotingShop(tmp_path / "here", 9), NotingShop(tmp_path / "there", 9)
    there.file.write_text(here.file.read_text().replace("\n[[source]]", "\nspark.driver_rows = 0\n\n[[source]]", 1))
    drivers = set()
    with connect_server(tmp_path, master) as address:
        for number in range(2):
            for shop in (here, there):
                shop.deliver(shop.change(30))
                shop.products([{"sku": f"p{n}", "title": "Lamp", "text": "a" * n} for n in range(number, 5)])
            done = headwater("run", str(there.file), "--master", address, "--json")
            assert done.returncode == 0, done.stderr
            drivers.add(done.pid)
            here.run(PipelineEngine(EMBEDDED))
            assert there.rows() == here.rows()
            reports = json.loads(done.stdout)["reports"]
            assert {each["where"]["place"] for each in reports if each["rows"]} == {"executors"}
    assert there.noted("called")
    assert drivers.isdisjoint(there.noted("called"))
    assert_as_the_source(there)
    there.deliver(there.change(3))
    gone = headwater("run", str(there.file), "--master", address)
    assert gone.returncode == 7, gone.stderr
    assert "No Spark answers" in gone.stderr


def test_a_cluster_whose_workers_lack_the_package_is_one_sentence_and_nothing_is_written(
    master: str, tmp_path: Path
) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    file = readme(tmp_path / "shop")
    done = headwater("run", str(file), "--master", master, PYSPARK_PYTHON=str(tmp_path / "bare" / "bin" / "python"))
    told = [line for line in done.stderr.splitlines() if line.startswith("headwater: ")]
    assert (done.returncode, len(told)) == (5, 1), done.stderr
    assert "lack headwater" in told[0]
    assert "PYSPARK_PYTHON" in told[0]
    assert not (tmp_path / "shop" / "shop").exists()


def test_a_pipeline_is_a_job_of_spark_submit(master: str, tmp_path: Path) -> None:
    file, here = readme(tmp_path / "on-spark"), readme(tmp_path / "embedded")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    values = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [str(submit), "--master", master, str(ROOT / "examples" / "cluster" / "job.py"), str(file)]
    done = subprocess.run(command, env={**os.environ, **values}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stdout.splitlines() if line.startswith("view mart.sales") and "executors" in line]
    assert headwater("run", str(here), "--engine", "embedded").returncode == 0
    assert rows_of(Catalog(str(file.parent / "shop"))) == rows_of(Catalog(str(here.parent / "shop")))


THROUGH_CONNECT = """
import json, sys
from dataclasses import replace
from pyspark.sql import SparkSession
from headwater.pipeline import read_pipeline, run_pipeline

spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
pipeline = read_pipeline(sys.argv[1])
zone = spark.conf.get("spark.sql.session.timeZone")
done = run_pipeline(replace(pipeline, engine=replace(pipeline.engine, driver_rows=0)), spark, say=lambda text: None)
assert spark.conf.get("spark.sql.session.timeZone") == zone
assert spark.catalog.listTables() == []
assert spark.range(3).count() == 3, "it goes on"
print(json.dumps({f"{each.job} {each.table}": each.where.place for each in done.reports}))
spark.stop()
"""


def test_the_same_through_a_connect_session_which_is_left_as_it_was(tmp_path: Path) -> None:
    file, here = readme(tmp_path / "on-connect"), readme(tmp_path / "embedded")
    (tmp_path / "program.py").write_text(THROUGH_CONNECT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str(tmp_path / "program.py"), str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    places = json.loads(done.stdout.splitlines()[-1])
    on_executors = {about for about, place in places.items() if place == "executors"}
    assert {"ingest raw.products", "ingest raw.orders", "publish ", "index raw.products"} <= on_executors, places
    assert headwater("run", str(here), "--engine", "embedded").returncode == 0
    assert rows_of(Catalog(str(file.parent / "shop"))) == rows_of(Catalog(str(here.parent / "shop")))
