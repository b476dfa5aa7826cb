"""Failures of a real database: one sentence in the record of the run; nothing is lost, and the other sources
go on."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog import Catalog
from headwater.errors import LanceNamespaceError
from headwater.pipeline import first_file, read_pipeline, run_pipeline
from headwater.pipeline.run_records import runs
from tests.pipeline.bank import TEXT, difference
from tests.pipeline.live_servers import LiveMariaDB, LivePostgres, started

pytestmark = pytest.mark.long
FILES = """
[[source]]
name = "files"
path = "in/*.json"
into = "raw.files"
"""


class Beside:
    """A pipeline of a database and of a folder, which goes on whatever is wrong with the database."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, 0
        (folder / "in").mkdir()
        self.catalog = Catalog(str(folder / "lake"))

    def run(self, source: str, fails: str | None = None, **how: Any) -> None:
        self.files += 1
        (self.folder / "in" / f"{self.files}.json").write_text(f'{{"id": {self.files}}}\n')
        (self.folder / "pipeline.toml").write_text(TEXT.format(source=source) + FILES)
        with pytest.raises(LanceNamespaceError, match=fails) if fails is not None else nullcontext():
            run_pipeline(read_pipeline(self.folder / "pipeline.toml"), **how)
        error = runs(self.catalog)[0]["error"]
        assert (error is None) == (fails is None)
        assert fails is None or (re.search(fails, error) and "\n" not in error)
        assert self.catalog["raw.files"].serving.count() == self.files


def test_what_is_wrong_is_one_sentence_in_the_record_and_other_sources_go_on(debezium: str, tmp_path: Path) -> None:
    with started(LivePostgres) as server:
        server.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);")
        beside, source = Beside(tmp_path), server.source()
        beside.run(source.replace('user = "postgres"', 'user = "nobody"'), fails='role "nobody" does not exist')
        beside.run(source)
        table = beside.catalog["raw.t"]
        assert table.count() == 1
        server.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots; INSERT INTO t VALUES (2);")
        beside.run(source, fails=r"the replication slot headwater_\w+ is gone")
        beside.run(source, full_refresh=["raw.t"])
        assert beside.catalog["raw.t"].count() == 2
        server.run("ALTER TABLE t ADD COLUMN v int; INSERT INTO t VALUES (3, 3);")
        beside.run(source)
        server.run("ALTER TABLE t ALTER COLUMN v TYPE text; INSERT INTO t VALUES (4, 'four');")
        for _ in range(2):
            beside.run(source, fails=r"'v' of raw\.t is int32, and string in the source now")
        assert beside.catalog["raw.t"].count() == 3
        beside.run(source, full_refresh=["raw.t"])
        assert difference(beside.catalog, server, "t") == []


def test_a_wrong_password_is_told_and_other_sources_go_on(
    debezium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(LiveMariaDB) as server:
        server.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);")
        beside = Beside(tmp_path)
        monkeypatch.setenv("LIVE_PASSWORD", "not this")
        beside.run(server.source(), fails="Access denied for user 'debezium'")
        monkeypatch.setenv("LIVE_PASSWORD", "secret")
        beside.run(server.source())
        assert difference(beside.catalog, server, "t") == []


def test_a_first_file_of_a_database_lists_its_tables_and_runs(
    debezium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg", reason="pip install 'headwater[postgres]'")
    monkeypatch.setenv("POSTGRES_PASSWORD", "any")
    with started(LivePostgres) as server:
        server.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE u (a text);")
        text = first_file(f"postgres://postgres@127.0.0.1:{server.port}/postgres", tmp_path)
        assert 'tables = ["public.t", "public.u"]' in text
        (tmp_path / "pipeline.toml").write_text(text)
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
        assert Catalog(str(tmp_path / "lake"))["postgres.t"].serving.count() == 1
        server.run("CREATE TABLE p (id int) PARTITION BY LIST (id)")
        assert 'tables = ["public.*"]' in first_file(f"postgres://postgres@127.0.0.1:{server.port}/postgres", tmp_path)
