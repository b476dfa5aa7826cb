"""Paths of a table's manifests, and the check of a `manifest_path` in a request.

A path in a request is untrusted: it must name a manifest of the very version, staged or final, directly in the
`_versions/` folder of the very table. Everything else is InvalidInput (13), before any file is touched.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlsplit

from headwater.errors import InvalidInputError
from headwater.lance_manifest import bases_of, message_of, outside
from headwater.model import Table
from headwater.store import Store
from headwater.tables.layout import STAGED, VERSIONS, manifest_name, manifest_version

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
        """The key of a path that is relative to the table's location."""
        return f"{self.table.location}/{manifest_path}"

    def manifest(self, version: int, scheme: str = "V2") -> str:
        """The final manifest of a version, relative to the table's location."""
        return f"{self.versions}/{manifest_name(version, scheme)}"

    def object_path(self, manifest_path: str) -> str:
        """A manifest as clients name it: the path inside the bucket or below `/`, without a leading slash."""
        return f"{_object_root(self.root_uri)}{self.key(manifest_path)}"

    def parse(self, given: str, version: int, scheme: str) -> str:
        """A request's `manifest_path` as a path relative to the table's location, or InvalidInput (13)."""
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
        """The ways to write the folder of this table's manifests."""
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
    """On local disk, no link leads from the table's folder to somewhere else."""
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
