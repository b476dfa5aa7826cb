"""Where a table is, and opening it: what a driver learns from the catalog and hands to its executors.

A `TableRef` holds no credential of the catalog, only the location and the storage options that DescribeTable
answered, so an executor can read and write data files and cannot talk to the catalog.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, field
from typing import Any

import lance

from headwater.errors import TableNotFoundError, TableVersionNotFoundError

CACHED_DATASETS = 32


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


class DatasetCache:
    """Open datasets of this process by location and version: a version never changes, so neither does an entry."""

    def __init__(self, limit: int = CACHED_DATASETS) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, int, str], lance.LanceDataset] = OrderedDict()
        self._limit = limit

    def get(self, table: TableRef) -> lance.LanceDataset:
        if table.version is None:
            return open_latest(table)
        key = (table.uri, table.version, repr(sorted(table.storage_options.items())))
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        dataset = _open(table, table.version)
        self.put(table, dataset)
        return dataset

    def own(self, table: TableRef) -> lance.LanceDataset:
        """A handle of the caller's own, for calls that change it (building an index): a shared one may be in use."""
        shared = self.get(table)
        return shared.checkout_version(shared.version)

    def put(self, table: TableRef, dataset: lance.LanceDataset) -> None:
        key = (table.uri, dataset.version, repr(sorted(table.storage_options.items())))
        with self._lock:
            self._open[key] = dataset
            while len(self._open) > self._limit:
                self._open.popitem(last=False)


def open_latest(table: TableRef) -> lance.LanceDataset:
    return _open(table, None)


def _open(table: TableRef, version: int | None) -> lance.LanceDataset:
    try:
        return lance.dataset(table.uri, version=version, storage_options=table.storage_options or None)
    except (ValueError, OSError) as error:
        text = str(error)
        if version is not None and ("not found" in text.lower() or "does not exist" in text.lower()):
            raise TableVersionNotFoundError(
                f"Version {version} of the table {table.name!r} does not exist; it may have been cleaned up."
            ) from None
        if "not found" in text.lower():
            raise TableNotFoundError(f"The table {table.name!r} holds no data at its location.") from None
        raise


DATASETS = DatasetCache()
