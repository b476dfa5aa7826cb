"""Table folders: what one holds, and how one goes away."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.errors import LanceNamespaceError
from headwater.registries.layout import DEREGISTERED_MARKER, RESERVED_MARKER, TRASH
from headwater.store import KeyExistsError, KeyNotFoundError, Store, storage_error
from headwater.tables.layout import TABLE_FOLDERS, VERSIONS, manifest_version

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


def has_version(store: Store, folder: str) -> bool:
    """Whether the table in the folder has a version. A creator that was killed leaves `_versions/` without any."""
    path = store.abilities.path
    if path is not None:
        try:
            with os.scandir(os.path.join(path, folder, VERSIONS)) as items:
                return any(manifest_version(item.name) for item in items)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise storage_error(error, f"{folder}/{VERSIONS}") from None
    entries = store.children(f"{folder}/{VERSIONS}").entries
    return any(manifest_version(entry.key.rsplit("/", 1)[-1]) for entry in entries)


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


def discard_folder(store: Store, folder: str, clock: Clock) -> bool:
    """Delete a table's folder, if it is there. On local disk it is out of sight in one step, whatever then happens."""
    move_folder = store.abilities.move_folder
    if move_folder is None:
        there = folder_status(store, folder).exists
        store.delete_tree(folder)
        return there
    away = f"{TRASH}/{clock.hex(16)}"
    try:
        move_folder(folder, away)
    except KeyNotFoundError:
        return False
    except KeyExistsError:  # Something that is no folder stands where the trash should be.
        store.delete_tree(folder)
        return True
    with contextlib.suppress(LanceNamespaceError):  # What is left in the trash is for `empty_trash`.
        store.delete_tree(away)
    return True


def empty_trash(store: Store) -> None:
    """Delete what an interrupted drop left behind."""
    if store.children(TRASH).folders:
        store.delete_tree(TRASH)


def folder_exists(store: Store, folder: str) -> bool:
    """Whether the folder is there, even if empty; object stores have no empty folders."""
    path = store.abilities.path
    if path is not None:
        return os.path.isdir(os.path.join(path, folder))
    return folder_status(store, folder).exists


def discard_files(store: Store, folder: str, keys: Iterable[str]) -> None:
    """Take back the files of a write that came to nothing, and the empty folders they leave on local disk."""
    for key in keys:
        store.delete(key)
    if prune := store.abilities.prune:
        prune(folder)
