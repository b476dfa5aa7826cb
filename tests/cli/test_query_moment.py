"""One SELECT reads all its tables at one commit, in UTC, and a mistake in it is told with its place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.catalog.table import CatalogTable
from headwater.rest.server import start_in_thread
from headwater.sql.embedded import run
from tests.cli.running import Cli

pytest.importorskip("duckdb")
BOTH = "SELECT (SELECT sum(n) FROM bank.a) + (SELECT sum(n) FROM bank.b) + (SELECT sum(n) FROM bank.c) AS n"


def bank(catalog: headwater.Catalog) -> headwater.Catalog:
    catalog.create_table("bank.a", pa.table({"id": [1], "n": [100]}))
    catalog.create_table("bank.b", pa.table({"id": [1], "n": [0]}))
    stream = catalog.create_stream_table("bank.c", pa.schema({"id": pa.int64(), "n": pa.int64()}), keys="id")
    stream.upsert([{"id": 1, "n": 0}])
    return catalog


@contextmanager
def served(catalog: headwater.Catalog) -> Iterator[headwater.Catalog]:
    server = start_in_thread(catalog.namespace)
    try:
        yield headwater.Catalog(server.url)
    finally:
        server.stop()


@pytest.mark.parametrize("far", [False, True], ids=["near", "behind a server"])
def test_a_transfer_between_two_openings_is_seen_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: bool
) -> None:
    catalog = bank(headwater.Catalog(str(tmp_path / "lake")))
    moved: list[str] = []
    for kind, name in ((CatalogTable, "dataset"), (CatalogTable, "to_arrow")):
        read: Any = getattr(kind, name)

        def reads_and_then_money_moves(table: Any, *args: Any, read: Any = read, **options: Any) -> Any:
            found = read(table, *args, **options)
            if table.id.name == "a" and not moved:
                moved.append(table.name)
                with catalog.transaction("transfer") as tx:
                    tx["bank.a"].update({"n": 0})
                    tx["bank.b"].update({"n": 50})
                    tx["bank.c"].upsert([{"id": 1, "n": 50}])
            return found

        monkeypatch.setattr(kind, name, reads_and_then_money_moves)
    if far:
        with served(catalog) as behind:
            answer = run(BOTH, behind, is_near=False)
    else:
        answer = run(BOTH, catalog, is_near=True)
    assert moved == ["bank.a"]
    assert answer.to_pylist() == [{"n": 100}]


def test_a_query_computes_in_utc_wherever_it_runs(tmp_path: Path) -> None:
    catalog = headwater.Catalog(str(tmp_path / "lake"))
    late = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
    catalog.create_table("t", pa.table({"moment": pa.array([late], pa.timestamp("us", "UTC"))}))
    asked = "SELECT CAST(moment AS DATE) AS day, hour(moment) AS hour, CAST(moment AS STRING) AS text FROM t"
    line = [sys.executable, "-m", "headwater", "query", str(tmp_path / "lake"), asked, "--json"]
    done = subprocess.run(line, capture_output=True, text=True, env={"TZ": "Asia/Tokyo"}, cwd=tmp_path, check=False)
    assert done.stdout == '{"day":"2026-03-01","hour":23,"text":"2026-03-01 23:30:00"}\n', done.stderr


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("SELEC 1", "line 1, column 7"),
        ("SELECT id\nFROM prod.users\nWHER id > 1", "line 3, column 6"),
        ("SELECT 'äöü', (", "line 1, column 15"),
    ],
)
def test_a_mistake_in_sql_is_told_with_its_place(lake: Cli, sql: str, place: str) -> None:
    status, _, err = lake("query", sql)
    assert (status, place in err) == (5, True), err
    assert "syntax error" in err


def test_a_name_of_a_table_is_still_its_rows(lake: Cli) -> None:
    assert lake.records("query", "prod.users") == lake.records("query", 'prod."users"') != []
    assert lake("query", "prod.nothing")[0] == 3
