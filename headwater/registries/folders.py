"""Table folders of a directory catalog, and the marker files that tell other readers the state of a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyarrow.fs import FileType, LocalFileSystem

from headwater.model import Table
from headwater.names import ObjectId
from headwater.registries.layout import DEREGISTERED_MARKER, MARKER_BODY, RESERVED_MARKER
from headwater.store import Store, storage_error
from headwater.tables.layout import TABLE_FOLDERS, VERSIONS, discard_files

MARKERS = frozenset({RESERVED_MARKER, DEREGISTERED_MARKER})
LOCAL_FILES = LocalFileSystem()
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
        markers = LOCAL_FILES.get_file_info([f"{root}/{folder}/{DEREGISTERED_MARKER}" for folder in folders])
    except (OSError, ValueError):
        return []
    return [folder for folder, marker in zip(folders, markers, strict=True) if marker.type is FileType.NotFound]


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
