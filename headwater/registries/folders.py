"""Table folders as a listing sees them, with the markers in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.registries.layout import DEREGISTERED_MARKER, RESERVED_MARKER
from headwater.store import Store, storage_error
from headwater.tables.layout import TABLE_FOLDERS, VERSIONS

MARKERS = frozenset({RESERVED_MARKER, DEREGISTERED_MARKER})


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
    """Whether a listing shows the folder: it is not empty and not deregistered. Two stats on local disk, mostly."""
    root = store.abilities.path
    if root is not None:
        path = f"{root}/{folder}"
        if os.access(f"{path}/{DEREGISTERED_MARKER}", os.F_OK):  # cheaper than a stat that raises for most
            return False
        if os.access(f"{path}/{VERSIONS}", os.F_OK):
            return True
        if not os.path.isdir(path):
            return False
    status = folder_status(store, folder)
    return status.exists and not status.deregistered


def folder_exists(store: Store, folder: str) -> bool:
    """Whether the folder is there, even if empty; object stores have no empty folders."""
    path = store.abilities.path
    if path is not None:
        return os.path.isdir(os.path.join(path, folder))
    return folder_status(store, folder).exists
