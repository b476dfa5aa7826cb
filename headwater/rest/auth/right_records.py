"""Records of rights: each is created once and never overwritten, so that no writer can undo what another has done.

What changes has a folder of numbered records, `<folder>/<number>.json`, of which the newest holds. Who changes one
creates the next number after what it read; who comes second finds it taken, reads again and decides anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from headwater.errors import ConcurrentModificationError
from headwater.store import Store, create

ATTEMPTS = 100
_NUMBERED = re.compile(r"(.+)/([0-9]{8})\.json")


def newest_of(keys: Iterable[str]) -> dict[str, str]:
    """The key of the newest numbered record of each folder among the keys."""
    found: dict[str, str] = {}
    for key in keys:
        numbered = _NUMBERED.fullmatch(key)
        if numbered is not None and key > found.get(numbered[1], ""):
            found[numbered[1]] = key
    return found


def add_record(store: Store, folder: str, make: Callable[[str | None], bytes]) -> None:
    """Create the next record of a folder. `make` gets the key of the newest one, again for each that others created."""
    for _ in range(ATTEMPTS):
        newest = newest_of(entry.key for entry in store.list(folder)).get(folder)
        number = 0 if newest is None else int(newest.removesuffix(".json")[-8:])
        if create(store, f"{folder}/{number + 1:08d}.json", make(newest)):
            return
    raise ConcurrentModificationError(f"{folder} is changed by others all the time: try again.")
