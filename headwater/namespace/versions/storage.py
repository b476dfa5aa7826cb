"""Versions that the storage keeps: the manifests in `_versions/` are all there is (directory document, "not enabled").

No operation lists the folder when it can name what it wants: a version is a file of a known name, and the newest one
is found from `latest_version_hint.json` upwards. A folder of 5,000 versions costs no more than one of 10.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import committed_ms
from headwater.model import Version
from headwater.namespace.versions.paths import SCHEMES, VersionLine
from headwater.store import Entry, KeyNotFoundError, Store, create
from headwater.tables.layout import VERSION_HINT, manifest_version

REMEMBERED = 10_000
"""Of so many manifests the times of their commits are read once: a manifest of one name and tag never changes."""
Identity = tuple[str, str | None, int | None]
PROBES = 64
"""So many names are tried one by one before the folder is listed after all."""


class StorageVersions:
    """The manifests of one store, by name."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._times: OrderedDict[Identity, int | None] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, line: VersionLine, number: int) -> Version | None:
        """One version: two or three requests."""
        found = self.look(line, number)
        return self.dated(line, [found])[0] if found else None

    def dated(self, line: VersionLine, versions: Sequence[Version]) -> list[Version]:
        """The versions with the times of their commits, which only the manifests know: a file's time is a copy's."""
        found: dict[int, int | None] = {}
        unknown: list[Version] = []
        with self._lock:
            for item in versions:
                known = _identity(line, item)
                if known in self._times:
                    found[item.number] = self._times[known]
                else:
                    unknown.append(item)
        manifests = self.store.get_all([line.key(item.manifest_path) for item in unknown]) if unknown else ()
        for item, data in zip(unknown, manifests, strict=True):
            found[item.number] = None if data is None else committed_ms(data)
            self._remember(_identity(line, item), found[item.number])
        return [item if (time := found[item.number]) is None else replace(item, timestamp_ms=time) for item in versions]

    def _remember(self, identity: Identity, time: int | None) -> None:
        if identity[1] is None:
            return  # without an e_tag, one of the same name and size may be another
        with self._lock:
            self._times[identity] = time
            if len(self._times) > REMEMBERED:
                self._times.popitem(last=False)

    def look(self, line: VersionLine, number: int) -> Version | None:
        """One version as its file's name and head tell of it: one or two requests."""
        for scheme in reversed(SCHEMES):
            path = line.manifest(number, scheme)
            entry = self.store.head(line.key(path))
            if entry is not None:
                return _version(line, number, path, entry, scheme)
        return None

    def newest(self, line: VersionLine) -> int:
        """The newest version, 0 when there is none. From the hint upwards; without a hint that holds, a listing."""
        hint = self._hint(line)
        if hint and self.look(line, hint):
            for number in range(hint + 1, hint + PROBES):
                if not self.look(line, number):
                    return number - 1
        return max((version.number for version in self.all(line)), default=0)

    def all(self, line: VersionLine) -> Sequence[Version]:
        """Every version, ascending, as `look` has it. One list request."""
        found: dict[int, Version] = {}
        for entry in self.store.children(line.folder).entries:
            name = entry.key.rsplit("/", 1)[-1]
            parsed = manifest_version(name)
            if parsed and parsed[0] > 0:
                number, scheme = parsed
                found[number] = _version(line, number, f"{line.versions}/{name}", entry, scheme)
        return [found[number] for number in sorted(found)]

    def page(self, line: VersionLine, after: int | None, limit: int | None, descending: bool) -> Sequence[Version]:
        """At most `limit` versions that follow `after`; a short page from the newest down is read name by name."""
        if descending and limit is not None and limit <= PROBES:
            start = self.newest(line) if after is None else after - 1
            wanted = [self.look(line, number) for number in range(start, max(start - limit, 0), -1)]
            found = [item for item in wanted if item is not None]
            if len(found) == len(wanted):
                return self.dated(line, found)
        chosen: Iterator[Version] = iter(self.all(line))
        if after is not None:
            chosen = (item for item in chosen if (item.number < after) == descending and item.number != after)
        ordered = sorted(chosen, key=lambda item: item.number, reverse=descending)
        return self.dated(line, ordered[:limit])

    def create(self, line: VersionLine, version: Version, data: bytes) -> bool:
        """Put the manifest at its final name if no version of that number is there. False: another's is."""
        other = line.manifest(version.number, "V1" if version.naming_scheme == "V2" else "V2")
        if self.store.head(line.key(other)) is not None:
            return False
        final = line.manifest(version.number, version.naming_scheme)
        if not create(self.store, line.key(final), data):
            return False
        self._write_hint(line, version.number)
        return True

    def delete(self, line: VersionLine, numbers: Sequence[int]) -> None:
        """Remove the manifests of these versions, oldest first, so that what remains is always a newest part."""
        for number in sorted(numbers):
            for scheme in SCHEMES:
                self.store.delete(line.key(line.manifest(number, scheme)))

    def _hint(self, line: VersionLine) -> int:
        try:
            value = json.loads(self.store.get(f"{line.folder}/{VERSION_HINT}"))["version"]
        except (KeyNotFoundError, ValueError, KeyError, TypeError):
            return 0
        return value if isinstance(value, int) and 0 < value < 2**63 else 0

    def _write_hint(self, line: VersionLine, number: int) -> None:
        """A hint need not be there nor be right, so it is not worth an error."""
        try:
            self.store.put(f"{line.folder}/{VERSION_HINT}", json.dumps({"version": number}).encode(), durable=False)
        except LanceNamespaceError:
            return


def _version(line: VersionLine, number: int, path: str, entry: Entry, scheme: str) -> Version:
    id = line.table.id.child(str(number))
    return Version(id, path, entry.size, entry.etag, scheme, entry.modified_ms)


def _identity(line: VersionLine, version: Version) -> Identity:
    return line.key(version.manifest_path), version.e_tag, version.manifest_size
