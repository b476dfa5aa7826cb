"""The marker files of the directory layout, which tell other readers of the storage what a folder is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwater.model import Table
from headwater.names import ObjectId
from headwater.registries.folders import folder_status
from headwater.registries.layout import DEREGISTERED_MARKER, MARKER_BODY, RESERVED_MARKER
from headwater.store import Store
from headwater.tables.folders import discard_files


def nothing_hidden(id: ObjectId) -> Table | None:
    """Of a catalog that shows no folders, so that none has to be hidden."""
    return None


@dataclass(frozen=True)
class FolderMarkers:
    """`hidden` finds the deregistered table of a name. `strict`: an empty folder is a table unless it is reserved."""

    store: Store
    hidden: Callable[[ObjectId], Table | None] = nothing_hidden
    strict: bool = False

    def declare(self, table: Table) -> None:
        self.store.put(_reserved(table), MARKER_BODY)

    def withdraw(self, table: Table) -> None:
        discard_files(self.store, table.location, [_reserved(table)])

    def is_declared(self, location: str) -> bool:
        status = folder_status(self.store, location)
        return status.reserved if self.strict else not status.foreign

    def reveal(self, location: str) -> None:
        self.store.delete(f"{location}/{DEREGISTERED_MARKER}")


def _reserved(table: Table) -> str:
    return f"{table.location}/{RESERVED_MARKER}"
