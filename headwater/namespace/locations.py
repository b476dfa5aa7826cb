"""Where a table may be. A `location` in a request is untrusted: nothing may reach outside the catalog's root."""

from __future__ import annotations

import os
from urllib.parse import quote

from headwater.errors import InvalidInputError
from headwater.registries.folders import folder_status
from headwater.registries.layout import RESERVED_NAMES
from headwater.store import Store

MAX_LOCATION_BYTES = 900


def check_location(location: str, root_uri: str) -> str:
    """The location relative to the root, or InvalidInput (13). An absolute one below the root is accepted."""
    relative = location.removeprefix("file://") if "://" not in root_uri else location
    relative = relative.removeprefix(root_uri + "/").rstrip("/")
    parts = relative.split("/")
    problem = None
    if not relative or relative.startswith("/") or "://" in relative or "\\" in relative:
        problem = "it must be a path relative to the catalog's root, below it"
    elif any(part in ("", ".", "..") for part in parts):
        problem = "it must not contain '.', '..' or empty parts"
    elif any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) < 0xE000 for char in relative):
        problem = "it must not contain control characters"
    elif parts[0] in RESERVED_NAMES:
        problem = "that folder belongs to the catalog itself"
    elif len(relative.encode(errors="replace")) > MAX_LOCATION_BYTES:
        problem = f"it has more than {MAX_LOCATION_BYTES} bytes"
    if problem:
        raise InvalidInputError(f"The location {location[:200]!r} cannot be used: {problem}.")
    return relative


def check_place(store: Store, location: str) -> None:
    """On the storage itself: no folder around the location is a table, and no link leads out of the root."""
    parts = location.split("/")
    for end in range(1, len(parts)):
        around = "/".join(parts[:end])
        status = folder_status(store, around)
        if status.versions or status.reserved:
            raise InvalidInputError(f"The location {location!r} cannot be used: {around!r} is a table.")
    path = store.abilities.path
    if path is not None:
        root = os.path.realpath(path)
        if not os.path.realpath(os.path.join(root, location)).startswith(root + os.sep):
            raise InvalidInputError(f"The location {location!r} cannot be used: it leads outside the catalog's root.")


def table_uri(root_uri: str, location: str) -> str:
    """What pylance opens: a plain path on local disk, a percent-encoded URI elsewhere."""
    return f"{root_uri}/{location if '://' not in root_uri else quote(location)}"
