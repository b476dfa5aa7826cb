"""A PostgreSQL 15 of a test's own, on a unix socket and loopback, stopped with it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BIN = Path("/usr/lib/postgresql/15/bin")
OWNER = "postgres"
"""PostgreSQL refuses to run as root; where a test runs as root, as this user."""


@dataclass(frozen=True)
class Postgres:
    """A running server, with a database `shop`."""

    folder: Path
    port: int

    def run(self, sql: str) -> str:
        """Run statements, each in a transaction of its own unless they say otherwise; the rows without headings."""
        line = [str(BIN / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", str(self.folder)]
        line += ["-p", str(self.port), "-U", OWNER, "-d", "shop", "-f", "-"]
        environment = {**os.environ, "PGTZ": "UTC"}
        done = subprocess.run(line, input=sql, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def is_there() -> bool:
    """Return whether PostgreSQL 15 is installed and can be run by this user."""
    return (BIN / "initdb").exists() and (os.getuid() != 0 or _owner() is not None)


def _owner() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(OWNER)
    except KeyError:
        return None


def _command(*words: str) -> list[str]:
    return ["runuser", "-u", OWNER, "--", *words] if os.getuid() == 0 else list(words)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server in a folder of its own (not below one that its user may not enter) and stop it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="headwater-pg-"))
    owner = _owner()
    if os.getuid() == 0 and owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    data, port = folder / "data", _free_port()
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    try:
        subprocess.run(
            _command(str(BIN / "initdb"), "-D", str(data), "-A", "trust", "-E", "UTF8", "--locale=C", "-N"), **quiet
        )
        settings = f"-k {folder} -p {port} -c listen_addresses=127.0.0.1 -c wal_level=logical -c fsync=off"
        settings += " -c timezone=UTC -c max_wal_size=256MB"
        control = [str(BIN / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log")]
        subprocess.run(_command(*control, "-o", settings, "start"), **quiet)
        try:
            made = _command(str(BIN / "createdb"), "-h", str(folder), "-p", str(port), "-U", OWNER, "shop")
            subprocess.run(made, **quiet)
            yield Postgres(folder, port)
        finally:
            subprocess.run(_command(*control, "-m", "immediate", "stop"), **{**quiet, "check": False})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
