"""SEAM 1: bytes at keys. A narrow protocol, wide free functions over it.

A key is a relative path of non-empty parts joined by `/`. The catalog's promises rest on one ability only,
*create if absent* (`PutMode.CREATE`); `probe` finds the stores that merely claim to have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headwater.clock import Clock
from headwater.errors import CommitStateUnknownError, InvalidInputError, LanceNamespaceError, UnsupportedOperationError


class PutMode(Enum):
    """What a put expects of its key."""

    CREATE = "create"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a store knows of one key without reading it."""

    key: str
    size: int
    modified_ms: int
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One level of keys: the entries at it, and the names of the folders below it, both sorted by bytes."""

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]


class KeyNotFoundError(LookupError):
    """No object at this key."""


class KeyExistsError(Exception):
    """A put with `PutMode.CREATE` found an object at its key."""


class Store(Protocol):
    """Bytes at keys. Every backend and every wrapper is one, and passes the suite in `headwater.testing`."""

    def get(self, key: str) -> bytes:
        """All bytes at the key, or KeyNotFoundError."""
        ...

    def head(self, key: str) -> Entry | None:
        """What is known of the key, or None when nothing is there."""
        ...

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        """Write all bytes at once; with CREATE raise KeyExistsError, and change nothing, if the key is taken.

        A durable put survives a power cut once it returns. One that is not may be lost by it (never torn), and is
        for what can be written again from elsewhere; object stores make no difference.
        """
        ...

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        """Overwrite many keys in one round: side by side where the store can, in the given order where it cannot."""
        ...

    def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        """The bytes at many keys in one round, None where nothing is."""
        ...

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every entry at or below the folder `prefix`, sorted by key."""
        ...

    def children(self, prefix: str = "") -> Listing:
        """The folder `prefix`, one level deep."""
        ...

    def delete(self, key: str) -> None:
        """Remove the key; no error when nothing is there."""
        ...

    def delete_tree(self, prefix: str) -> None:
        """Remove the folder `prefix` with all below it; no error when nothing is there."""
        ...

    def sync(self, keys: Sequence[str]) -> None:
        """Make what another library wrote at these keys survive a power cut. Object stores already have."""
        ...


def check_key(key: str) -> str:
    """The key, if it can name an object inside a store; InvalidInput (13) otherwise."""
    parts = key.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise InvalidInputError(f"{key!r} is not a key inside the store.")
    return key


def check_prefix(prefix: str) -> str:
    return check_key(prefix.rstrip("/")) if prefix.rstrip("/") else ""


def create(store: Store, key: str, data: bytes) -> bool:
    """Create the key with bytes that nobody else can have written (they hold a fresh id). True: it is ours.

    After a lost answer the put seems to conflict with itself or to have failed, so the key is read back
    before anything is said; if even that fails, the outcome is unknown and the caller is told so.
    """
    try:
        store.put(key, data, PutMode.CREATE)
        return True
    except KeyExistsError:
        pass
    except LanceNamespaceError as lost:
        if not _is_there(store, key, data, lost):
            raise
        return True
    return _is_there(store, key, data, None)


def _is_there(store: Store, key: str, data: bytes, lost: LanceNamespaceError | None) -> bool:
    try:
        return store.get(key) == data
    except KeyNotFoundError:
        return False
    except LanceNamespaceError as unreachable:
        if lost is None:
            raise
        raise CommitStateUnknownError(
            f"The store did not answer the write of {key!r} and cannot be read now ({unreachable}). "
            "It may have landed: look before repeating it."
        ) from unreachable


def probe(store: Store, clock: Clock, folder: str = ".headwater") -> None:
    """Refuse a store that accepts every conditional put: two writers would lose each other's work on it."""
    key = f"{folder}/probe-{clock.hex(16)}"
    store.put(key, b"first", PutMode.CREATE)
    try:
        store.put(key, b"second", PutMode.CREATE)
    except KeyExistsError:
        if store.get(key) == b"first":
            return
    finally:
        store.delete(key)
    raise UnsupportedOperationError(
        "This store does not honour create-if-absent: a conditional put of an existing key succeeded. "
        "Commits cannot be made safe on it. Use a store with conditional writes (local disk, S3, GCS, Azure)."
    )
