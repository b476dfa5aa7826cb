"""The catalog of a command line, opened as lightly as the verb allows, and the table that a reading verb names.

A table may be named as it is now, at a version, a tag or a moment, or on a branch. A moment is a commit, a snapshot,
an ISO time, or an age such as `2h ago`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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
        """Return the names and versions of a directory catalog; None for a back end of others."""
        return directory_at(self.resolved)

    def with_history(self, what: str) -> Metastore:
        """Return the metastore, for what no other kind of catalog has."""
        if self.metastore is None:
            raise UnsupportedOperationError(
                f"{self.shown} has no {what}: only a metastore catalog, opened where its files are, keeps one."
            )
        return self.metastore

    def past(self, what: str) -> Any:
        """Return the source of history: the metastore itself, without Lance; behind a server, the catalog."""
        return self.catalog() if self.server is not None else self.with_history(what)

    def with_past(self, what: str) -> Catalog:
        """Return the catalog, for a change that only one with a past can make."""
        if self.server is None:
            self.with_history(what)
        return self.catalog()

    @cached_property
    def opening(self) -> Opening:
        return Opening(self.named, self.properties, say)

    def namespace(self) -> LanceNamespace:
        """Return the catalog, for a verb that makes none."""
        return self.opening.reading()

    def catalog(self) -> Catalog:
        return headwater.Catalog(self.namespace())

    def made(self) -> Catalog:
        """Return the catalog, for a verb that makes one where none is."""
        return headwater.Catalog(self.opening.writing())

    @property
    def server(self) -> tuple[str, dict[str, object]] | None:
        """The address and the properties of a catalog behind a server."""
        found = self.resolved.properties
        return (str(found["uri"]), dict(found)) if self.resolved.impl == "rest" and "uri" in found else None


_AGO = re.compile(r"(\d{1,9})\s*(s|sec|seconds?|m|min|minutes?|h|hours?|d|days?|w|weeks?)\s+ago", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def moment(text: str, now: datetime | None = None) -> int | datetime:
    """Return a commit, or a time; a time without a zone is local. Raise InvalidInput (13) for anything else."""
    said = text.strip().lower()
    if said.isascii() and said.isdigit() and len(said) < 12:
        return int(said)
    if said == "now":
        return now or datetime.now(UTC)
    ago = _AGO.fullmatch(said)
    if ago:
        return (now or datetime.now(UTC)) - timedelta(**{_UNITS[ago[2][0]]: int(ago[1])})
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except ValueError:
        raise InvalidInputError(
            f"{text[:200]!r} is not a moment: give a commit's number, an ISO time such as 2026-05-01T12:00, or 2h ago."
        ) from None


def check_one(args: argparse.Namespace) -> None:
    """Raise InvalidInput (13) for more than one of --version, --tag and --at."""
    said = [name for name in ("version", "tag", "at") if getattr(args, name, None) is not None]
    if len(said) > 1:
        raise InvalidInputError(f"Say one of {' and '.join(f'--{name}' for name in said)}.")


def moment_of(args: argparse.Namespace) -> int | datetime | str | None:
    """Return the moment of `--at`; None without it."""
    return None if args.at is None else at(args.target, args.at)


def at(target: Target, text: str) -> int | datetime | str:
    """Return a moment of a catalog: a commit, a time, or the name of one of its snapshots."""
    try:
        return moment(text)
    except InvalidInputError as none:
        if target.server is None and target.metastore is None:
            raise
        if all(found.name != text for found in target.past("snapshots").snapshots()):
            raise InvalidInputError(f"{none} `headwater snapshot` lists the snapshots.") from None
        return text


def open_table(args: argparse.Namespace, name: str | None = None) -> Any:
    """Return the table of a command line: a `CatalogTable`, or a `CatalogStream` for a stream table."""
    check_one(args)
    catalog = args.target.catalog()
    asked = args.name_of(args.table if name is None else name)
    if not asked:
        raise InvalidInputError(f"`headwater {args.command.name}` needs the name of a table.")
    version, tag, branch = (getattr(args, key, None) for key in ("version", "tag", "branch"))
    said = moment_of(args) if hasattr(args, "at") else None
    table = None if said is None else _of_then(args.target, asked, said)
    if table is not None:
        said = None
    else:
        table = catalog[asked]
    if version is None and tag is None and branch is None and said is None:
        return table
    return table.serving.at(version, tag=tag, time=_time(said), branch=branch)


def _of_then(target: Target, name: tuple[str, ...], said: int | datetime | str) -> Any:
    """Return the table in the catalog as it was; None for a catalog without a past."""
    if target.server is None and target.metastore is None:
        return None
    try:
        return target.catalog().at(said)[name]
    except UnsupportedOperationError:  # a server of a catalog without a past
        return None


def _time(said: int | datetime | str | None) -> datetime | None:
    """Return the time of a moment. A catalog without commits has no other moments."""
    if isinstance(said, (int, str)):
        raise InvalidInputError(f"This catalog has no commits, so it cannot be read at {said}: give a time.")
    return None if said is None else said.astimezone(UTC)
