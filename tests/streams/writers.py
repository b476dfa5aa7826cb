"""Work of the writer processes of the tests. Light to import: each process imports this."""

from __future__ import annotations

import os
import signal

from headwater.metastore import Metastore
from headwater.store import CrashesAtStore, LocalStore
from headwater.streams.table import StreamTable

LAND, PUBLISH = "land", "publish"


def act(table: StreamTable, what: str) -> None:
    if what == LAND:
        table.ingest([{"id": 1, "at": 2, "note": "new"}, {"id": None, "at": 1}], source="s", token="once")
    else:
        table.publish()


def killed(root: str, what: str, step: int) -> None:
    """Land or publish; a SIGKILL comes right after the store's write of this number."""
    store = CrashesAtStore(LocalStore(root), step, True, crash=lambda: os.kill(os.getpid(), signal.SIGKILL))
    act(StreamTable(Metastore(store), ["t"]), what)


def land_and_publish(root: str, tally: str, writer: int, rounds: int) -> None:
    """Rows of its own keys and a row that all share, every batch twice; a line for each that was acknowledged."""
    table = StreamTable(Metastore(root), ["t"])
    with open(tally, "ab", buffering=0) as file:
        for number in range(rounds):
            rows = [{"id": 1_000 * writer + number, "at": 1, "note": "own"}, {"id": 1, "at": number, "note": "shared"}]
            for _ in range(2):
                table.upsert(rows, token=f"{writer}-{number}", source="s")
            file.write(f"{number}\n".encode())
            if number % 2:
                table.publish()
