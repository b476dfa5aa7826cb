"""Real database servers of a test's own that can be killed and started again: PostgreSQL 15 and MariaDB, as Debian has
them. They listen on loopback, and all of them is in one folder."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from tests.interop.postgres.server import BIN, _free_port

PATIENCE_S = 60.0


class LiveServer(ABC):
    """A server in a folder of its own. As root it runs as the user of its package."""

    connector: str
    owner: str
    user: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-live-"))
        self.port = _free_port()
        if os.getuid() == 0:
            own = pwd.getpwnam(self.owner)
            os.chown(self.folder, own.pw_uid, own.pw_gid)
        self.install()
        self.start()

    def __enter__(self) -> LiveServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def command(self, *words: str) -> list[str]:
        return ["runuser", "-u", self.owner, "--", *words] if os.getuid() == 0 else list(words)

    @abstractmethod
    def install(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def pid(self) -> int: ...

    @abstractmethod
    def run(self, sql: str) -> str:
        """Run statements and return what they print; CalledProcessError if one fails."""

    @abstractmethod
    def rows(self, table: str) -> list[dict[str, Any]]: ...

    @abstractmethod
    def source(self) -> str:
        """The value of `debezium =` for this server."""

    @abstractmethod
    def wider(self, table: str, column: str) -> str:
        """Return the statement that makes a column of whole numbers wider."""

    def kill(self) -> None:
        """End the server at once, and wait until it is gone."""
        try:
            pid = self.pid()
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            return
        end = time.monotonic() + PATIENCE_S
        while self.is_running(pid) and time.monotonic() < end:
            time.sleep(0.05)

    def is_running(self, pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def await_answer(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.run("SELECT 1")
                return
            except subprocess.CalledProcessError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


class LivePostgres(LiveServer):
    connector, owner, user = "postgres", "postgres", "postgres"
    ints = "int"

    def install(self) -> None:
        words = str(BIN / "initdb"), "-D", str(self.folder / "data"), "-A", "trust", "-E", "UTF8", "--locale=C", "-N"
        subprocess.run(self.command(*words), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def start(self) -> None:
        settings = f"-k {self.folder} -p {self.port} -c listen_addresses=127.0.0.1 -c wal_level=logical"
        settings += " -c timezone=UTC -c max_wal_size=256MB -c fsync=off"
        control = str(BIN / "pg_ctl"), "-D", str(self.folder / "data"), "-w", "-l", str(self.folder / "log")
        line = self.command(*control, "-o", settings, "start")
        end = time.monotonic() + PATIENCE_S
        while subprocess.run(
            line, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
        ).returncode:
            assert time.monotonic() < end, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.2)  # processes of the server that was killed still hold its memory
        self.await_answer()

    def pid(self) -> int:
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def run(self, sql: str) -> str:
        line = [str(BIN / "psql"), "-h", str(self.folder), "-p", str(self.port), "-U", "postgres", "-qAt"]
        line += ["-v", "ON_ERROR_STOP=1", "-f", "-", "postgres"]
        done = subprocess.run(line, input=sql, check=True, capture_output=True, text=True, cwd="/")
        return done.stdout.strip()

    def rows(self, table: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run(f"SELECT coalesce(json_agg(t), '[]') FROM {table} t"))
        return found

    def wider(self, table: str, column: str) -> str:
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE bigint"

    def source(self) -> str:
        where = f'connector = "postgres", host = "127.0.0.1", port = {self.port}, user = "postgres"'
        return f'{{ {where}, database = "postgres", tables = ["public.*"], transactions = true }}'


class LiveMariaDB(LiveServer):
    connector, owner, user = "mariadb", "mysql", "debezium"
    ints = "int"

    def install(self) -> None:
        words = "mariadb-install-db", f"--datadir={self.folder}/data", "--auth-root-authentication-method=normal"
        subprocess.run(
            self.command(*words, "--skip-test-db", f"--tmpdir={self.folder}"),
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
        )

    def start(self) -> None:
        words = [
            "mariadbd",
            "--no-defaults",
            f"--datadir={self.folder}/data",
            f"--socket={self.folder}/socket",
            f"--pid-file={self.folder}/pid",
            f"--tmpdir={self.folder}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--log-bin=binlog",
            "--binlog-format=ROW",
            "--binlog-row-image=FULL",
            "--server-id=7",
            "--version=5.7.19",  # the engine has no connector for MariaDB, and that for MySQL looks at the version
            "--innodb-flush-log-at-trx-commit=2",
            "--sync-binlog=0",
            "--innodb-buffer-pool-size=64M",
            f"--log-error={self.folder}/log",
        ]
        self.process = subprocess.Popen(self.command(*words), cwd="/", stdin=subprocess.DEVNULL)
        self.await_answer()
        self.run(
            "CREATE DATABASE IF NOT EXISTS shop; CREATE USER IF NOT EXISTS debezium@'%' IDENTIFIED BY 'secret';"
            "GRANT SELECT, RELOAD, LOCK TABLES, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT, BINLOG MONITOR"
            " ON *.* TO debezium@'%';"
        )

    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def kill(self) -> None:
        super().kill()
        if getattr(self, "process", None) is not None:
            self.process.wait(PATIENCE_S)

    def run(self, sql: str) -> str:
        line = ["mariadb", "--no-defaults", f"--socket={self.folder}/socket", "-uroot", "-N", "-B", "-r"]
        shop = ["shop"] if (self.folder / "data" / "shop").exists() and "CREATE DATABASE" not in sql else []
        done = subprocess.run([*line, *shop], input=sql, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def rows(self, table: str) -> list[dict[str, Any]]:
        names = self.run(
            f"SELECT column_name FROM information_schema.columns WHERE table_schema = 'shop' AND table_name = '{table}'"
        ).split()
        pairs = ", ".join(f"'{name}', {name}" for name in names)
        return [json.loads(line) for line in self.run(f"SELECT JSON_OBJECT({pairs}) FROM {table}").splitlines() if line]

    def wider(self, table: str, column: str) -> str:
        return f"ALTER TABLE {table} MODIFY {column} bigint"

    def source(self) -> str:
        where = f'connector = "mariadb", host = "127.0.0.1", port = {self.port}, user = "debezium"'
        return f'{{ {where}, password = "env:LIVE_PASSWORD", database = "shop", transactions = true }}'


def started(kind: type[LiveServer]) -> LiveServer:
    """Start a server; skips, saying why, where it is not installed."""
    if kind is LivePostgres and not (BIN / "initdb").exists():
        pytest.skip("PostgreSQL 15 is not installed here")
    if kind is LiveMariaDB and shutil.which("mariadbd") is None:
        pytest.skip("MariaDB is not installed here (Debian: apt-get install mariadb-server)")
    if os.getuid() == 0:
        try:
            pwd.getpwnam(kind.owner)
        except KeyError:
            pytest.skip(f"a test that runs as root starts the server as {kind.owner}, and there is no such user")
    return kind()
