"""UPDATE, DELETE and MERGE as deltas: rows to take away by address, rows to add, one pinned commit.

A row address is `fragment id << 32 | offset`. Executors write the added rows as data files and report the
addresses to take away; the driver turns those into deletion vectors, one file per touched fragment.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from lance.fragment import FragmentMetadata

from headwater.spark.catalog import Connection
from headwater.spark.commit import Committer, fragment_from
from headwater.spark.tables import TableRef, open_version

OFFSETS = (1 << 32) - 1


def by_fragment(packed: list[str]) -> dict[int, list[int]]:
    """The offsets to take away in each fragment, each once. Pure."""
    arrays = [np.frombuffer(base64.b64decode(text), dtype="<i8") for text in packed]
    addresses = np.unique(np.concatenate([np.empty(0, "<i8"), *arrays]))
    if not len(addresses):
        return {}
    fragments, starts = np.unique(addresses >> 32, return_index=True)
    ends = [*starts[1:], len(addresses)]
    return {int(f): (addresses[s:e] & OFFSETS).tolist() for f, s, e in zip(fragments, starts, ends, strict=True)}


def commit_delta(committer: Committer, table: TableRef, packed: list[str], added: list[dict[str, Any]]) -> int:
    """Take rows away and add rows at exactly the version that was planned."""
    dataset = open_version(table)
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    for fragment_id, offsets in by_fragment(packed).items():
        after = dataset.get_fragment(fragment_id).delete_rows(offsets)
        if after is None:
            removed.append(fragment_id)
        else:
            updated.append(after)
    return committer.update(table, removed, updated, [fragment_from(value) for value in added])


def overwrite(
    committer: Committer,
    table: TableRef,
    filter: str,
    added: list[dict[str, Any]],
    properties: Mapping[str, str] | None = None,
) -> int:
    """INSERT OVERWRITE and REPLACE WHERE: the rows that match go, the new ones come, in one pinned commit."""
    dataset = open_version(table)
    removed: list[int] = []
    updated: list[FragmentMetadata] = []
    for fragment in dataset.get_fragments():
        after = None if filter == "true" else fragment.delete(filter)
        if after is None:
            removed.append(fragment.fragment_id)
        elif after.num_deletions != fragment.num_deletions:
            updated.append(after)
    return committer.update(table, removed, updated, [fragment_from(value) for value in added], properties)


def delete_where(connection: Connection, table: TableRef, filter: str) -> int:
    """DELETE with a filter Lance understands: it looks again and retries by itself when another writer was faster."""
    dataset = connection.open(table)
    dataset.delete(filter)
    return int(dataset.version)
