"""What docstrings and pages claim of the whole package ("the only", "the one") is true of every module of it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.parsing import IN_ONE_PROCESS, parsed, walk

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "headwater"
pytestmark = IN_ONE_PROCESS


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, parsed when the first test needs it and not in each process that collects tests."""
    return {path.relative_to(PACKAGE).as_posix(): parsed(path) for path in PACKAGE.rglob("*.py")}


WORLD = {"time", "secrets", "random"}
"""Modules that only the clock imports."""
ASKED = {"uuid.uuid1", "uuid.uuid4", "datetime.now", "datetime.utcnow", "date.today", "asyncio.sleep"}
"""Functions that only the clock calls."""
OWN_TIME = {
    "catalog/table_parts.py": "how long a load takes, for the line that shows its progress",
    "cli/output.py": "how long ago something was, unless it is told the time",
    "cli/target.py": "what a person means by an hour ago, unless it is told the time",
    "cli/pipeline.py": "a line now and then says how far a job is",
    "pipeline/keeping.py": "how long a job took, for its report",
    "pipeline/jobs.py": "how long a job took, for its report",
    "pipeline/children.py": "how long a job took, for its report",
    "pipeline/running.py": "the same, of a run",
    "pipeline/live/live_runs.py": "the same, and how long a round takes from one source",
    "pipeline/live/debezium_engine.py": "a process of its own, started by any Python: it imports nothing of Headwater",
    "streams/sources/source_files.py": "whether a file has rested since it changed",
    "rest/app.py": "an event loop waits by itself between two publications of metrics, and decides nothing by it",
    "rest/endpoint.py": "a request that waits for the next commit, on the event loop",
    "testing/simulation/commits.py": "random numbers by a seed",
    "testing/simulation/simulated_run.py": "random numbers by a seed",
    "testing/simulation/scheduler.py": "random numbers by a seed",
    "testing/simulation/storage.py": "random numbers by a seed",
    "testing/simulation/streams.py": "random numbers by a seed",
    "testing/simulation/versions.py": "random numbers by a seed",
}
SYSTEM_CLOCKS = {
    "config.py": "a catalog that a command looks something up in",
    "catalog/transactions.py": "pauses between the tries of a transaction through a server",
    "cli/commit_feed.py": "a command",
    "cli/housekeeping.py": "a command",
    "cli/serving.py": "a command",
    "metastore/metastore.py": "the same, of a metastore on its own",
    "moving/upgrade.py": "a command",
    "namespace/directory.py": "a catalog that is opened, unless another clock is given",
    "namespace/metastore.py": "the same",
    "streams/serving/serving_copy.py": "a task on an executor",
    "rest/dispatch.py": "a worker of a server",
    "rest/serve.py": "the parent of a server's processes",
    "rest/server.py": "a server that is started, unless another clock is given",
    "spark/jobs.py": "a command in a Spark session",
    "testing/faces/compared_catalog.py": "a real catalog and its server",
    "testing/store_suite.py": "the suite is run by hand",
    "workers/pool.py": "real processes, unless another clock is given",
}
DOLLARS = {
    "sql/text_functions.py": "the end of a line in a pattern",
    "names.py": "the delimiter",
    "tables/expressions.py": "a character of SQL, not of names",
    "testing/faces/case_objects.py": "paths of routes, as a client writes them",
}

SAME_MODULE = {
    "arrow": "Arrow bodies: how they are read and written, how a server sends them",
    "catalog": "a catalog's names: for people, for Spark",
    "changes": "changes: of a table between versions, of the model as edits of a metastore",
    "files": "files that people bring, and rows of them",
    "history": "what happened, commit by commit: to an object, to a table",
    "input_rows": "rows as a caller gives them",
    "jobs": "work on executors that answers a report",
    "layout": "every on-disk name of one format",
    "metastore": "the metastore: itself, and as a catalog",
    "operations": "the operations of the protocol: as they are done, as verbs",
    "registry": "seam 2, and two registries",
    "rows": "the rows of a table",
    "serving": "answering strangers: agents on stdio, clients over HTTP",
    "serving_copy": "the Lance dataset that serves a stream table: its record, its versions",
    "streams": "stream tables, as a catalog has them",
    "table": "one table: of a catalog, of the manifest registry, of streams",
    "table_parts": "the parts of a table: in the metastore, as verbs",
    "undo": "taking back: a transaction, a batch",
    "verify": "is it sound: a metastore, a serving copy",
}
"""Module names that stand in several packages, each with the one meaning that it has in all of them."""


def name_of(node: ast.expr) -> str:
    """`module.function` of a call's target, its last two parts."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value).rsplit('.', 1)[-1]}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST) -> Iterator[str]:
    return (name_of(node.func) for node in walk(tree) if isinstance(node, ast.Call))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text of a module that is no docstring."""
    spoken = {id(node.value) for node in walk(tree) if isinstance(node, ast.Expr)}
    for node in walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            yield node.value


def asks_the_world(tree: ast.AST) -> bool:
    return bool(WORLD.intersection(imported(tree)) or ASKED.intersection(calls(tree)))


def retries(tree: ast.AST) -> bool:
    """Whether the module pauses, or tries again in a loop what came second."""
    if any(name.endswith(".pause") for name in calls(tree)):
        return True
    loops = (node for node in walk(tree) if isinstance(node, (ast.For, ast.While)))
    handled = (handler.type for loop in loops for node in loop.body for handler in getattr(node, "handlers", ()))
    return any(kind is not None and name_of(kind) == "ConcurrentModificationError" for kind in handled)


def test_only_the_clock_knows_time_ids_and_randomness() -> None:
    assert {name for name, tree in modules().items() if asks_the_world(tree)} == {"clock.py", *OWN_TIME}


@pytest.mark.parametrize(
    "text",
    ["import time", "from secrets import token_hex", "uuid.uuid4()", "dt.datetime.now(dt.UTC)", "datetime.now(UTC)"],
)
def test_a_module_that_asks_the_world_itself_is_seen(text: str) -> None:
    assert asks_the_world(ast.parse(text))


def test_a_clock_is_made_only_where_something_is_started() -> None:
    assert {name for name, tree in modules().items() if "SystemClock" in calls(tree)} == set(SYSTEM_CLOCKS)


def test_the_own_folder_is_named_in_one_place() -> None:
    own = re.compile(r"^\.headwater(/|$)")
    found = {name for name, tree in modules().items() if any(own.match(text) for text in texts(tree))}
    assert found == {"store/seam.py"}


def test_only_names_know_the_delimiter() -> None:
    assert {name for name, tree in modules().items() if "$" in set(texts(tree))} == set(DOLLARS)


DOTS = {
    "names.py": "the dots of names",
    "cli/change.py": "places in a request",
    "sql/embedded.py": "quoted names of SQL",
    "sql/casts.py": "a column as SQL names it",
    "sql/selects.py": "a table as SQL names it",
    "sql/slicing.py": "a column as SQL names it",
    "rest/auth/jwt.py": "places in a token",
    "rest/coding.py": "places in a request",
    "spark/source.py": "places in a struct",
    "streams/serving/derived_columns.py": "modules of Python",
    "testing/faces/case_objects.py": "names, as people write them",
    "tables/columns/alter.py": "places in a struct, and numbers of versions",
    "tables/columns/fields.py": "places in a struct",
    "tables/partitions.py": "parts of a file's name",
    "web/queries.py": "quoted names of SQL",
}


def test_only_names_join_and_part_names_by_dots() -> None:
    """So that a name with a dot in it is read as it was written: `prod."a.b"`."""

    def is_of_dots(node: ast.AST) -> bool:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return False
        texts = node.args if node.func.attr == "split" else [node.func.value] if node.func.attr == "join" else []
        return any(isinstance(each, ast.Constant) and each.value == "." for each in texts)

    found = {name for name, tree in modules().items() if any(is_of_dots(node) for node in walk(tree))}
    assert found == set(DOTS) - {"names.py"}


def test_there_is_one_loop_that_looks_again() -> None:
    found = {name for name, tree in modules().items() if retries(tree) and name != "clock.py"}
    assert found == {"retry.py"}


def test_abilities_are_declared_and_nobody_probes_for_them() -> None:
    """No store, registry or session is told by its class, none is asked for attributes, and no method is a stub.

    Nor is one class another by passing on whatever it is asked.
    """
    whom = {"namespace", "_namespace", "client", "_there", "there", "catalog", "store", "registry"}
    found = set[str]()
    for name, tree in modules().items():
        asserted = {node.test for node in walk(tree) if isinstance(node, ast.Assert)}
        for node in walk(tree):
            if isinstance(node, ast.Raise) and node.exc is not None:
                kind = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                found |= {name} if name_of(kind) == "NotImplementedError" else set()
            if not isinstance(node, ast.Call):
                continue
            if name_of(node.func) == "isinstance" and node not in asserted:
                found |= {name} if TOLD_BY_CLASS.search(ast.unparse(node.args[1])) else set()
            if name_of(node.func) in ("getattr", "hasattr") and isinstance(node.args[1], ast.Constant):
                asked = node.args[0].func if isinstance(node.args[0], ast.Call) else node.args[0]
                found |= {name} if name_of(asked).rsplit(".", 1)[-1] in whom else set()
        inside = (part for node in walk(tree) if isinstance(node, ast.ClassDef) for part in node.body)
        found |= {name for part in inside if isinstance(part, ast.FunctionDef) and part.name == "__getattr__"}
    assert found == PASSES_ANYTHING_ON


TOLD_BY_CLASS = re.compile(r"Store$|Registry$|Freshness$|\b(Present|Past|Transaction|)Session$")
PASSES_ANYTHING_ON = {"imports.py", "moving/deltacat/replay.py"}
"""A module that is imported when it is used, and a catalog that nothing is done to."""

FOREIGN_PRIVATE = {
    "_AUTHENTICATION": "confluent_kafka",
    "_AUTO_OFFSET_RESET": "confluent_kafka",
    "_DummyThread": "threading",
    "_PARTITION_EOF": "confluent_kafka",
    "_REGISTERED_IMPLS": "lance_namespace",
    "_actions": "argparse",
    "_ds": "pylance",
    "_exit": "os",
    "_from_protos": "pylance",
    "_jdf": "pyspark",
    "_jvm": "pyspark",
    "_jsc": "pyspark",
    "_jsparkSession": "pyspark",
    "_path": "pylance",
    "_namespace_client": "pylance",
    "_namespace_client_managed_versioning": "pylance",
    "_table_id": "pylance",
    "_take_rows": "pylance",
}
"""Private names of libraries that have no public one for what is needed."""


def test_only_the_metastore_knows_the_draft_of_a_transaction() -> None:
    """Other packages ask a transaction for its reads and changes, and never edit them."""
    found = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "draft"
    }
    assert {name for name in found if not name.startswith("metastore/")} == set()


def test_nobody_reaches_into_what_another_module_keeps_to_itself() -> None:
    found = list[str]()
    for name, tree in modules().items():
        own = {node.name for node in walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        own |= {node.id for node in walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        seen = [node for node in walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
        own |= {node.attr for node in seen if isinstance(node.value, ast.Name) and node.value.id == "self"}
        others = {node.attr for node in seen if not node.attr.startswith("__")} - own - set(FOREIGN_PRIVATE)
        found += [f"{name}: {attribute}" for attribute in sorted(others)]
    assert found == []


def test_a_class_name_stands_for_one_thing_in_all_packages() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, tree in modules().items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {word: found for word, found in homes.items() if len(found) > 1} == {}


def public_classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for name, tree in modules().items():
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield name, node


CALLS = {"spark/protocol.py", "agents/serving.py"}
"""Modules of messages whose names are the sentence."""


def test_every_public_class_has_a_docstring() -> None:
    nameless = [f"{node.name} of {name}" for name, node in public_classes() if not ast.get_docstring(node)]
    assert [each for each in nameless if each.rsplit(" of ", 1)[1] not in CALLS] == []


def test_the_glossary_has_at_most_fifty_words_that_the_product_uses() -> None:
    """Words of users and maintainers. Ordinary English, and what one class is called, are not for it."""
    rows = re.findall(r"^\| (\*\*.+?) \|", (PROJECT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert 30 <= len(rows) <= 50
    words = [word for row in rows for word in re.findall(r"\*\*(.+?)\*\*", row)]
    assert len(words) == len(set(words))
    told = " ".join(path.read_text().lower() for path in PACKAGE.rglob("*.py"))
    assert [word for word in words if word.split()[-1] not in told] == []


def test_a_module_name_has_one_meaning_in_all_packages() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name in modules():
        homes[name.rsplit("/", 1)[-1].removesuffix(".py")].append(name)
    assert {word for word, found in homes.items() if len(found) > 1} - {"__init__"} == set(SAME_MODULE)


def test_design_notes_are_numbered_without_a_hole_and_all_are_in_the_index() -> None:
    folder = PROJECT / "docs" / "design"
    notes = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [int(name[:3]) for name in notes] == list(range(1, len(notes) + 1))
    index = (folder / "README.md").read_text()
    assert re.findall(r"\((\d{3}-[\w-]+\.md)\)", index) == notes
    assert re.findall(r"^- .*\((\S+\.md)\) .+ \(\d{4}-\d\d-\d\d\)$", index, re.M) == notes, "each has its date"


def test_the_map_of_the_architecture_page_has_every_part_and_no_other() -> None:
    parts = {name.split("/")[0].removesuffix(".py") for name in modules()} - {"__init__", "__main__"}
    page = (PROJECT / "docs" / "architecture.md").read_text().split("## The map\n")[1].split("\n## ")[0]
    assert {name.strip("/") for name in re.findall(r"^\| `([\w/]+)` \|", page, re.M)} == parts


def test_what_knows_lance_semantics_knows_no_marker_of_the_directory_layout() -> None:
    markers = re.compile(r"\b(RESERVED_MARKER|DEREGISTERED_MARKER|MARKER_BODY|\.lance-(reserved|deregistered))\b")
    sources = (PACKAGE / "namespace").rglob("*.py")
    assert [path.name for path in sources if markers.search(path.read_text())] == []


def test_duckdb_is_opened_in_one_module() -> None:
    """`to_duckdb` alone hands rows to the DuckDB of the user, by name; it opens no database."""
    assert {
        name for name, tree in modules().items() if re.search(r"headwater.imports import .*duckdb", ast.unparse(tree))
    } == {"sql/embedded.py"}
    asked = re.compile(r"import_module\(.duckdb|_library\(.duckdb|__import__\(.duckdb")
    found = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if asked.search(path.read_text())}
    assert found == {"tables/write/arrow.py"}
