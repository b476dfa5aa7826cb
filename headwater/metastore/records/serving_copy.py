"""Record of a table's Lance dataset: its stream of format `lance`, whose positions are Lance versions.

The columns of a table and their comments are read from the manifest of its newest version: no Lance is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import columns_of
from headwater.store import KeyNotFoundError, Store

if TYPE_CHECKING:
    from headwater.metastore.records.objects import Delta
    from headwater.metastore.state.snapshot import Snapshot

Found = TypeVar("Found")
LANCE_FORMAT = "lance"
LOCATION = "location"
"""The property of a lance stream that holds the dataset's folder, relative to the root."""
KEEP_DATA = "keep_data"
"""Set when a table was deregistered: collection leaves the folder."""

PUBLISHED = "position"
"""Set in a version that is a publish of a stream table: up to this position of its change log."""
READER_FORMAT = "reader"
"""The format of a stream whose properties are the positions of named readers."""
RECORD_FORMAT = "record"
"""The format of streams whose properties say what a source has given to a stream table."""
STREAM_TABLE = "stream"
"""The property of a table version that makes its table a stream table."""
NEXT_COLUMN, SCHEMA_NUMBER = "next_id", "schema_id"
"""In it the number of its next column and that of its schema. Files and versions name them, so none is given twice."""
FILLED = "columns"
"""Of a delta of a change log: the numbers of the columns that its rows have."""


def location_of(properties: Mapping[str, object], stream_home: str) -> str:
    """Of a stream that does not name one, beside its table version's directory: `<table home>/<version>.lance`."""
    return str(properties.get(LOCATION) or default_location(stream_home.rsplit("/", 1)[0]))


def as_before(before: Mapping[str, object], now: Mapping[str, object]) -> dict[str, object]:
    """Return the properties that a table version had, with numbers of columns and schemas that nothing had since."""
    was, has = before.get(STREAM_TABLE), now.get(STREAM_TABLE)
    if not isinstance(was, Mapping) or not isinstance(has, Mapping) or was.get(SCHEMA_NUMBER) == has[SCHEMA_NUMBER]:
        return dict(before)
    numbers = {NEXT_COLUMN: max(was[NEXT_COLUMN], has[NEXT_COLUMN]), SCHEMA_NUMBER: has[SCHEMA_NUMBER] + 1}
    return {**before, STREAM_TABLE: {**was, **numbers}}


def without_numbers(properties: Mapping[str, object]) -> dict[str, object]:
    """Return a revision of a table version without the fields that differ between copies of it."""
    known = properties.get(STREAM_TABLE)
    if not isinstance(known, Mapping):
        return dict(properties)
    numbers = (NEXT_COLUMN, SCHEMA_NUMBER)
    return {**properties, STREAM_TABLE: {name: value for name, value in known.items() if name not in numbers}}


def default_location(version_home: str) -> str:
    """Of a table version whose stream names none, or that has none yet."""
    return f"{version_home}.lance"


def signs_at(folder: str) -> Iterator[str]:
    """Return the index keys of a dataset folder: the folder, and each folder around it with a slash behind."""
    folder = folder.strip("/")
    yield folder
    yield from (f"{around}/" for around in _around(folder))


def signs_near(folder: str) -> Iterator[str]:
    """Return the index keys of datasets that are in a folder, inside it, or around it."""
    folder = folder.strip("/")
    yield from (folder, f"{folder}/")
    yield from _around(folder)


def _around(folder: str) -> Iterator[str]:
    steps = folder.split("/")
    return ("/".join(steps[:end]) for end in range(1, len(steps)))


def columns_at(state: Snapshot, store: Store, table: Sequence[str]) -> Mapping[str, str]:
    """Return each column with its comment, or an empty text; none where there is no version or it cannot be read."""
    return manifest_at(state, store, table, columns_of) or {}


def manifest_at(
    state: Snapshot, store: Store, table: Sequence[str], read: Callable[[bytes], Found], most: int | None = None
) -> Found | None:
    """Read the manifest of a table's newest version; None without one, if it is unreadable or over `most` bytes."""
    newest = newest_version(state, table)
    return None if newest is None else manifest_of(newest, store, read, most)


def newest_version(state: Snapshot, table: Sequence[str]) -> Delta | None:
    """Return the record of a table's newest version; None without one."""
    try:
        return state.newest_delta(list(table), format=LANCE_FORMAT)
    except LanceNamespaceError:
        return None


def manifest_of(version: Delta, store: Store, read: Callable[[bytes], Found], most: int | None = None) -> Found | None:
    """Read the manifest of a version; None if it is gone, unreadable or over `most` bytes."""
    if not version.files or (most is not None and version.files[0].bytes > most):
        return None
    path = version.files[0].path
    staged = version.properties.get("staged")
    for key in [path, f"{path.rsplit('/_versions/', 1)[0]}/{staged}"] if staged else [path]:
        try:
            return read(store.get(key))
        except (KeyNotFoundError, LanceNamespaceError, ValueError):
            continue
    return None
