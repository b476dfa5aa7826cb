"""A store in memory whose requests are steps of the scheduler, with faults drawn from the seed.

A request takes effect at one step and is answered at a later one. In between others go on, its process may die, and its
answer may be lost. A local disk also forgets what was not synced when the power is cut; an object store may list late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headwater.errors import ServiceUnavailableError
from headwater.store import Abilities, Crash, Entry, KeyExistsError, KeyNotFoundError, Listing, PutMode
from headwater.store.seam import check_key, check_prefix
from headwater.testing.simulation.scheduler import Process, Scheduler

Answer = TypeVar("Answer")
KINDS = ("lost", "refused", "late", "crash", "stall", "outage", "lag", "power")
"""An answer is lost; a request is refused (throttled); a refused write lands later; a process dies; an answer comes
after minutes; a process gets no answer at all for a while; listings lack what is new; the power of the machine fails
(local disks only)."""
LAG_MS = 40
STALLS_MS = (100, 5_000, 700_000, 3 * 86_400_000)
OUTAGES_MS = (20, 300, 2_000)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object, or a file. A link shares it."""

    data: bytes
    modified_ms: int
    tag: str


@dataclass
class Faults:
    """The rates of faults of one run: each kind is off or on, and if on, rare or frequent."""

    rates: dict[str, float] = field(default_factory=dict)

    @classmethod
    def drawn(cls, chance: random.Random, local: bool) -> Faults:
        possible = [kind for kind in KINDS if (kind != "power" or local) and (kind not in ("late", "lag") or not local)]
        chosen = [kind for kind in possible if chance.random() < 0.4]
        return cls({kind: chance.choice((0.003, 0.01, 0.03)) for kind in chosen})

    def __str__(self) -> str:
        return ", ".join(f"{kind} {rate:g}" for kind, rate in self.rates.items()) or "none"


class Disk:
    """The objects of a root, which outlive every process. `unsynced`: keys as they were when last synced."""

    def __init__(self, scheduler: Scheduler, local: bool, faults: Faults, chance: random.Random) -> None:
        self.scheduler = scheduler
        self.local = local
        self.faults = faults
        self.random = chance
        self.path: str | None = "/simulated" if local else None
        self.files: MutableMapping[str, StoredObject] = {}
        self.unsynced: dict[str, StoredObject | None] = {}
        self.cut: Callable[[], None] = lambda: None
        """Called when the power fails: every process dies."""
        self.trace: Callable[[Process, str], None] = lambda process, text: None
        self._tags = 0

    @property
    def forgets(self) -> bool:
        """True if the power may fail: only then it matters what is synced."""
        return self.local and "power" in self.faults.rates

    def write(self, key: str, data: bytes, durable: bool) -> None:
        self._tags += 1
        self._change(key, StoredObject(data, self.scheduler.now_ms, f"{self._tags:x}"), durable)

    def remove(self, key: str) -> None:
        if key in self.files:
            self._change(key, None, False)

    def link(self, old: str, new: str, durable: bool) -> None:
        if old not in self.files:  # a file system looks for the old name first
            raise KeyNotFoundError(old)
        if new in self.files:
            raise KeyExistsError(new)
        if durable:
            self.sync(old)
        self._change(new, self.files[old], durable)

    def sync(self, key: str) -> None:
        """The bytes at a key are on the disk, and so is every name of its folder whose bytes are."""
        if not self.forgets:
            return
        self.unsynced.pop(key, None)
        folder = key.rpartition("/")[0]
        kept = {id(stored) for name, stored in self.files.items() if name not in self.unsynced}
        for name in [name for name in self.unsynced if name.rpartition("/")[0] == folder]:
            if name not in self.files or id(self.files[name]) in kept:
                del self.unsynced[name]

    def power_cut(self) -> None:
        """Kill every process, and lose some of what was not synced."""
        self.cut()
        for key, before in sorted(self.unsynced.items()):
            if self.random.random() < 0.5:
                if before is None:
                    self.files.pop(key, None)
                else:
                    self.files[key] = before
        self.unsynced.clear()

    def _change(self, key: str, stored: StoredObject | None, durable: bool) -> None:
        if self.forgets:
            self.unsynced.setdefault(key, self.files.get(key))
        if stored is None:
            del self.files[key]
        else:
            self.files[key] = stored
        if durable:
            self.sync(key)


class SimulatedStore:
    """The disk as one process reaches it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk = disk
        self.process = process
        self.silent_ms = 0
        """Until this time the process gets no answers."""
        link, after = (self.link, self.create_after) if disk.local else (None, None)
        self.abilities = Abilities(disk.path, link, read=self.read, create_after=after)

    def get(self, key: str) -> bytes:
        return self._around("get", check_key(key), lambda: self._found(key).data)

    def head(self, key: str) -> Entry | None:
        return self._around("head", check_key(key), lambda: self._entry(key))

    def read(self, key: str, start: int, length: int) -> bytes:
        return self._around("read", key, lambda: self._found(key).data[start : start + length])

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        def effect() -> None:
            if mode is PutMode.CREATE and key in self.disk.files:
                raise KeyExistsError(key)
            self.disk.write(key, data, durable)

        self._around("create" if mode is PutMode.CREATE else "put", check_key(key), effect)

    def create_after(self, key: str, data: bytes, others: Sequence[str]) -> None:
        self.sync(others)
        self.put(key, data, PutMode.CREATE)

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        """Put objects side by side: any part of them may have landed when the process dies."""
        order = list(items)
        if not self.disk.local:
            self.disk.random.shuffle(order)
        half = self.disk.random.randint(0, len(order))
        for some in (order[:half], order[half:]):
            if some:
                self._around("put_all", some[0][0], lambda some=some: self._write(some, durable))  # type: ignore[misc]

    def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        def effect() -> Sequence[bytes | None]:
            found = [self.disk.files.get(check_key(key)) for key in keys]
            return [None if stored is None else stored.data for stored in found]

        return self._around("get_all", keys[0] if keys else "", effect)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        folder = check_prefix(prefix)
        return iter(self._around("list", prefix, lambda: [each for each in self._listed(folder) if each.key > after]))

    def children(self, prefix: str = "") -> Listing:
        folder = check_prefix(prefix)
        skipped = len(folder) + 1 if folder else 0

        def effect() -> Listing:
            found = [(entry, entry.key[skipped:].partition("/")) for entry in self._listed(folder)]
            folders = {first for _, (first, slash, _) in found if slash}
            return Listing(tuple(entry for entry, (_, slash, _) in found if not slash), tuple(sorted(folders)))

        return self._around("children", prefix, effect)

    def delete(self, key: str) -> None:
        self._around("delete", check_key(key), lambda: self.disk.remove(key))

    def delete_tree(self, prefix: str) -> None:
        below = f"{prefix.rstrip('/')}/"

        def effect() -> None:
            for key in [key for key in self.disk.files if key.startswith(below)]:
                self.disk.remove(key)

        self._around("delete_tree", check_key(prefix.rstrip("/")), effect)

    def link(self, old: str, new: str, durable: bool = True) -> None:
        self._around("link", new, lambda: self.disk.link(old, new, durable))

    def sync(self, keys: Sequence[str]) -> None:
        def effect() -> None:
            for key in keys:
                self.disk.sync(key)

        if self.disk.local:
            self._around("sync", keys[0] if keys else "", effect)

    def _around(self, verb: str, key: str, effect: Callable[[], Answer]) -> Answer:
        """Return one request: on its way, carried out, answered."""
        disk, process = self.disk, self.process
        if process.dead:
            raise Crash
        if not disk.scheduler.is_scheduled():
            return effect()  # the setting up, the last look, and threads of Lance have no faults
        fault = self._fault()
        if fault == "outage":
            self.silent_ms = disk.scheduler.now_ms + disk.random.choice(OUTAGES_MS)
        if disk.scheduler.now_ms < self.silent_ms:
            fault = disk.random.choice(("lost", "refused"))
        disk.scheduler.switch()
        told = f"{verb} {key}" + (f" [{fault}]" if fault else "")
        if fault == "late" and verb in ("create", "put", "put_all"):
            disk.trace(process, told)
            disk.scheduler.later(disk.random.choice((3, 30, 3000)), lambda: _ignored(effect))
            raise ServiceUnavailableError(f"The storage did not answer {verb} {key!r}.")
        if fault == "refused":
            disk.trace(process, told)
            raise ServiceUnavailableError(f"The storage did not take {verb} {key!r}.")
        if fault in ("crash", "power") and disk.random.random() < 0.5:
            self._die(fault, told)
        try:
            answer = effect()
        except (KeyExistsError, KeyNotFoundError) as error:
            disk.trace(process, f"{told}: {'exists' if isinstance(error, KeyExistsError) else 'not there'}")
            disk.scheduler.switch()
            if fault == "lost":
                raise ServiceUnavailableError(f"The storage did not answer {verb} {key!r}.") from None
            raise
        disk.trace(process, told)
        if fault in ("crash", "power"):
            self._die(fault, told)
        if fault == "stall" or (fault == "lost" and disk.random.random() < 0.3):
            disk.scheduler.wait(None, disk.random.choice(STALLS_MS))
        disk.scheduler.switch()
        if fault == "lost":
            raise ServiceUnavailableError(f"The storage did not answer {verb} {key!r}.")
        return answer

    def _fault(self) -> str:
        for kind, rate in self.disk.faults.rates.items():
            if kind != "lag" and self.disk.random.random() < rate:
                return kind
        return ""

    def _die(self, fault: str, told: str) -> None:
        self.disk.trace(self.process, told)
        if fault == "power":
            self.disk.power_cut()
        self.process.dead = True
        raise Crash

    def _write(self, items: Sequence[tuple[str, bytes]], durable: bool) -> None:
        for key, data in items:
            self.disk.write(check_key(key), data, durable)

    def _found(self, key: str) -> StoredObject:
        try:
            return self.disk.files[key]
        except KeyError:
            raise KeyNotFoundError(key) from None

    def _entry(self, key: str) -> Entry | None:
        stored = self.disk.files.get(key)
        return None if stored is None else Entry(key, len(stored.data), stored.modified_ms, f'"{stored.tag}"')

    def _listed(self, folder: str) -> Iterator[Entry]:
        below, disk = f"{folder}/" if folder else "", self.disk
        lags = disk.random.random() < 20 * disk.faults.rates.get("lag", 0)
        for key in sorted(key for key in disk.files if key.startswith(below)):
            entry = self._entry(key)
            if entry is not None and not (
                lags and entry.modified_ms > disk.scheduler.now_ms - LAG_MS and disk.random.random() < 0.5
            ):
                yield entry


def _ignored(effect: Callable[[], object]) -> None:
    try:
        effect()
    except (KeyExistsError, KeyNotFoundError):
        return
