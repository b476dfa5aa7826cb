"""Changing: every verb against a catalog of each kind; what destroys something asks."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import headwater
from headwater.errors import InvalidInputError
from headwater.schema_text import parse_schema
from tests.cli.running import Cli


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Somebody at a terminal types this."""
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(text.encode())))


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture(params=["filled", "lake"])
def both(request: pytest.FixtureRequest) -> Cli:
    found: Cli = request.getfixturevalue(request.param)
    return found


def test_a_table_is_created_by_its_columns_with_the_namespaces_above(both: Cli) -> None:
    made = both.json("create", "a.b.t", "--schema", 'id int, "my name" text not null, v vector(4), p decimal(9,2)')
    assert made == {"name": "a.b.t", "id": ["a", "b", "t"], "version": 1, "rows": 0}
    assert [(c["column"], c["type"], c["nullable"]) for c in both.records("schema", "a.b.t")] == [
        ("id", "int32", True),
        ("my name", "string", False),
        ("v", "fixed_size_list<item: float>[4]", True),
        ("p", "decimal128(9, 2)", True),
    ]
    assert both.json("create", "x.y", "--namespace", "--set", "owner=ann")["id"] == ["x", "y"]
    assert both.json("properties", "x.y") == {"owner": "ann"}
    assert both("create", "t")[0] == 5
    assert both("create", "t", "x.csv", "--schema", "id int")[0] == 5


@pytest.mark.parametrize("text", ["", "id", "id int,", "id int, id text", "id nothing", 'id int, "x'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_schema(text)


def test_rows_come_from_files_and_stdin(both: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "more.jsonl").write_text('{"id": 10, "name": "ten"}\n{"id": 11, "name": null}\n')
    assert both.json("insert", "prod.users", str(tmp_path / "more.jsonl"))["num_inserted_rows"] == 2
    piped(monkeypatch, b'{"id": 10, "name": "other"}\n{"id": 12, "name": "new"}\n')
    both.ok("upsert", "prod.users", "-", "--on", "id")
    piped(monkeypatch, b"no rows at all")
    assert both("insert", "prod.users", "-")[0] == 5
    names = {row["id"]: row["name"] for row in both.records("head", "prod.users", "--where", "id >= 10")}
    assert names == {10: "other", 11: None, 12: "new"}
    both.ok("update", "prod.users", "--set", "name='x'", "--where", "id = 11")
    both.ok("delete", "prod.users", "--where", "id = 10")
    assert both.records("head", "prod.users", "--where", "id in (10, 11)") == [{"id": 11, "name": "x"}]
    both.ok("insert", "prod.users", str(tmp_path / "more.jsonl"), "--mode", "overwrite")
    assert both.ok("count", "prod.users") == "2\n"
    assert both("upsert", "prod.users", str(tmp_path / "more.jsonl"))[0] == 5


def test_tables_and_namespaces_are_renamed_and_moved(lake: Cli, filled: Cli) -> None:
    assert lake.json("rename", "prod.users", "prod.people") == {
        "name": "prod.people", "id": ["prod", "people"], "was": "prod.users"
    }  # fmt: skip
    lake.ok("create", "dev", "--namespace")
    lake.ok("move", "prod.people", "dev")
    lake.ok("move", "dev.people", "")
    lake.ok("move", "people", "dev")
    lake.ok("rename", "dev", "prod.dev")
    lake.ok("move", "prod.dev", "")
    assert lake.ok("tree") == ".\n├── dev/\n│   └── people\n└── prod/\n"
    filled.ok("move", "prod.users", "")
    assert filled.ok("ls") == "prod/\nusers\n"
    status, _, err = filled("rename", "prod", "other")
    assert status == 5
    assert "metastore" in err


def test_what_was_dropped_comes_back(lake: Cli, filled: Cli) -> None:
    lake.ok("drop", "prod.users", "--yes")
    assert lake("count", "prod.users")[0] == 3
    assert lake.json("undrop", "prod.users")["kind"] == "table"
    assert lake.ok("count", "prod.users") == "3\n"
    assert lake("drop", "prod", "--yes")[0] == 4
    assert lake.json("drop", "prod", "--cascade", "--yes") == {"dropped": "prod", "id": ["prod"]}
    lake.ok("undrop", "prod")
    assert lake.ok("count", "prod.users") == "3\n"
    status, _, err = filled("undrop", "prod.users")
    assert status == 5
    assert err.count("\n") == 1


def test_properties_are_shown_set_and_removed(lake: Cli, filled: Cli) -> None:
    assert lake.json("properties", "prod.users", "a=1", "comment=of people") == {"a": "1", "comment": "of people"}
    assert lake.ok("properties", "prod.users", "b=x=y", "--unset", "a") == "b=x=y\ncomment=of people\n"
    assert lake.records("find", "people")[0]["where"] == "comment"
    for cli in (lake, filled):
        cli.ok("properties", "prod", "team=blue")
        assert cli.json("properties", "prod")["team"] == "blue"
        assert cli("properties", "nope")[0] == 3
    assert filled("properties", "prod.users", "a=1")[0] == 5


def test_columns_are_listed_added_renamed_cast_and_dropped(both: Cli) -> None:
    both.ok("columns", "prod.users", "add", "twice=id * 2", "note:string")
    both.ok("columns", "prod.users", "rename", "twice", "double")
    both.ok("columns", "prod.users", "cast", "double", "int32")
    listed = {c["column"]: c["type"] for c in both.records("columns", "prod.users")}
    assert listed == {"id": "int64", "name": "string", "double": "int32", "note": "string"}
    left = both.records("columns", "prod.users", "drop", "double", "note", "--yes")
    assert [c["column"] for c in left] == ["id", "name"]
    for words in (("add",), ("add", "x"), ("rename", "id"), ("sideways",)):
        assert both("columns", "prod.users", *words)[0] == 5


def test_tags_and_branches_are_listed_added_moved_and_dropped(both: Cli, people: str) -> None:
    both.ok("insert", "prod.users", people)
    both.ok("tags", "prod.users", "add", "best", "1")
    assert both.records("tags", "prod.users", "add", "last") == [
        {"tag": "best", "version": 1, "branch": None},
        {"tag": "last", "version": 2, "branch": None},
    ]
    assert both.ok("count", "prod.users", "--tag", "best") == "3\n"
    both.ok("tags", "prod.users", "move", "best")
    assert both("tags", "prod.users", "move", "none")[0] == 3
    assert [tag["tag"] for tag in both.records("tags", "prod.users", "drop", "last")] == ["best"]
    assert both.records("tags", "prod.users")[0]["version"] == 2
    assert both.records("branches", "prod.users", "add", "dev", "1")[0]["branch"] == "dev"
    assert both.ok("count", "prod.users", "--branch", "dev") == "3\n"
    assert both.ok("branches", "prod.users", "drop", "dev") == ""
    assert both("branches", "prod.users", "add")[0] == 5


def test_indices_are_listed_added_and_dropped_and_files_are_merged(both: Cli, people: str) -> None:
    both.ok("insert", "prod.users", people)
    assert both.records("index", "prod.users", "add", "name")[0] == {
        "index": "name_idx", "columns": ["name"], "type": "Inverted", "indexed_rows": 6, "unindexed_rows": 0
    }  # fmt: skip
    both.ok("index", "prod.users", "add", "id", "--type", "btree", "--name", "by_id")
    assert "num_indexed_rows" in both.json("index", "prod.users", "stats", "by_id")
    assert [item["index"] for item in both.records("index", "prod.users", "drop", "by_id")] == ["name_idx"]
    assert both("index", "prod.users", "add", "nope")[0] == 3
    assert both.json("optimize", "prod.users")["fragments_removed"] == 2


DESTRUCTIVE = [
    "drop prod.users",
    "drop prod --cascade",
    "delete-versions prod.users 1",
    "delete prod.users",
    "columns prod.users drop name",
    "delete-versions prod.users 1",
    "restore prod.users 1",
    "collect --keep-slots 1",
    "undo 2",
    "token revoke abc",
]


@pytest.mark.parametrize("line", DESTRUCTIVE)
def test_what_destroys_asks_and_without_a_terminal_changes_nothing(
    lake: Cli, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verb, words = ("token revoke", ["abc"]) if line.startswith("token") else (line.split()[0], line.split()[1:])
    before = headwater.Catalog(lake.root).slot
    piped(monkeypatch, b"y\n")
    status, out, err = lake(verb, *words)
    assert (status, out) == (2, "")
    assert "--yes" in err
    status, _, err = lake(verb, *words, "--json")
    assert (status, json.loads(err)["code"]) == (2, 13)
    typed(monkeypatch, "no\n")
    status, out, err = lake(verb, *words)
    assert (status, out) == (2, "")
    assert "Go on? [y/N]" in err
    assert headwater.Catalog(lake.root).slot == before
    assert lake.ok("count", "prod.users") == "3\n"


def test_what_destroys_goes_on_when_somebody_says_yes(lake: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "y\n")
    assert lake("delete", "prod.users")[0] == 0
    assert lake.ok("count", "prod.users") == "0\n"


def test_rows_of_a_stream_table_land_in_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path / "streams")
    catalog = headwater.Catalog(root)
    catalog.create_stream_table("raw.orders", pa.schema({"id": pa.int64(), "n": pa.int64()}), keys="id")
    cli = Cli(root, capfd)
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "n": 1}\n{"id": 2, "n": 2}\n')
    cli.ok("upsert", "raw.orders", str(tmp_path / "rows.jsonl"))
    assert cli.ok("count", "raw.orders") == "2\n"
    assert "not published yet" in cli.ok("show", "raw.orders")
    assert cli.json("show", "raw.orders")["unpublished"] > 0
    cli.ok("publish", "raw.orders")
    assert cli.json("show", "raw.orders")["unpublished"] == 0
    assert cli.records("query", "SELECT CAST(sum(n) AS INT) AS n FROM raw.orders") == [{"n": 3}]
    cli.ok("delete", "raw.orders", "--where", "id = 1")
    assert cli.json("count", "raw.orders", "--where", "id < 5") == {"count": 1}
    assert [row["id"] for row in cli.records("head", "raw.orders")] == [2]


def test_lists_of_floats_in_json_are_vectors_of_a_new_table(cli: Cli, nowhere: Path) -> None:
    (nowhere / "rows.jsonl").write_text('{"id": 1, "v": [1.0, 0.0], "n": [1.5]}\n{"id": 2, "v": [0.0, 1.0], "n": []}\n')
    cli.ok("create", "prod.rows", str(nowhere / "rows.jsonl"))
    assert cli.records("search", "prod.rows", "--vector", "0.0,1.0", "--limit", "1")[0]["id"] == 2
    cli.ok("insert", "prod.rows", str(nowhere / "rows.jsonl"))
    assert cli.records("schema", "prod.rows")[2]["type"].startswith("list<")


def test_a_column_is_added_by_name_and_type_in_words_of_their_own(filled: Cli) -> None:
    filled.ok("columns", "prod.users", "add", "age", "int")
    filled.ok("columns", "prod.users", "add", "note:string", "twice=id * 2")
    names = [item["column"] for item in filled.records("columns", "prod.users")]
    assert {"age", "note", "twice"} <= set(names)
    assert "NAME TYPE" in filled("columns", "prod.users", "add", "age")[2]
