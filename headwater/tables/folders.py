"""Folders of tables in a store: tests for data and versions, and their removal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from headwater.clock import Clock
from headwater.errors import LanceNamespaceError
from headwater.store import KeyExistsError, KeyNotFoundError, Store, storage_error
from headwater.tables.layout import TRASH, VERSIONS, manifest_version


def is_occupied(store: Store, folder: str) -> bool:
    """Return True if the folder holds anything; an empty one does not exist (directory document). One list request."""
    listing = store.children(folder)
    return bool(listing.entries or listing.folders)


def has_version(store: Store, folder: str) -> bool:
    """Return True if the folder holds a version of a table. A killed writer leaves an empty `_versions/`."""
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


def discard_folder(store: Store, folder: str, clock: Clock) -> bool:
    """Delete a table's folder, and return True if it existed. On local disk a rename hides it first, atomically."""
    move_folder = store.abilities.move_folder
    if move_folder is None:
        there = is_occupied(store, folder)
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


def discard_files(store: Store, folder: str, keys: Iterable[str]) -> None:
    """Delete the files of a failed write, and the empty folders that they leave on local disk."""
    for key in keys:
        store.delete(key)
    if prune := store.abilities.prune:
        prune(folder)
