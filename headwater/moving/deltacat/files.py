"""The file layout of a DeltaCAT 2.x root, as the released package writes it, and reads of its files.

    txn/success/<year>/<month>/<day>/<hour>/<minute>/<start>_<uuid>/<end>    a committed transaction
    <namespace>/<table>/<version>/<stream>/<partition>/<delta>/rev/.../<revision>_<operation>_<start>_<uuid>.mpk
    data/<partition>/<uuid>.pq                                               rows

The root may be hostile: a path or link that leads out of it is refused. Rows are read in the schema of their table.

The committed transactions of a DeltaCAT root, and the contents of its catalog after each.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from headwater.decoding.arrow import read_schema
from headwater.decoding.files import FORMATS, FileRows
from headwater.errors import CorruptFileError, InvalidInputError
from headwater.store import KeyNotFoundError, Store

SUCCESS = "txn/success/"
_REVISION = re.compile(r"(?P<ids>[^/]+(?:/[^/]+){0,5})/rev/(?:\d+/)*\d+_(?P<operation>[a-z]+)_\d+_[^/]+\.mpk")
_COMMITTED = re.compile(r"txn/success/(?:\d+/){5}(?P<id>\d+_[^/]+)/(?P<end>\d+)")


@dataclass(frozen=True)
class DeltacatTxn:
    """A committed transaction: its file is below `txn/success/`."""

    id: str
    end: int
    key: str

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.end // 1_000_000_000, UTC)


@dataclass(frozen=True)
class Revised:
    """A revision that a transaction wrote."""

    key: str
    ids: tuple[str, ...]
    deletes: bool


@dataclass(frozen=True)
class RowFile:
    """A file with rows of a delta."""

    key: str
    content_type: str
    encoding: str


def committed(key: str) -> DeltacatTxn | None:
    """Return the committed transaction of a key; None for other keys."""
    found = _COMMITTED.fullmatch(key)
    return DeltacatTxn(found["id"], int(found["end"]), key) if found else None


def decode(key: str, data: bytes) -> dict[str, Any]:
    """Decode a metadata file. CorruptFile names it."""
    try:
        found = msgspec.msgpack.decode(data, strict=False)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(key, f"it is no MessagePack ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise CorruptFileError(key, "it holds no object")
    return found


def writes(record: Mapping[str, object], key: str) -> list[Revised]:
    """Return the revisions in a transaction's record, in order."""
    found: list[Revised] = []
    for operation in _items(record.get("operations")):
        for path in _items(operation.get("metafile_write_paths") if isinstance(operation, Mapping) else None):
            found.append(_write(path, root_of(record), key))
    return found


def _write(path: object, root: str, key: str) -> Revised:
    inside = inside_root(path, root, key)
    found = _REVISION.fullmatch(inside)
    if found is None:
        raise CorruptFileError(key, f"it names the revision {inside[:200]!r}, which has no such place")
    return Revised(inside, tuple(found["ids"].split("/")), found["operation"] == "delete")


def inside_root(path: object, root: str, key: str) -> str:
    """Return a path of a record as a key. InvalidInput (13) unless it is relative, or below the original root."""
    text = path if isinstance(path, str) else ""
    if root and text.startswith(f"{root}/"):
        text = text.removeprefix(f"{root}/")
    parts = text.split("/")
    if not text or "://" in text or "\\" in text or "\0" in text or any(part in ("", ".", "..") for part in parts):
        raise InvalidInputError(f"{key} names {str(path)[:200]!r}, which is not inside this root: nothing is imported.")
    return text


def data_files(delta: Mapping[str, object], root: str, key: str) -> tuple[tuple[RowFile, ...], tuple[str, ...]]:
    """Return the data files of a delta, and the problems of those that cannot be read."""
    kind = str(delta.get("type"))
    manifest = delta.get("manifest")
    entries = _items(manifest.get("entries") if isinstance(manifest, Mapping) else None)
    if kind not in ("add", "append"):
        return (), (f"{key}: a delta of type {kind!r} that was never compacted; DeltaCAT cannot read it either",)
    files: list[RowFile] = []
    problems: list[str] = []
    for entry in entries:
        meta = entry.get("meta") if isinstance(entry, Mapping) else None
        if not isinstance(meta, Mapping):
            raise CorruptFileError(key, "an entry of its manifest is not understood")
        if meta.get("entry_type", "data") != "data":
            problems.append(f"{key}: an entry of type {str(meta['entry_type'])[:40]!r}")
            continue
        url = entry.get("url", entry.get("uri"))
        encoding = str(meta.get("content_encoding") or "identity")
        files.append(RowFile(inside_root(url, root, key), str(meta.get("content_type")), encoding))
    return tuple(files), tuple(problems)


def root_of(record: Mapping[str, object]) -> str:
    """Return the path of the root at the time of a transaction."""
    return str(record.get("catalog_root_normalized") or "").rstrip("/")


def _items(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


MAX_METADATA = 64 << 20
"""No record or revision is larger: DeltaCAT's are some kB."""


def check_inside(store: Store, key: str) -> None:
    """Raise InvalidInput (13) if a file of a local root is outside of it when links are followed."""
    root = store.abilities.path
    if root is None:
        return
    real = os.path.realpath(root)
    if not os.path.realpath(os.path.join(root, key)).startswith(real + os.sep):
        raise InvalidInputError(f"{key} is a link that leads out of the root: nothing is imported.")


def read_metadata(store: Store, key: str) -> bytes:
    """Return the bytes of a record or revision. KeyNotFoundError, or CorruptFile if it is too large."""
    check_inside(store, key)
    entry = store.head(key)
    if entry is not None and entry.size > MAX_METADATA:
        raise CorruptFileError(key, f"it has {entry.size} bytes, and no metadata file has")
    return store.get(key)


FIELD_ID = b"PARQUET:field_id"
MERGE_KEY = b"DELTACAT:merge_key"
PAST_DEFAULT = b"DELTACAT:past_default"


def parse_schema(data: bytes, name: str) -> pa.Schema:
    """Decode a table's schema with DeltaCAT's field metadata; InvalidInput (13)."""
    try:
        return read_schema(data)
    except InvalidInputError as error:
        raise InvalidInputError(f"The schema of {name} is not understood ({type(error).__name__}).") from None


def merge_keys(schema: pa.Schema) -> tuple[str, ...]:
    return tuple(each.name for each in schema if (each.metadata or {}).get(MERGE_KEY, b"") == b"True")


def plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema without DeltaCAT's field metadata."""
    return pa.schema([each.remove_metadata() for each in schema])


def problem(store: Store, file: RowFile) -> str | None:
    """Return the reason why a file cannot be read, without reading its rows; None if there is none."""
    if file.content_type not in FORMATS or file.encoding != "identity":
        return f"{file.key}: {file.content_type} ({file.encoding}) is not read"
    check_inside(store, file.key)
    if store.head(file.key) is None:
        return f"{file.key} is missing"
    try:
        _opened(store, file)
    except InvalidInputError as error:
        return str(error)
    return None


def schema_of(store: Store, files: Sequence[RowFile]) -> pa.Schema:
    """Return the schema of the files, for a table without a schema of its own."""
    found = [_opened(store, file).schema.remove_metadata() for file in files]
    try:
        return pa.unify_schemas(found, promote_options="permissive")
    except pa.ArrowException as error:
        raise InvalidInputError(f"{files[0].key} and other files of its table do not agree: {error}") from None


def batches(store: Store, files: Sequence[RowFile], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in order, with the columns of `schema` by field id, or by name in files without ids."""
    for file in files:
        try:
            found = _opened(store, file)
            places = _places(found.schema, schema)
            names = [found.schema.names[place] for place in places if place >= 0]
            for batch in found.batches(list(dict.fromkeys(names))):
                yield _under(batch, schema)
        except (InvalidInputError, pa.ArrowException, ValueError) as error:
            raise InvalidInputError(f"{file.key} cannot be read: {str(error).splitlines()[0][:200]}") from None


def _under(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns: list[Any] = []
    for each, place in zip(schema, _places(batch.schema, schema), strict=True):
        found = _missing(each, batch.num_rows) if place < 0 else batch.column(place).cast(each.type)
        columns.append(found)
    return pa.RecordBatch.from_arrays(columns, schema=plain(schema))


def _places(found: pa.Schema, schema: pa.Schema) -> list[int]:
    """Return the position of each column in a file's schema; -1 if it is missing."""
    by_id = {_id(each): place for place, each in enumerate(found) if _id(each) is not None}
    return [
        by_id.get(_id(each), -1) if by_id and _id(each) is not None else found.get_field_index(each.name)
        for each in schema
    ]


def _missing(field: Any, rows: int) -> Any:
    """Return a column that was added later: DeltaCAT shows its default in rows from before."""
    text = (field.metadata or {}).get(PAST_DEFAULT)
    if text is None:
        return pa.nulls(rows, field.type)
    value = msgspec.msgpack.decode(base64.b64decode(text))
    return pa.array([value] * rows, field.type)


def _id(field: pa.Field[pa.DataType]) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return None if found in (None, b"-1") else found


def _opened(store: Store, file: RowFile) -> FileRows:
    """Open a file of rows, from its path, or from its bytes where there are no paths. Error 13 names the file."""
    path = store.abilities.path
    try:
        return FORMATS[file.content_type](store.get(file.key) if path is None else os.path.join(path, file.key))
    except KeyNotFoundError:
        raise InvalidInputError(f"{file.key} is missing.") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{file.key} cannot be read: {error}") from None


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
        """Return the deltas of the committed partitions of the committed stream, in the order of their commits."""
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
