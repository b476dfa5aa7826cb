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
PORTS = ("8080", "9000")
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


class Reader:
    """Runs blocks as a person would: Python in one session, commands in one shell, both in the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._ports = {port: str(free_port()) for port in PORTS}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "AWS_"))}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        environment = {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(folder), "COLUMNS": "120"}
        self._shell = subprocess.Popen(
            ["bash", "-eo", "pipefail"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.said = ""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._shell.pid, each)
                self._shell.wait(10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def follow(self, block: Block) -> None:
        body = re.sub("|".join(PORTS), lambda found: self._ports[found[0]], block.body)
        if block.about.startswith("file: "):
            path = self.folder / block.about.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)
        elif block.language == "sh" and block.is_run:
            self._run(body, block.where)
        elif block.language == "python" and block.is_run:
            exec(compile(body, block.where, "exec"), self._names)
        else:
            assert not block.is_run, f"{block.where}: who runs {block.language}?"

    def _run(self, body: str, where: str) -> None:
        """The shell ends at the first command that fails, and with it its output."""
        stdin, stdout = self._shell.stdin, self._shell.stdout
        assert stdin is not None
        assert stdout is not None
        script = self.folder / ".block.sh"
        script.write_text(body)
        stdin.write(f"source {script} </dev/null\necho; echo '{DONE}'\n")
        stdin.flush()
        said: list[str] = []
        for line in stdout:
            if line == f"{DONE}\n":
                self.said += "".join(said)
                return
            said.append(line)
        raise AssertionError(f"{where}: a command failed\n{''.join(said)[-3000:]}")


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
