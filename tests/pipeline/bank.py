"""A bank in a real database, at which random transactions work, and what is checked of its tables all the time."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headwater.catalog import Catalog
from headwater.errors import LanceNamespaceError
from headwater.pipeline.live.live_source import live_state
from tests.pipeline.live_servers import PATIENCE_S, LiveServer

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
    """Work until the source has committed some batches after its first copy: else no change would ever be killed."""
    end, begun = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < end:
        work.run()
        catalog = Catalog(str(root))
        state = live_state(catalog, "bank", False) if catalog.is_there else None
        if state is None or state.offset is None or state.is_partial:
            continue
        begun = state.commits if begun is None else begun
        if state.commits >= begun + 2:
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
