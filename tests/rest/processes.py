"""`headwater serve` as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from headwater.cli import main
from tests.children import PROCESSES

CHECKOUT = Path(__file__).parents[2]
END_SECONDS = 60


class ServeProcess:
    """A real server process; `url` is what its one line says. It does data work itself unless told otherwise.

    The process is forked from one that has imported everything: the imports take a server two seconds of CPU. A server
    of another module and a `fresh` one are programs of their own, started as people do.
    """

    def __init__(
        self, *arguments: str, cwd: Path | None = None, module: str = "headwater", fresh: bool = False
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        data = () if "--data-workers" in arguments or module != "headwater" else ("--data-workers", "0")
        told = ["serve", *arguments, *data]
        self.process: subprocess.Popen[str] | ForkedProcess
        if fresh or module != "headwater":
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *told],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=cwd,
            )
        else:
            self.process = ForkedProcess(told, environment, cwd or Path.cwd())
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.url = self.line.split()[-1] if self.line else ""

    def stop(self, how: int = signal.SIGTERM) -> tuple[int, str, str]:
        """The exit status, and the rest of stdout and stderr; with the signal 0 it is only waited for."""
        if self.process.poll() is None and how:
            self.process.send_signal(how)
        out, err = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, out, err

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class ForkedProcess:
    """The command line in a forked process, with as much of `Popen` as tests of servers use."""

    def __init__(self, told: list[str], environment: dict[str, str], cwd: Path) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        self._process = PROCESSES.Process(target=_run, args=(_Ends(out_end, err_end), told, environment, str(cwd)))
        self._process.start()
        os.close(out_end)
        os.close(err_end)
        self.stdout, self._stderr = open(out), open(err)  # noqa: SIM115 - `communicate` closes both
        self.pid = int(self._process.pid or 0)

    @property
    def returncode(self) -> int:
        return int(self._process.exitcode or 0)

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = END_SECONDS) -> tuple[str, str]:
        """The rest of stdout and stderr, once the process has ended."""
        if self.stdout.closed:
            return "", ""
        with self.stdout, self._stderr:
            said = self.stdout.read(), self._stderr.read()
        self._process.join(timeout)
        return said


class _Ends:
    """The ends of two pipes that a new process writes to."""

    def __init__(self, out: int, err: int) -> None:
        self._ends = out, err

    def __getstate__(self) -> Any:
        return tuple(map(DupFd, self._ends))

    def __setstate__(self, ends: Any) -> None:
        for end, number in zip(ends, (1, 2), strict=True):
            os.dup2(end.detach(), number)


def _run(ends: _Ends, told: list[str], environment: dict[str, str], cwd: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.exit(main(told))
