"""The kind of catalog that a root holds, by one listing, and the rule for a new metastore.

    config.look (Catalog, serve, init, Spark) ──┐
    Metastore (connect, MetastoreNamespace) ────┴── root_kind ── foreign_roots (DeltaCAT, lost slots)

Every door that makes a metastore gets its answer here. `connect("dir")` takes any folder that is no metastore, as the
directory document says.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore.commit.foreign_roots import SHOWN, check_not_lost, is_metastore
from headwater.metastore.records.layout import TXNS, is_dataset_folder, is_object_folder
from headwater.store import Store
from headwater.store.seam import OWN_FOLDER

MANIFEST = "__manifest"
DIRECTORY_MARKER = f"{OWN_FOLDER}/directory"
"""Written by `headwater init`: an empty folder that is to be a directory catalog."""
UPGRADE_MARKER = f"{OWN_FOLDER}/upgrade"
"""There while the root becomes a metastore: every open is refused."""
TABLE_SUFFIX = ".lance"
LANCE_FOLDERS = frozenset({"data", "_transactions", "_versions"})
"""Folders of a dataset before its first commit."""
MAX_LISTINGS = 6
"""Folders that are listed to name the things in a root that is refused."""
TABLE_FOLDERS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
FILE_ENDINGS = {".metadata.json": "an Iceberg table", ".parquet": "Parquet files"}


class RootKind(Enum):
    """The kind of catalog found at a root."""

    MISSING = "nothing"
    EMPTY = "an empty folder"
    OTHER = "a folder with other things in it"
    DIRECTORY = "a directory catalog (impl=dir)"
    METASTORE = "a metastore catalog (impl=metastore)"


def check_finished(store: Store) -> None:
    """Raise InvalidTableState (19) while an upgrade of the root is unfinished. One request."""
    if store.head(UPGRADE_MARKER) is not None:
        raise unfinished_upgrade()


def unfinished_upgrade() -> InvalidTableStateError:
    return InvalidTableStateError(
        "This root is being upgraded to a metastore, or an upgrade was interrupted: run `headwater upgrade` again."
    )


def root_kind(store: Store, early: bool = False) -> RootKind:
    """Return the kind of a root that exists. Raise InvalidTableState (19) during an upgrade, and for lost records.

    A root with transactions of another program counts as a metastore: to open it raises an error with its content.
    `early`: folders without a suffix are tables of a directory catalog.
    """
    found = store.children()
    if OWN_FOLDER in found.folders:
        check_finished(store)
    if {OWN_FOLDER, TXNS}.intersection(found.folders) and is_metastore(store):
        return RootKind.METASTORE
    if (early and set(found.folders) - {OWN_FOLDER}) or _is_directory(store, found.folders):
        return RootKind.DIRECTORY
    check_not_lost(store, found.folders)
    others = (name for name in found.folders if name != OWN_FOLDER and not _is_unfinished(store, name))
    return RootKind.OTHER if found.entries or any(others) else RootKind.EMPTY


def _is_directory(store: Store, folders: Collection[str]) -> bool:
    """Return True if a root with these folders, which is no metastore, is a directory catalog."""
    if MANIFEST in folders or any(name.endswith(TABLE_SUFFIX) for name in folders):
        return True
    return OWN_FOLDER in folders and store.head(DIRECTORY_MARKER) is not None


def _is_unfinished(store: Store, folder: str) -> bool:
    """Return True for the files of a first transaction that was cut off, or that is not committed yet: a dataset, or
    data of stream tables."""
    if not is_dataset_folder(folder) and not is_object_folder(folder):
        return False
    found = store.children(folder)
    if found.entries:
        return False
    return LANCE_FOLDERS.issuperset(found.folders) or all(map(is_object_folder, found.folders))


def check_new(store: Store) -> None:
    """Raise InvalidInput (13) if the root, which has no commit yet, holds another catalog or other things."""
    kind = root_kind(store)
    if kind is RootKind.DIRECTORY:
        raise InvalidInputError(
            "This root is a directory catalog: open it with impl=dir, or make it a metastore with `headwater upgrade`."
        )
    if kind is RootKind.OTHER:
        raise InvalidInputError(
            f"This root is no catalog, and holds {things_in(store)}: `headwater init` makes a catalog beside them, or "
            "name another root. Nothing was changed."
        )


def things_in(store: Store) -> str:
    """Return the first names of a root, or the first table of another format that the root holds.

    The search goes down the first folder of each folder, since tables stand one or two levels below a warehouse.
    """
    place, names = "", ""
    for _ in range(MAX_LISTINGS):
        found = store.children(place)
        files = [entry.key.rpartition("/")[2] for entry in found.entries]
        names = names or _shown([*found.folders, *files])
        if known := _format(found.folders, files):
            return f"{known} ({place.removesuffix('/metadata') or names})"
        if not found.folders:
            break
        below = "metadata" if "metadata" in found.folders else found.folders[0]
        place = f"{place}/{below}".lstrip("/")
    return names


def _shown(names: list[str]) -> str:
    return ", ".join(sorted(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _format(folders: Collection[str], files: Collection[str]) -> str | None:
    """Return the format of the table that a folder with these names is a part of; None if no format is known."""
    marked = [what for name, what in TABLE_FOLDERS.items() if name in folders]
    marked += [what for ending, what in FILE_ENDINGS.items() if any(file.endswith(ending) for file in files)]
    return marked[0] if marked else None
