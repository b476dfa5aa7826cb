"""The catalog in memory: what every read answers from. Costs follow the answer, not the catalog's size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import TypeVar

from headwater.model import NEW, CatalogObject, Namespace, Table, Version
from headwater.names import ObjectId
from headwater.registry import Kind

Item = TypeVar("Item", str, int)


class RowIndex:
    """Objects by id, children by parent, tables by location, versions by table."""

    def __init__(self) -> None:
        self._objects: dict[ObjectId, CatalogObject] = {}
        self._names: dict[tuple[ObjectId, Kind], list[str]] = {}
        self._versions: dict[ObjectId, list[int]] = {}
        self._holders: dict[str, set[ObjectId]] = {}
        self._locations: list[str] = []

    @property
    def has_tables(self) -> bool:
        return bool(self._holders)

    def get(self, id: ObjectId) -> CatalogObject | None:
        return self._objects.get(id)

    def put(self, item: CatalogObject) -> None:
        """Add the object, or let it take the place of the one with its id."""
        self.remove(item.id)
        if isinstance(item, Table) and item.known is not NEW:
            item = Table(item.id, item.location, item.properties)  # what was known of it was known before
        self._objects[item.id] = item
        if isinstance(item, Version):
            insort(self._versions.setdefault(item.table, []), item.number)
            return
        insort(self._names.setdefault((item.id.parent, _kind(item)), []), item.id.name)
        if isinstance(item, Table):
            place = _place(item.location)
            if place not in self._holders:
                insort(self._locations, place)
            self._holders.setdefault(place, set()).add(item.id)

    def remove(self, id: ObjectId) -> None:
        item = self._objects.pop(id, None)
        if item is None:
            return
        if isinstance(item, Version):
            _discard(self._versions[item.table], item.number)
            return
        _discard(self._names[item.id.parent, _kind(item)], id.name)
        if isinstance(item, Table):
            place = _place(item.location)
            self._holders[place].discard(id)
            if not self._holders[place]:
                del self._holders[place]
                _discard(self._locations, place)

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        names = self._names.get((parent, kind), [])
        start = bisect_right(names, after) if after else 0
        return names[start : None if limit is None else start + limit]

    def count_children(self, id: ObjectId) -> int:
        return sum(len(self._names.get((id, kind), ())) for kind in Kind)

    def descendants(self, parent: ObjectId) -> Iterator[CatalogObject]:
        """Namespaces and tables below `parent`, each after all that is below it."""
        for name in tuple(self._names.get((parent, Kind.NAMESPACE), ())):
            yield from self.descendants(parent.child(name))
            yield self._objects[parent.child(name)]
        for name in tuple(self._names.get((parent, Kind.TABLE), ())):
            yield self._objects[parent.child(name)]

    def versions(self, table: ObjectId) -> Sequence[int]:
        """The numbers of a managed table's versions, ascending."""
        return self._versions.get(table, ())

    def version_page(self, table: ObjectId, after: int | None, limit: int | None, descending: bool) -> Sequence[int]:
        """At most `limit` version numbers that follow `after` in the order asked for."""
        numbers = self._versions.get(table, [])
        if not descending:
            start = bisect_right(numbers, after) if after is not None else 0
            return numbers[start : None if limit is None else start + limit]
        end = bisect_left(numbers, after) if after is not None else len(numbers)
        return numbers[0 if limit is None else max(end - limit, 0) : end][::-1]

    def newest_version(self, table: ObjectId) -> int:
        numbers = self._versions.get(table)
        return numbers[-1] if numbers else 0

    def location_holders(self, location: str) -> set[ObjectId]:
        """The tables at this location, inside it and around it. Other writers' rows may share one."""
        location = _place(location)
        parts = location.split("/")
        around = ("/".join(parts[:end]) for end in range(1, len(parts) + 1))
        start = bisect_left(self._locations, location + "/")
        end = bisect_left(self._locations, location + "0")  # "0" follows "/"
        found: set[ObjectId] = set()
        for place in (*around, *self._locations[start:end]):
            found |= self._holders.get(place, set())
        return found


def _place(location: str) -> str:
    """A location in the one spelling by which two can be compared."""
    return "/".join(part for part in location.split("/") if part not in ("", "."))


def _kind(item: Namespace | Table) -> Kind:
    return Kind.NAMESPACE if isinstance(item, Namespace) else Kind.TABLE


def _discard(items: list[Item], item: Item) -> None:
    at = bisect_left(items, item)
    if at < len(items) and items[at] == item:
        del items[at]
