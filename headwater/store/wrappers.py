"""Stores that wrap other stores: counters of requests, delays and faults for tests, and prefixes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from headwater.errors import ServiceUnavailableError
from headwater.store.seam import Abilities, Entry, KeyExistsError, Listing, PutMode, Store, check_prefix

Answer = TypeVar("Answer")
CREATES = frozenset({"put", "link", "move_folder", "fill"})
WRITES = CREATES | {"put_all", "delete", "delete_tree", "prune", "sweep"}


class WrappedStore:
    """A store that passes every request to another, abilities too. Subclasses override `around`."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.abilities = self._forwarded(inner.abilities)

    def _forwarded(self, inner: Abilities) -> Abilities:
        """Return the same abilities, each of them run by `around` under its name, with the key it writes."""
        link, move, fill, prune, sweep = inner.link, inner.move_folder, inner.fill, inner.prune, inner.sweep
        around, read, after = self.around, inner.read, inner.create_after
        return Abilities(
            inner.path,
            link and (lambda old, new, durable: around("link", new, lambda: link(old, new, durable))),
            move and (lambda old, new: around("move_folder", new, lambda: move(old, new))),
            fill and (lambda key, write: around("fill", key, lambda: fill(key, write))),
            prune and (lambda folder: around("prune", folder, lambda: prune(folder))),
            sweep and (lambda before_ms: around("sweep", "", lambda: sweep(before_ms))),
            read and (lambda key, start, length: around("read", key, lambda: read(key, start, length))),
            after and (lambda key, data, others: around("put", key, lambda: after(key, data, others))),
            inner.identity,
        )

    def around(self, verb: str, key: str, action: Callable[[], Answer]) -> Answer:
        return action()

    def get(self, key: str) -> bytes:
        return self.around("get", key, lambda: self.inner.get(key))

    def head(self, key: str) -> Entry | None:
        return self.around("head", key, lambda: self.inner.head(key))

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        self.around("put", key, lambda: self.inner.put(key, data, mode, durable))

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        """Put one by one, so that a wrapper which breaks `put` breaks these too."""
        for key, data in items:
            self.put(key, data, PutMode.OVERWRITE, durable)

    def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        return self.around("get_all", keys[0] if keys else "", lambda: self.inner.get_all(keys))

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        return self.around("list", prefix, lambda: self.inner.list(prefix, after))

    def children(self, prefix: str = "") -> Listing:
        return self.around("children", prefix, lambda: self.inner.children(prefix))

    def delete(self, key: str) -> None:
        self.around("delete", key, lambda: self.inner.delete(key))

    def delete_tree(self, prefix: str) -> None:
        self.around("delete_tree", prefix, lambda: self.inner.delete_tree(prefix))

    def sync(self, keys: Sequence[str]) -> None:
        self.inner.sync(keys)


class PlainStore(WrappedStore):
    """A store without abilities: a local directory is then used by puts, lists and deletes, as an object store is."""

    def _forwarded(self, inner: Abilities) -> Abilities:
        return Abilities()


class PrefixedStore:
    """A store over the folder `prefix` of another store."""

    def __init__(self, inner: Store, prefix: str) -> None:
        self.inner = inner
        self.prefix = check_prefix(prefix) + "/"
        self.abilities = self._forwarded(inner.abilities)

    def _forwarded(self, inner: Abilities) -> Abilities:
        at, link, move, fill, prune = self.prefix, inner.link, inner.move_folder, inner.fill, inner.prune
        read, after, identity = inner.read, inner.create_after, inner.identity
        return Abilities(
            inner.path and os.path.join(inner.path, at.rstrip("/")),
            link and (lambda old, new, durable: link(at + old, at + new, durable)),
            move and (lambda old, new: move(at + old, at + new)),
            fill and (lambda key, write: fill(at + key, write)),
            prune and (lambda folder: prune(at + folder)),
            inner.sweep,
            read and (lambda key, start, length: read(at + key, start, length)),
            after and (lambda key, data, others: after(at + key, data, [at + other for other in others])),
            identity and (lambda key: identity(at + key)),
        )

    def get(self, key: str) -> bytes:
        return self.inner.get(self.prefix + key)

    def head(self, key: str) -> Entry | None:
        entry = self.inner.head(self.prefix + key)
        return entry and self._own(entry)

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        self.inner.put(self.prefix + key, data, mode, durable)

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        self.inner.put_all([(self.prefix + key, data) for key, data in items], durable)

    def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        return self.inner.get_all([self.prefix + key for key in keys])

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        beyond = self.prefix + after if after else ""
        return (self._own(entry) for entry in self.inner.list(self.prefix + prefix, beyond))

    def children(self, prefix: str = "") -> Listing:
        listing = self.inner.children(self.prefix + prefix)
        return Listing(tuple(self._own(entry) for entry in listing.entries), listing.folders)

    def delete(self, key: str) -> None:
        self.inner.delete(self.prefix + key)

    def delete_tree(self, prefix: str) -> None:
        self.inner.delete_tree(self.prefix + prefix)

    def sync(self, keys: Sequence[str]) -> None:
        self.inner.sync([self.prefix + key for key in keys])

    def _own(self, entry: Entry) -> Entry:
        return replace(entry, key=entry.key.removeprefix(self.prefix))


class CountingStore(WrappedStore):
    """Counts the requests by verb, and keeps them in order. A round of many keys (`put_all`, `get_all`) is one."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counts: Counter[str] = Counter()
        self.requests: list[tuple[str, str]] = []

    def around(self, verb: str, key: str, action: Callable[[], Answer]) -> Answer:
        self.counts[verb] += 1
        self.requests.append((verb, key))
        return action()

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        self.around("put_all", items[0][0] if items else "", lambda: self.inner.put_all(items, durable))

    def reset(self) -> None:
        self.counts.clear()
        self.requests.clear()


class SlowStore(WrappedStore):
    """Waits before each request, as a store far away does."""

    def __init__(self, inner: Store, wait: Callable[[], None]) -> None:
        super().__init__(inner)
        self.wait = wait

    def around(self, verb: str, key: str, action: Callable[[], Answer]) -> Answer:
        self.wait()
        return action()


class LosesAnswerStore(WrappedStore):
    """A store that carries out writes of new keys and then raises. `loses(key)` selects them."""

    def __init__(self, inner: Store, loses: Callable[[str], bool]) -> None:
        super().__init__(inner)
        self.loses = loses

    def around(self, verb: str, key: str, action: Callable[[], Answer]) -> Answer:
        answer = action()
        if verb in CREATES and self.loses(key):
            raise ServiceUnavailableError(f"The storage did not answer the write of {key!r}.")
        return answer


class Crash(BaseException):
    """A simulated death of the process. Not an Exception, so that no handler of the product catches it."""


class CrashesAtStore(WrappedStore):
    """A store that dies at the n-th write, before or after its effect, and stays dead. `crash` may kill the process."""

    def __init__(self, inner: Store, step: int, after: bool = False, crash: Callable[[], None] | None = None) -> None:
        super().__init__(inner)
        self.step = step
        self.after = after
        self.crash = crash
        self.writes = 0
        self.dead = False
        self._lock = threading.Lock()

    def around(self, verb: str, key: str, action: Callable[[], Answer]) -> Answer:
        if self.dead:
            raise Crash
        if verb not in WRITES:
            return action()
        with self._lock:
            self.writes += 1
            last = self.writes == self.step
        if not last:
            return action()
        if self.after:
            with contextlib.suppress(Exception):
                action()
        self.dead = True
        if self.crash is not None:
            self.crash()
        raise Crash


class LyingStore(WrappedStore):
    """A store that accepts every conditional put, as some S3 gateways do. `probe` must refuse it."""

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        try:
            self.inner.put(key, data, mode, durable)
        except KeyExistsError:
            self.inner.put(key, data, PutMode.OVERWRITE, durable)
