"""What each version of a table did, told from its transaction: appended rows, changed rows, or nothing to a reader."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from headwater.errors import TableVersionNotFoundError
from headwater.imports import lance
from headwater.tables.handle import TableHandle
from headwater.tables.transactions import committed
from headwater.tables.translate import NoDataError

APPEND, CHANGE, SAME = "append", "change", "same"
_SAME = ("Rewrite", "CreateIndex", "UpdateConfig", "Project", "Merge", "DataReplacement", "DataOverlay")


@dataclass(frozen=True)
class VersionStep:
    """One version: how it came about, and the fragments it added."""

    version: int
    kind: str
    operation: str
    added: tuple[int, ...] = ()
    rows: int = 0


def step(table: TableHandle, version: int) -> VersionStep:
    """What version `version` did. Raises TableVersionNotFound, with what to do, when it was cleaned up."""
    try:
        name = committed(table.at(version).open(), version).operation
    except (TableVersionNotFoundError, NoDataError, OSError, ValueError):
        raise TableVersionNotFoundError(
            f"Version {version} of the table {table.name!r} was cleaned up before it was read. Start from a newer "
            "version (startingVersion), and clean up with CALL system.cleanup, which spares versions streams need."
        ) from None
    if name in _SAME:
        return VersionStep(version, SAME, name)
    now = _fragments(table, version)
    before = _fragments(table, version - 1)
    if now == before:  # a reservation, a tag, anything else that a reader of rows does not see
        return VersionStep(version, SAME, name)
    added = {id: rows for id, rows in now.items() if id not in before}
    kind = APPEND if name == "Append" or not before else CHANGE
    return VersionStep(version, kind, name, tuple(added), sum(added.values()))


def _fragments(table: TableHandle, version: int) -> dict[int, int]:
    """The rows each fragment of a version has; a version before the first has none."""
    if version < 1:
        return {}
    try:
        metadata = [fragment.metadata for fragment in table.at(version).open().get_fragments()]
        return {fragment.id: fragment.num_rows for fragment in metadata}
    except (TableVersionNotFoundError, NoDataError):
        raise TableVersionNotFoundError(
            f"Version {version} of the table {table.name!r} was cleaned up; what version {version + 1} changed "
            "cannot be told any more. Start from a newer version."
        ) from None


def timestamps(dataset: lance.LanceDataset) -> dict[int, dt.datetime]:
    """When each version that is left was committed, in UTC."""
    return {row["version"]: row["timestamp"].astimezone(dt.UTC) for row in dataset.versions()}
