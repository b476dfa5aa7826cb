"""The catalog of a command line, opened as lightly as the verb allows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import headwater
from headwater.config import Opening, Resolved, directory_at, metastore_at, resolve
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore import Metastore
from headwater.references import is_bare_secret

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from headwater.catalog import Catalog
    from headwater.namespace.registry_kinds import DirectoryNames


def say(text: str) -> None:
    """Print a message to stderr, where no result goes."""
    print(f"headwater: {text}", file=sys.stderr)


def properties_of(pairs: Sequence[str]) -> dict[str, str]:
    """`key=value` texts as properties."""
    found: dict[str, str] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInputError(f"--property {text!r} is not key=value.")
        found[key] = value
        if is_bare_secret(key, value):
            say(f"--property {key}: others on this machine can see it; write {key}=env:VARIABLE or {key}=file:PATH.")
    return found


class Target:
    """The catalog of one line."""

    def __init__(self, named: str | None, properties: Sequence[str] = ()) -> None:
        self.named = named
        self.properties = properties_of(properties)

    @property
    def shown(self) -> str:
        return self.named or "the default catalog"

    @cached_property
    def resolved(self) -> Resolved:
        return resolve(self.named, self.properties)

    @cached_property
    def metastore(self) -> Metastore | None:
        """The metastore of a local or stored root, opened without Lance; None for other kinds of catalog."""
        return metastore_at(self.resolved)

    def directory(self) -> DirectoryNames | None:
        """The names and versions of a directory catalog; None for a back end of others."""
        return directory_at(self.resolved)

    def with_history(self, what: str) -> Metastore:
        """The metastore, for what no other kind of catalog has."""
        if self.metastore is None:
            raise UnsupportedOperationError(
                f"{self.shown} has no {what}: only a metastore catalog, opened where its files are, keeps one."
            )
        return self.metastore

    def past(self, what: str) -> Any:
        """Return the source of history: the metastore itself, without Lance; behind a server, the catalog."""
        return self.catalog() if self.server is not None else self.with_history(what)

    def with_past(self, what: str) -> Catalog:
        """The catalog, for a change that only one with a past can make."""
        if self.server is None:
            self.with_history(what)
        return self.catalog()

    @cached_property
    def opening(self) -> Opening:
        return Opening(self.named, self.properties, say)

    def namespace(self) -> LanceNamespace:
        """The catalog, for a verb that makes none."""
        return self.opening.reading()

    def catalog(self) -> Catalog:
        return headwater.Catalog(self.namespace())

    def made(self) -> Catalog:
        """The catalog, for a verb that makes one where none is."""
        return headwater.Catalog(self.opening.writing())

    @property
    def server(self) -> tuple[str, dict[str, Any]] | None:
        """The address and the properties of a catalog behind a server."""
        found = self.resolved.properties
        return (str(found["uri"]), dict(found)) if self.resolved.impl == "rest" and "uri" in found else None
