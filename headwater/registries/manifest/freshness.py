"""A cheap check, before each read, that the state in memory is the newest version of `__manifest`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol

from headwater.errors import CorruptFileError
from headwater.registries.layout import MANIFEST
from headwater.store import Store
from headwater.tables.layout import VERSIONS, manifest_name, manifest_version


class Freshness(Protocol):
    """A check for versions that other writers committed."""

    asks_the_store: bool
    """True if the check is a storage request; False if it costs next to nothing."""

    def newest(self) -> tuple[int, str] | None:
        """Return the newest version and the naming scheme of its manifest; None if there is no table."""
        ...

    def mark(self) -> object:
        """Return a mark, before a version is loaded, for `moved`."""
        ...

    def moved(self, version: int, mark: object) -> bool:
        """Return True if a version newer than the one loaded after `mark` may exist."""
        ...


class LocalFreshness:
    """A check by two stats: of the next version's manifest, and of the folder's change time.

    The first sees every commit. The second also sees a next version that was committed and cleaned up meanwhile.
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
    """A check by one list request: the newest manifest sorts first, and clean-up keeps the folder small."""

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
