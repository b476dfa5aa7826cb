"""Real databases as live sources: random transactions while the engine, our process and the server are killed.

The tables equal what the database selects, and no reader ever sees a part of a transaction. `HEADWATER_KILLS` is the
number of kills.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headwater.catalog import Catalog
from headwater.errors import LanceNamespaceError, ServiceUnavailableError
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.pipeline.live import postgres_copy
from headwater.pipeline.live.debezium_reader import PYTHON
from headwater.pipeline.live.offsets import live_state
from headwater.pipeline.run_records import runs
from tests.interop.postgres.engine import engine_python
from tests.pipeline.live_servers import PATIENCE_S, LiveMariaDB, LivePostgres, LiveServer, started

pytestmark = pytest.mark.long
KILLS = int(os.environ.get("HEADWATER_KILLS", "30"))
SETUP = """
CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, note varchar(40));
CREATE TABLE entries (id int PRIMARY KEY, account int NOT NULL, amount bigint NOT NULL);
CREATE TABLE docs (id int PRIMARY KEY, n int, body text);
CREATE TABLE scratch (id int, part varchar(10), v int, PRIMARY KEY (id, part));
"""
TABLES = ("accounts", "entries", "docs", "scratch")
TEXT = """
[pipeline]
name = "live"
catalog = "./lake"
engine = "embedded"
[[source]]
name = "bank"
debezium = {source}
into = "raw.{{table}}"
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python with Debezium's engine: the one that the variable names, or one of the test's own."""
    given = os.environ.get(PYTHON)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, given or engine_python(tmp_path_factory.mktemp("debezium") / "venv"))
        patch.setenv("LIVE_PASSWORD", "secret")
        yield os.environ[PYTHON]


class Work:
    """Random transactions: the balances of accounts are at all times the sums of their entries."""

    def __init__(self, server: LiveServer, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.next = 1
        self.accounts: list[int] = []
        self.docs: list[int] = []
        self.columns = self.wide = 0

    def step(self) -> str:
        pick = self.random
        kind = pick.choice(["pay"] * 6 + ["open", "open", "move", "close", "doc", "doc", "touch", "touch", "redoc"])
        kind = pick.choice([kind] * 12 + ["truncate", "scratch", "scratch", "column", "wider"])
        if kind == "open" or len(self.accounts) < 4:
            self.next += 1
            self.accounts.append(self.next)
            return self._entry(f"INSERT INTO accounts VALUES ({self.next}, {{d}}, 'n{self.next}')", self.next)
        account = pick.choice(self.accounts)
        if kind == "move":
            self.next += 1
            self.accounts[self.accounts.index(account)] = self.next
            return f"UPDATE accounts SET id = {self.next}, note = 'moved' WHERE id = {account};"
        if kind == "close":
            self.accounts.remove(account)
            heir = pick.choice(self.accounts)
            held = f"SELECT b FROM (SELECT balance AS b FROM accounts WHERE id = {account}) x"
            take = f"UPDATE accounts SET balance = balance + ({held}) WHERE id = {heir}"
            return f"{take}; DELETE FROM accounts WHERE id = {account};"
        if kind == "doc" or (kind in ("touch", "redoc") and not self.docs):
            self.next += 1
            self.docs.append(self.next)
            return f"INSERT INTO docs (id, n, body) VALUES ({self.next}, 1, {self._long()});"
        if kind == "touch":
            return f"UPDATE docs SET n = n + 1 WHERE id = {pick.choice(self.docs)};"
        if kind == "redoc":
            doc = pick.choice(self.docs)
            self.docs.remove(doc)
            self.next += 1
            if pick.random() < 0.5:
                return f"DELETE FROM docs WHERE id = {doc};"
            self.docs.append(self.next)
            return f"UPDATE docs SET id = {self.next}, n = 0 WHERE id = {doc};"
        if kind == "scratch":
            many = ", ".join(f"({self.next + n}, 'p{n % 3}', {n})" for n in range(pick.randrange(1, 60)))
            self.next += 100
            return f"INSERT INTO scratch VALUES {many};"
        if kind == "truncate":
            return "TRUNCATE TABLE scratch;"
        if kind == "column" and self.columns < 5:
            self.columns += 1
            return f"ALTER TABLE docs ADD COLUMN c{self.columns} int; UPDATE docs SET c{self.columns} = n WHERE id > 0;"
        if kind == "wider" and self.columns > self.wide:
            self.wide += 1
            wider = self.server.wider("docs", f"c{self.wide}")
            return f"{wider}; UPDATE docs SET c{self.wide} = n + 5000000000 WHERE id > 0;"
        both = "; ".join(
            self._entry(f"UPDATE accounts SET balance = balance + {{d}} WHERE id = {a}", a).rstrip(";")
            for a in pick.sample(self.accounts, pick.randrange(1, 4))
        )
        return both + ";"

    def _entry(self, sql: str, account: int) -> str:
        amount = self.random.randrange(-1000, 1000)
        self.next += 1
        return f"{sql.format(d=amount)}; INSERT INTO entries VALUES ({self.next}, {account}, {amount});"

    def _long(self) -> str:
        text = "".join(self.random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=50))
        return f"'{text * self.random.choice([1, 1, 100, 300])}'"

    def run(self) -> None:
        """Do some steps in one transaction. One that the killed server did not answer may be done or not."""
        before = list(self.accounts), list(self.docs), self.columns, self.wide
        steps = [self.step() for _ in range(self.random.randrange(1, 4))]
        steps.sort(key=lambda step: step.startswith(("ALTER", "TRUNCATE")))  # these end a transaction of MariaDB
        try:
            self.server.run("\n".join(["BEGIN;", *steps, "COMMIT;"]))
        except subprocess.CalledProcessError:
            self.accounts, self.docs, self.columns, self.wide = before
            self.look()

    def look(self) -> None:
        """Know the database again after it was killed."""
        self.server.await_answer()
        self.accounts = [row["id"] for row in self.server.rows("accounts")]
        self.docs = [row["id"] for row in self.server.rows("docs")]
        self.next += 1000


class Reader(threading.Thread):
    """Checks all the time that the two tables agree, as read fresh and as published, and that nothing was forgotten by
    the database which is not committed here."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.root, self.wrong, self.looks, self.ended = root, list[str](), 0, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.05):
            catalog = Catalog(str(self.root))
            if not catalog.is_there:
                continue
            try:
                self.look(catalog.at(catalog.slot))
            except LanceNamespaceError as error:
                if not self.ended.is_set():
                    self.wrong.append(repr(error))

    def look(self, at: Catalog) -> None:
        if "raw.entries" not in at or "raw.accounts" not in at or live_state(at, "bank", False).is_partial:
            return
        tables = [at["raw.accounts"], at["raw.entries"]]
        found = [total(table.to_arrow(), name) for table, name in zip(tables, ("balance", "amount"), strict=True)]
        if all(table.published is not None for table in tables):
            served = [table.serving.to_arrow() for table in tables]
            found += [total(rows, name) for rows, name in zip(served, ("balance", "amount"), strict=True)]
        self.looks += 1
        if any(found[place] != found[place + 1] for place in range(0, len(found), 2)):
            self.wrong.append(f"at {at.slot}: {found}")


class SlotWatch(threading.Thread):
    """Checks all the time that the slot of PostgreSQL keeps the log of one batch at most, from the second batch after a
    start of the server."""

    def __init__(self, root: Path, server: LiveServer) -> None:
        super().__init__(daemon=True)
        self.root, self.server, self.ended = root, server, threading.Event()
        self.wrong, self.looks = list[str](), 0
        self.places: dict[int, int] = {}
        """The place in the log after each commit of the source."""
        self.began, self.since = "", 0

    def run(self) -> None:
        while not self.ended.wait(0.1):
            with suppress(LanceNamespaceError, subprocess.CalledProcessError):  # the server was killed
                self.look()

    def look(self) -> None:
        state = self.state(None)
        if state is None or state[0] < 2:
            return
        found, _, began = self.server.run(
            "SELECT confirmed_flush_lsn - '0/0', pg_postmaster_start_time() FROM pg_replication_slots WHERE active"
        ).partition("|")
        if not found:
            return
        if began != self.began:  # a server that was killed has the slot as it was at its last checkpoint
            self.began, self.since = began, (self.state(None) or state)[0]
        before = self.places.get(state[0] - 1) or self.before(state[0])
        if state[0] >= self.since + 2 and before is not None and self.state(None) == state:
            self.looks += 1
            if int(found) < before:
                self.wrong.append(f"commit {state[0]} to {state[1]}: the slot is at {found}, before {before}")

    def state(self, slot: int | None) -> tuple[int, int | None] | None:
        catalog = Catalog(str(self.root))
        if not catalog.is_there:
            return None
        state = live_state(catalog if slot is None else catalog.at(slot), "bank", False)
        place: int | None = None if state.offset is None or state.is_partial else state.offset[1].get("lsn_commit")
        if place is not None:
            self.places[state.commits] = place
        return state.commits, place

    def before(self, commits: int) -> int | None:
        """Return the place of the commit before this one, from the past of the catalog."""
        for slot in range(Catalog(str(self.root)).slot - 1, 0, -1):
            found = self.state(slot)
            if found is None or found[0] < commits:
                return found[1] if found is not None and found[0] == commits - 1 else None
        return None


def total(rows: pa.Table, column: str) -> int:
    return int(pc.sum(rows.column(column)).as_py() or 0)


def watching(folder: Path) -> subprocess.Popen[bytes]:
    log = (folder / "watch.log").open("ab")
    line = [sys.executable, "-m", "headwater", "run", str(folder / "pipeline.toml"), "--watch", "--every", "0.2"]
    return subprocess.Popen(line, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def await_commits(work: Work, root: Path) -> None:
    """Work until the source has committed some batches."""
    end, begun = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < end:
        work.run()
        catalog = Catalog(str(root))
        now = live_state(catalog, "bank", False).commits if catalog.is_there else 0
        begun = now if begun is None else begun
        if now >= begun + 2:
            return


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def difference(catalog: Catalog, server: LiveServer, table: str) -> list[Any]:
    """Return the rows that are only here or only there, by every column of the database."""
    there = server.rows(table)
    names = sorted({name for row in there for name in row})
    here = catalog[f"raw.{table}"].serving.to_arrow().to_pylist() if f"raw.{table}" in catalog else []
    one = {tuple(row.get(name) for name in names) for row in here}
    other = {tuple(row[name] for name in names) for row in there}
    return [*((row, "here") for row in one - other), *((row, "there") for row in other - one)][:5]


def source_of(server: LiveServer, copy: str | None) -> str:
    """Return the value of `debezium =`. In ranges needs psycopg: skips, saying why, where it is not installed."""
    if copy == "ranges":
        pytest.importorskip("psycopg", reason="pip install 'headwater[postgres]'")
    return server.source() if copy is None else server.source().removesuffix(" }") + f', copy = "{copy}" }}'


@pytest.mark.parametrize(("kind", "copy"), [(LivePostgres, "ranges"), (LivePostgres, None), (LiveMariaDB, None)])
def test_the_tables_equal_the_database_though_all_three_are_killed(
    kind: type[LiveServer], copy: str | None, engine: str, tmp_path: Path
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
    runs_on: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_run_ends_though_nothing_happened_since_the_last_commit(engine: str, tmp_path: Path) -> None:
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


def test_what_is_wrong_is_one_sentence_in_the_record(engine: str, tmp_path: Path) -> None:
    with started(LivePostgres) as server:
        server.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1);")
        file = tmp_path / "pipeline.toml"
        file.write_text(TEXT.format(source=server.source().replace('user = "postgres"', 'user = "nobody"')))
        with pytest.raises(ServiceUnavailableError, match='role "nobody" does not exist'):
            run_pipeline(read_pipeline(file))
        file.write_text(TEXT.format(source=server.source()))
        run_pipeline(read_pipeline(file))
        catalog = Catalog(str(tmp_path / "lake"))
        assert catalog["raw.t"].count() == 1
        server.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots; INSERT INTO t VALUES (2);")
        with pytest.raises(ServiceUnavailableError, match=r"the replication slot headwater_\w+ is gone"):
            run_pipeline(read_pipeline(file))
        assert "is gone" in runs(catalog)[0]["error"]
        run_pipeline(read_pipeline(file), full_refresh=["raw.t"])
        assert catalog["raw.t"].count() == 2
