"""Digests of files of this machine. A file that has rested is read once: a look at a folder costs its names, not its
bytes."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import time
from collections.abc import Sequence

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
        return _digest(sorted(glob.glob(f"{path}/**", recursive=True)))
    digest = _digest([path])
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


def _digest(names: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        if os.path.isfile(name):
            with open(name, "rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()
