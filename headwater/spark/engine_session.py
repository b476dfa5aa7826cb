"""The Spark session that a pipeline works in: started for a run, or a new one beside a session of somebody else's.

Every such session has ANSI SQL and UTC. A session of a cluster is tried before the first step (`preflight`): driver and
executors read files of each other, and their packages are compared.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headwater.clock import unique_hex
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.spark.failures import SEND, failure, naming_failures
from headwater.spark.java_runtime import require_java
from headwater.spark.session import own_settings
from headwater.spark.wire_values import Json
from headwater.store import is_local, open_store
from headwater.store.seam import OWN_FOLDER
from headwater.streams.serving.serving_copy import CatalogLocation
from headwater.work.runners import run_numbered
from headwater.work.tasks import PipelineEngine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyspark = when_used("pyspark")
Say = Callable[[str], None]
INSIDE = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}
"""The settings of SQL that a run works with, whatever the session beside it has."""
DEFAULTS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
"""The settings that a run has unless its file names others. By the second one a view that is kept while it is compared
has tasks by its rows; otherwise it has all partitions of a shuffle, and each writes a file."""
QUIET = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR", "spark.app.name": "headwater"}
NO_PYSPARK = (
    "The Spark engine needs PySpark: run `pip install 'headwater[pipeline]'` (`'headwater[pipeline,java]'` where no "
    "Java is installed), or run with --engine embedded."
)
PANDAS = (
    "PySpark does not work with pandas {found} {where}: run `pip install 'pandas>=2.2,<3'` there, or run with --engine "
    "embedded."
)
COMPARED = ("headwater", "pylance", "pyarrow")
PREFLIGHT = f"{OWN_FOLDER}/preflight"
WAIT_S = 300.0
"""A cluster without a free executor is given up after this many seconds."""
PORTS = {"spark": 7077, "sc": 15002, "https": 443, "http": 80}
REACH_S = 5.0


@contextmanager
def engine_session(
    engine: PipelineEngine,
    given: SparkSession | None = None,
    house: CatalogLocation | None = None,
    say: Say = lambda text: None,
) -> Iterator[SparkSession]:
    """Yield the session that a run works in, tried and ready.

    `given`: the session of a notebook or of another job; the run works in a new one beside it and leaves it as it was.
    `house`: the storage of the catalog, which the executors of a cluster must reach.
    `say`: takes the address of the Spark UI, and the names of settings that a running session cannot take.
    """
    with naming_failures():
        found = given if given is not None else _running()
        with _beside(found, engine, say) if found is not None else _started(engine, say) as session:
            if house is not None and not _is_local(session):
                preflight(session, house)
            with _without_traces():
                yield session


@contextmanager
def _without_traces() -> Iterator[None]:
    """Keep PySpark from printing the Java trace of SQL that failed: the error is one sentence."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    before = [each.disabled for each in loggers]
    for each in loggers:
        each.disabled = True
    try:
        yield
    finally:
        for each, was in zip(loggers, before, strict=True):
            each.disabled = was


def _running() -> SparkSession | None:
    """Return the session that this process has already; None: there is none."""
    with_pyspark = sys.modules.get("pyspark.sql")
    found = with_pyspark.SparkSession.getActiveSession() if with_pyspark is not None else None
    context = getattr(found, "_sc", None)
    return None if context is not None and context._jsc is None else found


@contextmanager
def _started(engine: PipelineEngine, say: Say) -> Iterator[SparkSession]:
    """Yield a session of its own, and end its Spark."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise UnsupportedOperationError(NO_PYSPARK) from None
    check_pandas()
    check_reachable(engine)
    if not engine.is_connect:
        require_java()
    few = _few_partitions() if engine.is_local else {}
    settings = {**QUIET, **DEFAULTS, **few, **own_settings(engine.address), **engine.settings, **INSIDE}
    builder: Any = SparkSession.builder
    builder = builder.remote(engine.address) if engine.is_connect else builder.master(engine.address)
    for key, value in settings.items():
        if not engine.is_connect or key.startswith("spark.sql."):
            builder = builder.config(key, value)
    with _on_loopback(engine.is_local), _without_warnings():
        session = builder.getOrCreate()
    try:
        address = None if engine.is_connect else session.sparkContext.uiWebUrl
        say(f"Spark on {engine.shown}" + (f": {address}" if address else ""))
        yield session
    finally:
        with contextlib.suppress(Exception):  # a Spark that has gone away cannot be stopped
            session.stop()


def _few_partitions() -> dict[str, str]:
    """Return a number of shuffle partitions for this machine: Spark's own 200 make hundreds of tasks of a few rows."""
    return {"spark.sql.shuffle.partitions": str(4 * (os.cpu_count() or 1))}


@contextmanager
def _on_loopback(local: bool) -> Iterator[None]:
    """Let a Spark of this machine alone listen on loopback: by itself its UI would listen on every address."""
    known = os.environ.get("SPARK_LOCAL_IP")
    if local and known is None:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    try:
        yield
    finally:
        if local and known is None:
            os.environ.pop("SPARK_LOCAL_IP", None)


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PySpark's, about the version of pandas
        warnings.filterwarnings("ignore", message="lance is not fork-safe")  # the fork becomes a JVM at once
        yield


@contextmanager
def _beside(given: SparkSession, engine: PipelineEngine, say: Say) -> Iterator[SparkSession]:
    """Yield a new session of the same Spark; the given one keeps its settings and views."""
    check_pandas()
    active, session = _running(), _new_session(given)
    wanted = dict(engine.settings)
    if engine.master:
        wanted["spark.master"] = engine.master
    fixed = [key for key, value in wanted.items() if not _is_taken(session, given, key, value)]
    if fixed:
        say(f"The running session cannot take {', '.join(sorted(fixed))}: it goes on with its own.")
    taken = {key: value for key, value in wanted.items() if session.conf.isModifiable(key)}
    for key, value in {**DEFAULTS, **taken, **INSIDE}.items():
        session.conf.set(key, value)
    try:
        yield session
    finally:
        if getattr(session, "_sc", None) is None:  # a session of a Connect server is kept there until it is released
            with contextlib.suppress(Exception):
                session.client.release_session()
                session.client.close()
        else:
            with contextlib.suppress(Exception):  # a Spark that has gone away has no session to go on with
                (active or given).createDataFrame([], "nothing int")  # which makes a session the active one again


def _new_session(given: SparkSession) -> SparkSession:
    """Return a new session beside the given one. `RDD.toDF`, which PySpark binds to the newest, stays with its own."""
    if getattr(given, "_sc", None) is None:
        return given.newSession()
    bound = pyspark.RDD.toDF
    session = given.newSession()
    pyspark.RDD.toDF = bound
    return session


def _is_taken(session: SparkSession, given: SparkSession, key: str, value: str) -> bool:
    """Return True if a running session has the value of a setting, or can be given it."""
    context = getattr(given, "_sc", None)
    has = context.getConf().get(key) if context is not None else session.conf.get(key, None)
    return has == value or bool(session.conf.isModifiable(key))


def _is_local(session: SparkSession) -> bool:
    """Return True if executors are this process's own Spark."""
    context = getattr(session, "_sc", None)
    return context is not None and PipelineEngine(master=str(context.master)).is_local


def check_pandas() -> None:
    """Unsupported (0) if the pandas of this process is one that PySpark does not work with."""
    try:
        found = importlib.metadata.version("pandas")
    except importlib.metadata.PackageNotFoundError:
        return
    if int(found.partition(".")[0]) >= 3:
        raise UnsupportedOperationError(PANDAS.format(found=found, where="here"))


def check_reachable(engine: PipelineEngine) -> None:
    """ServiceUnavailable (17) if nothing answers at the address of a master.

    Spark itself tries for a minute, and then its error is one of a stopped context.
    """
    if not engine.address.startswith(("spark://", "sc://", "k8s://")):
        return
    places = engine.shown.removeprefix("k8s://")
    scheme = places.partition("://")[0] if "://" in places else "https"
    failed = ""
    for each in places.partition("://")[2].split(",") if "://" in places else [places]:
        try:
            address = urlsplit(f"{scheme}://{each}")
            with socket.create_connection((address.hostname or "", address.port or PORTS.get(scheme, 443)), REACH_S):
                return
        except (OSError, ValueError) as error:
            failed = str(getattr(error, "strerror", None) or error)
    raise ServiceUnavailableError(f"No Spark answers at {engine.shown} ({failed}): start it, or give another --master.")


# A cluster is tried ---------------------------------------------------------------------------------------------------


def preflight(session: SparkSession, house: CatalogLocation, wait: float = WAIT_S) -> None:
    """Raise one error with its remedy if the executors cannot do the work of a run.

    Driver and executors each read a file that the other wrote in the storage of the catalog. The versions of Python,
    headwater, pylance and pyarrow are compared. `wait`: seconds until the cluster must have run these tasks.
    """
    folder, text = f"{PREFLIGHT}/{unique_hex(16)}", unique_hex(16)
    store, was_there = open_store(house.root, dict(house.storage)), _is_folder(house.root)
    store.put(f"{folder}/driver", text.encode())
    try:
        answers = _answers_of_cores(session, prober(house.root, dict(house.storage), folder), wait)
        check_answers(answers, own_versions(), text, house.root)
        for answer in answers:
            if store.get_all([f"{folder}/{answer['number']}"])[0] != text.encode():
                raise _not_shared(house.root, answer["host"])
    finally:
        store.delete_tree(folder)
        if not was_there:
            _remove_empty(house.root)


def own_versions() -> Json:
    return {
        "python": "{}.{}".format(*sys.version_info),
        **{name: importlib.metadata.version(name) for name in COMPARED},
    }


def prober(root: str, storage: Mapping[str, str], folder: str) -> Callable[[int], Json]:
    """Return the function of a task of the preflight. It travels by value: executors may not have this package."""
    names = (*COMPARED, "pandas")

    def run(number: int) -> Json:
        answer: Json = {"number": number, "host": platform.node(), "python": "{}.{}".format(*sys.version_info)}
        for name in names:
            try:
                answer[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                answer[name] = None
        try:
            from headwater.store import open_store
        except ImportError as error:
            return {**answer, "missing": str(error)}
        try:
            store = open_store(root, storage)
            found = store.get(f"{folder}/driver")
            store.put(f"{folder}/{number}", found)
            return {**answer, "read": found.decode()}
        except Exception:  # whatever it is: the storage is not reached from there
            return {**answer, "read": None}

    return run


def _answers_of_cores(session: SparkSession, run: Callable[[int], Json], wait: float) -> list[Json]:
    """Return the answers of one task for each core that the cluster has now."""
    context = getattr(session, "_sc", None)
    given_up = threading.Event()

    def give_up() -> None:
        given_up.set()
        if context is None:
            session.interruptAll()
        else:
            context.cancelJobGroup(group)

    group, timer = f"headwater-preflight-{unique_hex(8)}", threading.Timer(wait, give_up)
    timer.daemon = True
    timer.start()
    try:
        if context is None:
            return run_numbered(session, 2, run)
        context.setJobGroup(group, "headwater: preflight", True)
        return run_numbered(session, max(2, min(int(context.defaultParallelism), 64)), run)
    except Exception as error:
        if given_up.is_set():
            raise ServiceUnavailableError(
                f"The cluster ran no task within {wait:.0f} s: give it workers with free cores, or ask for fewer "
                "(spark.cores.max, spark.executor.memory)."
            ) from None
        raise failure(error) or error from None
    finally:
        timer.cancel()
        if context is not None:
            context.setLocalProperty("spark.jobGroup.id", None)


def check_answers(answers: list[Json], own: Json, text: str, root: str) -> None:
    """Raise the error of the first executor that differs from the driver. Pure."""
    for answer in answers:
        host = answer["host"]
        if answer["python"] != own["python"]:
            raise UnsupportedOperationError(
                f"Executors on {host} run Python {answer['python']} and the driver {own['python']}: set PYSPARK_PYTHON "
                f"to the same Python, or {SEND}."
            )
        if "missing" in answer or answer["headwater"] is None:
            raise UnsupportedOperationError(
                f"Executors on {host} lack headwater ({answer.get('missing') or 'it is not installed'}): install it "
                f"where they run, set PYSPARK_PYTHON to a Python that has it, or {SEND}."
            )
        other = [name for name in COMPARED if answer[name] != own[name]]
        if other:
            name = other[0]
            raise UnsupportedOperationError(
                f"Executors on {host} have {name} {answer[name]} and the driver {own[name]}: install the same version "
                f"on both, or {SEND}."
            )
        if answer["pandas"] is not None and int(str(answer["pandas"]).partition(".")[0]) >= 3:
            raise UnsupportedOperationError(PANDAS.format(found=answer["pandas"], where=f"on {host}"))
        if answer["read"] != text:
            raise _not_shared(root, host)


def _not_shared(root: str, host: str) -> InvalidInputError:
    why = "a local path is that of one machine" if is_local(root) else "its address or its keys do not work there"
    return InvalidInputError(
        f"The executors on {host} and this driver do not share the catalog's storage {root}: {why}. Put the catalog "
        "where both reach it (s3://..., or a folder that all of them mount), or run with --master local[*]."
    )


def _is_folder(root: str) -> bool:
    return not is_local(root) or Path(root.removeprefix("file://")).is_dir()


def _remove_empty(root: str) -> None:
    """Remove the folders that the preflight made where no catalog is yet."""
    home = Path(root.removeprefix("file://"))
    for each in (home / PREFLIGHT, home / OWN_FOLDER, home):
        with contextlib.suppress(OSError):
            each.rmdir()
