"""The Lance directory catalog, as the `LanceNamespace` that every Lance client knows how to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.clock import Clock, SystemClock
from headwater.namespace.kinds import open_directory, open_registry, records_of
from headwater.namespace.properties import parse_properties
from headwater.namespace.registered import RegisteredNamespace


class DirectoryNamespace(RegisteredNamespace):
    """A catalog in a directory, local or on an object store (lance-directory-namespace.md)."""

    def __init__(self, clock: Clock | None = None, /, **properties: Any) -> None:
        clock = clock or SystemClock()
        self._given = properties
        self.properties = parse_properties(properties)
        store = open_directory(self.properties)
        registry = open_registry(self.properties, store, clock)
        super().__init__(
            registry,
            records_of(registry),
            store,
            self.properties.root,
            clock,
            self.properties.delimiter,
            self.properties.storage,
        )

    def namespace_id(self) -> str:
        return f"headwater.DirectoryNamespace {{ root: {self.properties.root!r} }}"

    def __repr__(self) -> str:
        return f"DirectoryNamespace(root={self.properties.root!r})"

    def __reduce__(self) -> tuple[Callable[..., DirectoryNamespace], tuple[dict[str, Any]]]:
        return _reopened, (self._given,)


def _reopened(properties: dict[str, Any]) -> DirectoryNamespace:
    return DirectoryNamespace(**properties)
