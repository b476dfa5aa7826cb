"""Jobs of stream tables that are reached through a server: the same answers as where the root is opened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.cli import main
from headwater.errors import InvalidInputError, InvalidTableStateError, UnsupportedOperationError
from headwater.pipeline import plan_pipeline, read_pipeline, undo
from headwater.pipeline.jobs import backfill, ingest, publish
from headwater.pipeline.keeping import maintain
from headwater.rest.server import start_in_thread

SCHEMA = {"id": "int64", "at": "int64", "name": "string"}


@pytest.fixture(params=["here", "server"])
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Catalog]:
    """Two stream tables, opened where the root is and through a server."""
    root = tmp_path / "lake"
    with Catalog(str(root)) as made:
        made.create_namespace("raw")
        for name in ("raw.a", "raw.b"):
            made.create_stream_table(name, SCHEMA, keys=["id"], sequence=["at"], properties={"history": "scd2"})
        made.create_table("raw.plain", pa.table({"id": [1]}))
        if request.param == "here":
            yield made
            return
    server = start_in_thread(MetastoreNamespace(root=str(root)))
    try:
        yield Catalog(server.url)
    finally:
        server.stop()


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def names(lake: Catalog, table: str) -> list[str]:
    return sorted(lake[table].to_arrow()["name"].to_pylist())


def test_files_are_taken_once_undone_by_their_source_and_left_out_until_asked_for(
    lake: Catalog, tmp_path: Path
) -> None:
    first = write(tmp_path / "1.json", {"id": 1, "at": 1, "name": "x"}, {"id": None, "at": 1})
    second = write(tmp_path / "2.json", {"id": 1, "at": 2, "name": "y"}, {"id": 2, "at": 1, "name": "z"})
    files = str(tmp_path / "*.json")
    for table in ("raw.a", "raw.b"):
        report = ingest(None, lake, table, files, name="s")
        assert (report.rows, report.files, report.quarantined, report.skipped) == (3, 2, 1, 0)
    assert ingest(None, lake, "raw.a", files, name="s").skipped == 2
    done = publish(None, lake, "raw.a", "raw.b")
    assert [(part.table, part.rows, part.version > 0) for part in done.parts] == [
        ("raw.a", 3, True),
        ("raw.b", 3, True),
    ]
    assert lake["raw.a__history"].to_arrow().num_rows == 3
    assert set(lake["raw.a"].files("s")) == {first, second}

    report = undo(None, lake, source="s", file=second)
    assert [part.table for part in report.parts] == ["raw.a", "raw.b"]
    for table in ("raw.a", "raw.b"):
        assert names(lake, table) == ["x"] == sorted(lake[table].serving.to_arrow()["name"].to_pylist())
    with pytest.raises(InvalidTableStateError, match="was undone, or never taken"):
        undo(None, lake, source="s", file=second)
    report = ingest(None, lake, "raw.a", files, name="s")
    assert (report.files, report.skipped, report.undone) == (0, 1, 1)
    assert ingest(None, lake, "raw.a", files, name="s", again=True).files == 1
    assert names(lake, "raw.a") == ["y", "z"]

    (entry,) = lake["raw.a"].files("s")[second]
    assert entry.rows == 2
    assert undo(None, lake, "raw.a", digest=entry.digest[:12]).table == "raw.a"
    assert (names(lake, "raw.a"), list(lake["raw.a"].files("s", undone=True))) == (["x"], [second])


def test_a_publish_tells_how_many_rows_wait_for_a_backfill_and_how_to_run_it(
    lake: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, the publish of a new derived column through a server said nothing of the rows that have no value."""
    lake["raw.a"].upsert([{"id": n, "at": 1, "name": "x" * n} for n in range(3)])
    assert publish(None, lake, "raw.a").stale == 0
    made = {"function": "tests.streams.features:embed", "inputs": ["name"], "type": "float32[2]", "version": "1"}
    with Catalog(str(tmp_path / "lake")) as here:
        here["raw.a"].set_properties({"column.vector": json.dumps(made)})
    there: Any = lake.namespace
    where = ["-c", str(tmp_path / "lake") if isinstance(there, MetastoreNamespace) else there._properties["uri"]]
    assert main(["publish", *where, "raw.a"]) == 0
    assert "3 rows to backfill (headwater backfill raw.a)" in capsys.readouterr().out
    published: Any = lake["raw.a"].published
    assert (publish(None, lake, "raw.a").stale, published.stale) == (3, 3)
    assert main(["backfill", "-c", str(tmp_path / "lake"), "raw.a"]) == 0
    assert main(["publish", *where, "raw.a"]) == 0
    assert "to backfill" not in capsys.readouterr().out
    rows = Catalog(str(tmp_path / "lake"))["raw.a"].serving.to_arrow().to_pylist()
    assert {row["id"]: row["vector"] for row in rows} == {n: [float(n), 1.0] for n in range(3)}


def test_what_is_no_stream_table_and_what_is_not_said_is_refused(lake: Catalog) -> None:
    with pytest.raises(InvalidInputError, match="plain table"):
        publish(None, lake, "raw.plain")
    with pytest.raises(InvalidInputError, match="which source"):
        undo(None, lake)


@pytest.mark.parametrize("lake", ["server"], indirect=True)
def test_what_needs_the_files_says_where_it_runs(lake: Catalog, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOperationError, match="where the catalog's root is opened"):
        maintain(None, lake)
    with pytest.raises(UnsupportedOperationError, match="where the catalog's root is opened"):
        backfill(None, lake, "raw.a")
    there: Any = lake.namespace
    file = tmp_path / "pipeline.toml"
    file.write_text(f'[pipeline]\nname = "p"\ncatalog = "{there._properties["uri"]}"\n[table.x]\nkeys = []\n')
    with pytest.raises(UnsupportedOperationError, match="where the catalog's root is opened"):
        plan_pipeline(read_pipeline(file))


def test_the_command_line_undoes_a_source_without_naming_a_table(
    lake: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "1.json", {"id": 1, "at": 1, "name": "x"})
    bad = write(tmp_path / "2.json", {"id": None, "at": 1, "name": "x"})
    there: Any = lake.namespace
    where = ["-c", str(tmp_path / "lake") if isinstance(there, MetastoreNamespace) else there._properties["uri"]]
    assert main(["ingest", *where, "raw.a", path, "--name", "s"]) == 0
    assert main(["undo", *where, "--source", "s", "--file", path, "-y"]) == 0
    assert "undo      raw.a" in capsys.readouterr().out
    assert names(lake, "raw.a") == []
    for _ in range(2):  # a file of which nothing was loaded
        assert main(["ingest", *where, "raw.a", bad, "--name", "s", "--again"]) == 0
        assert lake["raw.a"].quarantine().num_rows == 1
        assert main(["undo", *where, "--source", "s", "--file", bad, "-y"]) == 0
        assert "1 taken out of the quarantine" in capsys.readouterr().out
        assert lake["raw.a"].quarantine().num_rows == 0
    assert main(["undo", *where, "-y"]) != 0
    assert "Say what to undo" in capsys.readouterr().err
