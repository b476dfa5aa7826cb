"""What the workers of these tests host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headwater.errors import CommitStateUnknownError, InvalidInputError, TableNotFoundError
from headwater.workers.channel import ask

MIB = 1 << 20


class Hosted:
    """Good and bad behaviour, by name."""

    def __init__(self, greeting: str) -> None:
        self._greeting = greeting
        self._kept: list[bytearray] = []

    def greet(self, arguments: Any, body: Any) -> str:
        return f"{self._greeting}, {arguments['name']}"

    def pid(self, arguments: Any, body: Any) -> int:
        return os.getpid()

    def size(self, arguments: Any, body: Any) -> int:
        return len(body)

    def rows(self, arguments: Any, body: Any) -> int:
        return sum(batch.num_rows for batch in body)

    def rows_until(self, arguments: Any, body: Any) -> int:
        raise InvalidInputError("No more of this.")

    def refuse(self, arguments: Any, body: Any) -> None:
        raise TableNotFoundError("There is no such table.")

    def unknown(self, arguments: Any, body: Any) -> None:
        raise CommitStateUnknownError("It may have landed.")

    def fail(self, arguments: Any, body: Any) -> None:
        raise RuntimeError("a secret path")

    def eat(self, arguments: Any, body: Any) -> None:
        while True:
            self._kept.append(bytearray(64 * MIB))

    def eat_in_arrow(self, arguments: Any, body: Any) -> int:
        return len(pa.allocate_buffer(1 << 36))

    def crash(self, arguments: Any, body: Any) -> None:
        os.kill(os.getpid(), getattr(signal, arguments["signal"]))

    def sleep(self, arguments: Any, body: Any) -> None:
        time.sleep(arguments["seconds"])

    def chunks(self, arguments: Any, body: Any) -> Iterator[bytes]:
        for number in range(arguments["count"]):
            if number == arguments.get("fail_at"):
                raise InvalidInputError("The rows ended here.")
            if number == arguments.get("crash_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            if "progress" in arguments:
                with open(arguments["progress"], "w") as file:
                    file.write(str(number))
            yield bytes([number % 256]) * arguments["size"]

    def parts(self, arguments: Any, body: Any) -> Iterator[list[Any]]:
        """Chunks in parts: small and large, bytes and Arrow buffers, over the ends of slots."""
        for _ in range(arguments["count"]):
            yield [b"head", pa.py_buffer(b"x" * 3 * MIB), b"", pa.array(range(1000), pa.int64()).buffers()[1], b"tail"]
        yield [pa.py_buffer(b"end")]

    def batches(self, arguments: Any, body: Any) -> pa.RecordBatchReader:
        batch = pa.record_batch({"x": pa.array(range(10), pa.int64())})
        return pa.RecordBatchReader.from_batches(batch.schema, [batch] * arguments["count"])

    def ask_twice(self, arguments: Any, body: Any) -> list[Any]:
        return [ask(b"one"), ask(b"two")]

    def ask_and_fail(self, arguments: Any, body: Any) -> Any:
        try:
            return ask(b"refuse")
        except TableNotFoundError as error:
            return str(error)

    def work_long(self, arguments: Any, body: Any) -> str:
        """Is silent for longer than a call may be, and works all the time."""
        end, count = time.monotonic() + arguments["seconds"], 0
        while time.monotonic() < end:
            count += 1
        return "done"

    def hold(self, arguments: Any, body: Any) -> int:
        return len(bytearray(arguments["size"]))


def host(greeting: str) -> Hosted:
    return Hosted(greeting)


def refuse_to_start() -> None:
    raise InvalidInputError("There is nothing to host.")


def die_at_start() -> None:
    os._exit(3)
