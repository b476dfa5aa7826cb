"""Table folders of a directory catalog: locations, and the marker files that tell other readers the state of a folder.

A `location` in a request is untrusted and must stay inside the catalog's root.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.imports import when_used
from headwater.lance_manifest import metadata_of
from headwater.model import Table
from headwater.names import ObjectId
from headwater.registries.layout import DEREGISTERED_MARKER, MARKER_BODY, RESERVED_MARKER, is_reserved
from headwater.store import Store, file_uri_path, is_file_uri, storage_error
from headwater.tables.layout import TABLE_FOLDERS, VERSIONS, discard_files, newest_manifest

MARKERS = frozenset({RESERVED_MARKER, DEREGISTERED_MARKER})
file_systems = when_used("pyarrow.fs")
OWN_LINKS = 2
"""The links of a folder that holds no other: its name and its own dot."""
SEARCHABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """The contents of a table's folder, as one list request shows them."""

    exists: bool = False
    deregistered: bool = False
    versions: bool = False
    reserved: bool = False
    foreign: bool = False
    """Something is in it that neither a catalog nor the writer of a table puts there."""


def folder_status(store: Store, folder: str) -> FolderStatus:
    """Return the status of a folder by one list request.

    An empty folder does not exist (directory document, "Lance Table Identification").
    """
    listing = store.children(folder)
    names = {entry.key.rsplit("/", 1)[-1] for entry in listing.entries}
    return FolderStatus(
        exists=bool(names or listing.folders),
        deregistered=DEREGISTERED_MARKER in names,
        versions=VERSIONS in listing.folders,
        reserved=RESERVED_MARKER in names,
        foreign=bool(names - MARKERS or not TABLE_FOLDERS.issuperset(listing.folders)),
    )


def folder_names(store: Store) -> Sequence[str]:
    """Return the names in the root, in any order. Callers test those that matter for being folders."""
    path = store.abilities.path
    if path is None:
        return store.children().folders
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise storage_error(error, ".") from None


def is_table_folder(store: Store, folder: str) -> bool:
    """Return True if the folder is not empty and not deregistered. Mostly two calls on local disk."""
    root = store.abilities.path
    if root is not None:
        path = f"{root}/{folder}"
        try:
            looked = os.stat(path)
        except OSError:
            return False
        if not stat.S_ISDIR(looked.st_mode) or os.access(f"{path}/{DEREGISTERED_MARKER}", os.F_OK):
            return False
        if _holds_folders(looked) or os.access(f"{path}/{VERSIONS}", os.F_OK):
            return True
    status = folder_status(store, folder)
    return status.exists and not status.deregistered


def unmarked(store: Store, folders: Sequence[str]) -> list[str]:
    """Return the folders of a local disk without the marker of a deregistered table; an empty list elsewhere.

    Arrow stats many files in one call, so threads wait for the disk and never for each other.
    """
    root = store.abilities.path
    if root is None:
        return []
    try:
        names = [f"{root}/{folder}/{DEREGISTERED_MARKER}" for folder in folders]
        markers = file_systems.LocalFileSystem().get_file_info(names)
    except (OSError, ValueError):
        return []
    return [
        folder for folder, marker in zip(folders, markers, strict=True) if marker.type is file_systems.FileType.NotFound
    ]


def is_certain(store: Store, folder: str) -> bool:
    """Return True if the stat of a folder proves that it holds sub-folders. A stat after `unmarked` is cached."""
    try:
        return _holds_folders(os.stat(f"{store.abilities.path}/{folder}"))
    except OSError:
        return False


def _holds_folders(status: os.stat_result) -> bool:
    """Return True if the link count of a folder proves that it has sub-folders, without reading the folder.

    Most file systems count a link for each sub-folder. Folders that not everybody may search return False: the marker
    may be there unseen.
    """
    mode = status.st_mode
    return status.st_nlink > OWN_LINKS and stat.S_ISDIR(mode) and mode & SEARCHABLE == SEARCHABLE


def folder_exists(store: Store, folder: str) -> bool:
    """Return True if the folder exists, even if empty. Object stores have no empty folders."""
    path = store.abilities.path
    if path is not None:
        return os.path.isdir(os.path.join(path, folder))
    return folder_status(store, folder).exists


def nothing_hidden(id: ObjectId) -> Table | None:
    """Return None: a catalog that lists no folders hides none."""
    return None


@dataclass(frozen=True)
class FolderMarkers:
    """The marker files of one store.

    `hidden`: finds the deregistered table of a name. `strict`: an empty folder is a table unless it is reserved.
    """

    store: Store
    hidden: Callable[[ObjectId], Table | None] = nothing_hidden
    strict: bool = False

    def declare(self, table: Table) -> None:
        self.store.put(_reserved(table), MARKER_BODY)

    def withdraw(self, table: Table) -> None:
        discard_files(self.store, table.location, [_reserved(table)])

    def is_declared(self, location: str) -> bool:
        status = folder_status(self.store, location)
        return status.reserved if self.strict else not status.foreign

    def reveal(self, location: str) -> None:
        self.store.delete(f"{location}/{DEREGISTERED_MARKER}")


def _reserved(table: Table) -> str:
    return f"{table.location}/{RESERVED_MARKER}"


REMEMBERED = 16_384
"""So many locations are judged once: every look-up asks."""
MAX_LOCATION_BYTES = 900


def check_location(location: str, root_uri: str) -> str:
    """Return the location relative to the root, or InvalidInput (13). An absolute path or URI below the root is
    accepted.

    A URI is percent-encoded (RFC 3986), as DescribeTable answers `table_uri`; a path is taken as it is.
    """
    relative = _relative(location, root_uri).rstrip("/")
    problem = _problem(relative)
    if problem:
        raise InvalidInputError(f"The location {location[:200]!r} cannot be used: {problem}.")
    return relative


def _relative(location: str, root_uri: str) -> str:
    if "://" not in root_uri:
        path = file_uri_path(location) if is_file_uri(location) else location
        return path.removeprefix(root_uri.rstrip("/") + "/")
    inside = location.removeprefix(root_uri + "/")
    return inside if inside == location else unquote(inside)


def require_place(table: Table) -> Table:
    """Error 19 for a table whose recorded location is no place for one: another writer's row may say anything.

    Such a row may only be deregistered. To open it would show the catalog's own files, to drop it would delete them.
    """
    problem = _problem(table.location)
    if problem:
        raise InvalidTableStateError(
            f"The catalog's record of table {table.id} has a location that cannot be used: {problem}. Deregister it."
        )
    return table


def is_place(location: str) -> bool:
    """Return True if a recorded location may be a table's: relative, below the root, no folder of the catalog."""
    return _problem(location) is None


_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@lru_cache(REMEMBERED)
def _problem(relative: str) -> str | None:
    parts = relative.split("/")
    if not relative or relative.startswith("/") or "://" in relative or "\\" in relative:
        return "it must be a path relative to the catalog's root, below it"
    if any(part in ("", ".", "..") for part in parts):
        return "it must not contain '.', '..' or empty parts"
    if _CONTROL.search(relative):
        return "it must not contain control characters"
    if is_reserved(parts[0]):
        return "that folder belongs to the catalog itself"
    if len(relative.encode(errors="replace")) > MAX_LOCATION_BYTES:
        return f"it has more than {MAX_LOCATION_BYTES} bytes"
    return None


def check_place(store: Store, location: str) -> None:
    """Raise if, on the storage, a folder around the location is a table or a link leads out of the root."""
    parts = location.split("/")
    for end in range(1, len(parts)):
        around = "/".join(parts[:end])
        status = folder_status(store, around)
        if status.versions or status.reserved:
            raise InvalidInputError(f"The location {location[:200]!r} cannot be used: {around!r} is a table.")
    path = store.abilities.path
    if path is not None:
        root = os.path.realpath(path)
        if not os.path.realpath(os.path.join(root, location)).startswith(root + os.sep):
            raise InvalidInputError(f"The location {location[:200]!r} leads outside the catalog's root.")


def is_folder_of(table: Table, location: str, root_uri: str) -> bool:
    """Return True if a table without a record is the very folder that RegisterTable names.

    It was deregistered, and its marker was removed by hand (directory document, "DeregisterTable").
    """
    try:
        return not table.known.recorded and check_location(location, root_uri) == table.location
    except InvalidInputError:
        return False


def stored_metadata(store: Store, location: str) -> dict[str, str]:
    """Return the metadata of the Lance table in a folder; empty without a version that can be read."""
    try:
        return metadata_of(newest_manifest(store, location) or b"")
    except ValueError:
        return {}


def table_uri(root_uri: str, location: str) -> str:
    """Return the address that pylance opens: a path on local disk, else a percent-encoded URI."""
    return f"{root_uri}/{location if '://' not in root_uri else quote(location)}"
