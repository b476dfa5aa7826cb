"""`headwater serve` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]


class ServeProcess:
    """A real server process; `url` is what its one line says. It does data work itself unless told otherwise."""

    def __init__(self, *arguments: str, cwd: Path | None = None, module: str = "headwater") -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        data = () if "--data-workers" in arguments or module != "headwater" else ("--data-workers", "0")
        command = [sys.executable, "-m", module, "serve", *arguments, *data]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.split()[-1] if self.line else ""

    def stop(self, how: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit status, and the rest of stdout and stderr; with the signal 0 it is only waited for."""
        if self.process.poll() is None and how:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
