"""Files of change data on an object store: found by address or glob, and fetched to be read.

One is known again by its size and etag, so nothing is read to find out that it was taken. Only where a store gives
no etag its bytes are read: an absent one agrees with nothing.

Digests of files of this machine. A file that has rested is read once: a look at a folder costs its names, not its
bytes.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from headwater.errors import InvalidInputError
from headwater.store import Entry, KeyNotFoundError, Store, is_local, open_store

FOLDER = ".lance"


@dataclass(frozen=True)
class RemoteFile:
    """An object, or a folder of them that is one dataset."""

    uri: str
    digest: str
    size: int


def is_remote(path: str) -> bool:
    return "://" in path and not is_local(path)


def natural_order(name: str) -> tuple[list[object], str]:
    """Sort key of names of files: numbers in them by value, so that `changes-10` comes after `changes-2`."""
    parts = re.split(r"([0-9]+)", name)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def find_remote(uri: str, storage: Mapping[str, str]) -> list[RemoteFile]:
    """Return the files of an address or a glob in order of their names; perhaps none."""
    bucket, key = _split(uri)
    store = open_store(bucket, dict(storage))
    before = re.split(r"[*?\[]", key, maxsplit=1)[0]
    folder = key if before == key and key.endswith(FOLDER) else before.rpartition("/")[0]
    wanted = re.compile(_pattern(key))
    found: dict[str, list[Entry]] = {}
    for entry in store.list(folder):
        name = _dataset(entry.key)
        if wanted.fullmatch(name):
            found.setdefault(name, []).append(entry)
    named = sorted(found.items(), key=lambda each: natural_order(each[0]))
    return [_file(store, bucket, name, entries) for name, entries in named]


def _split(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri.replace("?", "%3F").replace("#", "%23"))
    return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/").replace("%3F", "?").replace("%23", "#")


def _dataset(key: str) -> str:
    """Return the name of the file that a key is of: a Lance dataset is one file to us."""
    head, dot, _ = key.partition(f"{FOLDER}/")
    return head + FOLDER if dot else key


def _pattern(text: str) -> str:
    """Return a glob as a regular expression: `*` and `?` stay inside a folder, `**` does not."""
    found = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])", text):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        is_set = part.startswith("[") and part.endswith("]")
        found += known.get(part, part.replace("[!", "[^") if is_set else re.escape(part))
    return found


def _file(store: Store, bucket: str, name: str, entries: list[Entry]) -> RemoteFile:
    size = sum(entry.size for entry in entries)
    if len(entries) == 1 and not name.endswith(FOLDER):
        return RemoteFile(f"{bucket}/{name}", f"{size}-{_tag(store, entries[0])}", size)
    told = "\n".join(f"{entry.key} {entry.size} {_tag(store, entry)}" for entry in entries)
    return RemoteFile(f"{bucket}/{name}", _digest(told.encode()), size)


def _tag(store: Store, entry: Entry) -> str:
    return entry.etag or _digest(store.get(entry.key))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@contextmanager
def fetched(uri: str, storage: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The file on local disk as long as the block runs, and its digest."""
    bucket, key = _split(uri)
    store: Store = open_store(bucket, dict(storage))
    try:
        data, entry = store.get(key), store.head(key)
    except KeyNotFoundError:
        raise InvalidInputError(f"There is no file {uri!r} to ingest.") from None
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        path = os.path.join(folder, f"fetched{os.path.splitext(key)[1]}")
        with open(path, "wb") as file:
            file.write(data)
        yield path, _file(store, bucket, key, [entry] if entry is not None else []).digest


CHUNK = 1 << 20
SETTLED_S, RESTED_S = 5, 60
"""The next change of a file that changed so recently may leave the same marks: any change within the first time, by the
grain of a clock, and one through memory within the second, until the system has written it. So a file is read again
once after each, and not at every look between."""
MOST = 100_000
"""The most files whose digests a process remembers."""
Marks = tuple[int, int, int, int, int]
_known: dict[str, tuple[Marks, str, float]] = {}
"""The marks of each file, its digest, and how long the file had rested when that was read."""


def digest_of_file(path: str) -> str:
    """Return the digest of a file's content, or of all files of a folder that is one dataset."""
    known, marks, rested = known_digest(path)
    if known is not None:
        return known
    if marks is None:
        return _digest_of_files(sorted(glob.glob(f"{path}/**", recursive=True)))
    digest = _digest_of_files([path])
    if rested > SETTLED_S:
        if len(_known) >= MOST:
            _known.clear()
        _known[path] = marks, digest, rested
    return digest


def known_digest(path: str) -> tuple[str | None, Marks | None, float]:
    """Return the digest of a file if it need not be read, its marks, and how long it has rested; a folder has none."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        return None, None, 0.0
    marks = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    rested = time.time() - max(found.st_ctime, found.st_mtime)
    before, digest, read = _known.get(path, (None, None, 0.0))
    return digest if before == marks and _is_sure(read, rested) else None, marks, rested


def _is_sure(read: float, now: float) -> bool:
    """Return True if a digest read after so long a rest holds now. Pure."""
    return read > RESTED_S or now <= RESTED_S


def _digest_of_files(names: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        if os.path.isfile(name):
            with open(name, "rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()
