"""Time: versions of every table, and the history of a metastore catalog; other kinds say that they have none."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater import Catalog
from headwater.cli.moments import find_transaction
from headwater.cli.target import moment
from headwater.config import connect
from headwater.errors import InvalidInputError
from headwater.metastore import LogEntry
from headwater.rest.server import start_in_thread
from tests.cli.running import Cli

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("7", 7),
        ("2h ago", NOW - timedelta(hours=2)),
        ("90 min ago", NOW - timedelta(minutes=90)),
        ("3 days ago", NOW - timedelta(days=3)),
        ("2026-04-30T10:00:00+02:00", datetime(2026, 4, 30, 8, tzinfo=UTC)),
        ("2026-04-30T10:00:00Z", datetime(2026, 4, 30, 10, tzinfo=UTC)),
        ("now", NOW),
    ],
)
def test_a_moment_is_a_slot_a_time_or_so_long_ago(said: str, meant: object) -> None:
    assert moment(said, NOW) == meant


@pytest.mark.parametrize("said", ["", "yesterday", "2h", "-1", "ago", "2026-13-01", "1e3"])
def test_what_is_no_moment_is_refused(said: str) -> None:
    with pytest.raises(InvalidInputError):
        moment(said)


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert moment("2026-05-01T12:00") == datetime(2026, 5, 1, 3, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_past_is_read_by_slot_time_version_and_tag(lake: Cli, people: str) -> None:
    slot = lake.records("log")[-1]["slot"]
    moment = lake.records("versions", "prod.users")[-1]["time"]
    lake.ok("insert", "prod.users", people)
    lake.ok("create", "prod.new", people)
    assert lake.ok("count", "prod.users") == "6\n"
    for option in (("--at", str(slot)), ("--version", "1")):
        assert lake.ok("count", "prod.users", *option) == "3\n"
    assert lake("count", "prod.users", "--at", "2000-01-01T00:00Z")[0] in (3, 5)
    assert moment.endswith("Z")
    assert lake.ok("ls", "prod", "--at", str(slot)) == "users\n"
    assert lake.ok("tree", "--at", str(slot)) == ".\n└── prod/\n    └── users\n"
    assert lake.records("query", "SELECT count(*) AS n FROM prod.users", "--at", str(slot)) == [{"n": 3}]
    assert lake("ls", "--at", "999")[0] == 5


def test_people_are_told_of_tables_versions_and_deltas_and_not_of_how_they_are_kept(lake: Cli) -> None:
    orders = Catalog(lake.root).create_stream_table("raw.orders", {"id": "int64"}, keys="id")
    orders.upsert([{"id": 1}])
    orders.publish()
    log, history = lake.ok("log"), lake.ok("history", "raw.orders")
    assert ("create table prod.users; version 1 of prod.users" in log, "delta 1 of raw.orders" in log) == (True, True)
    done = [line.split()[2:4] for line in history.splitlines()[1:]]
    assert done == [["create", "table"], ["upsert", "1"], ["publish", "1"]]
    for word in ("table_version", "partition", "create stream raw", "create delta"):
        assert word not in log + history
    assert "partition" in {change["kind"] for entry in lake.records("log") for change in entry["changes"]}


def test_the_log_the_history_and_the_difference_are_told(lake: Cli, people: str) -> None:
    before = lake.records("log")[-1]["slot"]
    lake.ok("insert", "prod.users", people)
    lake.ok("rename", "prod.users", "prod.people")
    lake.ok("create", "new", people)
    entries = lake.records("log", "--after", str(before))
    assert [entry["slot"] for entry in entries] == sorted({entry["slot"] for entry in entries})
    assert entries[-1]["changes"][0]["name"] == "new"
    assert [entry["slot"] for entry in lake.records("log", "--limit", "1")] == [entries[-1]["slot"]]
    history = lake.records("history", "prod.people")
    assert history[0]["operation"].startswith("create")
    assert history[-1]["name"] == "prod.people"
    changes = {(item["name"], item["change"]) for item in lake.records("diff", str(before))}
    assert {("new", "added"), ("prod.people", "moved"), ("prod.people", "rows")} <= changes
    rows = {item["name"]: item["was"] for item in lake.records("diff", str(before)) if item["change"] == "rows"}
    assert rows == {"new": "1 new version", "prod.people": "1 new version"}
    back = {item["was"] for item in lake.records("diff", str(entries[0]["slot"]), str(before))}
    assert back == {"1 fewer version"}
    moved = next(item for item in lake.records("diff", str(before)) if item["change"] == "moved")
    assert moved["was"] == "prod.users"
    assert lake("diff", str(entries[-1]["slot"]))[:2] == (0, "")


def test_a_transaction_is_taken_back(lake: Cli, people: str) -> None:
    lake.ok("create", "other", people)
    slot, txn = (lake.records("log")[-1][key] for key in ("slot", "txn"))
    would = lake.json("undo", txn, "--dry-run")
    assert (would["undone"], would["slot"], would["steps"][:1]) == (None, None, ["drop table other"])
    assert lake("undo", "prod.users", "--dry-run")[0] == 5
    done = lake.json("undo", str(slot), "--yes")
    assert (done["undone"], done["slot"] > slot) == (slot, True)
    assert lake.ok("ls") == "prod/\n"
    assert lake("undo", "999", "--yes")[0] == 3
    assert lake("undo", f"{txn[:-1]}{'0' if txn[-1] != '0' else '1'}", "--yes")[0] == 3


def test_of_transactions_that_share_a_slot_one_is_named_by_its_id() -> None:
    entries = [LogEntry(5, n, datetime.now(UTC), f"work {n}", "", f"id-{n}", ()) for n in range(2)]
    catalog: Any = SimpleNamespace(slot=5, log=lambda *after: iter(entries))
    with pytest.raises(InvalidInputError, match=r"2 transactions.*id-0 \(work 0\); id-1 \(work 1\)"):
        find_transaction(catalog, "5")
    assert find_transaction(catalog, "id-1") == entries[1]


def test_an_object_gets_another_name_beside_its_own_near_and_behind_a_server(
    lake: Cli, capfd: pytest.CaptureFixture[str]
) -> None:
    with start_in_thread(connect("metastore", {"root": lake.root})) as server:
        for cli in (lake, Cli(server.url, capfd)):
            made = {"name": "prod.users", "id": ["prod", "users"], "alias": "people"}
            assert cli.json("alias", "prod.users", "people") == made
            assert cli.ok("count", "prod.people") == "3\n"
            assert cli("alias", "prod.users", "people")[0] == 4
            assert cli("alias", "prod.nobody", "other")[0] == 3
            assert cli.json("unalias", "prod.users", "people") == made
            assert cli("count", "prod.people")[0] == 3
            assert cli("unalias", "prod.users", "people")[0] in (3, 5)


def test_a_moment_of_the_catalog_has_a_name(lake: Cli, people: str) -> None:
    assert lake.records("snapshot", "add", "monday")[0]["snapshot"] == "monday"
    lake.ok("insert", "prod.users", people)
    lake.ok("create", "new", people)
    assert lake.ok("count", "prod.users", "--at", "monday") == "3\n"
    assert lake.ok("ls", "--at", "monday") == "prod/\n"
    assert ("new", "added") in {(item["name"], item["change"]) for item in lake.records("diff", "monday")}
    assert lake("count", "prod.users", "--at", "tuesday")[0] == 5
    assert {item["snapshot"]: item["tables"] for item in lake.records("snapshot", "add", "one", "--table", "new")} == {
        "monday": 1,
        "one": 1,
    }
    assert lake.ok("ls", "--at", "one") == "new\n"
    assert lake("snapshot", "add", "none", "--table", "nobody")[0] == 3
    assert lake("snapshot", "drop", "one", "--table", "new", "--yes")[0] == 5
    lake.ok("snapshot", "drop", "one", "--yes")
    assert lake("snapshot", "drop", "monday")[0] == 2
    assert lake.ok("snapshot", "drop", "monday", "--yes") == ""
    for words in (("add",), ("sideways",)):
        assert lake("snapshot", *words)[0] == 5


def test_an_old_version_becomes_the_current_one(lake: Cli, filled: Cli, people: str) -> None:
    for cli in (lake, filled):
        cli.ok("tags", "prod.users", "add", "best", "1")
        cli.ok("insert", "prod.users", people)
        assert cli.json("restore", "prod.users", "--tag", "best", "--yes")["restored"] == 1
        assert cli.ok("count", "prod.users") == "3\n"
        assert cli.json("restore", "prod.users", "2", "--yes")["version"] == 4
        assert cli("restore", "prod.users", "--yes")[0] == 5
        assert cli("restore", "prod.users", "2", "--tag", "best", "--yes")[0] == 5


@pytest.mark.parametrize(
    "line",
    [
        "log",
        "history prod.users",
        "diff 1",
        "undrop prod.users",
        "undo 1 --yes",
        "ls --at 1",
        "snapshot",
    ],
)
def test_a_directory_catalog_says_in_one_sentence_that_it_has_no_history(filled: Cli, line: str) -> None:
    verb, *words = line.split()
    status, out, err = filled(verb, *words)
    assert (status, out) == (5, "")
    assert err.count("\n") == 1
    assert "metastore" in err


def test_a_directory_catalog_is_read_at_a_time(filled: Cli) -> None:
    assert filled.ok("count", "prod.users", "--at", "now") == "3\n"
    assert filled("count", "prod.users", "--at", "3")[0] == 5


def test_every_verb_about_time_works_behind_a_server(lake: Cli, people: str, capfd: pytest.CaptureFixture[str]) -> None:
    with start_in_thread(connect("metastore", {"root": lake.root})) as server:
        far = Cli(server.url, capfd)
        first = far.records("log")[-1]["slot"]
        before = far.records("log")[-1]["time"]
        far.ok("snapshot", "add", "monday")
        far.ok("insert", "prod.users", people)
        far.ok("create", "prod.new", people)
        assert [item["version"] for item in far.records("versions", "prod.users")] == [1, 2]
        assert far.records("history", "prod.users")[-1]["version"] == 2
        assert far.records("log", "--limit", "1")[0]["changes"][0]["name"].startswith("prod.new")
        for moment in ("monday", str(first), before):
            assert far.ok("count", "prod.users", "--at", moment) == "3\n"
            assert far.ok("ls", "prod", "--at", moment) == "users\n"
            assert {item["name"] for item in far.records("diff", moment)} == {"prod.new", "prod.users"}
        assert far.records("diff", str(first), "monday") == []
        assert "lists the snapshots" in far("count", "prod.users", "--at", "tuesday")[2]
        assert far("undo", str(first))[0] == 2
        slot = far.records("history", "prod.users")[-1]["slot"]
        assert far.json("undo", str(slot), "--yes")["undone"] == slot
        assert far.ok("count", "prod.users") == "3\n"
        far.ok("insert", "prod.users", people)
        assert far("restore", "prod.users", "1")[0] == 2
        far.ok("restore", "prod.users", "1", "--yes")
        assert far.ok("count", "prod.users") == "3\n"
        far.ok("drop", "prod.new", "--yes")
        assert far.json("undrop", "prod.new")["kind"] == "table"
        assert far.ok("count", "prod.new") == "3\n"
        assert [item["snapshot"] for item in far.records("snapshot")] == ["monday"]
        far.ok("snapshot", "drop", "monday", "--yes")
        assert far.records("snapshot") == []
        assert far.json("collect", "--dry-run")["boundary"] == 0


def test_what_verify_finds_is_told_the_same_near_and_behind_a_server(
    lake: Cli, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder,) = Path(lake.root).glob("*_prod$users")
    shutil.copytree(folder, folder.with_name("0badf00d_prod$stray"))
    status, out, _ = lake("verify", "--json")
    assert (status, json.loads(out)["kind"]) == (1, "unreferenced_folder")
    with start_in_thread(connect("metastore", {"root": lake.root})) as server:
        assert Cli(server.url, capfd)("verify", "--json")[:2] == (1, out)
