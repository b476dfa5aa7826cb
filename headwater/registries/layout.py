"""Every on-disk name of the directory catalog (docs/formats/directory.md)."""

from __future__ import annotations

import re
import unicodedata

from headwater.names import ObjectId

MANIFEST = "__manifest"
OWN_FOLDER = ".headwater"
TRASH = f"{OWN_FOLDER}/trash"
COMMIT_LOCK = f"{OWN_FOLDER}/commit.lock"
TURNS = f"{OWN_FOLDER}/turns"
UNRECORDED = f"{OWN_FOLDER}/unrecorded"
SPOOL = f"{OWN_FOLDER}/spool"
RESERVED_MARKER = ".lance-reserved"
DEREGISTERED_MARKER = ".lance-deregistered"
MARKER_BODY = b"reserved"
TABLE_SUFFIX = ".lance"
VERSIONS = "_versions"
VERSION_HINT = "latest_version_hint.json"
RESERVED_NAMES = frozenset({MANIFEST, OWN_FOLDER})

MAX_FOLDER_BYTES = 255
_LAST_VERSION = 2**64 - 1
_MANIFEST_NAME = re.compile(r"^(\d+)\.manifest$")
_SAFE = re.compile(r"[^A-Za-z0-9._$@=+-]")


def is_reserved(folder: str) -> bool:
    """Whether a folder of the root is the catalog's own, on any file system: some fold case, width and final dots."""
    return unicodedata.normalize("NFKC", folder).casefold().rstrip(". ") in RESERVED_NAMES


def table_folder(name: str) -> str:
    """`<table_name>.lance`, the folder of a root table where directories are listed."""
    return name + TABLE_SUFFIX


def hashed_folder(id: ObjectId, hash: str) -> str:
    """`<hash>_<object_id>`, the folder of any other table. The id is for people: readers follow the location.

    Characters that object stores spell differently are replaced, and a long id is cut.
    """
    readable = _SAFE.sub("_", id.format("$"))
    return f"{hash}_{readable}"[:200]


def manifest_name(version: int, scheme: str = "V2") -> str:
    """The file name of a Lance manifest: V2 counts down from 2^64-1, so that the newest is listed first."""
    return f"{_LAST_VERSION - version:020d}.manifest" if scheme == "V2" else f"{version}.manifest"


def manifest_version(name: str) -> tuple[int, str] | None:
    """The version and naming scheme that a manifest's file name says, or None if it is no such name."""
    match = _MANIFEST_NAME.match(name)
    if not match:
        return None
    number = int(match[1])
    if len(match[1]) == 20 and number > _LAST_VERSION // 2:
        return _LAST_VERSION - number, "V2"
    return number, "V1"
