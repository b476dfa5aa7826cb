"""All that a directory root holds, as the changes that make it anew in a metastore, and what cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.metastore.layout import is_own_folder
from headwater.model import Add, CatalogObject, Change, Namespace, Replace, Table, Version
from headwater.names import ROOT, ObjectId, object_id
from headwater.namespace.kinds import open_registry
from headwater.namespace.locations import is_place
from headwater.namespace.properties import DirectoryProperties
from headwater.namespace.versions import TableVersions
from headwater.registries.manifest.freshness import freshness_of
from headwater.registries.manifest.settings import UPGRADING
from headwater.registries.manifest.table import ManifestTable
from headwater.store import Store

SHOWN = 10
"""So many problems are told at once."""


@dataclass(frozen=True)
class DirectoryContents:
    """What a directory root holds."""

    namespaces: Sequence[Namespace]
    tables: Sequence[Table]
    root_properties: Mapping[str, str] = field(default_factory=dict)
    strange_rows: Sequence[str] = ()
    """Ids of rows that this version cannot read."""


class DirectoryRoot:
    """A directory root as an upgrade reads it, also when the upgrade has closed it to everybody else."""

    def __init__(self, store: Store, properties: DirectoryProperties, clock: Clock) -> None:
        self.store = store
        self.registry, self.records = open_registry(properties, store, clock, UPGRADING)
        self.manifest: ManifestTable | None = None if self.records is None else self.records.table
        self.versions = TableVersions(self.registry, self.records, store, properties.root, clock)

    def read(self) -> DirectoryContents:
        """Names and properties. Nothing is changed."""
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
        """The versions of a table, ascending: as recorded where the catalog manages them, else as storage has them.

        `settle`: those that were recorded and not finished get their final manifests first.
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
    """What makes the same names, properties and versions in an empty metastore. Error 13 if it cannot hold them."""
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
    """What a metastore cannot hold, each in a sentence that says what to do."""
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
    """Tables at or inside another one's location: a metastore could not tell whose a version is."""
    placed = sorted((tuple(table.location.strip("/").split("/")), table.id) for table in tables)
    for (around, first), (inside, second) in pairwise(placed):
        if inside[: len(around)] == around:
            yield f"The tables {first} and {second} share a location: deregister one of them."
