"""Frozen values that the metastore returns (deltacat-storage-model.md, "Naming, Mutability, ..."), and their summaries.

A `Locator` is the Canonical String of an object as a value. Summaries of transactions are for people: tables, versions
and deltas, not the parts they are kept in. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headwater.errors import InvalidInputError
from headwater.metastore.records.disk_records import DataFile, DeltaBody
from headwater.metastore.records.layout import canonical
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.names import format_name


@dataclass(frozen=True, order=True, slots=True)
class Locator:
    """The parts from the root to an object; the root has none.

    Names up to a table, then: version; stream id and format; partition id and values; position.
    `format` joins them by `|`; a `|` or a backslash inside a part is escaped by a backslash.
    """

    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.parts, str) or not all(isinstance(part, str) for part in self.parts):
            raise InvalidInputError(f"A locator has parts of text, not {self.parts!r}.")
        object.__setattr__(self, "parts", tuple(self.parts))
        if self.parts == ("",):
            raise InvalidInputError("A locator of one empty part locates nothing: the root's has no part.")

    @classmethod
    def parse(cls, text: str) -> Locator:
        """Parse a Canonical String; InvalidInput (13) for a backslash that escapes nothing."""
        if not isinstance(text, str):
            raise InvalidInputError(f"A Canonical String is text, not {text!r}.")
        if not text:
            return cls()
        parts, part, rest = list[str](), "", iter(text)
        for char in rest:
            if char == "|":
                parts.append(part)
                part = ""
                continue
            if char == "\\":
                char = next(rest, "")
                if char not in ("|", "\\"):
                    raise InvalidInputError(f"The locator {text[:200]!r} has a backslash that escapes nothing.")
            part += char
        return cls((*parts, part))

    def format(self) -> str:
        """Return the Canonical String."""
        return canonical("", *self.parts) if self.parts else ""

    def child(self, *parts: str) -> Locator:
        """Return the locator of an object below, by its own parts."""
        return Locator((*self.parts, *parts))

    def __str__(self) -> str:
        return self.format()


DELTA_TYPES = ("append", "upsert", "delete")


class Object(msgspec.Struct, frozen=True):
    """A namespace, table, table version, stream or partition at one revision.

    `locator` is its Canonical String; `home` is its Immutable ID Directory, relative to the catalog root. `key`: the id
    of a namespace or table, and of a part the ids from its table down, joined by `/`; `by_id` takes it.
    """

    id: str
    name: str
    kind: str
    properties: dict[str, Any]
    revision: int
    path: tuple[str, ...]
    locator: str
    home: str
    parts: tuple[Any, ...]
    aliases: tuple[str, ...]
    slot: int
    time_ms: int
    key: str = ""


class Delta(msgspec.Struct, frozen=True):
    """One change of a stream. `position` is its place in the stream, `slot` the commit that put it there.

    `partition` and `values` are the id and the values of its partition; `locator` and `key` as of an `Object`.
    """

    position: int
    type: str
    files: tuple[DataFile, ...]
    partition: str
    properties: dict[str, Any]
    slot: int
    txn: str
    time_ms: int
    kind: str = "delta"
    revision: int = 1
    values: tuple[Any, ...] | None = None
    locator: str = ""
    key: str = ""

    @property
    def id(self) -> str:
        return str(self.position)

    @property
    def name(self) -> str:
        return str(self.position)


class RevisionEntry(msgspec.Struct, frozen=True):
    """One step of an object's history."""

    revision: int
    operation: str
    name: str
    properties: dict[str, Any]
    aliases: tuple[str, ...]
    slot: int
    txn: str
    time_ms: int


class LogChange(msgspec.Struct, frozen=True):
    """A change of one object by one transaction. `path`: that of the object at the commit; of a delta, its table's."""

    operation: str
    kind: str
    id: str
    path: tuple[str, ...]
    revision: int
    key: str
    position: int | None = None


class LogEntry(msgspec.Struct, frozen=True):
    """One committed transaction. `ordinal` is its place in its slot: grouped commits share one."""

    slot: int
    ordinal: int
    time: datetime
    message: str
    author: str
    txn: str
    changes: tuple[LogChange, ...]

    def __repr__(self) -> str:
        return f"LogEntry({self.slot}, '{self.time:%Y-%m-%d %H:%M:%S}', {self.author!r}, {self.message!r})"


class Dropped(msgspec.Struct, frozen=True):
    """A dropped namespace or table that `undrop` can restore: its path, and the transaction and time of its drop."""

    kind: str
    path: tuple[str, ...]
    slot: int
    txn: str
    time_ms: int


class HistoryEntry(msgspec.Struct, frozen=True):
    """One transaction that touched an object or a part of it.

    `operation` and `kind` are of what it did to the object itself, or else to the most telling part of it; `path` is
    where the object was after it. `version` is the last Lance version it made, `position` its last delta's. `change`
    says what it did to the rows, columns or indices, such as `append 3 rows`; None if the catalog did not record that.
    """

    slot: int
    ordinal: int
    time: datetime
    author: str
    message: str
    txn: str
    operation: str
    kind: str
    version: int | None
    position: int | None
    path: tuple[str, ...]
    changes: tuple[LogChange, ...]
    change: str | None = None

    def __repr__(self) -> str:
        told = f"{self.author!r}, {self.summary!r}, {self.message!r}"
        return f"HistoryEntry({self.slot}, '{self.time:%Y-%m-%d %H:%M:%S}', {told})"

    @property
    def summary(self) -> str:
        """The words for what the transaction did to the object, such as `create table` or `append 3 rows`."""
        if self.kind in PARTS:
            return NOTES
        if self.kind != "delta":
            return f"{_verb(self.operation)} {self.kind}"
        return self.change or (f"version {self.version}" if self.version is not None else f"delta {self.position}")


class Moved(msgspec.Struct, frozen=True):
    """An object that has another name or parent. What is below a moved namespace is not told again."""

    id: str
    kind: str
    old_path: tuple[str, ...]
    path: tuple[str, ...]


class Changed(msgspec.Struct, frozen=True):
    """An object with other properties or aliases than before."""

    id: str
    kind: str
    path: tuple[str, ...]
    old_properties: dict[str, object]
    properties: dict[str, Any]
    old_aliases: tuple[str, ...]
    aliases: tuple[str, ...]


class StreamDiff(msgspec.Struct, frozen=True):
    """The positions that came to a table's stream and that went from it. In a `lance` stream they are versions."""

    id: str
    path: tuple[str, ...]
    version: str
    stream: str
    format: str
    added: tuple[int, ...]
    removed: tuple[int, ...]


class Diff(msgspec.Struct, frozen=True):
    """Difference between the slots `before` and `after`, each part in order of path."""

    before: int
    after: int
    added: tuple[Object, ...] = ()
    removed: tuple[Object, ...] = ()
    moved: tuple[Moved, ...] = ()
    changed: tuple[Changed, ...] = ()
    streams: tuple[StreamDiff, ...] = ()

    def __repr__(self) -> str:
        parts = {name: getattr(self, name) for name in ("added", "removed", "moved", "changed", "streams")}
        names = (f"{part}={[format_name(item.path) for item in found]}" for part, found in parts.items() if found)
        return f"Diff({', '.join((str(self.before), str(self.after), *names))})"


class UndoStep(msgspec.Struct, frozen=True):
    """One thing that an undo does. `path` is where the object is afterwards; of one that goes, where it was.

    `names` are the others that it gives or takes: where a renamed object is now, aliases that come or go.
    """

    action: str
    kind: str
    path: tuple[str, ...]
    detail: str = ""
    names: tuple[tuple[str, ...], ...] = ()


class Undone(msgspec.Struct, frozen=True):
    """Result of an undo; of a dry run without a slot."""

    txn: str
    message: str
    slot: int | None
    steps: tuple[UndoStep, ...]


class PinnedTable(msgspec.Struct, frozen=True):
    """A table in a named snapshot: its Lance version, and the position of its change log."""

    id: str
    path: tuple[str, ...]
    version: int | None
    position: int | None


class NamedSnapshot(msgspec.Struct, frozen=True):
    """A state that stays readable under its name: the slot it is of, that slot's time, and its tables."""

    name: str
    slot: int
    time: datetime
    tables: tuple[PinnedTable, ...]


class Problem(msgspec.Struct, frozen=True):
    """One finding of `verify`: the file, relative to the catalog root, and what is wrong with it."""

    key: str
    reason: str


class Removal(msgspec.Struct, frozen=True):
    """One thing that a collection removes, and why.

    `kind` is `published`, `slot` (its body), `segment`, `snapshot`, `data`, `staged` or `folder` (of so many files).
    """

    kind: str
    key: str
    why: str
    files: int = 1


class Collected(msgspec.Struct, frozen=True):
    """Result of a collection: removals by kind, and the oldest slot that can be read after it."""

    boundary: int
    published: int = 0
    slots: int = 0
    segments: int = 0
    data: int = 0
    removed: tuple[Removal, ...] = ()


Objects = list[Object]
Deltas = list[Delta]
History = list[HistoryEntry]
Revisions = list[RevisionEntry]
Problems = list[Problem]
NamedSnapshots = list[NamedSnapshot]
DroppedFacts = list[Dropped]
Keys = list[str]
LEARNT = tuple(
    msgspec.json.Decoder(kind) for kind in (Delta, LogEntry, HistoryEntry, Diff, Undone, NamedSnapshot, Collected)
)
"""What is converted to elsewhere, known to msgspec from here on: threads that are first at once crash the process."""


def data_files(files: Iterable[object]) -> tuple[DataFile, ...]:
    """Return the files of a delta, given as DataFile, mapping (path, rows, bytes), triple or plain path."""
    if isinstance(files, (str, bytes, Mapping)):
        raise InvalidInputError("files is a list of data files, each a path with rows and bytes.")
    return tuple(_data_file(file) for file in files)


def _data_file(file: Any) -> DataFile:
    try:
        if isinstance(file, DataFile):
            made = file
        elif isinstance(file, str):
            made = DataFile(file)
        elif isinstance(file, Mapping):
            made = DataFile(**file)
        else:
            made = DataFile(*file)
        if not (type(made.path) is str and type(made.rows) is int and type(made.bytes) is int):
            msgspec.convert(msgspec.to_builtins(made), DataFile)
    except (TypeError, msgspec.ValidationError):
        raise InvalidInputError(f"{file!r} is not a data file: give a path with rows and bytes.") from None
    if not made.path or made.rows < 0 or made.bytes < 0:
        raise InvalidInputError(f"{file!r} is not a data file: the path is empty, or rows or bytes are negative.")
    return made


def check_type(type: str) -> str:
    if type not in DELTA_TYPES:
        raise InvalidInputError(f"{type!r} is not a type of delta: use one of {', '.join(DELTA_TYPES)}.")
    return type


def delta_of(body: DeltaBody, slot: int) -> Delta:
    return Delta(body.position, body.type, body.files, body.partition, dict(body.properties), slot, body.txn, body.time)


def time_of(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def moment_ms(moment: datetime | float) -> int:
    """Return a time as milliseconds since the epoch: a datetime with a zone, or seconds as a float."""
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidInputError("A time to read at needs a time zone: use datetime.now(UTC) or the like.")
        return round(moment.timestamp() * 1000)
    return int(moment * 1000)


PARTS = ("table_version", "stream", "partition")
LIFECYCLE = "lifecycle"
"""The property of a table version that holds its state of life; a version without it is active."""
UNRELEASED, ACTIVE, DEPRECATED = LIFECYCLES = ("unreleased", "active", "deprecated")


def lifecycle_of(properties: Mapping[str, Any]) -> str:
    """Return the state of life of a table version, by its properties."""
    found: str = properties.get(LIFECYCLE, ACTIVE)
    return found


NOTES = "notes"
"""The word for a change of what is kept with a table beside its rows: sources, readers, tags."""


def is_version(change: LogChange) -> bool:
    """Return True if a delta is a version of a Lance table."""
    return change.kind == "delta" and f"/{LANCE_FORMAT}/" in change.key


def words_of(change: LogChange) -> str:
    """Return what was done to one object, without its name: `create table`, `version 3`, `drop delta 2`, `notes`."""
    if change.kind in PARTS:
        return NOTES
    if change.kind != "delta":
        return f"{_verb(change.operation)} {change.kind}"
    told = f"{'version' if is_version(change) else 'delta'} {change.position}"
    return told if change.operation == "create" else f"{_verb(change.operation)} {told}"


def summarized(changes: Sequence[LogChange]) -> Iterator[LogChange]:
    """Return the changes that a summary names: a part of a table only if nothing else of the table is, and once."""
    said = {change.path for change in changes if change.kind not in PARTS}
    for change in changes:
        if change.kind not in PARTS or change.path not in said:
            said.add(change.path)
            yield change


def _verb(operation: str) -> str:
    return {"update": "change", "delete": "drop"}.get(operation, operation)
