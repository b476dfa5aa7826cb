"""Where a table is, and opening it: what a driver learns from the catalog and hands to its executors.

A `TableRef` holds no credential of the catalog, only the location and the storage options that DescribeTable
answered, so an executor can read and write data files and cannot talk to the catalog.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import lance

from headwater.errors import TableNotFoundError, TableVersionNotFoundError


@dataclass(frozen=True)
class TableRef:
    """A table at one version. `managed`: its versions are ordered by the catalog, not by the storage."""

    id: tuple[str, ...]
    uri: str
    version: int | None = None
    managed: bool = False
    storage_options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return ".".join(self.id)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "id": list(self.id)}

    @staticmethod
    def from_json(value: dict[str, Any]) -> TableRef:
        return TableRef(
            tuple(value["id"]), value["uri"], value.get("version"), value["managed"], dict(value["storage_options"])
        )


def open_version(table: TableRef) -> lance.LanceDataset:
    """The table at its version, or at the newest when it names none; a handle of the caller's own.

    All handles share one session, so manifests, file metadata and index pages are read once per process, and an open
    only asks whether the manifest is still the one it was: a table dropped and made again is never served from memory.
    """
    return _open(table, table.version)


def open_latest(table: TableRef) -> lance.LanceDataset:
    return _open(table, None)


def _open(table: TableRef, version: int | None) -> lance.LanceDataset:
    try:
        return lance.dataset(table.uri, version=version, storage_options=table.storage_options or None, session=SESSION)
    except (ValueError, OSError) as error:
        text = str(error)
        if version is not None and ("not found" in text.lower() or "does not exist" in text.lower()):
            raise TableVersionNotFoundError(
                f"Version {version} of the table {table.name!r} does not exist; it may have been cleaned up."
            ) from None
        if "not found" in text.lower():
            raise TableNotFoundError(f"The table {table.name!r} holds no data at its location.") from None
        raise


SESSION = lance.Session()
