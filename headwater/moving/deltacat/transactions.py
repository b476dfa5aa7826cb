"""The committed transactions of a DeltaCAT root, and the contents of its catalog after each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import CorruptFileError, InvalidInputError
from headwater.moving.deltacat.files import (
    SUCCESS,
    DeltacatTxn,
    Revised,
    RowFile,
    committed,
    data_files,
    decode,
    read_metadata,
    root_of,
    writes,
)
from headwater.store import KeyNotFoundError, Store

NAMESPACE, TABLE, VERSION, STREAM, PARTITION, DELTA = range(1, 7)
"""The number of ids in the path of an object of this kind."""

Ids = tuple[str, ...]
LIVE = "committed"
FORMAT = "deltacat"


@dataclass(frozen=True)
class FoundNamespace:
    """A namespace of a DeltaCAT root."""

    name: str
    properties: Mapping[str, str]


@dataclass(frozen=True)
class FoundTable:
    """A table of a DeltaCAT root, at its newest active version."""

    namespace: str
    name: str
    version: str
    schema: bytes | None
    files: tuple[RowFile, ...]
    problems: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass
class DeltacatContents:
    """The newest committed revision of every existing object."""

    objects: dict[Ids, Mapping[str, object]] = field(default_factory=dict)
    below: dict[Ids, dict[Ids, None]] = field(default_factory=dict)
    files: dict[Ids, tuple[tuple[RowFile, ...], tuple[str, ...]]] = field(default_factory=dict)
    """Of each delta its files, and what of it cannot be read."""

    def apply(self, write: Revised, body: Mapping[str, object], root: str) -> None:
        """Apply one revision. Objects below a deleted object become unreachable."""
        siblings = self.below.setdefault(write.ids[:-1], {})
        if write.deletes:
            self.objects.pop(write.ids, None)
            siblings.pop(write.ids, None)
        else:
            self.objects[write.ids] = body
            if len(write.ids) == DELTA:
                self.files[write.ids] = data_files(body, root, "/".join(write.ids))
            siblings[write.ids] = None

    def namespace(self, ids: Ids) -> FoundNamespace | None:
        body = self.objects.get(ids)
        if body is None:
            return None
        return FoundNamespace(_name(body, "namespaceLocator", "namespace"), _texts(body.get("properties")))

    def table(self, ids: Ids) -> FoundTable | None:
        """Return a table as readers see it; None if it, or its namespace, does not exist."""
        body, namespace = self.objects.get(ids), self.namespace(ids[:1])
        if body is None or namespace is None:
            return None
        number = str(body.get("latest_active_table_version") or body.get("latest_table_version") or "")
        version = self.objects.get((*ids, number), {})
        files: list[RowFile] = []
        problems: list[str] = []
        for delta in self._deltas((*ids, number)):
            found, bad = self.files[delta]
            files += found
            problems += bad
        schema = version.get("schema")
        properties = _texts(body.get("properties"))
        description = body.get("description") or version.get("description")
        if isinstance(description, str):
            properties = {**properties, "description": description}
        return FoundTable(
            namespace.name,
            _name(body, "tableLocator", "tableName"),
            number,
            schema if isinstance(schema, bytes) else None,
            tuple(files),
            tuple(problems),
            properties,
        )

    def _deltas(self, version: Ids) -> Iterator[Ids]:
        """Those of the committed partitions of the committed stream, in the order they were committed."""
        for stream in self._children(version):
            locator = self.objects[stream].get("streamLocator")
            native = isinstance(locator, Mapping) and locator.get("format") == FORMAT
            if not native or self.objects[stream].get("state") != LIVE:
                continue
            for partition in self._children(stream):
                if self.objects[partition].get("state") == LIVE:
                    yield from self._children(partition)

    def _children(self, ids: Ids) -> Sequence[Ids]:
        return [child for child in self.below.get(ids, {}) if child in self.objects]


def _name(body: Mapping[str, object], locator: str, key: str) -> str:
    found = body.get(locator)
    return str(found.get(key)) if isinstance(found, Mapping) else ""


def _texts(properties: object) -> dict[str, str]:
    """Properties as texts: what is no text is written as JSON."""
    if not isinstance(properties, Mapping):
        return {}
    return {
        str(key): value if isinstance(value, str) else json.dumps(value, default=repr)
        for key, value in properties.items()
        if value is not None
    }


@dataclass(frozen=True)
class DeltacatStep:
    """A transaction with the state of the objects that it changed (None: dropped)."""

    txn: DeltacatTxn
    message: str
    namespaces: dict[Ids, FoundNamespace | None]
    tables: dict[Ids, FoundTable | None]
    problems: tuple[str, ...]
    """Revisions that could not be read: what they changed is not known."""


def read_steps(store: Store) -> Iterator[DeltacatStep]:
    """Yield every committed transaction by end time, which is DeltaCAT's commit order."""
    txns = sorted(_committed(store), key=lambda txn: (txn.end, txn.id))
    if not txns:
        raise InvalidInputError("There is no DeltaCAT 2.x catalog: it has no committed transaction (txn/success/).")
    contents = DeltacatContents()
    for txn in txns:
        yield _step(store, contents, txn)


def _committed(store: Store) -> Iterator[DeltacatTxn]:
    for entry in store.list(SUCCESS):
        found = committed(entry.key)
        if found is not None:
            yield found


def _step(store: Store, contents: DeltacatContents, txn: DeltacatTxn) -> DeltacatStep:
    problems: list[str] = []
    touched: dict[Ids, None] = {}
    try:
        record = decode(txn.key, read_metadata(store, txn.key))
    except CorruptFileError as error:
        return DeltacatStep(txn, "", {}, {}, (str(error),))
    root = root_of(record)
    for write in writes(record, txn.key):
        try:
            contents.apply(write, decode(write.key, read_metadata(store, write.key)), root)
        except KeyNotFoundError:
            problems.append(f"{write.key} is missing")
        except CorruptFileError as error:
            problems.append(str(error))
        touched[write.ids] = None
    message = record.get("commit_message")
    return DeltacatStep(
        txn,
        message if isinstance(message, str) else "",
        {ids: contents.namespace(ids) for ids in touched if len(ids) == NAMESPACE},
        {ids: contents.table(ids) for ids in dict.fromkeys(ids[:TABLE] for ids in touched if len(ids) >= TABLE)},
        tuple(problems),
    )
