"""A stream table as a transaction or a snapshot finds it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore import Object, Reading, Transaction
from headwater.names import format_name, object_id
from headwater.streams.definition import Definition, from_properties
from headwater.streams.layout import HISTORY, QUARANTINE, serving_folder, sibling


@dataclass(frozen=True)
class Stream:
    """A table version of a stream table, and where its files are."""

    path: tuple[str, ...]
    version: str
    home: str
    definition: Definition

    @property
    def name(self) -> str:
        return format_name(self.path)

    @property
    def id(self) -> str:
        """The identity of the table, independent of its name: a table made again under the name has another."""
        return f"{self.home.rpartition('/')[2]}/{self.version}"

    @property
    def version_home(self) -> str:
        """The folder of the table version, which no other table version has."""
        return f"{self.home}/{self.version}"

    @property
    def serving(self) -> str:
        """The folder of the Lance dataset, as a key."""
        return serving_folder(self.home, self.version)


class Reads(Protocol):
    """Reads that a snapshot and a transaction share."""

    def get_table_version(self, path: Sequence[str], id: str | None = None) -> Object: ...


def open_stream(snapshot: Reads, path: Sequence[str], version: str | None = None) -> Stream:
    """Return the active version of a stream table, or the one of an id; 13 for a table that is not a stream table."""
    try:
        return _opened(path, snapshot.get_table_version(path, version))
    except NamespaceNotFoundError:
        raise TableNotFoundError(f"Table {object_id(path)} does not exist.") from None


def open_in(tx: Transaction, path: Sequence[str], version: str | None = None) -> Stream:
    """Return the same, and the transaction relies on it: a table that evolves meanwhile is a conflict."""
    return _opened(path, tx.get_table_version(path, version))


def _opened(path: Sequence[str], version: Object) -> Stream:
    definition = from_properties(version.properties)
    if definition is None:
        raise InvalidInputError(
            f"{object_id(path)} is not a stream table: it has no change log. Use the Lance operations on it."
        )
    return Stream(tuple(version.path), version.id, version.home.rsplit("/", 1)[0], definition)


def another(name: str) -> ConcurrentModificationError:
    """Return a ConcurrentModification error: the name belongs to another table than the one that was read."""
    return ConcurrentModificationError(
        f"{name} is another table by now than the one that was read: that was dropped or renamed. Nothing was changed: "
        "look again."
    )


def in_the_way(path: Sequence[str], of: Sequence[str], what: str) -> InvalidInputError:
    """Error 13: a table of the user's has the name that one beside a stream table must have."""
    return InvalidInputError(
        f"{format_name(path)} is not the {what} of {format_name(of)}, which must have this name: rename it. "
        "Nothing was changed."
    )


def no_deletes(name: str) -> InvalidInputError:
    """Error 13: a table without keys keeps its rows."""
    return InvalidInputError(f"{name} has no keys: it is an append-only log and takes no deletes.")


def is_stream_table(snapshot: Reads, path: Sequence[str]) -> bool:
    try:
        return from_properties(snapshot.get_table_version(path).properties) is not None
    except TableVersionNotFoundError:
        return False


def followers(snapshot: Reading, path: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the tables that go where a stream table goes, and are dropped with it: its quarantine and its history."""
    paths = (sibling(path, suffix) for suffix in (QUARANTINE, HISTORY))
    return [found for found in paths if snapshot.exists(found)]


def activate_version(tx: Transaction, path: Sequence[str], version: str) -> Object:
    """Make a version of a table the active one, with the version of its history that belongs to it."""
    made = tx.activate_table_version(path, version)
    history = sibling(path, HISTORY)
    if from_properties(made.properties) is not None and tx.exists(history):
        known = {each.id: from_properties(each.properties) for each in tx.versions(history)}
        if known.get(version) is not None:
            tx.activate_table_version(history, version)
    return made


def rename_stream(tx: Transaction, path: Sequence[str], new_path: Sequence[str]) -> None:
    """Rename or move a stream table with all that follows it."""
    for follower in followers(tx, path):
        tx.rename(follower, sibling(new_path, follower[-1].removeprefix(path[-1])))
    tx.rename(path, new_path)


def drop_stream(tx: Transaction, path: Sequence[str]) -> None:
    """Drop a stream table with all that follows it."""
    for follower in followers(tx, path):
        tx.drop(follower)
    tx.drop(path)


def undrop_stream(tx: Transaction, path: Sequence[str]) -> str:
    """Bring back the last object dropped under a name, and the tables that followed a stream table. Return its kind."""
    back = tx.undrop(path)
    if back.kind == "table" and is_stream_table(tx, path):
        for follower in (sibling(path, suffix) for suffix in (QUARANTINE, HISTORY)):
            with suppress(NamespaceNotFoundError, TableNotFoundError, TableAlreadyExistsError):
                tx.undrop(follower)
    return back.kind
