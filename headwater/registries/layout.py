"""The on-disk names of the directory catalog (docs/formats/directory.md), and checks by these names.

`metastore/commit/root_kinds.py` has the names that tell a directory catalog from other roots. The checks refuse to open
a root (an unfinished upgrade, another kind of catalog) or to write a stream table.
"""

from __future__ import annotations

import unicodedata

from headwater.errors import InvalidInputError
from headwater.metastore.commit.root_kinds import MANIFEST, TABLE_SUFFIX, check_finished
from headwater.metastore.records.layout import FORMAT_KEY
from headwater.names import ObjectId
from headwater.store import Store
from headwater.store.seam import OWN_FOLDER

MIRROR_MARKER = f"{OWN_FOLDER}/mirror"
"""There while a metastore keeps a `__manifest` for readers that know no other kind of catalog."""
COMMIT_LOCK = f"{OWN_FOLDER}/commit.lock"
TURNS = f"{OWN_FOLDER}/turns"
SPOOL = f"{OWN_FOLDER}/spool"
RESERVED_MARKER = ".lance-reserved"
DEREGISTERED_MARKER = ".lance-deregistered"
MARKER_BODY = b"reserved"
RESERVED_NAMES = frozenset({MANIFEST, OWN_FOLDER})

MAX_FOLDER_BYTES = 255


def is_reserved(folder: str) -> bool:
    """Return True for the catalog's own folders. Some file systems fold case, width and final dots."""
    return unicodedata.normalize("NFKC", folder).casefold().rstrip(". ") in RESERVED_NAMES


def table_folder(name: str) -> str:
    """Return `<name>.lance`, the folder of a root table in a listing."""
    return name + TABLE_SUFFIX


def check_directory(store: Store) -> None:
    """Raise an error unless the root may be a directory catalog: 19 during an upgrade, 13 for a metastore."""
    check_finished(store)
    if store.head(FORMAT_KEY) is not None:
        raise InvalidInputError("This root is a metastore catalog: open it without impl=dir.")


def fed_by_its_log(table: ObjectId, reason: str | None = None) -> InvalidInputError:
    why = f" This version cannot be taken: {reason}." if reason else ""
    return InvalidInputError(
        f"{table} is a stream table: its rows come from its change log.{why} Append, upsert or delete through the "
        "catalog's stream table, and publish; indices, settings and columns of your own can be added."
    )
