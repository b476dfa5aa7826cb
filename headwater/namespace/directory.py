"""The Lance directory catalog, as the `LanceNamespace` that every Lance client knows how to call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from headwater.clock import Clock, SystemClock
from headwater.errors import InvalidInputError
from headwater.metastore.records.objects import Collected
from headwater.metastore.upkeep.collect import GRACE
from headwater.namespace.abilities import CatalogAbilities
from headwater.namespace.registered import RegisteredNamespace
from headwater.namespace.registry_kinds import open_directory, open_registry, parse_properties


class DirectoryNamespace(RegisteredNamespace):
    """A catalog in a directory, local or on an object store (lance-directory-namespace.md)."""

    def __init__(self, clock: Clock | None = None, /, **properties: object) -> None:
        clock = clock or SystemClock()
        self._given = properties
        self.properties = parse_properties(properties)
        store = open_directory(self.properties)
        registry, records = open_registry(self.properties, store, clock)
        super().__init__(
            registry, records, store, self.properties.root, clock, self.properties.delimiter, self.properties.storage
        )

    def abilities(self) -> CatalogAbilities:
        return replace(super().abilities(), collect=self.collect)

    def collect(
        self, keep: timedelta | None = None, grace: timedelta | None = None, dry_run: bool = False
    ) -> Collected:
        """Delete what writers that died, and drops that were interrupted, left longer than `grace` ago (7 days).

        A folder without a version whose creator died, staged manifests, files that no version names, the trash. A dry
        run tells what would go, and why. There is no past, so `keep` is refused (13).
        """
        if keep is not None:
            raise InvalidInputError("A directory catalog has no history to keep: say grace, or nothing.")
        grace = GRACE if grace is None else grace
        if grace < timedelta(0):
            raise InvalidInputError("grace is how old a leftover must be: a timedelta that is not negative.")
        if not dry_run:
            self.registry.check_writable()
        before_ms = self.clock.now_ms() - int(grace.total_seconds() * 1000)
        removals = self.maintenance.leftovers(before_ms)
        for removal in () if dry_run else removals:
            (self.store.delete_tree if removal.kind == "folder" else self.store.delete)(removal.key)
        return Collected(0, data=sum(removal.files for removal in removals), removed=tuple(removals))

    def namespace_id(self) -> str:
        return f"headwater.DirectoryNamespace {{ root: {self.properties.root!r} }}"

    def __repr__(self) -> str:
        return f"DirectoryNamespace(root={self.properties.root!r})"

    def __reduce__(self) -> tuple[Callable[..., DirectoryNamespace], tuple[dict[str, object]]]:
        return _reopened, (self._given,)


def _reopened(properties: dict[str, object]) -> DirectoryNamespace:
    return DirectoryNamespace(**properties)
