"""What made a version of a table, read from its transaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.imports import lance
from headwater.tables.translate import is_unshown_rewrite

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
    """What made a version. Raises pylance's error when the version is gone."""
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
    """The id of the transaction that made the version the dataset stands at."""
    return committed(dataset, dataset.version).uuid


def find(dataset: lance.LanceDataset, name: str) -> Committed | None:
    """The commit of that transaction id, or that made the version of that number, among the newest versions."""
    if _VERSION.fullmatch(name):
        return _left(dataset, int(name)) if int(name) <= dataset.version else None
    oldest = max(1, dataset.version - MAX_VERSIONS_SEARCHED + 1)
    candidates = (_left(dataset, version) for version in range(dataset.version, oldest - 1, -1))
    return next((found for found in candidates if found is not None and found.uuid == name), None)


def _left(dataset: lance.LanceDataset, version: int) -> Committed | None:
    """What made a version; None when the version is gone or keeps no transaction."""
    try:
        found = committed(dataset, version)
    except (OSError, ValueError):
        return None
    return None if found.operation == UNKNOWN else found
