"""Table folders as a listing sees them, with the markers in them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from pyarrow.fs import FileType, LocalFileSystem

from headwater.registries.layout import DEREGISTERED_MARKER, RESERVED_MARKER
from headwater.store import Store, storage_error
from headwater.tables.layout import TABLE_FOLDERS, VERSIONS

MARKERS = frozenset({RESERVED_MARKER, DEREGISTERED_MARKER})
LOCAL_FILES = LocalFileSystem()
OWN_LINKS = 2
"""The links of a folder that holds no other: its name and its own dot."""
SEARCHABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class FolderStatus:
    """What one look into a table's folder tells."""

    exists: bool = False
    deregistered: bool = False
    versions: bool = False
    reserved: bool = False
    foreign: bool = False
    """Something is in it that neither a catalog nor the writer of a table puts there."""


def folder_status(store: Store, folder: str) -> FolderStatus:
    """One list request. An empty folder does not exist (directory document, "Lance Table Identification")."""
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
    """Names in the root that may be folders, in any order: whether one is a table is asked of each that matters."""
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
    """Whether a listing shows the folder: it is not empty and not deregistered. Two calls on local disk, mostly."""
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
    """Those of many folders of a local disk without the marker of a deregistered table; none where that is not told.

    Arrow asks for many files in one call, so threads wait for the disk and never for each other.
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
    """Whether a folder that is `unmarked` tells by itself that it is a table. What was looked into is in memory."""
    try:
        return _holds_folders(os.stat(f"{store.abilities.path}/{folder}"))
    except OSError:
        return False


def _holds_folders(status: os.stat_result) -> bool:
    """Whether the folder itself tells that it holds others: nothing in it is looked at, nor read from a cold disk.

    A folder is one link more to the one it is in, where the file system counts them. Nothing is told of a folder that
    not everybody may look into: the marker may be there unseen.
    """
    mode = status.st_mode
    return status.st_nlink > OWN_LINKS and stat.S_ISDIR(mode) and mode & SEARCHABLE == SEARCHABLE


def folder_exists(store: Store, folder: str) -> bool:
    """Whether the folder is there, even if empty; object stores have no empty folders."""
    path = store.abilities.path
    if path is not None:
        return os.path.isdir(os.path.join(path, folder))
    return folder_status(store, folder).exists
