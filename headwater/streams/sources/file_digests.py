"""Digests of files of this machine. A file that has rested is read once: a look at a folder costs its names, not its
bytes."""

from __future__ import annotations

import glob
import hashlib
import os
import time
from collections.abc import Sequence

CHUNK = 1 << 20
RESTED_S = 60
"""A file that changed so recently is read again: its next change may leave the same marks, as one through memory does
until the system has written it."""
MOST = 100_000
"""The most files whose digests a process remembers."""
Marks = tuple[int, int, int, int, int]
_known: dict[str, tuple[Marks, str]] = {}


def digest_of_file(path: str) -> str:
    """Return the digest of a file's content, or of all files of a folder that is one dataset."""
    if os.path.isdir(path):
        return _digest(sorted(glob.glob(f"{path}/**", recursive=True)))
    found = os.stat(path)
    marks = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    known = _known.get(path)
    if known is not None and known[0] == marks:
        return known[1]
    digest = _digest([path])
    if time.time() - max(found.st_ctime, found.st_mtime) > RESTED_S:
        if len(_known) >= MOST:
            _known.clear()
        _known[path] = marks, digest
    return digest


def _digest(names: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        if os.path.isfile(name):
            with open(name, "rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()
