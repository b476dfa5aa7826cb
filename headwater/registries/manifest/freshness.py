"""Is the state in memory still the newest? One cheap question per read, so another process's change is seen at once."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from headwater.errors import CorruptFileError
from headwater.registries.layout import MANIFEST
from headwater.store import Store
from headwater.tables.layout import VERSIONS, manifest_name, manifest_version


class Freshness(Protocol):
    """Notices that the table has moved on from a version."""

    asks_the_store: bool
    """Whether a question is a request; else it is so cheap that it may be asked before any other."""

    def newest(self) -> tuple[int, str] | None:
        """The newest version and the naming scheme of its manifest; None: there is no table."""
        ...

    def mark(self) -> object:
        """Taken before a version is loaded, and given back to `moved`."""
        ...

    def moved(self, version: int, mark: object) -> bool:
        """Whether a version newer than the one loaded after `mark` may exist."""
        ...


class LocalFreshness:
    """Two stats: the next version's manifest, and the folder's change time.

    The first sees every commit. The second sees what the first cannot: that so many versions were committed
    and cleaned up meanwhile that the next one is gone again.
    """

    asks_the_store = False

    def __init__(self, path: str) -> None:
        self._folder = os.path.join(path, MANIFEST, VERSIONS)

    def newest(self) -> tuple[int, str] | None:
        try:
            return _newest(os.listdir(self._folder))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CorruptFileError(MANIFEST, f"its versions cannot be listed ({error.strerror})") from None

    def mark(self) -> object:
        try:
            return os.stat(self._folder).st_mtime_ns
        except OSError:
            return None

    def moved(self, version: int, mark: object) -> bool:
        if self.mark() != mark:
            return True
        return os.access(f"{self._folder}/{manifest_name(version + 1)}", os.F_OK)


class ListedFreshness:
    """One list request: the newest manifest's name comes first, and clean-up keeps the folder small."""

    asks_the_store = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self) -> tuple[int, str] | None:
        entries = self._store.children(f"{MANIFEST}/{VERSIONS}").entries
        return _newest(entry.key.rsplit("/", 1)[-1] for entry in entries)

    def mark(self) -> object:
        return None

    def moved(self, version: int, mark: object) -> bool:
        newest = self.newest()
        return newest is None or newest[0] != version


def _newest(names: Iterable[str]) -> tuple[int, str] | None:
    return max((found for name in names if (found := manifest_version(name))), default=None)


def freshness_of(store: Store) -> Freshness:
    path = store.abilities.path
    return ListedFreshness(store) if path is None else LocalFreshness(path)
