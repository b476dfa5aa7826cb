"""Every on-disk name of the directory catalog (docs/formats/directory.md)."""

from __future__ import annotations

import unicodedata

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
