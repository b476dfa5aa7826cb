"""Agents look at a catalog: each tool over stdio, by the official client, against a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater.agents.catalog_tools import MAX_BYTES, MAX_ROWS, AgentAnswer, as_json, cells
from headwater.agents.serving import TOOLS
from headwater.config import connect
from headwater.rest.server import start_in_thread
from tests.agents.talking import Agent, agent

pytestmark = pytest.mark.xdist_group("agents")  # which share a process that answers
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["red fox", "blue whale", None],
        "v": pa.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], pa.list_(pa.float32(), 2)),
    }
)
HOSTILE = "\x1b[31mred\x07\r\n\u202egnp-exe\u2066 <script> ```"
COLUMN = "c\x1b[31m\u202e<b>"
RUNAWAY = "SELECT sum(a.range * b.range * c.range) FROM range(100000) a, range(100000) b, range(100000) c"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A metastore catalog with a table, a hostile one, a wide one, and a stream table that was published."""
    root = str(tmp_path_factory.mktemp("agents") / "lake")
    catalog = headwater.Catalog(root)
    named: dict[bytes | str, bytes | str] = {b"comment": b"what it is called"}
    schema = ROWS.schema.set(1, ROWS.schema.field("text").with_metadata(named))
    catalog.create_namespace("prod", {"comment": "what is sold"})
    catalog.create_table("prod.animals", ROWS.cast(schema), properties={"comment": "of the woods and seas"})
    catalog["prod.animals"].create_index("text")
    catalog["prod.animals"].append(ROWS.slice(0, 1))
    catalog.create_table(["prod", "a.b"], pa.table({"id": [7], COLUMN: [HOSTILE]}))
    catalog.create_table("prod.many", pa.table({"id": range(3000), "long": ["x" * 900] * 3000}))
    stream = catalog.create_stream_table("prod.events", pa.schema([("id", pa.int64()), ("n", pa.int64())]), ["id"])
    stream.upsert(pa.table({"id": [1, 2], "n": [10, 20]}))
    stream.publish()
    catalog.close()
    return root


@pytest.fixture(scope="module")
def near(root: str) -> Iterator[Agent]:
    with agent(root, "--timeout", "6") as found:
        yield found


def test_every_tool_is_told_with_what_it_takes_and_changes_nothing(near: Agent) -> None:
    told = {tool.name: tool for tool in near.tools()}
    assert set(told) == set(TOOLS) == {"list", "describe", "schema", "search", "query", "history", "lineage"}
    for name, tool in told.items():
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False
        assert tool.input_schema == TOOLS[name].schema
        assert tool.description
    assert "never instructions" in str(near.client.instructions)


def test_names_are_listed_in_pages(near: Agent) -> None:
    everything = near.ask("list")["objects"]
    assert [item["name"] for item in everything] == [
        "prod", 'prod."a.b"', "prod.animals", "prod.events", "prod.many",
    ]  # fmt: skip
    first = near.ask("list", limit=2)
    assert len(first["objects"]) == 2
    assert "after" in first["cut"][0]
    rest = near.ask("list", after=first["objects"][-1]["name"])["objects"]
    assert first["objects"] + rest == everything
    assert near.ask("list", containing="ANIM")["objects"] == [{"name": "prod.animals", "kind": "table"}]
    assert "start again" in near.refused("list", after="prod.dropped")  # an empty list would be the end


def test_a_table_and_a_namespace_are_described(near: Agent) -> None:
    table = near.ask("describe", name="prod.animals")
    assert (table["rows"], table["kind"], table["comment"]) == (4, "table", "of the woods and seas")
    assert table["columns"][1] == {"column": "text", "type": "string", "nullable": True, "comment": "what it is called"}
    assert table["samples"][0] == {"id": 1, "text": "red fox", "v": [1.0, 0.0]}
    assert table["indices"][0]["columns"] == ["text"]
    space = near.ask("describe", name="prod")
    assert (space["kind"], space["comment"]) == ("namespace", "what is sold")
    assert "animals" in space["tables"]
    stream = near.ask("describe", name="prod.events")
    assert (stream["kind"], stream["rows"]) == ("stream table", 2)
    assert near.ask("schema", table="prod.animals")["columns"][0]["type"] == "int64"
    assert len(near.ask("schema", table="prod.animals", version=1)["columns"]) == 3


def test_rows_are_found_by_words_by_a_vector_and_by_another_row(near: Agent) -> None:
    assert near.ask("search", table="prod.animals", text="whale")["rows"][0]["id"] == 2
    found = near.ask("search", table="prod.animals", vector=[0.0, 1.0], limit=1)["rows"]
    assert (len(found), found[0]["id"], found[0]["_distance"]) == (1, 2, 0.0)
    like = near.ask("search", table="prod.animals", like_row=2, limit=2, columns=["id"], where="id < 3")["rows"]
    assert [row["id"] for row in like] == [2, 1]
    assert "text, vector, or like_row" in near.refused("search", table="prod.animals")


def test_a_select_is_run_and_says_when_it_was_cut(near: Agent) -> None:
    sql = "SELECT count(*) AS n, (SELECT sum(n) FROM prod.events) AS s FROM prod.animals"
    assert near.ask("query", sql=sql) == {"rows": [{"n": 4, "s": 30}]}
    few = near.ask("query", sql="SELECT id FROM prod.many", limit=10)
    assert len(few["rows"]) == 10
    assert "first 10" in few["cut"][0]
    many = near.ask("query", sql="SELECT id FROM prod.many", limit=MAX_ROWS)
    assert len(many["rows"]) == MAX_ROWS
    assert "first 1,000" in many["cut"][0]
    large = near.ask("query", sql="SELECT id, long || long AS text FROM prod.many", limit=MAX_ROWS)
    assert 400 < len(large["rows"]) < MAX_ROWS
    assert f"{MAX_BYTES:,} bytes" in large["cut"][0]
    assert "limit" in near.refused("query", sql="SELECT 1", limit=MAX_ROWS + 1)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        'SELECT * FROM "{file}"',
        "COPY (SELECT 1) TO '{file}'",
        "SELECT getenv('HOME')",
        "SELECT 1; SELECT 2",
        "ATTACH '{file}' AS x",
        "INSERT INTO prod.animals VALUES (1)",
        "SELECT * FROM duckdb_settings()",
    ],
)
def test_a_query_reads_tables_and_nothing_else(near: Agent, tmp_path: Path, sql: str) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("secret\nhunter2\n")
    for dialect in ("spark", "duckdb"):
        assert "hunter2" not in near.refused("query", sql=sql.format(file=file), dialect=dialect)
    assert file.read_text() == "secret\nhunter2\n"


def test_what_does_not_end_is_ended_and_the_next_call_is_answered(near: Agent) -> None:
    before = workers()
    begun = time.monotonic()
    assert "within 6 seconds" in near.refused("query", sql=RUNAWAY, dialect="duckdb")
    assert time.monotonic() - begun < 25
    limit = time.monotonic() + 25
    while before <= workers() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not before <= workers(), "the worker that ran the query is gone"
    for _ in range(10):  # a new worker starts within the same 6 seconds, on a machine that has the time
        text, is_error = near.say("query", sql="SELECT 1 AS one")
        if not is_error:
            break
    assert text == '{"rows":[{"one":1}]}'


def workers() -> set[int]:
    """The worker processes of `headwater mcp` that was started here."""
    parents = {int(pid): _parent(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    servers = {pid for pid, parent in parents.items() if parent == os.getpid()}
    return {pid for pid, parent in parents.items() if parent in servers and b"workers.child" in _line(pid)}


def _parent(pid: str) -> int:
    try:
        return int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _line(pid: int) -> bytes:
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return b""


def test_hostile_names_and_cells_are_text(near: Agent) -> None:
    for tool, asked in (("describe", {"name": 'prod."a.b"'}), ("query", {"sql": "SELECT * FROM prod.`a.b`"})):
        text, is_error = near.say(tool, **asked)
        assert not is_error
        assert text.isprintable()
        rows = json.loads(text)["samples" if tool == "describe" else "rows"]
        assert rows == [{"id": 7, COLUMN: HOSTILE}]
    assert near.refused("describe", name=f"prod.{HOSTILE}").isprintable()
    assert near.refused("describe", name=f"prod.{'x' * 5000}").count("x") < 1000


def test_errors_say_what_to_do(near: Agent) -> None:
    assert "Did you mean prod.animals?" in near.refused("describe", name="prod.animal")
    assert "`list`" in near.refused("schema", table="zzzzzz")
    assert "It takes: sql, dialect, limit" in near.refused("query", select="1")
    assert "list, describe" in near.refused("drop", table="prod.animals")
    assert "one SELECT" in near.refused("query", sql="prod.animals")


def test_history_and_lineage_are_told(near: Agent) -> None:
    entries = near.ask("history", name="prod.animals")["entries"]
    assert entries[0]["slot"] > entries[-1]["slot"]
    assert all(entry["time"].endswith("Z") and entry["name"] == "prod.animals" for entry in entries)
    assert "cut" in near.ask("history", name="prod.animals", limit=1)
    origin = near.ask("lineage", table="prod.events")["origin"]
    assert origin["table"] == "prod.events"
    assert "note" in near.ask("lineage", table="prod.animals")
    assert near.ask("lineage", table="prod.animals", downstream=True)["table"] == "prod.animals"


@pytest.mark.long
def test_a_server_is_looked_at_with_the_key_of_a_profile(root: str, tmp_path: Path) -> None:
    key = "a-key-that-is-long-enough"
    (tmp_path / "key").write_text(key)
    with start_in_thread(connect("metastore", {"root": root}), api_key=key) as server:
        config = tmp_path / "headwater.toml"
        profile = f'[catalog.far]\nuri = "{server.url}"\n"headers.x-api-key" = "file:{tmp_path / "key"}"\n'
        config.write_text(profile)
        with agent("far", HEADWATER_CONFIG=str(config)) as far:
            assert "prod.animals" in str(far.ask("list"))
            assert far.ask("describe", name="prod.animals")["rows"] == 4
            assert far.ask("query", sql="SELECT count(*) AS n FROM prod.events") == {"rows": [{"n": 2}]}
            assert far.ask("search", table="prod.animals", text="fox", limit=1)["rows"][0]["id"] == 1
            assert far.ask("history", name="prod.animals")["entries"]
            assert "note" in far.ask("lineage", table="prod.animals")


@pytest.mark.long
def test_a_directory_catalog_tells_versions_for_history(tmp_path: Path) -> None:
    root = str(tmp_path / "plain")
    headwater.Catalog(root, impl="dir").create_table("prod.t", pa.table({"id": [1]}))
    with agent(root) as plain:
        told = plain.ask("history", name="prod.t")
        assert [item["version"] for item in told["versions"]] == [1]
        assert "no history" in told["note"]


@pytest.mark.long
def test_what_is_wrong_at_start_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headwater", "mcp", str(tmp_path / "gone")], capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 1
    assert "There is no catalog at" in done.stderr


def test_an_answer_keeps_within_its_bytes_whatever_it_holds() -> None:
    wide = "\u202e" * 20_000  # an escape is six bytes for each of these three
    text = AgentAnswer().say(comment=wide, other="y" * 10).rows("rows", ({"c": wide} for _ in range(60)), "less").text()
    assert len(text.encode()) <= MAX_BYTES
    assert json.loads(text)["cut"]
    assert json.loads(as_json({"k": "\U000e0001é\x85ß"})) == {"k": "\U000e0001é\x85ß"}
    assert "\U000e0001" not in as_json("\U000e0001")
    assert cells({"b": b"123", "v": list(range(100))}) == {"b": "<3 bytes>", "v": [*range(8), "… 100 numbers"]}
