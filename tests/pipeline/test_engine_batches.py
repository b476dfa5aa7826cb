"""The engine's process says that it has caught up only after the batch that told it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from headwater.pipeline.live import debezium_engine
from headwater.pipeline.live.debezium_engine import Batches, Caught


class Told:
    """Pipes that keep what is written, and acknowledge after a while."""

    def __init__(self, wait_s: float = 0.0) -> None:
        self.lines, self.wait_s = list[dict[str, Any]](), wait_s

    def write(self, message: dict[str, Any]) -> None:
        self.lines.append(message)

    def read(self) -> dict[str, Any]:
        time.sleep(self.wait_s)
        return {"ack": True}


class Record:
    """A record of the engine, and its own source record."""

    def destination(self) -> str:
        return "headwater.public.t"

    def key(self) -> None: ...

    def value(self) -> str:
        return "{}"

    def sourceRecord(self) -> Record:
        return self

    def sourceOffset(self) -> int:
        return 1

    def sourcePartition(self) -> int:
        return 1


class Committer:
    def markProcessed(self, record: Record) -> None: ...

    def markBatchFinished(self) -> None: ...


class Slow(Caught):
    """Finds the mark in the first record of a batch, whose other records take long."""

    def __init__(self, takes_s: float, finds: bool = True) -> None:
        super().__init__(None)
        self.takes_s, self.finds = takes_s, finds

    def saw(self, topic: str, value: str | None, offset: Any) -> None:
        super().saw(topic, value, {})
        self.is_caught_up = self.finds
        time.sleep(self.takes_s)


@pytest.fixture
def orders(tmp_path: Any) -> dict[str, Any]:
    return {"transactions": False, "history_file": str(tmp_path / "history")}


def test_a_batch_that_has_the_mark_is_sent_before_it_is_said(
    orders: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debezium_engine, "LOOK_S", 0.01)
    pipes, caught = Told(), Slow(0.2)
    watching = threading.Thread(target=caught.watch, args=(pipes,))
    watching.start()
    Batches(pipes, orders, caught).handle([Record(), Record()], Committer())  # type: ignore[arg-type]
    watching.join(10)
    assert [list(line) for line in pipes.lines] == [["batch"], ["caught_up"]]
    assert len(pipes.lines[0]["batch"]["records"]) == 2


def test_the_time_of_a_commit_is_no_silence(orders: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debezium_engine, "QUIET_S", 0.3)
    pipes, caught = Told(wait_s=0.5), Slow(0.0, finds=False)
    batches = Batches(pipes, orders, caught)  # type: ignore[arg-type]
    handling = threading.Thread(target=batches.handle, args=([Record()], Committer()))
    handling.start()
    time.sleep(0.4)
    caught.look()
    assert not caught.is_caught_up
    handling.join(10)
    caught.look()
    assert not caught.is_caught_up
    time.sleep(0.4)
    caught.look()
    assert caught.is_caught_up == caught.streams
