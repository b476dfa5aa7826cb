"""The on-disk names of a Lance table that Headwater reads or writes (docs/formats/directory.md), and table folders."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from headwater.clock import Clock
from headwater.errors import LanceNamespaceError
from headwater.store import KeyExistsError, KeyNotFoundError, Store, storage_error
from headwater.store.seam import OWN_FOLDER

VERSIONS = "_versions"
VERSION_HINT = "latest_version_hint.json"
DATA = "data"
STAGED = "_staged"
"""Manifests of transactions that are open: `_staged/<transaction>/<final name>`, where no client looks for versions."""
TRASH = f"{OWN_FOLDER}/trash"
"""Dropped folders on their way out."""
UNRECORDED = f"{OWN_FOLDER}/unrecorded"
"""The folder of manifests that other clients wrote without the catalog that manages the versions."""
TRANSACTIONS = "_transactions"
TABLE_FOLDERS = frozenset({VERSIONS, DATA, STAGED, TRANSACTIONS, "_deletions", "_indices", "_refs", "tree"})
"""Names in a table's folder, also during its creation and after a crash of its creator."""

_LAST_VERSION = 2**64 - 1
_MANIFEST_NAME = re.compile(r"^(\d+)\.manifest$")


def manifest_name(version: int, scheme: str = "V2") -> str:
    """Return the file name of a Lance manifest. V2 counts down from 2^64-1, so that the newest is listed first."""
    return f"{_LAST_VERSION - version:020d}.manifest" if scheme == "V2" else f"{version}.manifest"


def hidden_manifest(transaction: str, version: int, scheme: str = "V2") -> str:
    """Return the path, below the table's folder, of the manifest that an open transaction has staged."""
    return f"{STAGED}/{transaction}/{manifest_name(version, scheme)}"


def manifest_version(name: str) -> tuple[int, str] | None:
    """Return the version and naming scheme of a manifest's file name; None for any other name."""
    match = _MANIFEST_NAME.match(name)
    if not match:
        return None
    number = int(match[1])
    if len(match[1]) == 20 and number > _LAST_VERSION // 2:
        return _LAST_VERSION - number, "V2"
    return number, "V1"


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


def newest_manifest(store: Store, folder: str) -> bytes | None:
    """Return the manifest of the newest version that a table's folder holds; None without a version."""
    names = [entry.key.rsplit("/", 1)[-1] for entry in store.children(f"{folder}/{VERSIONS}").entries]
    found = [(parsed[0], name) for name in names if (parsed := manifest_version(name))]
    return store.get(f"{folder}/{VERSIONS}/{max(found)[1]}") if found else None


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
