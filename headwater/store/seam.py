"""Seam 1, the object store: bytes at keys. A narrow protocol, with free functions over it.

A key is a relative path of non-empty parts joined by `/`. The catalog's promises rest on one ability only,
*create if absent* (`PutMode.CREATE`); `probe` finds the stores that merely claim to have it.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

from headwater.clock import Clock
from headwater.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    UnsupportedOperationError,
)

OWN_FOLDER = ".headwater"
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class PutMode(Enum):
    """The precondition of a put on its key."""

    CREATE = "create"
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class Entry:
    """The metadata of one key."""

    key: str
    size: int
    modified_ms: int
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """One level of a folder: its entries, and the names of its sub-folders, both sorted by bytes."""

    entries: tuple[Entry, ...]
    folders: tuple[str, ...]


class KeyNotFoundError(LookupError):
    """A read of a key that does not exist."""


class KeyExistsError(Exception):
    """A put with `PutMode.CREATE` found an object at its key."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The optional operations of a store. None: the store lacks it, and callers use puts, lists and deletes.

    Wrappers pass abilities on.
    """

    path: str | None = None
    """The folder on local disk that the keys are relative to, for reading without a request."""
    link: Callable[[str, str, bool], None] | None = None
    """(old, new, durable): give a finished file a second key, or KeyExistsError and nothing changes."""
    move_folder: Callable[[str, str], None] | None = None
    """(old, new): give a folder another key in one step, or KeyExistsError there, KeyNotFoundError here."""
    fill: Callable[[str, Callable[[str], None]], None] | None = None
    """(key, write): let another library write a new file at the key's path; it is durable afterwards."""
    prune: Callable[[str], None] | None = None
    """(folder): remove the folder and those below it as far as they are empty."""
    sweep: Callable[[int], int] | None = None
    """(before_ms): remove what killed writers left half written before a time; how many there were."""
    read: Callable[[str, int, int], bytes] | None = None
    """(key, start, length): a part of the bytes at a key, or KeyNotFoundError. A store with a path needs none."""
    create_after: Callable[[str, bytes, Sequence[str]], None] | None = None
    """(key, data, others): a durable put with CREATE of what refers to others, which were put without a sync. They
    survive a power cut from before the key is there."""
    identity: Callable[[str], object] | None = None
    """(key): a value that differs for another object put at the key, at no request; None if nothing is there."""


class Store(Protocol):
    """A store of bytes at keys. Every backend and wrapper passes the suite in `headwater.testing`."""

    @property
    def abilities(self) -> Abilities: ...

    def get(self, key: str) -> bytes:
        """Return all bytes at the key. KeyNotFoundError."""
        ...

    def head(self, key: str) -> Entry | None:
        """Return the metadata of the key; None if it does not exist."""
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
        """Return the bytes at many keys in one round; None for a missing key."""
        ...

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Yield the entries at or below the folder `prefix`, sorted by key, with keys greater than `after`."""
        ...

    def children(self, prefix: str = "") -> Listing:
        """Return the folder `prefix`, one level deep."""
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
    """Return the key; InvalidInput (13) if it cannot name an object inside a store."""
    parts = key.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in key:
        raise InvalidInputError(f"{key!r} is not a key inside the store.")
    return key


def check_prefix(prefix: str) -> str:
    return check_key(prefix.rstrip("/")) if prefix.rstrip("/") else ""


def side_by_side(threads: Executor, work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Return the answers of `work`, by threads. An interpreter that ends starts none: then one after another."""
    all_items = list(items)
    try:
        answers = threads.map(work, all_items)
    except RuntimeError:
        return [work(item) for item in all_items]
    return list(answers)


def read_part(store: Store, key: str, start: int, end: int) -> bytes:
    """Return the bytes from `start` up to `end` at a key, fewer if the object ends before. KeyNotFoundError."""
    abilities = store.abilities
    if abilities.read is not None:
        return abilities.read(key, start, end - start)
    if abilities.path is None:
        return store.get(key)[start:end]
    try:
        with open(f"{abilities.path}/{check_key(key)}", "rb", buffering=0) as file:
            file.seek(start)
            found = file.read(end - start)
            while found and len(found) < end - start and (more := file.read(end - start - len(found))):
                found += more
            return found
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise KeyNotFoundError(key) from None


def create(store: Store, key: str, data: bytes, others: Sequence[str] = ()) -> bool:
    """Create the key with bytes that hold a fresh id, and refer to others that were put without a sync. Returns True if
    this call created it.

    After a lost answer the put seems to conflict with itself or to have failed, so the key is read back. If that fails
    too, CommitStateUnknown is raised.
    """
    try:
        if others and store.abilities.create_after is not None:
            store.abilities.create_after(key, data, others)
        else:
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


def claim(store: Store, staged: str, final: str, data: bytes | None = None, durable: bool = True) -> bool:
    """Make the staged object the one at `final`, if there is none. True: it is ours, also after a lost answer.

    `data` are the staged bytes, if the caller has them in hand.
    """
    link = store.abilities.link
    if link is None:
        return create(store, final, store.get(staged) if data is None else data)
    try:
        link(staged, final, durable)
        return True
    except KeyExistsError:
        return is_same_file(store, staged, final)
    except LanceNamespaceError:
        if not is_same_file(store, staged, final):
            raise
        return True


def is_same_file(store: Store, first: str, second: str) -> bool:
    """Return True if both keys name one file, as after `link`. Always False on a store without links."""
    if store.abilities.link is None:
        return False
    found, other = store.head(first), store.head(second)
    return found is not None and other is not None and found.etag is not None and found.etag == other.etag


def write_with(store: Store, key: str, write: Callable[[str], None]) -> None:
    """Let another library write a new file and put it at the key: in place where the store has a path."""
    fill = store.abilities.fill
    if fill is not None:
        fill(key, write)
        return
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        path = os.path.join(folder, key.rsplit("/", 1)[-1])
        write(path)
        with open(path, "rb") as file:
            store.put(key, file.read())


def probe(store: Store, clock: Clock) -> None:
    """Raise an error for a store that accepts every conditional put: its writers would overwrite each other."""
    key = f"{OWN_FOLDER}/probe-{clock.hex(16)}"
    try:
        store.put(key, b"first", PutMode.CREATE)
    except PermissionDeniedError:
        raise PermissionDeniedError(
            "The storage does not permit to write there: check who may, or the storage.* credentials, or name another "
            "catalog. What is there can be read."
        ) from None
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


AT_ONCE = 64
TAIL = 64 << 10
"""The bytes of the end that the first read fetches: formats keep their index there."""


class RangedFile(io.RawIOBase):
    """A seekable file over a key, which sends for the ranges that are read. `read`: the store's ability."""

    def __init__(self, read: Callable[[str, int, int], bytes], key: str, size: int) -> None:
        self._read = read
        self._key = key
        self._size = size
        self._at = 0
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._part(self._at, min(len(buffer), self._size - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _part(self, start: int, length: int) -> bytes:
        if length <= 0:
            return b""
        first = max(self._size - TAIL, 0)
        if start < first:
            return self._read(self._key, start, length)
        if self._tail is None:
            self._tail = self._read(self._key, first, self._size - first)
        return self._tail[start - first : start - first + length]


def get_in_parts(store: Store, keys: Sequence[str]) -> Iterator[bytes | None]:
    """Yield the bytes at keys, or None for a key that does not exist, and hold no more than `AT_ONCE` of them."""
    for first in range(0, len(keys), AT_ONCE):
        yield from store.get_all(keys[first : first + AT_ONCE])
