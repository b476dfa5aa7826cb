"""The commit history of a Lance table: the transaction of each version, and the kind of change it made to rows."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.errors import TableVersionNotFoundError
from headwater.imports import lance
from headwater.tables.handle import TableHandle
from headwater.tables.translate import NoDataError, is_unshown_rewrite

MAX_VERSIONS_SEARCHED = 1000
UNKNOWN = "unknown"
_VERSION = re.compile(r"[1-9]\d{0,18}", re.ASCII)


@dataclass(frozen=True)
class Committed:
    """The commit that made a version: the name of its operation, and the properties it carries.

    `uuid` is None of a version that keeps no transaction (its operation is `unknown`), and of a compaction that
    rewrote indices, which pylance 14 cannot show.
    """

    version: int
    operation: str
    uuid: str | None = None
    read_version: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


def committed(dataset: lance.LanceDataset, version: int) -> Committed:
    """Return the commit that made a version. Raises pylance's error when the version is gone."""
    try:
        found = dataset.read_transaction(version)
    except TypeError as error:
        if not is_unshown_rewrite(error):
            raise
        return Committed(version, "Rewrite")
    if found is None:
        return Committed(version, UNKNOWN)
    properties = found.transaction_properties or {}
    return Committed(version, type(found.operation).__name__, str(found.uuid), found.read_version, properties)


def transaction_id(dataset: lance.LanceDataset) -> str | None:
    """Return the id of the transaction that made the version at which the dataset is open."""
    return committed(dataset, dataset.version).uuid


def find(dataset: lance.LanceDataset, name: str) -> Committed | None:
    """Return the commit by transaction id or version number. Searches the newest MAX_VERSIONS_SEARCHED versions."""
    if _VERSION.fullmatch(name):
        return _left(dataset, int(name)) if int(name) <= dataset.version else None
    oldest = max(1, dataset.version - MAX_VERSIONS_SEARCHED + 1)
    candidates = (_left(dataset, version) for version in range(dataset.version, oldest - 1, -1))
    return next((found for found in candidates if found is not None and found.uuid == name), None)


def _left(dataset: lance.LanceDataset, version: int) -> Committed | None:
    """Return the commit that made a version; None when the version is gone or keeps no transaction."""
    try:
        found = committed(dataset, version)
    except (OSError, ValueError):
        return None
    return None if found.operation == UNKNOWN else found


APPEND, CHANGE, SAME = "append", "change", "same"
_SAME = ("Rewrite", "CreateIndex", "UpdateConfig", "Project", "Merge", "DataReplacement", "DataOverlay")


@dataclass(frozen=True)
class VersionStep:
    """One version of a table: the kind of change, the Lance operation and the fragments it added."""

    version: int
    kind: str
    operation: str
    added: tuple[int, ...] = ()
    rows: int = 0


def step(table: TableHandle, version: int) -> VersionStep:
    """Return the change that `version` made: APPEND, CHANGE or SAME. TableVersionNotFound (11) if it was cleaned up."""
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
    """Return the row count of each fragment of a version; version 0 has no fragments."""
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
    """Return the commit time, in UTC, of each version that was not cleaned up."""
    times = ((row["version"], row["timestamp"]) for row in dataset.versions())
    return {version: time.astimezone(dt.UTC) for version, time in times if isinstance(time, dt.datetime)}
