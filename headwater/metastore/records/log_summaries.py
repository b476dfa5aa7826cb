"""Summaries of transactions in words for people: tables, versions and deltas, not the parts they are kept in. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.metastore.records.objects import HistoryEntry, LogChange
from headwater.metastore.records.serving_copy import LANCE_FORMAT

PARTS = ("table_version", "stream", "partition")
NOTES = "notes"
"""The word for a change of what is kept with a table beside its rows: sources, readers, tags."""


def is_version(change: LogChange) -> bool:
    """Return True if a delta is a version of a Lance table."""
    return change.kind == "delta" and f"/{LANCE_FORMAT}/" in change.key


def words_of(change: LogChange) -> str:
    """Return what was done to one object, without its name: `create table`, `version 3`, `drop delta 2`, `notes`."""
    if change.kind in PARTS:
        return NOTES
    if change.kind != "delta":
        return f"{_verb(change.operation)} {change.kind}"
    told = f"{'version' if is_version(change) else 'delta'} {change.position}"
    return told if change.operation == "create" else f"{_verb(change.operation)} {told}"


def summarized(changes: Sequence[LogChange]) -> Iterator[LogChange]:
    """Return the changes that a summary names: a part of a table only if nothing else of the table is, and once."""
    said = {change.path for change in changes if change.kind not in PARTS}
    for change in changes:
        if change.kind not in PARTS or change.path not in said:
            said.add(change.path)
            yield change


def summary_of(entry: HistoryEntry) -> str:
    """Return what a transaction did to one object."""
    if entry.kind in PARTS:
        return NOTES
    if entry.kind != "delta":
        return f"{_verb(entry.operation)} {entry.kind}"
    return f"version {entry.version}" if entry.version is not None else f"delta {entry.position}"


def _verb(operation: str) -> str:
    return {"update": "change", "delete": "drop"}.get(operation, operation)
