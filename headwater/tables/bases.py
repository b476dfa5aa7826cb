"""Base paths: other places that a version of a table says its files are in. Pure but for links on local disk.

Whoever reads a table for others reads with its own rights. A version that names another table as its base would make
it hand that table out, so only bases inside the table itself, as branches have them, are followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from urllib.parse import unquote

from headwater.protobuf import as_bytes, pick

BASE_PATHS = 18
"""The field of a manifest, and in it the field of a base's path."""
PATH = 4


def outside(paths: Iterable[str], table_uri: str) -> str | None:
    """The first base path that is not the table's own folder or inside it."""
    return next((path for path in paths if not _is_inside(path, table_uri)), None)


def bases_of(manifest: bytes) -> list[str]:
    """The base paths of a Lance manifest (its message, without the footer). ValueError: this is no manifest."""
    return [as_bytes(path).decode() for base in pick(manifest, BASE_PATHS) for path in pick(as_bytes(base), PATH)]


def message_of(data: bytes) -> bytes:
    """The manifest proper of a manifest file: it stands where the footer says, after its length."""
    start = int.from_bytes(data[-16:-8], "little")
    length = int.from_bytes(data[start : start + 4], "little")
    return data[start + 4 : start + 4 + length]


def _is_inside(path: str, table_uri: str) -> bool:
    if _is_local(path) or _is_local(table_uri):
        return _is_local(path) and _is_local(table_uri) and _inside_folder(path, table_uri)
    scheme, _, rest = path.partition("://")
    own_scheme, _, own = table_uri.partition("://")
    parts = rest.rstrip("/").split("/")
    if scheme.lower() != own_scheme.lower() or any(unquote(part) in ("", ".", "..") for part in parts):
        return False
    return any(parts[: len(table)] == table for table in (own.split("/"), unquote(own).split("/")))


def _is_local(path: str) -> bool:
    return "://" not in path or path.lower().startswith("file://")


def _inside_folder(path: str, table: str) -> bool:
    folder = os.path.realpath(_plain(table))
    return os.path.realpath(_plain(path)).startswith(folder + os.sep) or os.path.realpath(_plain(path)) == folder


def _plain(path: str) -> str:
    return unquote(path[len("file://") :]) if path.lower().startswith("file://") else path
