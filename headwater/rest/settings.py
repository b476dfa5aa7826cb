"""Values that set up a server: limits, timeouts, authentication; and its on-disk names (docs/formats/directory.md).

Also counters that hold requests and bytes to the limits, for one caller and for all. Nothing here waits.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.clock import Clock
from headwater.errors import ServiceUnavailableError, ThrottlingError
from headwater.namespace.vending import ScopedSettings
from headwater.store.seam import OWN_FOLDER

MIB = 1024 * 1024
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True)
class Limits:
    """An upper bound on everything a caller can make the server hold or do.

    Bodies count as what they unpack to. `spooled` and `spooled_per_caller` bound the bytes of bodies held at a time.
    `connections` 0 means half of the descriptors that the process may have.
    """

    arrow_body: int = 64 * 1024 * MIB
    json_body: int = 16 * MIB
    in_memory_body: int = 4 * MIB
    depth: int = 32
    properties: int = MIB
    page: int = 100_000
    requests_per_second: float = 0.0
    burst: int = 50
    body_idle_seconds: float = 60.0
    request_seconds: float = 600.0
    threads: int = 24
    memory_bodies: int = 256 * MIB
    spooled: int = 128 * 1024 * MIB
    spooled_per_caller: int = 64 * 1024 * MIB
    waiting: int = 1536
    running_per_caller: int = 512
    connections: int = 0
    head: int = 64 * 1024
    head_seconds: float = 20.0
    keep_alive_seconds: float = 75.0
    write_idle_seconds: float = 60.0
    bad_keys_per_second: float = 0.5
    bad_keys_burst: int = 20


@dataclass(frozen=True)
class JwtSettings:
    """Bearer JWT: which issuers are believed, for which audience, with which keys and algorithms.

    `jwks` is a file or an https URL (http only on loopback), one for each issuer: the keys of one issuer prove nothing
    about the tokens of another. With one issuer it may be the source alone.
    `role_claim` and `scope_claim` may be dotted paths. Without a `scope_claim` the role holds for the whole catalog;
    with one, a token that lacks it may do nothing.
    """

    issuers: tuple[str, ...]
    audience: str
    jwks: str | Mapping[str, str]
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    role_claim: str = "role"
    scope_claim: str | None = None
    leeway_seconds: int = 30

    def sources(self) -> dict[str, str]:
        """Return the key set of each issuer."""
        if isinstance(self.jwks, str):
            return dict.fromkeys(self.issuers, self.jwks) if len(self.issuers) == 1 else {}
        return {issuer: self.jwks[issuer] for issuer in self.issuers if issuer in self.jwks}


@dataclass(frozen=True)
class Settings:
    """One server's settings. `api_key`, if set, is one more key, with every right (embedded servers use it).

    With `key_is_owner` the holder of that key acts for the process that serves: the log names the process's author.
    `vend_credentials` hands the catalog's own storage options, which may hold secrets, to whoever may read a table;
    `scoped` hands out short-lived ones for that table instead. `audit_log` is a file: see `auth.gate`.
    `host_names` are the names it is served by, `any_address` says that an open one is served by address too (see
    `origin.check_site`); only `proxies` are believed about whom they speak for. `tls_cert` and `tls_key` are PEM files.
    `read_only` refuses every change. `base_path` (`/lake`) is where a proxy shows the server: requests may come with it
    or without, links have it.
    """

    limits: Limits = field(default_factory=Limits)
    jwt: JwtSettings | None = None
    api_key: str | None = None
    key_is_owner: bool = False
    catalog_keys: bool = True
    access_log: bool = False
    vend_credentials: bool = False
    scoped: ScopedSettings | None = None
    audit_log: str | None = None
    metrics_folder: str | None = None
    host_names: tuple[str, ...] = ()
    any_address: bool = False
    proxies: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    read_only: bool = False
    base_path: str = ""


TOKENS = f"{OWN_FOLDER}/tokens"
OWN_ROLES = f"{OWN_FOLDER}/roles"
IDEMPOTENCY = f"{OWN_FOLDER}/idempotency"


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
        """Count one more request. Each `enter` that returns needs a `leave`."""
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
