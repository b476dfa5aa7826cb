"""The columns of a table and their comments, read from the manifest of its newest version: no Lance is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import columns_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.metastore.state.snapshot import Snapshot
from headwater.store import KeyNotFoundError, Store


def columns_at(state: Snapshot, store: Store, table: Sequence[str]) -> Mapping[str, str]:
    """Each column with its comment, or an empty text; none where there is no version or it cannot be read."""
    try:
        newest = state.newest_delta(list(table), format=LANCE_FORMAT)
    except LanceNamespaceError:
        return {}
    if newest is None or not newest.files:
        return {}
    path = newest.files[0].path
    staged = newest.properties.get("staged")
    for key in [path, f"{path.rsplit('/_versions/', 1)[0]}/{staged}"] if staged else [path]:
        try:
            return columns_of(store.get(key))
        except (KeyNotFoundError, LanceNamespaceError, ValueError):
            continue
    return {}
