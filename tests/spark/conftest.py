"""One Spark session for all tests of this folder (one xdist group), each test in a namespace of its own."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from pyspark.sql import SparkSession

from headwater.catalog import Catalog
from headwater.spark import configure
from tests.spark.catalogs import metastore_as

_numbers = itertools.count()


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(root: Path, event_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.memory", "2g")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", event_log.as_uri())
        .config("spark.eventLog.rolling.enabled", "false")
        .config("spark.eventLog.compress", "false")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = configure(builder, "lake", root=str(root), impl="dir").getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        session.sql("CREATE NAMESPACE lake.t")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def catalog(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A metastore catalog with stream tables that the session knows as `streams`."""
    return metastore_as(spark, "streams", tmp_path_factory.mktemp("streams") / "lake")


@pytest.fixture
def ns(spark: SparkSession) -> str:
    """A new namespace, as SQL names it."""
    name = f"lake.t.n{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE {name}")
    return name
