"""The blocks of a page, and a reader who does what they say, one after the other, in an empty folder.

A fence names its language, and after it what is special about the block:

- `file: NAME`: it is the text of a file in the reader's folder;
- `long: why`: it is run by `make test-all` only;
- `no-run: why`: it is not run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<language>\w*)[ \t]*(?P<about>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
RUNNABLE = ("python", "sh", "sql")
DONE = "-- the block is done --"
LOOP = f"""
import sys
sys.path.insert(0, '')
names = {{'__name__': '__main__'}}
for line in sys.stdin:
    exec(compile(open(line.strip()).read(), 'block', 'exec'), names)
    print('\\n{DONE}', flush=True)
"""
PORTS = ("8080", "9000", "9464")
"""Ports that pages name; each reader gets free ones instead."""


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    page: str
    line: int
    language: str
    about: str
    body: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUNNABLE and not self.about.startswith(("no-run: ", "file: "))

    @property
    def is_long(self) -> bool:
        return self.about.startswith("long: ")


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["about"].strip(), found["body"])
        for found in FENCE.finditer(text)
    ]


class Session:
    """A program that is told one file after the other, and says when it is done with each."""

    def __init__(self, command: list[str], folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "AWS_"))}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HOME": str(folder), "COLUMNS": "120"}
        self.said = ""
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def tell(self, line: str, where: str) -> None:
        """It ends at the first thing that fails, and with it its output."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line)
        stdin.flush()
        said: list[str] = []
        for heard in stdout:
            if heard == f"{DONE}\n":
                self.said += "".join(said)
                return
            said.append(heard)
        raise AssertionError(f"{where}: it failed\n{''.join(said)[-3000:]}")

    def end(self) -> None:
        for each in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, each)
                self._process.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


class Reader:
    """Runs blocks as a person would: Python in one session, commands in one shell, both in the same folder.

    Python runs in this process, or `apart`: what starts a JVM or forks must.
    """

    def __init__(self, folder: Path, apart: bool = False) -> None:
        self.folder, self._apart = folder, apart
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._ports = {port: str(free_port()) for port in PORTS}
        self._sessions: dict[str, Session] = {}

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for session in self._sessions.values():
            session.end()

    def follow(self, block: Block) -> None:
        body = re.sub("|".join(PORTS), lambda found: self._ports[found[0]], block.body)
        if block.about.startswith("file: "):
            path = self.folder / block.about.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)
            if path.suffix == ".py":
                sys.modules.pop(path.stem, None)  # another page, or the demo, may have had a module of this name
        elif not block.is_run:
            return
        elif block.language == "python" and not self._apart:
            exec(compile(body, block.where, "exec"), self._names)
        elif block.language == "python":
            self._session("python", [sys.executable, "-c", LOOP]).tell(f"{self._kept(body)}\n", block.where)
        elif block.language == "sh":
            line = f"source {self._kept(body)} </dev/null\necho; echo '{DONE}'\n"
            self._session("sh", ["bash", "-eo", "pipefail"]).tell(line, block.where)
        else:
            raise AssertionError(f"{block.where}: who runs {block.language}?")

    def _session(self, name: str, command: list[str]) -> Session:
        if name not in self._sessions:
            self._sessions[name] = Session(command, self.folder)
        return self._sessions[name]

    def _kept(self, body: str) -> Path:
        script = self.folder / ".block"
        script.write_text(body)
        return script


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
