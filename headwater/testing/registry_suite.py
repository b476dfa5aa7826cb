"""The conformance suite of registries. Subclass `RegistrySuite` with fixtures:

`registry` yields one over an empty catalog; `reopen` is a function that opens the same catalog again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.errors import ConcurrentModificationError, UnsupportedOperationError
from headwater.model import Add, CatalogObject, Change, Move, Namespace, Remove, Replace, RequireLocation, Table
from headwater.names import ROOT, ObjectId
from headwater.registry import Kind, Registry


def ns(*names: str, **properties: str) -> Namespace:
    return Namespace(ObjectId(names), properties)


def table(registry: Registry, *names: str, hash: str = "00000000", **properties: str) -> Table:
    id = ObjectId(names)
    return Table(id, registry.place(id, hash), properties)


def needs_namespaces(registry: Registry) -> None:
    """Assert the refusal of namespaces by a registry without them, in place of a skip."""
    if not registry.capabilities.namespaces:
        with pytest.raises(UnsupportedOperationError):
            registry.commit([Add(ns("a"))])
        pytest.skip("this kind of catalog has no namespaces, and says so")


class RegistrySuite:
    """The tests of find, children and commit."""

    def test_an_empty_catalog_has_nothing(self, registry: Registry) -> None:
        assert registry.find([ObjectId(("a",)), ObjectId(("a", "b"))]) == {}
        assert list(registry.children(ROOT, Kind.TABLE, "", None)) == []
        assert list(registry.children(ROOT, Kind.NAMESPACE, "", None)) == []
        assert list(registry.descendants(ROOT)) == []

    def test_a_table_is_found_by_whoever_opens_the_catalog_next(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        item = table(registry, "t")
        registry.commit([Add(item)])
        for view in (registry, reopen()):
            assert view.find([item.id]) == {item.id: item}
            assert list(view.children(ROOT, Kind.TABLE, "", None)) == ["t"]

    def test_the_second_add_of_a_name_conflicts(self, registry: Registry, reopen: Callable[[], Registry]) -> None:
        registry.commit([Add(table(registry, "t"))])
        for view in (registry, reopen()):
            with pytest.raises(ConcurrentModificationError):
                view.commit([Add(table(view, "t", hash="11111111"))])

    def test_a_removed_table_is_gone_and_can_come_back(self, registry: Registry) -> None:
        item = table(registry, "t")
        registry.commit([Add(item)])
        registry.commit([Remove(item)])
        assert registry.find([item.id]) == {}
        registry.commit([Add(table(registry, "t"))])
        assert list(registry.children(ROOT, Kind.TABLE, "", None)) == ["t"]

    def test_a_change_by_another_is_seen_by_the_next_call(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        other = reopen()
        for name in ("a", "b", "c"):
            other.commit([Add(table(other, name))])
            assert ObjectId((name,)) in registry.find([ObjectId((name,))])
        assert list(registry.children(ROOT, Kind.TABLE, "", None)) == ["a", "b", "c"]

    def test_children_are_paged_by_name_and_sorted_by_bytes(self, registry: Registry) -> None:
        names = ["b", "a", "Z", "é", "10", "2"]
        for name in names:
            registry.commit([Add(table(registry, name))])
        ordered = sorted(names)
        assert list(registry.children(ROOT, Kind.TABLE, "", None)) == ordered
        assert list(registry.children(ROOT, Kind.TABLE, "", 2)) == ordered[:2]
        assert list(registry.children(ROOT, Kind.TABLE, ordered[1], 3)) == ordered[2:5]
        assert list(registry.children(ROOT, Kind.TABLE, "zzzz~~", 3)) == ordered[5:]

    def test_of_racing_adds_of_one_name_exactly_one_wins(self, registry: Registry) -> None:
        def attempt(number: int) -> bool:
            try:
                registry.commit([Add(table(registry, "t", hash=f"{number:08x}"))])
            except ConcurrentModificationError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(16))) == 1

    def test_a_rename_moves_the_name_or_is_refused(self, registry: Registry) -> None:
        item = table(registry, "old")
        registry.commit([Add(item)])
        move = Move(item, Table(ObjectId(("new",)), item.location))
        if not registry.capabilities.rename:
            with pytest.raises(UnsupportedOperationError):
                registry.commit([move])
            return
        registry.commit([move])
        assert list(registry.children(ROOT, Kind.TABLE, "", None)) == ["new"]
        with pytest.raises(ConcurrentModificationError):
            registry.commit([move])

    def test_properties_are_kept(self, registry: Registry, reopen: Callable[[], Registry]) -> None:
        needs_namespaces(registry)
        item = ns("a", owner="ml", note='quotes " and \u00e9')
        registry.commit([Add(item)])
        assert reopen().find([item.id]) == {item.id: item}
        changed = ns("a", owner="data")
        registry.commit([Replace(item, changed)])
        assert reopen().find([item.id]) == {item.id: changed}
        with pytest.raises(ConcurrentModificationError):
            registry.commit([Replace(item, ns("a", owner="late"))])

    def test_changes_are_all_or_nothing(self, registry: Registry) -> None:
        needs_namespaces(registry)
        registry.commit([Add(ns("a"))])
        bad: list[list[Change]] = [
            [Add(ns("b")), Add(ns("a"))],
            [Add(ns("b")), Remove(ns("nothing"))],
            [Add(ns("b")), Add(table(registry, "missing", "t"))],
            [Add(ns("b")), Remove(ns("a", wrong="properties"))],
        ]
        for changes in bad:
            with pytest.raises(ConcurrentModificationError):
                registry.commit(changes)
        assert list(registry.children(ROOT, Kind.NAMESPACE, "", None)) == ["a"]

    def test_a_namespace_with_children_cannot_be_removed(self, registry: Registry) -> None:
        needs_namespaces(registry)
        child = table(registry, "a", "t")
        registry.commit([Add(ns("a")), Add(child)])
        with pytest.raises(ConcurrentModificationError):
            registry.commit([Remove(ns("a"))])
        registry.commit([Remove(child), Remove(ns("a"))])
        assert list(registry.descendants(ROOT)) == []

    def test_descendants_come_deepest_first(self, registry: Registry) -> None:
        needs_namespaces(registry)
        items: list[CatalogObject] = [ns("a"), ns("a", "b"), table(registry, "a", "b", "t"), table(registry, "a", "u")]
        registry.commit([Add(item) for item in items])
        found = [item.id for item in registry.descendants(ROOT)]
        assert sorted(found) == sorted(item.id for item in items)
        assert all(found.index(id) < found.index(id.parent) for id in found if id.level > 1)

    def test_a_location_belongs_to_one_table(self, registry: Registry) -> None:
        needs_namespaces(registry)
        item = Table(ObjectId(("t",)), "folder/inner")
        registry.commit([Add(item)])
        for place in ("folder/inner", "folder", "folder/inner/deeper"):
            assert registry.location_holders(place) == {item.id}
            with pytest.raises(ConcurrentModificationError):
                registry.commit([RequireLocation(place, ObjectId(("u",))), Add(Table(ObjectId(("u",)), place))])
        assert registry.location_holders("folder/inner2") == set()
        registry.commit([RequireLocation("folder/inner", item.id)])

    def test_a_drop_against_a_create_below_leaves_no_orphan(
        self, registry: Registry, reopen: Callable[[], Registry]
    ) -> None:
        needs_namespaces(registry)
        for round in range(5):
            parent = ns(f"p{round}")
            registry.commit([Add(parent)])

            def drop(item: Namespace = parent) -> None:
                _forgive(registry, [Remove(item)])

            def add(item: Namespace = parent) -> None:
                _forgive(reopen(), [Add(Namespace(item.id.child("c")))])

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda action: action(), (drop, add)))
            found = registry.find([parent.id, parent.id.child("c")])
            assert parent.id.child("c") not in found or parent.id in found


def _forgive(registry: Registry, changes: list[Change]) -> None:
    with contextlib.suppress(ConcurrentModificationError):
        registry.commit(changes)
