"""Which object a name means, and where that object is now: for those who decide about objects by their names.

An object is known by the keys from the root down to it, as they were where it was looked for. What is gone has no
name of its own any more: another may have got it since.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import LanceNamespaceError
from headwater.metastore.draft import Draft
from headwater.metastore.edits import last_dropped
from headwater.metastore.slot_views import IndexView, SlotView, place_at, resolve
from headwater.names import ObjectId

Keys = tuple[str, ...]


def identify(view: IndexView | Draft, id: ObjectId, dropped: bool = False) -> Keys:
    """The keys from the root to what an id means; with `dropped` to what was dropped there last, if nothing is there.

    None of it counts as read by a transaction. Empty: there is nothing, or the transaction made it itself.
    """
    seen = Draft(view) if isinstance(view, IndexView) else view.unnoted()
    try:
        keys = resolve(view if isinstance(view, IndexView) else seen, id).keys
    except LanceNamespaceError:
        keys = _dropped(seen, id) if dropped and not id.is_root else ()
    is_known = keys and (id.is_root or seen.base.item(keys[-1], dropped=True) is not None)
    return keys if is_known else ()


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
    while (place := place_at(now, key)) is None:
        item = now.item(key, dropped=True)  # None: it is forgotten, and what it was below then is asked
        key = item.revision.parent if item is not None else above.pop() if above else ""
    return place.path if key == last else (*place.path, last)
