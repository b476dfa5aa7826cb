"""The only source of time, ids, randomness and sleep, so that a failing history replays from its seed."""

from __future__ import annotations

import os
import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """The source of time, sleep, ids and randomness. Nothing is ever ordered by `now_ms`."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    def uuid(self) -> str:
        """Return a new UUID V4."""
        ...

    def hex(self, digits: int) -> str:
        """Return a number of random lower-case hex digits."""
        ...

    def pause(self, attempt: int) -> None:
        """Wait before a retry: longer and more randomly with each attempt."""
        ...

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds."""
        ...


def unique_hex(digits: int) -> str:
    """Return random hex that ignores seeds: for secrets, and file names that must differ between replays."""
    return os.urandom((digits + 1) // 2).hex()[:digits]


class _Drawn:
    """Random digits for ids, drawn for many at a time: each call of the system hands Python on to another thread.

    A child of a fork draws its own."""

    def __init__(self) -> None:
        self._digits: list[str] = []
        os.register_at_fork(after_in_child=self._digits.clear)

    def next(self) -> str:
        while True:
            try:
                return self._digits.pop()
            except IndexError:
                drawn = unique_hex(32 * DRAWN)
                self._digits.extend(drawn[first : first + 32] for first in range(0, len(drawn), 32))


DRAWN = 64
_drawn = _Drawn()


class SystemClock:
    """The clock of real time and randomness."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def uuid(self) -> str:
        digits = _drawn.next()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    def hex(self, digits: int) -> str:
        return unique_hex(digits)

    def pause(self, attempt: int) -> None:
        self.sleep(random.uniform(0, min(0.001 * 2**attempt, 0.25)))

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class SeededClock:
    """A clock for tests: time moves one millisecond a question, ids come from a seed, pauses take no time."""

    def __init__(self, seed: int = 0, start_ms: int = 1_700_000_000_000, skew_ms: int = 0) -> None:
        self._random = random.Random(seed)
        self._now = start_ms + skew_ms

    def now_ms(self) -> int:
        self._now += 1
        return self._now

    def uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def pause(self, attempt: int) -> None:
        return None

    def monotonic(self) -> float:
        return self.now_ms() / 1000

    def sleep(self, seconds: float) -> None:
        self._now += int(seconds * 1000)
