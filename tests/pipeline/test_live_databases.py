"""Real databases as live sources: random transactions while the engine, our process and the server are killed.

The tables equal what the database selects, and no reader ever sees a part of a transaction. `HEADWATER_KILLS` is the
number of kills.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headwater.catalog import Catalog
from headwater.errors import ServiceUnavailableError
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.pipeline.live import postgres_copy
from headwater.pipeline.live.live_source import live_state
from tests.pipeline.bank import (
    SETUP,
    TABLES,
    TEXT,
    Reader,
    SlotWatch,
    Work,
    await_commits,
    children,
    difference,
    source_of,
    watching,
)
from tests.pipeline.live_servers import PATIENCE_S, LiveMariaDB, LivePostgres, LiveServer, started

pytestmark = pytest.mark.long
KILLS = int(os.environ.get("HEADWATER_KILLS", "30"))


@pytest.mark.parametrize(("kind", "copy"), [(LivePostgres, "ranges"), (LivePostgres, None), (LiveMariaDB, None)])
def test_the_tables_equal_the_database_though_all_three_are_killed(
    kind: type[LiveServer], copy: str | None, debezium: str, tmp_path: Path
) -> None:
    seed = int(os.environ.get("HEADWATER_SEED", "1"))
    with started(kind) as server:
        work = Work(server, seed)
        server.run(SETUP)
        for _ in range(20):
            work.run()
        (tmp_path / "pipeline.toml").write_text(TEXT.format(source=source_of(server, copy)))
        reader, ours, done = Reader(tmp_path / "lake"), watching(tmp_path), 0
        slots = SlotWatch(tmp_path / "lake", server)
        reader.start()
        if kind is LivePostgres:
            slots.start()
        pick = random.Random(seed)
        try:
            while done < KILLS:
                if pick.random() < 0.7:  # else it is killed while it starts
                    await_commits(work, tmp_path / "lake")
                until = time.monotonic() + pick.choice([0.0, 0.5, 2.0, 5.0])
                while time.monotonic() < until:
                    work.run()
                whom = ("engine", "ours", "server")[done % 3]
                if whom == "server":
                    server.kill()
                    server.start()
                    work.look()
                elif whom == "engine":
                    for child in children(ours.pid):
                        with suppress(ProcessLookupError):
                            os.kill(child, signal.SIGKILL)
                else:
                    ours.kill()
                    ours.wait()
                    ours = watching(tmp_path)
                done += 1
            ours.terminate()
            ours.wait(60)
        finally:
            ours.kill()
            ours.wait()
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
        reader.ended.set()
        slots.ended.set()
        reader.join()
        catalog = Catalog(str(tmp_path / "lake"))
        assert reader.wrong == []
        assert slots.wrong == []
        assert (slots.looks > KILLS) == (kind is LivePostgres)
        assert reader.looks > 0
        assert {table: difference(catalog, server, table) for table in TABLES} == {table: [] for table in TABLES}
        made = [name for name in (f"raw.{table}" for table in TABLES) if name in catalog]  # an empty one may not be
        assert all(catalog[name].quarantine().num_rows == 0 for name in made)
        if kind is LivePostgres:
            slot = server.run("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots")
            offset: Any = live_state(catalog, "bank").offset
            assert int(slot) == offset[1]["lsn"]


@pytest.mark.parametrize("runs_on", ["embedded", "spark"])
def test_a_copy_in_ranges_meets_the_changes_exactly(
    runs_on: str, debezium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read the blocks of all tables in one snapshot while others write, and the changes go on from there."""
    if runs_on == "spark":
        pytest.importorskip("pyspark", reason="pip install 'headwater[spark]'")
    monkeypatch.setattr(postgres_copy, "RANGE_BYTES", 1 << 14)
    with started(LivePostgres) as server:
        work = Work(server, 3)
        server.run(SETUP)
        server.run("INSERT INTO docs SELECT i, 0, repeat(md5(i::text), 20) FROM generate_series(1000000, 1000400) i;")
        for _ in range(30):
            work.run()
        text = TEXT.format(source=source_of(server, "ranges"))
        if runs_on == "spark":
            on = 'engine = "spark"\nmaster = "local[2]"\n[pipeline.spark]\ndriver_rows = 0'
            text = text.replace('engine = "embedded"', on)
        (tmp_path / "pipeline.toml").write_text(text)
        reader, ended, told = Reader(tmp_path / "lake"), threading.Event(), list[str]()
        catalog = Catalog(str(tmp_path / "lake"))

        def write() -> None:
            while not ended.wait(0.01):
                work.run()

        writer = threading.Thread(target=write)
        reader.start()
        writer.start()
        try:
            while not (catalog.is_there and "raw.docs" in catalog and live_state(catalog, "bank").offset):
                with suppress(ServiceUnavailableError):  # a table was truncated meanwhile
                    run_pipeline(read_pipeline(tmp_path / "pipeline.toml"), say=told.append)
        finally:
            ended.set()
            writer.join()
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))  # of a database in which nothing happens
        reader.ended.set()
        reader.join()
        assert reader.wrong == []
        assert {table: difference(catalog, server, table) for table in TABLES} == {table: [] for table in TABLES}
        found = next(re.search(r"copy 4 tables in (\d+) ranges", text) for text in told if "ranges" in text)
        assert found is not None
        assert int(found[1]) > 15


EVERY_TYPE = """
CREATE TYPE mood AS ENUM ('glad', 'so-so');
CREATE TABLE kinds (
  id int PRIMARY KEY, small int2, large int8, one float4, two float8, yes bool, body text, short varchar(20),
  fixed char(9), exact numeric(20, 4), loose numeric, who uuid, doc jsonb, raw bytea, day date, clock time,
  moment timestamp, instant timestamptz, feeling mood, numbers int[], texts text[], flags bool[], days date[],
  ids uuid[]);
INSERT INTO kinds SELECT i, i % 7, i * 10000000000, i / 3.0, i / 7.0, i % 2 = 0, repeat(md5(i::text), i % 120),
  'a "b", c' || chr(10) || i, 'x', i / 10000.0, i * 1.5, md5(i::text)::uuid,
  jsonb_build_object('n', i, 'deep', '[1.5, null]'::jsonb), decode(md5(i::text), 'hex'), date '1969-12-01' + i,
  time '00:00:01' + i * interval '1 second', timestamp '1969-12-01' + i * interval '1 hour 0.000001 second',
  timestamptz '1969-12-01 00:00+05' + i * interval '3 hours', CASE WHEN i % 3 = 0 THEN 'glad'::mood END,
  ARRAY[i, NULL, -i], ARRAY['', 'a,"b"', NULL, '{}'], ARRAY[true, NULL], ARRAY[date '1969-12-01' + i],
  ARRAY[md5(i::text)::uuid] FROM generate_series(1, 400) i;
INSERT INTO kinds (id) VALUES (0);
"""


def test_a_copy_in_ranges_is_the_copy_of_the_engine(
    debezium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways give the same columns, types and values."""
    monkeypatch.setattr(postgres_copy, "RANGE_BYTES", 1 << 14)
    with started(LivePostgres) as server:
        server.run(EVERY_TYPE)
        found = {}
        for way in ("engine", "ranges"):
            (tmp_path / way).mkdir()
            (tmp_path / way / "pipeline.toml").write_text(TEXT.format(source=source_of(server, way)))
            run_pipeline(read_pipeline(tmp_path / way / "pipeline.toml"))
            table = Catalog(str(tmp_path / way / "lake"))["raw.kinds"]
            assert table.quarantine().num_rows == 0
            rows = table.serving.to_arrow().sort_by("id")
            found[way] = rows.select([name for name in rows.schema.names if not name.startswith("_")])
        assert found["engine"].schema == found["ranges"].schema
        assert found["engine"].num_rows == 401
        assert found["engine"].to_pylist() == found["ranges"].to_pylist()


def test_early_years_of_mariadb_are_those_of_the_database(debezium: str, tmp_path: Path) -> None:
    with started(LiveMariaDB) as server:
        server.run("CREATE TABLE t (id int PRIMARY KEY, d date); INSERT INTO t VALUES (1, '0001-01-01');")
        (tmp_path / "pipeline.toml").write_text(TEXT.format(source=server.source()))
        for id in (2, 3):
            run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
            server.run(f"INSERT INTO t VALUES ({id}, '0069-12-31');")
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
        rows = Catalog(str(tmp_path / "lake"))["raw.t"].serving.to_arrow().sort_by("id")["d"].to_pylist()
        assert [str(day) for day in rows] == ["0001-01-01", "0069-12-31", "0069-12-31"]


def test_a_run_ends_though_nothing_happened_since_the_last_commit(debezium: str, tmp_path: Path) -> None:
    with started(LivePostgres) as server:
        server.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);")
        (tmp_path / "pipeline.toml").write_text(TEXT.format(source=server.source()))
        ours = watching(tmp_path)
        try:
            catalog = Catalog(str(tmp_path / "lake"))
            for id in (2, 3):
                end = time.monotonic() + PATIENCE_S
                while time.monotonic() < end and not (catalog.is_there and "raw.t" in catalog):
                    time.sleep(0.2)
                while time.monotonic() < end and catalog["raw.t"].count() < id - 1:
                    time.sleep(0.2)
                server.run(f"INSERT INTO t VALUES ({id});")
            while time.monotonic() < end and catalog["raw.t"].count() < 3:
                time.sleep(0.2)
        finally:
            ours.kill()
            ours.wait()
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
        assert catalog["raw.t"].count() == 3
