"""A server whose workers die soon after they start: run as `python -m tests.rest.dying serve ROOT -`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path

from headwater import DirectoryNamespace
from headwater.rest.serve import ServePlan, serve
from headwater.rest.settings import Settings


def open_dying(target: str, properties: dict[str, str]) -> DirectoryNamespace:
    """The catalog; in a worker it is the end of it, once the server has said that it answers."""
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_die, args=(said(target),), daemon=True).start()
    return DirectoryNamespace(root=target)


def said(root: str) -> Path:
    return Path(f"{root}.said")


def _die(when: Path) -> None:
    while not when.exists():
        time.sleep(0.05)
    os._exit(3)


def main(root: str) -> int:
    from tests.rest.dying import open_dying as opener  # workers find it by this name

    def announce(url: str) -> None:
        print(f"Serving at {url}", flush=True)
        said(root).touch()

    return serve(ServePlan(root, {}, opener, Settings(), port=0, workers=2, restarts=1), announce)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2]))
