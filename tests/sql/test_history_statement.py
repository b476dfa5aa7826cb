"""`DESCRIBE HISTORY`: the commits of a table in SQL, newest first, with what the writer did."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.catalog import Catalog
from headwater.cli import main
from headwater.errors import TableNotFoundError
from headwater.sql.embedded import SCHEMA, asked_name


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    pytest.importorskip("duckdb")
    made = Catalog(str(tmp_path / "lake"), author="Ada")
    users = made.create_table("prod.users", [{"id": 1}])
    users.append([{"id": 2}, {"id": 3}])
    users.delete("id = 1")
    made.rename_table("prod.users", "prod.people")
    return made


def test_it_says_what_was_done_when_and_by_whom_newest_first(catalog: Catalog) -> None:
    found = catalog.query("DESCRIBE HISTORY prod.people")
    assert found.schema == SCHEMA
    rows = found.to_pylist()
    assert [row["message"] for row in rows[1:3]] == [
        "delete 1 row from prod.users where id = 1 (version 3)",
        "append 2 rows to prod.users (version 2)",
    ]
    assert [row["operation"] for row in rows] == ["change table", "delete 1 row", "append 2 rows", "create table"]
    assert [row["version"] for row in rows] == [None, 3, 2, 1]
    assert {row["author"] for row in rows} == {"Ada"}
    assert (rows[0]["name"], rows[-1]["name"]) == ("prod.people", "prod.users")
    assert [row["commit"] for row in rows] == sorted((row["commit"] for row in rows), reverse=True)


def test_at_a_moment_it_has_what_was_committed_by_then(catalog: Catalog) -> None:
    (second,) = [entry.slot for entry in catalog.history("prod.people") if entry.version == 2]
    assert catalog.at(second).query("desc history prod.users;").num_rows == 2


def test_it_is_a_query_of_the_command_line(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["query", "-c", str(tmp_path / "lake"), "DESCRIBE HISTORY prod.people", "--limit", "1", "--json"]) == 0
    assert '"name":"prod.people"' in capsys.readouterr().out


def test_a_table_that_is_not_there_is_named(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError, match=r"prod\.peple"):
        catalog.query("DESCRIBE HISTORY prod.peple")


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("DESCRIBE HISTORY a", ("a",)),
        ("  describe\n history `a.b`.c ;", ("a.b", "c")),
        ('DESC HISTORY "a.b"', ("a.b",)),
        ("SELECT 1", None),
        ("DESCRIBE a", None),
    ],
)
def test_the_statement_is_known_by_its_words(sql: str, name: tuple[str, ...] | None) -> None:
    assert asked_name(sql) == name
