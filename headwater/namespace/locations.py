"""Locations of tables. A `location` in a request is untrusted and must stay inside the catalog's root."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from headwater.errors import InvalidInputError, InvalidTableStateError
from headwater.lance_manifest import metadata_of
from headwater.model import Table
from headwater.registries.folders import folder_status
from headwater.registries.layout import is_reserved
from headwater.store import Store, file_uri_path, is_file_uri
from headwater.tables.layout import newest_manifest

REMEMBERED = 16_384
"""So many locations are judged once: every look-up asks."""
MAX_LOCATION_BYTES = 900


def check_location(location: str, root_uri: str) -> str:
    """The location relative to the root, or InvalidInput (13). An absolute path or URI below the root is accepted.

    A URI is percent-encoded (RFC 3986), as DescribeTable answers `table_uri`; a path is taken as it is.
    """
    relative = _relative(location, root_uri).rstrip("/")
    problem = _problem(relative)
    if problem:
        raise InvalidInputError(f"The location {location[:200]!r} cannot be used: {problem}.")
    return relative


def _relative(location: str, root_uri: str) -> str:
    if "://" not in root_uri:
        path = file_uri_path(location) if is_file_uri(location) else location
        return path.removeprefix(root_uri.rstrip("/") + "/")
    inside = location.removeprefix(root_uri + "/")
    return inside if inside == location else unquote(inside)


def require_place(table: Table) -> Table:
    """Error 19 for a table whose recorded location is no place for one: another writer's row may say anything.

    Such a row may only be deregistered. To open it would show the catalog's own files, to drop it would delete them.
    """
    problem = _problem(table.location)
    if problem:
        raise InvalidTableStateError(
            f"The catalog's record of table {table.id} has a location that cannot be used: {problem}. Deregister it."
        )
    return table


def is_place(location: str) -> bool:
    """Return True if a recorded location may be a table's: relative, below the root, no folder of the catalog."""
    return _problem(location) is None


_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@lru_cache(REMEMBERED)
def _problem(relative: str) -> str | None:
    parts = relative.split("/")
    if not relative or relative.startswith("/") or "://" in relative or "\\" in relative:
        return "it must be a path relative to the catalog's root, below it"
    if any(part in ("", ".", "..") for part in parts):
        return "it must not contain '.', '..' or empty parts"
    if _CONTROL.search(relative):
        return "it must not contain control characters"
    if is_reserved(parts[0]):
        return "that folder belongs to the catalog itself"
    if len(relative.encode(errors="replace")) > MAX_LOCATION_BYTES:
        return f"it has more than {MAX_LOCATION_BYTES} bytes"
    return None


def check_place(store: Store, location: str) -> None:
    """On the storage itself: no folder around the location is a table, and no link leads out of the root."""
    parts = location.split("/")
    for end in range(1, len(parts)):
        around = "/".join(parts[:end])
        status = folder_status(store, around)
        if status.versions or status.reserved:
            raise InvalidInputError(f"The location {location[:200]!r} cannot be used: {around!r} is a table.")
    path = store.abilities.path
    if path is not None:
        root = os.path.realpath(path)
        if not os.path.realpath(os.path.join(root, location)).startswith(root + os.sep):
            raise InvalidInputError(f"The location {location[:200]!r} leads outside the catalog's root.")


def is_folder_of(table: Table, location: str, root_uri: str) -> bool:
    """Return True if a table without a record is the very folder that RegisterTable names.

    It was deregistered, and its marker was removed by hand (directory document, "DeregisterTable").
    """
    try:
        return not table.known.recorded and check_location(location, root_uri) == table.location
    except InvalidInputError:
        return False


def stored_metadata(store: Store, location: str) -> dict[str, str]:
    """Return the metadata of the Lance table in a folder; empty without a version that can be read."""
    try:
        return metadata_of(newest_manifest(store, location) or b"")
    except ValueError:
        return {}


def table_uri(root_uri: str, location: str) -> str:
    """Return the address that pylance opens: a path on local disk, else a percent-encoded URI."""
    return f"{root_uri}/{location if '://' not in root_uri else quote(location)}"
