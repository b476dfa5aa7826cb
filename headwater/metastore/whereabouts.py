"""Which object a name means, and where that object is now: for those who decide about objects by their names.

An object is known by the keys from the root down to it, as they were where it was looked for. What is gone has no
name of its own any more: another may have got it since.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import LanceNamespaceError
from headwater.metastore.draft import Draft
from headwater.metastore.edits import last_dropped
from headwater.metastore.slot_views import IndexView, SlotView, resolve
from headwater.names import ObjectId

Keys = tuple[str, ...]


def identify(view: IndexView | Draft, id: ObjectId, dropped: bool = False) -> Keys:
    """The keys from the root to what an id means; with `dropped` to what was dropped there last, if nothing is there.

    None of it counts as read by a transaction. Empty: there is nothing, or the transaction made it itself.
    """
    seen = view if isinstance(view, IndexView) else view.unnoted()
    try:
        keys = resolve(seen, id).keys
    except LanceNamespaceError:
        keys = _dropped(Draft(seen) if isinstance(seen, IndexView) else seen, id) if dropped and not id.is_root else ()
    is_own = isinstance(seen, Draft) and keys and not id.is_root and seen.base.item(keys[-1], dropped=True) is None
    return () if is_own else keys


def _dropped(seen: Draft, id: ObjectId) -> Keys:
    try:
        item = last_dropped(seen, id)
        return () if item is None else (*resolve(seen, id.parent).keys, item.node.key)
    except LanceNamespaceError:
        return ()


def governing(now: SlotView, keys: Sequence[str]) -> tuple[str, ...]:
    """The name by which an object is decided about: its own now, or of one that is gone, its key in the nearest
    namespace above it that is there. Rights on that namespace hold for it, and rights on a name that it had do not."""
    above = list(keys)
    key = last = above.pop() if above else ""
    while (path := path_of(now, key)) is None:
        item = now.item(key, dropped=True)  # None: it is forgotten, and what it was below then is asked
        key = item.revision.parent if item is not None else above.pop() if above else ""
    return path if key == last else (*path, last)


def path_of(view: SlotView, key: str) -> tuple[str, ...] | None:
    """The names from the root to a namespace or table that is there, by its key; None if it is not."""
    names: list[str] = []
    passed: list[str] = []
    while key:
        item = view.item(key)
        if item is None or key in passed:  # not there, or above itself
            return None
        passed.append(key)
        names.append(item.revision.name)
        key = item.revision.parent
    return tuple(reversed(names))
