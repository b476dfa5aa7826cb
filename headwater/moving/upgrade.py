"""`upgrade`: a directory root becomes a metastore, in place. No data file is copied, and none is changed.

    rehearse   read everything and try it on the metastore's rules: what cannot be is refused before anything changes
    close      `.headwater/upgrade` keeps every open of ours out, the writer flag of `__manifest` everybody else
    adopt      read again what was written meanwhile, and commit it as one transaction: slot 1
    retire     the reader flag says that the names in `__manifest` are old; the marker goes

Killed anywhere, it goes on where it was: before slot 1 everything is read again, after it only the end is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from headwater.clock import Clock, SystemClock
from headwater.config import There, look, resolve
from headwater.errors import (
    ConcurrentModificationError,
    CorruptFileError,
    InvalidInputError,
    NamespaceNotFoundError,
)
from headwater.metastore import Metastore, Transaction
from headwater.metastore.layout import FORMAT_KEY
from headwater.model import Change, Namespace, Table
from headwater.moving.directory import DirectoryRoot, plan_adoption
from headwater.names import ROOT
from headwater.namespace.properties import DirectoryProperties, parse_properties
from headwater.registries.layout import DIRECTORY_MARKER, UPGRADE_MARKER
from headwater.registries.manifest.freshness import freshness_of
from headwater.registries.manifest.settings import READER_FLAGS, UPGRADED, UPGRADING, WRITER_FLAGS
from headwater.registries.metastore import MetastoreRegistry
from headwater.registries.metastore.changes import TransactionChanges
from headwater.store import KeyNotFoundError, Store, is_there, open_store, probe

KEPT = ("manifest_enabled", "dir_listing_enabled", "early_layout")
"""How the root is read: the marker says it, so that whoever goes on reads it in the same way."""


@dataclass(frozen=True)
class Upgraded:
    """What an upgrade has taken over, and the slot that holds it."""

    namespaces: int
    tables: int
    versions: int
    slot: int


def upgrade(target: str, properties: Mapping[str, Any] | None = None) -> Upgraded:
    """Make the directory catalog at a path, a URI or a profile a metastore. Run it again if it was interrupted.

    Errors 1: nothing is there; 13: no directory catalog is, or a metastore cannot hold it (nothing was changed).
    """
    found = resolve(target, {**(properties or {}), "impl": "dir"})
    known = parse_properties(found.properties)
    if not is_there(known.root, known.storage):
        raise NamespaceNotFoundError(f"There is no catalog at {found.shown}.")
    store = open_store(known.root, known.storage)
    if store.head(UPGRADE_MARKER) is None:
        there = look(found)
        if there is not There.DIRECTORY:
            raise InvalidInputError(
                f"At {found.shown} is {there.value}, and no directory catalog to upgrade. One in the early layout is "
                "upgraded with the property layout=early."
            )
    return Upgrade(store, known, SystemClock()).run()


class Upgrade:
    """One upgrade of one root, from wherever an earlier one got to."""

    def __init__(self, store: Store, properties: DirectoryProperties, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.properties = replace(properties, manifest_enabled=not properties.early_layout)

    def run(self) -> Upgraded:
        self._begin()
        root = DirectoryRoot(self.store, self.properties, self.clock)
        metastore = Metastore(self.store, clock=self.clock)
        if not metastore.slot:
            self._adopt(root, metastore)
        self._retire(root)
        return _summary(metastore, self.clock)

    def _begin(self) -> None:
        """The marker is there, and says how to read the root."""
        try:
            kept = json.loads(self.store.get(UPGRADE_MARKER))
            manifest, listing, early = (bool(kept[key]) for key in KEPT)
            self.properties = replace(
                self.properties, manifest_enabled=manifest, dir_listing_enabled=listing, early_layout=early
            )
            return
        except KeyNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            raise CorruptFileError(UPGRADE_MARKER, "it does not say how to read the root") from None
        if self.store.head(FORMAT_KEY) is not None:
            raise InvalidInputError("This root is a metastore catalog already.")
        root = DirectoryRoot(self.store, self.properties, self.clock)
        metastore = Metastore(self.store, clock=self.clock)
        metastore.rehearse(self._transaction(metastore, _changes(root, settle=False)))
        probe(self.store, self.clock)
        kept = {key: value for key, value in asdict(self.properties).items() if key in KEPT}
        self.store.put(UPGRADE_MARKER, json.dumps(kept).encode())

    def _adopt(self, root: DirectoryRoot, metastore: Metastore) -> None:
        """Everything in one transaction. What became impossible since the rehearsal opens the root again."""
        try:
            self._set_flags(root, WRITER_FLAGS, UPGRADING)
            tx = self._transaction(metastore, _changes(root, settle=True))
            metastore.rehearse(tx)
        except (InvalidInputError, ConcurrentModificationError):
            self._back_out(root)
            raise
        metastore.create()
        try:
            tx.commit()
        except ConcurrentModificationError:
            if not metastore.slot:  # else another process is upgrading too, and was first
                raise

    def _transaction(self, metastore: Metastore, changes: list[Change]) -> Transaction:
        tx = metastore.transaction("upgrade of a directory catalog")
        applied = TransactionChanges(tx, lambda location: True, {}, lambda: "")
        for change in changes:
            applied.apply(change)
        return tx

    def _retire(self, root: DirectoryRoot) -> None:
        self._set_flags(root, WRITER_FLAGS, UPGRADING)
        self._set_flags(root, READER_FLAGS, UPGRADED)
        self.store.delete(DIRECTORY_MARKER)
        self.store.delete(UPGRADE_MARKER)

    def _back_out(self, root: DirectoryRoot) -> None:
        self._set_flags(root, WRITER_FLAGS, UPGRADING, clear=True)
        self.store.delete(UPGRADE_MARKER)

    def _set_flags(self, root: DirectoryRoot, key: str, flag: int, clear: bool = False) -> None:
        newest = None if root.manifest is None else freshness_of(self.store).newest()
        if root.manifest is None or newest is None:
            return
        settings = root.manifest.load(newest, None)[0].settings
        flags = settings.reader_flags if key == READER_FLAGS else settings.writer_flags
        wanted = flags & ~flag if clear else flags | flag
        if wanted != flags:
            root.manifest.update_metadata({key: str(wanted)})


def _changes(root: DirectoryRoot, settle: bool) -> list[Change]:
    contents = root.read()
    plan_adoption(contents, {})  # refuses by names and places, before any table is looked into
    return plan_adoption(contents, {table.id: root.history(table, settle) for table in contents.tables})


def _summary(metastore: Metastore, clock: Clock) -> Upgraded:
    registry = MetastoreRegistry(metastore, clock)
    found = registry.descendants(ROOT)
    tables = [item for item in found if isinstance(item, Table)]
    versions = sum(len(registry.versions(table.id)) for table in tables)
    return Upgraded(sum(isinstance(item, Namespace) for item in found), len(tables), versions, metastore.slot)
