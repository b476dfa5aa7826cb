"""Verbs on names, rows and parts of tables: exits from the error table, output for people and for programs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import httpx
import lance_namespace
import pyarrow as pa
import pyarrow.parquet
import pytest

from headwater import Catalog
from headwater.cli import main
from headwater.cli.change import FIELDS
from headwater.cli.grammar.verbs import PROTOCOL, ranges
from headwater.cli.output import plain
from headwater.errors import ERRORS
from headwater.rest.routes import BY_OPERATION
from tests.cli.running import Cli
from tests.rest.processes import ServeProcess
from tests.rest.samples import PEOPLE, ipc


def test_a_verb_of_the_protocol_names_an_operation_and_says_how_to_ask_for_it() -> None:
    named = {command.fixed["operation"] for command in PROTOCOL}
    assert named == set(FIELDS) <= set(BY_OPERATION)


def test_names_are_listed_drawn_and_described(filled: Cli) -> None:
    assert filled("ls")[1] == "prod/\n"
    assert filled("ls", "prod")[1] == "users\n"
    assert filled("tree")[1] == ".\n└── prod/\n    └── users\n"
    assert filled.json("properties", "prod") == {"owner": "ann"}
    assert filled.json("show", "prod.users")["version"] == 1


def test_rows_are_written_and_read(filled: Cli, people: str, tmp_path: Path) -> None:
    assert filled.json("count", "prod.users") == {"count": 3}
    assert filled.json("insert", "prod.users", people)["num_inserted_rows"] == 3
    (tmp_path / "more.csv").write_text("id,name\n1,zoe\n9,new\n")
    filled("delete", "prod.users", "--where", "id > 1")
    filled("upsert", "prod.users", str(tmp_path / "more.csv"), "--on", "id")
    assert filled.json("count", "prod.users", "--where", "name = 'zoe'") == {"count": 2}
    filled("update", "prod.users", "--set", "name='x'", "--where", "id = 9")
    rows = [json.loads(line) for line in filled("query", "prod.users", "--where", "id = 9", "--json")[1].splitlines()]
    assert rows == [{"id": 9, "name": "x"}]
    head = filled("head", "prod.users", "--column", "name", "--limit", "1")[1].splitlines()
    assert (head[0], len(head)) == ("name", 2)
    assert "Lance" in filled("explain", "prod.users")[1]


def test_a_csv_file_is_read_in_the_types_of_the_table_it_goes_to(cli: Cli, tmp_path: Path) -> None:
    typed = pa.table(
        {
            "id": pa.array([1], pa.int32()),
            "zip": ["00501"],
            "at": pa.array([0], pa.timestamp("us", tz="UTC")),
            "price": pa.array([1], pa.decimal128(10, 2)),
        }
    )
    pyarrow.parquet.write_table(typed, tmp_path / "rows.parquet")
    (tmp_path / "more.csv").write_text("id,zip,at,price\n2,00502,2026-01-02T03:04:05Z,2.50\n")
    (tmp_path / "bad.csv").write_text("id,zip\n3,1\nthree,1\n")
    assert cli("create", "typed", str(tmp_path / "rows.parquet"))[0] == 0
    assert cli("insert", "typed", str(tmp_path / "more.csv"))[0] == 0
    found = Catalog(cli.root)["typed"].to_arrow().to_pylist()[1]
    assert (found["id"], found["zip"], str(found["price"]), found["at"].hour) == (2, "00502", "2.50", 3)
    status, _, err = cli("insert", "typed", str(tmp_path / "bad.csv"))
    assert status == 5
    assert "three" in err


def test_files_of_every_kind_are_taken(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stream.arrow").write_bytes(ipc(PEOPLE))
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, PEOPLE.schema) as writer:
        writer.write_table(PEOPLE)
    (tmp_path / "rows.csv").write_text("id\n1\n2\n3\n")
    for number, name in enumerate(("stream.arrow", "file.arrow", "rows.csv")):
        assert cli("create", f"t{number}", str(tmp_path / name))[0] == 0
        assert cli.json("count", f"t{number}") == {"count": 3}
    (tmp_path / "bad.parquet").write_text("x")
    assert cli("create", "bad", str(tmp_path / "bad.parquet"))[0] == 5
    assert cli("create", "none", str(tmp_path / "none.parquet"))[0] == 5


def test_columns_tags_branches_indices_and_versions(filled: Cli) -> None:
    filled("columns", "prod.users", "add", "twice=id * 2")
    filled("tags", "prod.users", "add", "v1", "1")
    assert filled.json("describe-version", "prod.users", "--version", "2")["version"]["version"] == 2
    filled("tags", "prod.users", "move", "v1", "2")
    assert "v1" in filled("tags", "prod.users")[1]
    filled("index", "prod.users", "add", "id", "--type", "BTREE", "--name", "by_id")
    assert "by_id" in filled("index", "prod.users")[1]
    assert filled.json("set-metadata", "prod.users", "--set", "team=blue")["metadata"]["team"] == "blue"
    filled.json("stats", "prod.users")
    filled.json("restore", "prod.users", "1", "--yes")
    assert filled("versions", "prod.users", "--limit", "2")[0] in (0, 5)


def test_tables_are_renamed_deregistered_registered_and_dropped(filled: Cli) -> None:
    filled.json("rename", "prod.users", "people")
    location = Path(filled.json("deregister", "people")["location"]).name
    assert filled("show", "people")[0] == 3
    filled.json("register", "people", location)
    filled.json("drop", "people", "--yes")
    filled.json("declare", "prod.later")
    assert filled("drop", "prod", "--yes")[0] == 4
    filled.json("drop", "prod", "--cascade", "--yes")
    assert filled("show", "prod")[0] == 3


def test_the_new_id_of_a_renamed_table_is_a_whole_id(filled: Cli) -> None:
    filled.json("rename", "prod.users", "prod.people")
    assert filled("ls", "prod")[1] == "people\n"
    filled.json("rename", "prod.people", "top")
    assert filled("tree")[1] == ".\n├── prod/\n└── top\n"
    filled.json("rename", "top", "prod$people", "--delimiter", "$")
    assert filled("rename", "prod.people", "")[0] == 5
    assert filled("rename", "prod.peeple", "nowhere.people")[0] == 3
    assert filled("tree")[1] == ".\n└── prod/\n    └── people\n"
    filled.json("rename", "prod.people", "new.deep.people")
    assert filled("ls", "new.deep")[1] == "people\n"


def test_a_limit_of_nothing_shows_nothing(filled: Cli) -> None:
    assert filled("query", "prod.users", "--limit", "0")[1] == "(no rows)\n"
    assert filled("head", "prod.users", "--limit", "0", "--json") == (0, "", "")
    assert filled("query", "prod.nope", "--limit", "0")[0] == 3


def test_creating_makes_the_namespaces_above(cli: Cli, people: str) -> None:
    assert cli("create", "a.b.users", people)[0] == 0
    assert cli("declare", "c.d.later")[0] == 0
    assert cli("create", "e.f", "--namespace")[0] == 0
    assert cli("create", "e.f", "--namespace")[0] == 4
    assert cli("insert", "nope.users", people)[0] == 3
    names = [word for word in cli("tree")[1].split() if word[0] not in "├│└"]
    assert names == [".", "a/", "b/", "users", "c/", "d/", "later", "e/", "f/"]


def test_storage_options_are_shown_by_name_only() -> None:
    secret = {"storage_options": {"region": "eu", "secret_access_key": "canary"}}
    answers: list[Any] = [secret, [secret], {"results": [{"create_table": secret}]}]
    answers += [lance_namespace.DescribeTableResponse.from_dict({"location": "x", **secret})]
    for answer in answers:
        shown = json.dumps(plain(answer))
        assert "secret_access_key" in shown
        assert "canary" not in shown
        assert "eu" not in shown


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("show", "nope"), 3),
        (("create", "prod", "--namespace"), 4),
        (("create", "a/b", "--namespace"), 5),
        (("deregister", ""), 5),
        (("query", "prod.users", "--vector", "x"), 5),
    ],
)
def test_a_refusal_is_one_line_and_the_exit_of_the_error_table(
    filled: Cli, arguments: tuple[str, ...], status: int
) -> None:
    code, out, err = filled(*arguments)
    assert (code, out) == (status, "")
    assert err.startswith("headwater: ")
    assert err.count("\n") == 1
    assert status in {row.exit for row in ERRORS.values()}


def test_a_whole_catalog_is_found_whole(filled: Cli) -> None:
    assert filled("verify") == (0, "The catalog is whole.\n", "")


def test_names_with_dots_need_another_delimiter(cli: Cli, people: str) -> None:
    assert cli("create", "v1.2", people, "--delimiter", "$")[0] == 0
    assert cli("ls")[1] == '"v1.2"\n'
    assert cli.json("count", '"v1.2"') == {"count": 3}


def test_keys_are_made_listed_and_revoked(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["token", "create", root, "--role", "writer", "--scope", "prod.raw", "--expires", "30d"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("hw_")
    assert out.count("\n") == 1
    assert "only time" in err
    main(["token", "list", root, "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [(key["role"], key["scope"], key["state"]) for key in listed] == [("writer", "prod.raw", "valid")]
    assert out.strip().rsplit("_", 1)[1] not in json.dumps(listed)
    assert main(["token", "change", root, listed[0]["id"], "--role", "viewer,drop", "--scope", "dev"]) == 0
    assert "viewer,drop" in capsys.readouterr().out
    for scope in (".", ""):
        assert main(["token", "change", root, listed[0]["id"], "--scope", scope]) == 5
    assert main(["role", "set", root, "analyst", "describe,select"]) == 0
    assert main(["token", "change", root, listed[0]["id"], "--role", "analyst"]) == 0
    capsys.readouterr()
    assert main(["role", "list", root, "--json"]) == 0
    assert {"role": "analyst", "permissions": "describe,select"} in json.loads(capsys.readouterr().out)
    assert main(["role", "remove", root, "analyst"]) == 0
    assert main(["role", "remove", root, "analyst"]) == 3
    assert main(["role", "set", root, "reader", "admin"]) == 5
    assert main(["token", "revoke", root, listed[0]["id"], "--yes"]) == 0
    capsys.readouterr()
    main(["token", "list", root])
    assert "revoked" in capsys.readouterr().out
    assert main(["token", "revoke", root, "nokey", "--yes"]) == 3
    assert main(["token", "create", root, "--role", "owner"]) == 5
    assert main(["token", "create", root, "--role", "reader", "--expires", "soon"]) == 5


def test_a_malformed_line_is_argparses_exit(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["nothing"],
        ["deregister"],
        ["tags", "x", "t", "add", "v", "one"],
        ["create", "x", "a", "--namespace", "--set", "k"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(line)
        assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_every_verb_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for command in PROTOCOL:
        with pytest.raises(SystemExit) as stopped:
            main([command.name, "--help"])
        assert stopped.value.code == 0
        assert command.fixed["operation"] in capsys.readouterr().out


@pytest.mark.xdist_group("serve")
def test_the_command_line_works_on_a_served_catalog_too(
    root: str, people: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServeProcess(root, "--port", "0", "--no-access-log") as server:
        remote = Cli(server.url, capsys)
        remote.json("create", "a", "--namespace")
        remote.json("create", "a.t", people)
        assert remote.json("count", "a.t") == {"count": 3}
        assert remote("head", "a.t", "--limit", "1")[1].splitlines()[0].split() == ["id", "name"]
        assert remote("show", "a.nope")[0] == 3
        assert main(["token", "create", server.url, "--role", "reader"]) == 5
        capsys.readouterr()
        assert main(["token", "create", root, "--role", "reader"]) == 0
        key = capsys.readouterr().out.strip()
        answer = httpx.get(f"{server.url}/v1/table", headers={"x-api-key": key})
        assert answer.json() == {"tables": ["a$t"]}
        assert remote("ls", "a", "--property", f"headers.x-api-key={key}")[1] == "t\n"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("3", [(3, 4)]),
        ("1-5", [(1, 6)]),
        ("7-", [(7, -1)]),
        ("0-", [(0, -1)]),
        ("1-3,5,9-", [(1, 4), (5, 6), (9, -1)]),
    ],
)
def test_ranges_of_versions_can_be_said_on_the_command_line(said: str, meant: list[tuple[int, int]]) -> None:
    assert ranges(said) == [{"start_version": start, "end_version": end} for start, end in meant]


@pytest.mark.parametrize("said", ["", "-3", "x", "1-x", "1,,2", "1-2-3"])
def test_what_is_no_range_of_versions_is_refused(said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        ranges(said)


def test_every_version_but_the_newest_can_be_deleted_by_ranges(filled: Cli, people: str) -> None:
    filled("insert", "prod.users", people)
    filled("insert", "prod.users", people)
    assert filled("delete-versions", "prod.users", "1,2", "--yes")[0] == 0
    assert [item["version"] for item in filled.records("versions", "prod.users")] == [3]


def test_disk_is_freed_from_the_command_line(filled: Cli, people: str) -> None:
    filled("insert", "prod.users", people, "--mode", "overwrite")
    assert filled("clean-up", "prod.users")[0] == 5
    done = filled.json("clean-up", "prod.users", "--keep-versions", "1", "--grace-seconds", "0")
    assert (done["manifests"], done["bytes"] > 0) == (1, True)
    filled("insert", "prod.users", people)
    assert filled.json("optimize", "prod.users")["fragments_removed"] == 2
    assert filled("optimize", "prod.none")[0] == 3
