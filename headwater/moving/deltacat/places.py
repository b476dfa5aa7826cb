"""Files of a root that may be hostile: a link that leads out of it is not followed."""

from __future__ import annotations

import os

from headwater.errors import CorruptFileError, InvalidInputError
from headwater.store import Store

MAX_METADATA = 64 << 20
"""No record or revision is larger: DeltaCAT's are some kB."""


def check_inside(store: Store, key: str) -> None:
    """Error 13 if a file of a local root is not below it when all links are followed."""
    root = store.abilities.path
    if root is None:
        return
    real = os.path.realpath(root)
    if not os.path.realpath(os.path.join(root, key)).startswith(real + os.sep):
        raise InvalidInputError(f"{key} is a link that leads out of the root: nothing is imported.")


def read_metadata(store: Store, key: str) -> bytes:
    """A record or a revision; KeyNotFoundError, or CorruptFile if it is too large to be one."""
    check_inside(store, key)
    entry = store.head(key)
    if entry is not None and entry.size > MAX_METADATA:
        raise CorruptFileError(key, f"it has {entry.size} bytes, and no metadata file has")
    return store.get(key)
