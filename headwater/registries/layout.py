"""Every on-disk name of the directory catalog (docs/formats/directory.md), and checks of a root by these names.

The checks refuse to open a root (an unfinished upgrade, another kind of catalog) or to write a stream table.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.metastore.commit.foreign_roots import check_not_lost, is_metastore
from headwater.metastore.records.layout import FORMAT_KEY
from headwater.names import ObjectId
from headwater.store import Store
from headwater.store.seam import OWN_FOLDER

MANIFEST = "__manifest"
DIRECTORY_MARKER = f"{OWN_FOLDER}/directory"
"""Written by `headwater init`: an empty folder that is to be a directory catalog."""
UPGRADE_MARKER = f"{OWN_FOLDER}/upgrade"
"""There while the root becomes a metastore: every open is refused."""
MIRROR_MARKER = f"{OWN_FOLDER}/mirror"
"""There while a metastore keeps a `__manifest` for readers that know no other kind of catalog."""
COMMIT_LOCK = f"{OWN_FOLDER}/commit.lock"
TURNS = f"{OWN_FOLDER}/turns"
SPOOL = f"{OWN_FOLDER}/spool"
RESERVED_MARKER = ".lance-reserved"
DEREGISTERED_MARKER = ".lance-deregistered"
MARKER_BODY = b"reserved"
TABLE_SUFFIX = ".lance"
RESERVED_NAMES = frozenset({MANIFEST, OWN_FOLDER})

MAX_FOLDER_BYTES = 255


def is_reserved(folder: str) -> bool:
    """Return True for the catalog's own folders. Some file systems fold case, width and final dots."""
    return unicodedata.normalize("NFKC", folder).casefold().rstrip(". ") in RESERVED_NAMES


def table_folder(name: str) -> str:
    """Return `<name>.lance`, the folder of a root table in a listing."""
    return name + TABLE_SUFFIX


def unfinished_upgrade() -> InvalidTableStateError:
    return InvalidTableStateError(
        "This root is being upgraded to a metastore, or an upgrade was interrupted: run `headwater upgrade` again."
    )


def check_finished(store: Store) -> None:
    """Raise InvalidTableState (19) while an upgrade of the root is unfinished. One request."""
    if store.head(UPGRADE_MARKER) is not None:
        raise unfinished_upgrade()


def check_directory(store: Store) -> None:
    """Raise an error unless the root may be a directory catalog: 19 during an upgrade, 13 for a metastore."""
    check_finished(store)
    if store.head(FORMAT_KEY) is not None:
        raise InvalidInputError("This root is a metastore catalog: open it without impl=dir.")


def is_directory(store: Store, folders: Collection[str]) -> bool:
    """Return True if a root with these folders, which is no metastore, is a directory catalog."""
    if MANIFEST in folders or any(name.endswith(TABLE_SUFFIX) for name in folders):
        return True
    return OWN_FOLDER in folders and store.head(DIRECTORY_MARKER) is not None


def check_metastore(store: Store) -> None:
    """Error 13 for the root of a directory catalog, 19 for a metastore that lost its records: what is written there
    would hide its tables."""
    if is_metastore(store):
        return
    folders = store.children().folders
    if is_directory(store, folders):
        raise InvalidInputError(
            "This root is a directory catalog: open it with impl=dir, or make it a metastore with `headwater upgrade`."
        )
    check_not_lost(store, folders)


def fed_by_its_log(table: ObjectId, reason: str | None = None) -> InvalidInputError:
    why = f" This version cannot be taken: {reason}." if reason else ""
    return InvalidInputError(
        f"{table} is a stream table: its rows come from its change log.{why} Append, upsert or delete through the "
        "catalog's stream table, and publish; indices, settings and columns of your own can be added."
    )
