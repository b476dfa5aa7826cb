"""Looking names up takes no Lance: what a metastore or a server can tell is asked without it. A directory takes pylance
alone, which reads its `__manifest`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from tests.rest.processes import ServeProcess

CHECKOUT = str(Path(__file__).parents[2])
HEAVY = ("lance", "lance_namespace", "pyarrow", "pydantic", "lance_namespace_urllib3_client")
PROGRAM = f"""
import io, json, sys
from contextlib import redirect_stdout
from headwater.cli import main
found = []
for line in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out:
        try:
            status = main(line)
        except SystemExit as stopped:
            status = stopped.code
    found.append([status or 0, out.getvalue(), [name for name in {HEAVY!r} if name in sys.modules]])
print(json.dumps(found))
"""


def run(lines: list[list[str]]) -> list[tuple[int, str, list[str]]]:
    """Lines run one after the other in an interpreter of their own; with each what is imported by then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(status, out, heavy) for status, out, heavy in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("light") / "lake")
    table = headwater.Catalog(root, impl="metastore").create_table("prod.users", pa.table({"id": [1], "mail": ["x"]}))
    table.create_index("mail", "FTS")
    return root


def looking(root: str) -> list[list[str]]:
    return [
        ["--version"],
        ["--help"],
        ["ls", "--help"],
        ["__complete", "l"],
        ["__complete", "head", "-c", root, "prod."],
        ["ls", root],
        ["tree", root],
        ["find", root, "mail"],
        ["versions", root, "prod.users"],
        ["versions", root, "prod.user"],
    ]


def test_looking_at_a_metastore_imports_no_lance(root: str) -> None:
    more = [["log", root], ["history", root, "prod.users"], ["diff", root, "0"]]
    for (status, out, heavy), line in zip(run([*looking(root), *more]), [*looking(root), *more], strict=True):
        assert heavy == [], line
        assert status == (3 if line[-1] == "prod.user" else 0), line
        assert out or status, line


@pytest.mark.parametrize("managed", ["false", "true"])
def test_looking_at_a_directory_imports_pylance_alone(tmp_path: Path, managed: str) -> None:
    root = str(tmp_path / "lake")
    lake = headwater.Catalog(root, impl="dir", table_version_management=managed)
    lake.create_table("prod.users", pa.table({"id": [1], "mail": ["x"]}))
    for (status, out, heavy), line in zip(run(looking(root)), looking(root), strict=True):
        assert set(heavy) <= {"lance", "pyarrow"}, line
        assert status == (3 if line[-1] == "prod.user" else 0), line
        assert out or status, line


@pytest.mark.xdist_group("serve")
def test_looking_at_a_server_imports_no_lance(root: str) -> None:
    with ServeProcess(root, "--port", "0", "--no-access-log", "--data-workers", "0") as server:
        for (status, out, heavy), line in zip(run(looking(server.url)), looking(server.url), strict=True):
            assert heavy == [], line
            assert status == (3 if line[-1] == "prod.user" else 0), line
            assert out or status, line


def test_the_columns_of_a_metastores_table_are_read_from_its_manifest(root: str) -> None:
    [(_, out, _)] = run([["find", root, "mail", "--json"]])
    assert json.loads(out)["where"] == "column"


@pytest.mark.parametrize("verb", [["show"], ["head"], ["search", "--text", "x"], ["query"]])
def test_a_program_that_reads_rows_imports_no_pandas_and_few_of_the_clients_modules(verb: list[str], root: str) -> None:
    """pandas is half of the CPU of a short command, and the protocol's client a quarter."""
    name = "SELECT * FROM prod.users" if verb == ["query"] else "prod.users"
    line = ["headwater", verb[0], "-c", root, name, *verb[1:]]
    program = f"""
import sys
from headwater.cli import main
sys.argv = {line!r}
status = main()
client = [name for name in sys.modules if name.startswith("lance_namespace_urllib3_client.")]
print(status, "pandas" in sys.modules, len(client) < 150, any(".api." in name for name in client), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.stderr.splitlines()[-1] == "0 False True False", done.stderr


def test_a_caller_of_main_keeps_its_pandas(root: str) -> None:
    program = f"""
from headwater.cli import main
main(["head", "-c", {root!r}, "prod.users"])
import pandas
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
