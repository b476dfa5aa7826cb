"""Is the state in memory still the newest? One cheap question per read, so another process's change is seen at once."""

from __future__ import annotations

import os
from typing import Protocol

from headwater.errors import CorruptFileError
from headwater.registries.layout import MANIFEST, VERSIONS, manifest_name, manifest_version
from headwater.store import LocalStore, Store


class Freshness(Protocol):
    """Notices that the table has moved on from a version."""

    def exists(self) -> bool:
        """Whether the table has any version at all."""
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

    def __init__(self, store: LocalStore) -> None:
        self._folder = os.path.join(store.root, MANIFEST, VERSIONS)

    def exists(self) -> bool:
        try:
            with os.scandir(self._folder) as items:
                return any(manifest_version(item.name) for item in items)
        except FileNotFoundError:
            return False
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
        return os.path.exists(os.path.join(self._folder, manifest_name(version + 1)))


class ListedFreshness:
    """One list request: the newest manifest's name comes first, and clean-up keeps the folder small."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def exists(self) -> bool:
        return self._newest() > 0

    def mark(self) -> object:
        return None

    def moved(self, version: int, mark: object) -> bool:
        return self._newest() != version

    def _newest(self) -> int:
        entries = self._store.children(f"{MANIFEST}/{VERSIONS}").entries
        found = (manifest_version(entry.key.rsplit("/", 1)[-1]) for entry in entries)
        return max((item[0] for item in found if item), default=0)


def freshness_of(store: Store) -> Freshness:
    return LocalFreshness(store) if isinstance(store, LocalStore) else ListedFreshness(store)
