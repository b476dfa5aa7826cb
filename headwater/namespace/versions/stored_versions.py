"""Paths of a table's manifests, the check of a `manifest_path` in a request, and versions that the storage keeps.

A path in a request is untrusted: it must name a manifest of the very version, staged or final, directly in the
`_versions/` folder of the very table. Everything else is InvalidInput (13), before any file is touched.
Where the storage keeps versions, the manifests in `_versions/` are all there is (directory document, "not enabled").
No operation lists the folder when it can name what it wants: a version is a file of a known name, and the newest one
is found from `latest_version_hint.json` upwards. A folder of 5,000 versions costs no more than one of 10.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import quote, urlsplit

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.lance_manifest import bases_of, committed_ms, message_of, outside
from headwater.model import Table, Version
from headwater.store import Entry, KeyNotFoundError, Store, create
from headwater.tables.layout import STAGED, VERSION_HINT, VERSIONS, manifest_name, manifest_version

SCHEMES = ("V1", "V2")
_HIDDEN = f"{STAGED}/"
_STAGED = re.compile(r"^(\d+\.manifest)-[0-9A-Za-z-]{1,64}$", re.ASCII)
_FOOTER = 16
_MAGIC = b"LANC"


@dataclass(frozen=True)
class VersionLine:
    """The line of versions of one table: the main one, or a branch's, which is in a folder of its own."""

    table: Table
    root_uri: str
    branch: str | None = None

    @property
    def versions(self) -> str:
        """The folder of the manifests, relative to the table's location."""
        return f"tree/{self.branch}/{VERSIONS}" if self.branch else VERSIONS

    @property
    def folder(self) -> str:
        """The folder of the manifests, as a key."""
        return f"{self.table.location}/{self.versions}"

    def key(self, manifest_path: str) -> str:
        """Return the key of a path that is relative to the table's location."""
        return f"{self.table.location}/{manifest_path}"

    def manifest(self, version: int, scheme: str = "V2") -> str:
        """Return the final manifest of a version, relative to the table's location."""
        return f"{self.versions}/{manifest_name(version, scheme)}"

    def object_path(self, manifest_path: str) -> str:
        """Return a manifest as clients name it: the path inside the bucket or below `/`, without a leading slash."""
        return f"{_object_root(self.root_uri)}{self.key(manifest_path)}"

    def parse(self, given: str, version: int, scheme: str) -> str:
        """Return a request's `manifest_path` as a path relative to the table's location, or InvalidInput (13)."""
        folder, _, name = given.rpartition("/")
        staged = _STAGED.match(name)
        told = manifest_version(staged[1] if staged else name)
        if folder not in self._folders() or told is None:
            raise _refused(given, f"it must be a manifest in the folder {VERSIONS} of table {self.table.id}")
        if told[0] != version:
            raise _refused(given, f"it is named as version {told[0]}, not {version}")
        if not staged and name != manifest_name(version, scheme):
            raise _refused(given, f"it is not named as naming scheme {scheme} has it")
        return f"{self.versions}/{name}"

    def _folders(self) -> set[str]:
        """Return every spelling of this table's manifest folder: a path, or a URI, quoted or not."""
        path, root = self.object_path(self.versions), self.root_uri
        uri = f"{root}/{self.folder}"
        local = {f"/{path}", f"file:///{path}", f"file://{quote('/' + path)}"} if "://" not in root else set()
        return {path, uri, f"{root}/{quote(self.folder)}", *local}


def check_scheme(given: str | None) -> str:
    """V1 or V2; V2 when not told."""
    scheme = (given or "V2").upper()
    if scheme not in SCHEMES:
        raise InvalidInputError(f"naming_scheme must be V1 or V2, not {str(given)[:40]!r}.")
    return scheme


def is_staged(manifest_path: str) -> bool:
    """Return True if a manifest path is not final: a client staged it, or a transaction hides it."""
    return manifest_path.startswith(_HIDDEN) or _STAGED.match(manifest_path.rsplit("/", 1)[-1]) is not None


def staged_version(name: str) -> int | None:
    """The version that a staged manifest was written for, or None if the name is not that of a staged manifest."""
    match = _STAGED.match(name)
    found = manifest_version(match[1]) if match else None
    return found[0] if found else None


def check_manifest(data: bytes, given: str, table_uri: str) -> None:
    """The bytes are a Lance manifest, footer and message, and all the files it names are in the table's own folder."""
    if len(data) <= _FOOTER or not data.endswith(_MAGIC) or _end(data) != len(data) - _FOOTER:
        raise _refused(given, "it is no Lance manifest")
    try:
        elsewhere = outside(bases_of(message_of(data)), table_uri)
    except ValueError:
        raise _refused(given, "it is no Lance manifest") from None
    if elsewhere is not None:
        raise _refused(given, f"its base path {elsewhere[:200]!r} is outside the table")


def _end(data: bytes) -> int:
    """Return the end of the message that the footer points at."""
    start = int.from_bytes(data[-_FOOTER : -_FOOTER + 8], "little")
    return start + 4 + int.from_bytes(data[start : start + 4], "little")


def check_inside(store: Store, line: VersionLine, manifest_path: str, given: str) -> None:
    """Raise if, on local disk, a link leads out of the table's folder."""
    root = store.abilities.path
    if root is not None:
        path = f"{root}/{line.table.location}"
        for part in manifest_path.split("/"):
            path = f"{path}/{part}"
            if os.path.islink(path):
                raise _refused(given, "it is a link")


def same_etag(first: str | None, second: str | None) -> bool:
    """Return True if both e_tags are known and equal but for quotes. An absent one agrees with nothing."""
    return bool(first) and bool(second) and str(first).strip('"') == str(second).strip('"')


def _refused(given: str, why: str) -> InvalidInputError:
    return InvalidInputError(f"manifest_path {given[:200]!r} cannot be used: {why}.")


@lru_cache(64)
def _object_root(root_uri: str) -> str:
    path = urlsplit(root_uri).path if "://" in root_uri else root_uri
    return path.strip("/") + "/" if path.strip("/") else ""


REMEMBERED = 10_000
"""Of so many manifests the times of their commits are read once: a manifest of one name and tag never changes."""
Identity = tuple[str, str | None, int | None]
PROBES = 64
"""So many names are tried one by one before the folder is listed after all."""


class StorageVersions:
    """A reader of the manifests in one store, by table location and version."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._times: OrderedDict[Identity, int | None] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, line: VersionLine, number: int) -> Version | None:
        """Return one version: two or three requests."""
        found = self.look(line, number)
        return self.dated(line, [found])[0] if found else None

    def dated(self, line: VersionLine, versions: Sequence[Version]) -> list[Version]:
        """Return the versions with the times of their commits, which only the manifests know: a file's time is a
        copy's."""
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
        """Return one version as its file's name and head tell of it: one or two requests."""
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
        """Return every version, ascending, as `look` has it. One list request."""
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
