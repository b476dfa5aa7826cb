"""Which catalog a line means, opened as lightly as its verb can do with; and names as people write them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import headwater
from headwater.config import Opening, Resolved, directory_at, metastore_at, resolve
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore import Metastore
from headwater.names import object_id, parse
from headwater.references import is_bare_secret

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from headwater.catalog import Catalog
    from headwater.namespace.kinds import DirectoryNames

DOT, QUOTE = ".", '"'


def parse_name(text: str, delimiter: str | None = None) -> tuple[str, ...]:
    """`prod.users`, `prod."a.b"`; with a delimiter of the caller's choice, nothing is quoted."""
    if delimiter is not None:
        return parse(text, delimiter).names
    if text in ("", DOT):
        return ()
    names, at = list[str](), 0
    while True:
        name, at = _quoted(text, at) if text.startswith(QUOTE, at) else _plain(text, at)
        names.append(name)
        if at == len(text):
            return object_id(names).names
        at += 1


def _plain(text: str, at: int) -> tuple[str, int]:
    end = text.find(DOT, at)
    end = len(text) if end < 0 else end
    return text[at:end], end


def _quoted(text: str, at: int) -> tuple[str, int]:
    """A quoted name, in which a quote is written twice, and where it ends."""
    name, at = "", at + 1
    while True:
        end = text.find(QUOTE, at)
        if end < 0:
            raise InvalidInputError(f"In {text[:200]!r} a quote is not closed.")
        name += text[at:end]
        at = end + 1
        if not text.startswith(QUOTE, at):
            break
        name, at = name + QUOTE, at + 1
    if at < len(text) and text[at] != DOT:
        raise InvalidInputError(f"In {text[:200]!r} a dot must follow the quoted name.")
    return name, at


def format_name(names: Sequence[str]) -> str:
    """Names as `parse_name` reads them."""
    return DOT.join(_quote(name) if DOT in name or name.startswith(QUOTE) else name for name in names)


def _quote(name: str) -> str:
    return QUOTE + name.replace(QUOTE, QUOTE * 2) + QUOTE


def say(text: str) -> None:
    """What is no result goes to stderr."""
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
        """What answers about the past: the metastore itself, without Lance; behind a server, the catalog."""
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
