"""Where processes leave changes for one another, on local disk: `.headwater/spool/` (docs/formats/directory.md).

<id>.ask      changes that wait            written by the owner, renamed by whoever takes them
<id>.taken    changes somebody commits     removed by the owner to withdraw them
<id>.answer   what became of each ticket   written before <id>.taken is removed
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from typing import IO

import msgspec

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.model import Change
from headwater.registries.layout import SPOOL
from headwater.registries.manifest.changes import decode_changes, encode_changes
from headwater.store import storage_error
from headwater.turns import is_abandoned, names

STALE_S = 60.0
"""Nobody waits this long: what is older was left by a process that died."""


class Spool:
    """The requests that wait in one catalog."""

    def __init__(self, root: str, clock: Clock) -> None:
        self._folder = os.path.join(root, SPOOL)
        self._clock = clock

    def ask(self, id: str, groups: Sequence[Sequence[Change]]) -> IO[bytes]:
        """Leave a request. The file answered is locked; close it when the wait is over, as the owner's death does."""
        return self._write(id, "ask", encode_changes(groups))

    def claim(self) -> list[tuple[str, list[list[Change]]]]:
        """Take every request that waits."""
        claimed = []
        for name in self._names():
            id, _, state = name.partition(".")
            if not self._is_stale(name) and state == "ask" and not self._is_orphan(name):
                with contextlib.suppress(FileNotFoundError, ValueError):
                    self._rename(id, "ask", "taken")
                    claimed.append((id, decode_changes(self._read(id, "taken"))))
        return claimed

    def is_claimed(self, id: str) -> bool:
        """Whether the owner has not withdrawn what we took."""
        return os.path.exists(self._path(id, "taken"))

    def give_back(self, id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._rename(id, "taken", "ask")

    def answer(self, id: str, errors: Sequence[BaseException | None]) -> None:
        """Tell the owner. If that fails, it finds the note in the commit when it stops waiting."""
        with contextlib.suppress(LanceNamespaceError):
            if self.is_claimed(id):
                messages = [None if error is None else str(error) for error in errors]
                self._write(id, "answer", msgspec.json.encode(messages)).close()
                self._remove(id, "taken")

    def answers(self, id: str) -> list[BaseException | None] | None:
        """What became of our tickets, if somebody committed them; read once."""
        try:
            messages = msgspec.json.decode(self._read(id, "answer"), type=list[str | None])
        except FileNotFoundError:
            return None
        self._remove(id, "answer")
        return [None if message is None else ConcurrentModificationError(message) for message in messages]

    def withdraw(self, id: str) -> bool:
        """Take our request back. False: somebody had taken it, so it may have been committed."""
        untouched = self._remove(id, "ask")
        self._remove(id, "taken")
        return untouched

    def _names(self) -> list[str]:
        return sorted(names(self._folder))

    def _is_stale(self, name: str) -> bool:
        path = os.path.join(self._folder, name)
        try:
            if self._clock.now_ms() / 1000 - os.stat(path).st_mtime < STALE_S:
                return False
            os.unlink(path)
        except FileNotFoundError:
            pass
        return True

    def _is_orphan(self, name: str) -> bool:
        """A request that its owner no longer locks is of a process that died: nobody wants it done any more."""
        path = os.path.join(self._folder, name)
        if not is_abandoned(path):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return True

    def _write(self, id: str, state: str, data: bytes) -> IO[bytes]:
        temporary = self._path(id, f"{state}-writing")
        try:
            os.makedirs(self._folder, exist_ok=True)
            file = open(temporary, "wb")  # noqa: SIM115 (the caller closes it)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(data)
            file.flush()
            os.rename(temporary, self._path(id, state))
            return file
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise storage_error(error, SPOOL) from None

    def _read(self, id: str, state: str) -> bytes:
        with open(self._path(id, state), "rb") as file:
            return file.read()

    def _rename(self, id: str, old: str, new: str) -> None:
        os.rename(self._path(id, old), self._path(id, new))

    def _remove(self, id: str, state: str) -> bool:
        try:
            os.unlink(self._path(id, state))
        except FileNotFoundError:
            return False
        return True

    def _path(self, id: str, state: str) -> str:
        return os.path.join(self._folder, f"{id}.{state}")
