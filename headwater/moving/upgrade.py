"""`upgrade` turns a directory root into a metastore, in place. No data file is copied or changed.

    rehearse   read everything and try it on the metastore's rules: what cannot be is refused before anything changes
    close      `.headwater/upgrade` keeps every open of ours out, the writer flag of `__manifest` everybody else
    adopt      read again what was written meanwhile, and commit it as one transaction: slot 1
    retire     the reader flag says that the names in `__manifest` are old; the marker goes

Killed anywhere, it goes on where it was: before slot 1 everything is read again, after it only the end is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise

from headwater.clock import Clock, SystemClock
from headwater.config import look, resolve
from headwater.errors import ConcurrentModificationError, CorruptFileError, InvalidInputError, NamespaceNotFoundError
from headwater.metastore import Metastore, Transaction
from headwater.metastore.commit.root_kinds import DIRECTORY_MARKER, UPGRADE_MARKER, RootKind
from headwater.metastore.records.layout import FORMAT_KEY, is_own_folder
from headwater.model import Add, CatalogObject, Change, Namespace, Replace, Table, Version
from headwater.names import ROOT, ObjectId, object_id
from headwater.namespace.registry_kinds import DirectoryProperties, open_registry, parse_properties
from headwater.namespace.versions import TableVersions
from headwater.registries.folders import is_place
from headwater.registries.manifest.format import freshness_of
from headwater.registries.manifest.state import READER_FLAGS, UPGRADED, UPGRADING, WRITER_FLAGS
from headwater.registries.manifest.table import ManifestTable
from headwater.registries.metastore import MetastoreRegistry
from headwater.registries.metastore.changes import TransactionChanges
from headwater.store import KeyNotFoundError, Store, is_there, open_store, probe

SHOWN = 10
"""The number of problems in one message."""


@dataclass(frozen=True)
class DirectoryContents:
    """The contents of a directory root."""

    namespaces: Sequence[Namespace]
    tables: Sequence[Table]
    root_properties: Mapping[str, str] = field(default_factory=dict)
    strange_rows: Sequence[str] = ()
    """Ids of rows that this version cannot read."""


class DirectoryRoot:
    """A directory root, readable for the upgrade also after it has closed the root to others."""

    def __init__(self, store: Store, properties: DirectoryProperties, clock: Clock) -> None:
        self.store = store
        self.registry, self.records = open_registry(properties, store, clock, UPGRADING)
        self.manifest: ManifestTable | None = None if self.records is None else self.records.table
        self.versions = TableVersions(self.registry, self.records, store, properties.root, clock)

    def read(self) -> DirectoryContents:
        """Read names and properties. Changes nothing."""
        found = self.registry.descendants(ROOT)
        namespaces = [item for item in found if isinstance(item, Namespace)]
        root = self.registry.find([ROOT]).get(ROOT)
        return DirectoryContents(
            sorted(namespaces, key=lambda item: item.id.level),
            [item for item in found if isinstance(item, Table)],
            root.properties if isinstance(root, Namespace) else {},
            list(self._strange_rows()),
        )

    def history(self, table: Table, settle: bool) -> Sequence[Version]:
        """Return the versions of a table, ascending: by records if the catalog manages them, else by storage.

        `settle`: True gives recorded versions their final manifests first.
        """
        line = self.versions.line(table)
        if not table.known.managed or self.records is None:
            return self.versions.storage.dated(line, self.versions.storage.all(line))
        if settle and self.versions.managed is not None:
            self.versions.managed.settle(line, point=False)
        final = {item.number for item in self.versions.storage.all(line)}
        ids = [table.id.child(str(number)) for number in self.records.versions(table.id)]
        known = [item for item in self.records.find(ids).values() if isinstance(item, Version)]
        return [
            replace(item, manifest_path=line.manifest(item.number, item.naming_scheme))
            if item.number in final
            else item
            for item in sorted(known, key=lambda item: item.number)
        ]

    def _strange_rows(self) -> Iterator[str]:
        newest = None if self.manifest is None else freshness_of(self.store).newest()
        if newest is None or self.manifest is None:
            return
        snapshot, _ = self.manifest.load(newest, None)
        for fragment in snapshot.fragments.values():
            yield from (key for key, row in fragment.rows.items() if snapshot.codec.decode(row) is None)


def plan_adoption(contents: DirectoryContents, histories: Mapping[ObjectId, Sequence[Version]]) -> list[Change]:
    """Return the changes that make the same names, properties and versions in an empty metastore. InvalidInput (13)."""
    problems = list(find_problems(contents))
    if problems:
        more = f" And {len(problems) - SHOWN} more." if len(problems) > SHOWN else ""
        raise InvalidInputError(
            f"This root cannot be upgraded, and nothing was changed: {' '.join(problems[:SHOWN])}{more}"
        )
    changes: list[Change] = [Add(item) for item in contents.namespaces]
    if contents.root_properties:
        changes.append(Replace(Namespace(ROOT), Namespace(ROOT, contents.root_properties)))
    for table in contents.tables:
        changes += [Add(table), *(Add(version) for version in histories.get(table.id, ()))]
    return changes


def find_problems(contents: DirectoryContents) -> Iterator[str]:
    """Return the problems that a metastore would have, each as a sentence with a remedy."""
    for key in contents.strange_rows:
        yield f"The row {key[:80]!r} of __manifest is not understood: remove it, or use a newer headwater."
    known = {ROOT, *(item.id for item in contents.namespaces)}
    named: list[CatalogObject] = [*contents.namespaces, *contents.tables]
    for item in named:
        yield from _name_problems(item, known)
    for table in contents.tables:
        if not is_place(table.location) or is_own_folder(table.location.partition("/")[0]):
            yield f"Table {table.id} is at {table.location[:80]!r}, where no table of a metastore can be: move it."
    yield from _shared(contents.tables)


def _name_problems(item: CatalogObject, known: set[ObjectId]) -> Iterator[str]:
    try:
        object_id(item.id.names)
    except InvalidInputError as error:
        yield f"{error} Rename it."
        return
    if item.id.parent not in known:
        yield f"{item.id} is in a namespace that does not exist: create {item.id.parent}, or drop it."


def _shared(tables: Sequence[Table]) -> Iterator[str]:
    """Yield tables at or inside another one's location: a metastore could not tell whose a version is."""
    placed = sorted((tuple(table.location.strip("/").split("/")), table.id) for table in tables)
    for (around, first), (inside, second) in pairwise(placed):
        if inside[: len(around)] == around:
            yield f"The tables {first} and {second} share a location: deregister one of them."


KEPT = ("manifest_enabled", "dir_listing_enabled", "early_layout")
"""The way the root is read, recorded in the marker for a later run."""


@dataclass(frozen=True)
class Upgraded:
    """The summary of an upgrade: counts, and the commit that holds everything."""

    namespaces: int
    tables: int
    versions: int
    slot: int


def upgrade(target: str, properties: Mapping[str, object] | None = None) -> Upgraded:
    """Turn the directory catalog at a path, URI or profile into a metastore. Run it again after an interruption.

    Errors 1: nothing is there; 13: it is no directory catalog, or a metastore cannot hold it (nothing was changed).
    """
    found = resolve(target, {**(properties or {}), "impl": "dir"})
    known = parse_properties(found.properties)
    if not is_there(known.root, known.storage):
        raise NamespaceNotFoundError(f"There is no catalog at {found.shown}.")
    store = open_store(known.root, known.storage)
    if store.head(UPGRADE_MARKER) is None:
        there = look(found)
        if there is not RootKind.DIRECTORY:
            raise InvalidInputError(
                f"At {found.shown} is {there.value}, and no directory catalog to upgrade. One in the early layout is "
                "upgraded with the property layout=early."
            )
    return Upgrade(store, known, SystemClock()).run()


class Upgrade:
    """An upgrade of one root, which continues an interrupted one."""

    def __init__(self, store: Store, properties: DirectoryProperties, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.properties = replace(properties, manifest_enabled=not properties.early_layout)

    def run(self) -> Upgraded:
        self._begin()
        root = DirectoryRoot(self.store, self.properties, self.clock)
        metastore = Metastore(self.store, clock=self.clock, beside_others=True)
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
        metastore = Metastore(self.store, clock=self.clock, beside_others=True)
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
