"""Limits of concurrent requests and held bytes, for one caller and for all. Nothing here waits."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict

from headwater.clock import Clock
from headwater.errors import ServiceUnavailableError, ThrottlingError

MAX_REMEMBERED = 10_000


class Buckets:
    """A bucket of permits for each name, refilled at a steady rate; an empty one is Throttling (21)."""

    def __init__(self, per_second: float, burst: int, clock: Clock) -> None:
        self._rate = per_second
        self._burst = float(burst)
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, name: str) -> None:
        if not self._rate:
            return
        level, now = self._level(name)
        if level < 1:
            raise ThrottlingError(
                f"{name} has asked too often: at most {self._rate:g} requests a second. Wait a little."
            )
        self._put(name, level - 1, now)

    def is_empty(self, name: str) -> bool:
        return bool(self._rate) and name in self._levels and self._level(name)[0] < 1

    def _level(self, name: str) -> tuple[float, int]:
        now = self._clock.now_ms()
        level, before = self._levels.get(name, (self._burst, now))
        return min(self._burst, level + (now - before) * self._rate / 1000), now

    def _put(self, name: str, level: float, now: int) -> None:
        self._levels[name] = (level, now)
        self._levels.move_to_end(name)
        while len(self._levels) > MAX_REMEMBERED:
            self._levels.popitem(last=False)


class Running:
    """The number of running requests, in all and for each caller. Only the event loop uses it."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._by_caller: Counter[str] = Counter()
        self._all = 0

    def enter(self, caller: str) -> None:
        """One more request; every `enter` that returns is followed by a `leave`."""
        if self._all >= self._total:
            raise ServiceUnavailableError("The server has too many requests waiting: try again shortly.")
        if self._by_caller[caller] >= self._per_caller:
            raise ThrottlingError(f"{caller} has {self._per_caller} requests running: wait for some of them.")
        self._by_caller[caller] += 1
        self._all += 1

    def leave(self, caller: str) -> None:
        self._all -= 1
        self._by_caller[caller] -= 1
        if not self._by_caller[caller]:
            del self._by_caller[caller]


class Quota:
    """The number of bytes of bodies in memory and spool, in all and for each caller. Any thread may use it."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._by_caller: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.held = 0

    def take(self, caller: str, size: int) -> None:
        """Take bytes. Raise ServiceUnavailable (17) if none are left, Throttling (21) if the caller has its share."""
        with self._lock:
            if self._by_caller[caller] + size > self._per_caller:
                raise ThrottlingError(
                    f"The bodies that {caller} is sending hold more than {self._per_caller} bytes: "
                    "send fewer at once, or smaller ones."
                )
            if self.held + size > self._total:
                raise ServiceUnavailableError("The server holds as many bytes of bodies as it may: try again shortly.")
            self.held += size
            self._by_caller[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        with self._lock:
            self.held -= size
            self._by_caller[caller] -= size
            if not self._by_caller[caller]:
                del self._by_caller[caller]


class Holding:
    """The bytes that one request holds of a quota; given back once, whoever is first to see that it is over."""

    def __init__(self, quota: Quota, caller: str) -> None:
        self._quota = quota
        self._caller = caller
        self.size = 0

    @property
    def held_by_all(self) -> int:
        return self._quota.held

    def grow_to(self, size: int) -> None:
        """Hold so many bytes, if they are more than are held already."""
        if size > self.size:
            self._quota.take(self._caller, size - self.size)
            self.size = size

    def give_back(self) -> None:
        size, self.size = self.size, 0
        if size:
            self._quota.give_back(self._caller, size)
