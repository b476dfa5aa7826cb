"""Looking: every verb against a metastore catalog and a directory catalog."""

from __future__ import annotations

import json
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import headwater
from headwater.cli.look import SHOWN_LINES
from headwater.rest.server import start_in_thread
from tests.cli.running import Cli
from tests.rest.processes import ServeProcess

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["red fox", "blue whale", None],
        "v": pa.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], pa.list_(pa.float32(), 2)),
    }
)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same tables in a metastore catalog and in a directory catalog, made once: these tests only look."""
    found = {}
    for kind in ("metastore", "dir"):
        root = tmp_path_factory.mktemp(kind) / "lake"
        more = {"impl": kind, "manifest_enabled": "true"} if kind == "dir" else {"impl": kind}
        catalog = headwater.Catalog(str(root), **more)
        comments: dict[bytes | str, bytes | str] = {b"comment": b"what it is called"}
        schema = ROWS.schema.set(1, ROWS.schema.field("text").with_metadata(comments))
        catalog.create_namespace("prod", {"owner": "ann"})
        catalog.create_table("prod.animals", ROWS.cast(schema), properties={"comment": "of the woods and seas"})
        catalog.create_table(["prod", "a.b"], pa.table({"id": [7]}))
        catalog["prod.animals"].create_index("text")
        catalog["prod.animals"].tags["first"] = 1
        found[kind] = str(root)
    return found


@pytest.fixture(params=["metastore", "dir"])
def look(request: pytest.FixtureRequest, roots: dict[str, str], capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(roots[request.param], capfd)


def test_names_are_listed_and_drawn(look: Cli) -> None:
    assert look.ok("ls") == "prod/\n"
    assert look.ok("ls", "prod") == '"a.b"\nanimals\n'
    assert look.records("ls", "prod")[1] == {"name": "prod.animals", "id": ["prod", "animals"], "kind": "table"}
    assert look.ok("ls", "prod", "--limit", "1") == '"a.b"\n'
    assert look.ok("tree") == '.\n└── prod/\n    ├── "a.b"\n    └── animals\n'
    assert [item["name"] for item in look.records("tree")] == ["prod", 'prod."a.b"', "prod.animals"]
    assert look.ok("tree", "prod").startswith("prod\n├──")


def test_a_name_with_a_dot_is_quoted_or_given_with_a_delimiter(look: Cli) -> None:
    assert look.ok("count", 'prod."a.b"') == "1\n"
    assert look.ok("count", "prod$a.b", "--delimiter", "$") == "1\n"
    for wrong in ('prod."a.b', 'prod."a"b', "prod..x"):
        assert look("count", wrong)[0] == 5


def test_a_table_and_a_namespace_are_shown_in_a_few_lines(look: Cli) -> None:
    shown = look.ok("show", "prod.animals")
    assert len(shown.splitlines()) <= SHOWN_LINES
    for word in ("3 rows", "version ", "what it is called", "text_idx", "first (version 1)", "of the woods and seas"):
        assert word in shown
    record = look.json("show", "prod.animals")
    assert (record["rows"], record["kind"], record["tags"]) == (3, "table", {"first": 1})
    assert [column["column"] for column in record["columns"]] == ["id", "text", "v"]
    assert "_versions" not in shown
    assert look.json("show", "prod")["tables"] == ["a.b", "animals"]
    assert "owner = ann" in look.ok("show", "prod")
    assert look.json("show")["namespaces"] == ["prod"]
    assert "every table is at level 2" in look.ok("show")
    assert [look.json("show", *name)["level"] for name in ((), ("prod",))] == [0, 1]


def test_a_table_of_many_columns_is_shown_in_24_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wide = pa.table({f"c{number}": [1] for number in range(100)})
    headwater.Catalog(str(tmp_path / "l")).create_table("t", wide, properties={f"k{n}": "v" for n in range(50)})
    shown = Cli(str(tmp_path / "l"), capfd).ok("show", "t").splitlines()
    assert len(shown) <= SHOWN_LINES
    assert any("90 more columns" in line for line in shown)


def test_schema_stats_and_count(look: Cli) -> None:
    assert look.records("schema", "prod.animals")[1] == {
        "column": "text", "type": "string", "nullable": True, "comment": "what it is called"
    }  # fmt: skip
    assert look.json("stats", "prod.animals")["num_rows"] == 3
    assert look.json("count", "prod.animals", "--where", "id > 1") == {"count": 2}
    assert look.ok("count", "prod.animals", "--version", "1") == "3\n"


def test_rows_are_shown_chosen_and_written_to_files(look: Cli, tmp_path: Path) -> None:
    assert look.records("head", "prod.animals", "--where", "id = 3", "--column", "id", "--column", "text") == [
        {"id": 3, "text": None}
    ]
    assert "NULL" in look.ok("head", "prod.animals", "--column", "text")
    assert len(look.records("head", "prod.animals", "--limit", "2", "--tag", "first")) == 2
    for suffix in ("parquet", "jsonl", "csv", "arrow"):
        out = tmp_path / f"out.{suffix}"
        look.ok("head", "prod.animals", "--column", "id", "--out", str(out))
        assert look.ok("head", "prod.animals", "--format", "jsonl").count("\n") == 3
        assert out.stat().st_size
    assert pyarrow.parquet.read_table(tmp_path / "out.parquet")["id"].to_pylist() == [1, 2, 3]
    assert (tmp_path / "out.jsonl").read_text() == '{"id":1}\n{"id":2}\n{"id":3}\n'
    assert look("head", "prod.animals", "--out", str(tmp_path / "rows.xlsx"))[0] == 5
    assert look("head", "prod.animals", "--version", "1", "--tag", "first")[0] == 5


def test_a_search_takes_words_a_vector_or_another_row(look: Cli) -> None:
    assert [row["id"] for row in look.records("search", "prod.animals", "--text", "whale")] == [2]
    assert look.records("search", "prod.animals", "--vector", "1,0", "--limit", "1")[0]["id"] == 1
    assert look.records("search", "prod.animals", "--like-row", "2", "--limit", "1")[0]["id"] == 2
    assert look("search", "prod.animals")[0] == 5
    assert look("search", "prod.animals", "--like-row", "9")[0] == 3
    assert look("search", "prod.animals", "--vector", "x")[0] == 5


def test_one_select_runs_over_tables(look: Cli) -> None:
    sql = "SELECT a.id, b.id AS other FROM prod.animals a, prod.`a.b` b WHERE a.id > 1 ORDER BY 1"
    assert look.records("query", sql) == [{"id": 2, "other": 7}, {"id": 3, "other": 7}]
    assert look.records("query", "WITH x AS (SELECT * FROM `prod.animals`) SELECT count(*) AS n FROM x") == [{"n": 3}]
    native = 'WITH x AS (FROM "prod.animals") SELECT count(*) AS n, list(id) AS ids FROM x'
    assert look.records("query", "--dialect", "duckdb", native) == [{"n": 3, "ids": [1, 2, 3]}]
    status, _, err = look("query", "SELECT list(id) FROM prod.animals")
    assert (status, "the function list()" in err, 'dialect="duckdb"' in err) == (5, True, True), err
    assert look.ok("query", "SELECT 1/2 AS half", "--limit", "1").splitlines() == ["half", "0.5"]
    twice = (
        "SELECT count(*) AS n FROM prod.animals a JOIN prod.animals AS b USING (id) JOIN `prod.animals` c USING (id)"
    )
    assert look.records("query", twice) == [{"n": 3}]
    assert look("query", "SELECT * FROM prod.none")[0] == 3
    assert look.records("query", "SELECT 'read_text(x)' AS t /* glob( */ -- getenv(") == [{"t": "read_text(x)"}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "INSERT INTO prod.animals VALUES (1)",
        "WITH x AS (DELETE FROM prod.animals RETURNING *) SELECT * FROM x",
        "CREATE TABLE x AS SELECT 1",
        "COPY (SELECT 1) TO 'canary.csv'",
        "SELECT * FROM read_text('canary.txt')",
        "SELECT * FROM \"read_text\"('canary.txt')",
        "SELECT * FROM 'canary.txt'",
        "SELECT * FROM glob('*')",
        "SELECT getenv('HOME')",
        "SELECT current_setting('home_directory')",
        "SELECT * FROM duckdb_settings()",
        "SELECT current_setting/**/('home_directory')",
        "SELECT current_setting -- of\n ('home_directory')",
        "SELECT 'home_directory'.current_setting()",
        "SELECT * FROM pg_catalog.pg_settings",
        'SELECT * FROM "pg_settings"',
        "SELECT * FROM query('SELECT 1')",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "SET memory_limit = '1GB'",
        "PRAGMA version",
        "EXPLAIN SELECT 1",
    ],
)
def test_a_query_reads_tables_and_nothing_else(
    roots: dict[str, str], capfd: pytest.CaptureFixture[str], nowhere: Path, sql: str
) -> None:
    (nowhere / "canary.txt").write_text("canary")
    before = sorted(nowhere.iterdir())
    status, out, err = Cli(roots["metastore"], capfd)("query", sql)
    assert status in (3, 5), err
    assert "canary" not in out
    assert sorted(nowhere.iterdir()) == before


def test_words_are_found_in_names_columns_properties_and_comments(look: Cli) -> None:
    assert [hit["where"] for hit in look.records("find", "animals")] == ["name"]
    assert [(hit["where"], hit["found"]) for hit in look.records("find", "TEXT")] == [("column", "text")]
    assert [hit["where"] for hit in look.records("find", "called")] == ["comment of text"]
    assert [hit["where"] for hit in look.records("find", "woods")] == ["comment"]
    assert [hit["found"] for hit in look.records("find", "owner")] == ["owner=ann"]
    status, out, err = look("find", "zebra")
    assert (status, out) == (0, "")
    assert "zebra" in err


def test_objects_are_shown_with_id_and_locator_and_found_by_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog = headwater.Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table(
        "prod.orders", {"id": "bigint", "region": "string"}, "id", partition_by="region"
    )
    table.upsert([{"id": 1, "region": "eu"}, {"id": 2, "region": None}])
    catalog.alias("prod.orders", "sales")
    server = start_in_thread(catalog.namespace)
    delta, known = table.deltas()[0], catalog.describe("prod.orders")
    try:
        for root in (str(tmp_path / "lake"), server.url):
            cli = Cli(root, capfd)
            shown = cli.ok("show", "prod.orders")
            assert f"id {known.id}, locator prod|orders\naliases: sales\n" in shown
            assert "partitions (2): region=eu, region=null\n" in shown
            record = cli.json("show", "prod.orders")
            assert (record["immutable_id"], record["locator"], record["aliases"]) == (
                known.id,
                "prod|orders",
                ["sales"],
            )
            assert [each["locator"] for each in record["parts"]] == [
                each.locator for each in catalog.objects("prod.orders")
            ]
            assert cli.json("show", "prod")["immutable_id"] == catalog.describe("prod").id
            for word, where in ((delta.locator, "locator"), (delta.key, "id")):
                (hit,) = cli.records("find", word)
                assert (hit["kind"], hit["where"], hit["locator"]) == ("delta", where, delta.locator)
            (hit,) = cli.records("find", "prod|sales")
            assert (hit["name"], hit["immutable_id"]) == ("prod.orders", known.id)
            assert [cli.records("find", word) for word in ("prod|nothing", "no|where", "a|b\\c")] == [[]] * 3
            assert cli.json("show", "prod.orders", "--at", str(known.slot))["immutable_id"] == known.id
    finally:
        server.stop()


def test_versions_are_listed_with_their_times(look: Cli) -> None:
    listed = look.records("versions", "prod.animals")
    assert [item["version"] for item in listed] == [1, 2]
    assert listed[0]["time"].endswith("Z")
    assert [item["version"] for item in look.records("versions", "prod.animals", "--descending")] == [2, 1]
    assert [item["version"] for item in look.records("versions", "prod.animals", "--limit", "1")] == [2]


def test_a_wrong_name_says_the_nearest_right_one(look: Cli) -> None:
    for line in ("versions prod.animal", "head prd.animals", "show prod.animls", "drop prod.anmals --yes"):
        verb, *words = line.split()
        status, _, err = look(verb, *words)
        assert status == 3
        assert "Did you mean prod.animals?" in err
    for line, meant in (
        ("head prod.animals --column txt", "text"),
        ("count prod.animals --tag frist", "first"),
        ("index prod.animals drop text_ix", "text_idx"),
        ("columns prod.animals drop txt --yes", "text"),
    ):
        verb, *words = line.split()
        status, _, err = look(verb, *words)
        assert status == 3
        assert f"Did you mean {meant}?" in err.replace("'", "")
    status, _, err = look("head", "prod.animal", "--json")
    assert json.loads(err)["code"] == 4
    assert "Did you mean" in json.loads(err)["error"]


@pytest.mark.xdist_group("serve")
def test_a_served_catalog_is_looked_at_too(roots: dict[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    with ServeProcess(roots["dir"], "--port", "0", "--no-access-log") as server:
        remote = Cli(server.url, capfd)
        assert remote.ok("tree") == '.\n└── prod/\n    ├── "a.b"\n    └── animals\n'
        assert [item["version"] for item in remote.records("versions", "prod.animals")] == [1, 2]
        assert [hit["where"] for hit in remote.records("find", "called")] == ["comment of text"]
        assert remote("ls", "nope")[0] == 3
        assert remote.records("query", "SELECT count(*) AS n FROM prod.animals") == [{"n": 3}]
        assert remote("log")[0] == 5
    assert remote("ls")[0] == 7


def test_a_lance_folder_is_read_as_a_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lance.write_dataset(ROWS, tmp_path / "given.lance")
    cli = Cli(str(tmp_path / "l"), capfd)
    assert cli.json("create", "t", str(tmp_path / "given.lance"))["rows"] == 3
