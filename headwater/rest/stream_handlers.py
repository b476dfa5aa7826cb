"""What answers the routes of stream tables: the library's own calls, on the server's side of the wire.

A body is Arrow, as `streams/packing.py` packs it. A text in it is a predicate or change data, never the name of a file
here. Derived columns run a function where the table is published, so they are not set from afar.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.decoding.arrow import read_stream
from headwater.decoding.bounds import REQUEST, Accept
from headwater.errors import InvalidInputError, LanceNamespaceError, UnsupportedOperationError
from headwater.names import object_id
from headwater.namespace.abilities import CatalogAbilities, abilities_of
from headwater.rest.auth.object_rights import Projection
from headwater.rest.body import BodySpool
from headwater.rest.call import Call
from headwater.streams.batches import REFUSE, shape
from headwater.streams.definition import DERIVED, Definition, define, to_properties
from headwater.streams.deleting import check_columns
from headwater.streams.given import Given, given
from headwater.streams.landing import BatchOrigin, LandingReport
from headwater.streams.packing import END, OF, TEXT, unpack, unpack_types
from headwater.streams.position_views import Published
from headwater.streams.sources.files import SourceFile
from headwater.streams.sources.formats import check_format
from headwater.streams.statements import KINDS, StatementRows
from headwater.streams.table import StreamTable
from headwater.streams.user_functions import without_folders

FEW_BYTES = 1 << 20
"""A body that decodes to this many bytes is decoded before its columns are compared with the table's."""
DESCRIBED = ("definition", "position", "published", "readers", "id")
"""What DescribeStreamTable tells, unless asked for some of it: a transaction relies on what it was told."""


def stream_of(namespace: LanceNamespace, call: Call) -> StreamTable:
    """The stream table that a call names. `of` says what it must be: 14 if the name is another table's by now."""
    can = able(namespace)
    assert can.stream is not None
    return can.stream(call.id).expect(call.request.of)


def able(namespace: LanceNamespace) -> CatalogAbilities:
    """What the catalog can do; Unsupported (0) where it has no stream tables."""
    can = abilities_of(namespace)
    if can.stream is None:
        raise UnsupportedOperationError("This server's catalog has no stream tables: a metastore catalog has.")
    return can


def _body(call: Call, accept: Accept | None = None) -> pa.RecordBatchReader:
    body = call.body.buffer if isinstance(call.body, BodySpool) else pa.py_buffer(call.body)
    return read_stream(body, accept or call.accept)


def _fitting_rows(call: Call, check: Callable[[Given | None], Any]) -> Any:
    """Return the rows, or the text, of a write. `check` is called before many rows are decoded, with no rows but their
    columns, or None for a text: it raises InvalidInput (13) for columns that the table refuses.

    Few rows are decoded at once: the landing itself checks them. A repeated token is not checked: its rows landed under
    the definition of that time.
    """
    decoded = 0

    def accept(size: int) -> None:
        nonlocal decoded
        decoded = size
        if call.accept is not None:
            call.accept(size)

    body = _body(call, accept)
    if decoded > FEW_BYTES and call.request.token is None:
        check(None if body.schema.names == [TEXT] else given(unpack(body.schema.empty_table())))
    return unpack(body.read_all())


def _shaping(table: StreamTable, contract: str = REFUSE) -> Callable[[Given | None], Any]:
    return lambda rows: None if rows is None else shape(table.definition, rows, contract)


def create(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    asked, create_stream = call.request, able(namespace).create_stream
    assert create_stream is not None
    properties = _settings(asked.properties)
    given = {name: text for name, text in properties.items() if text is not None}
    partitions = [_partition(text) for text in asked.partition_by]
    definition = define(_body(call).schema, asked.keys, asked.sequence, partitions, given)
    return {"definition": _shown(create_stream(call.id, definition).definition)}


def describe(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """DescribeStreamTable; 13 of a plain table, and of a history, which publishes alone write."""
    table, told = stream_of(namespace, call), dict[str, Any]()
    if not table.has_log:
        raise InvalidInputError(f"{table.name} has no change log: use the Lance operations on it.")
    for field in DESCRIBED if call.request.fields is None else call.request.fields:
        match field:
            case "definition":
                told[field] = _projection(namespace, call).properties(_shown(table.definition))
            case "position":
                told[field] = table.position
            case "published":
                told[field] = _published(table.published)
            case "id":
                told[field] = table.version_id
            case "readers":
                told[field] = table.readers(kept=True)
            case _:
                raise InvalidInputError(f"{field!r} is not told of a stream table: ask for {', '.join(DESCRIBED)}.")
    return told


def append(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    table = stream_of(namespace, call)
    return _report(table.append(_fitting_rows(call, _shaping(table)), call.request.token, call.request.source))


def upsert(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    table = stream_of(namespace, call)
    return _report(table.upsert(_fitting_rows(call, _shaping(table)), call.request.token, call.request.source))


def delete(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    table = stream_of(namespace, call)
    what = _fitting_rows(call, lambda rows: check_columns(table.definition, rows))
    return _report(table.delete(what, call.request.token, call.request.source))


def ingest(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """IngestIntoStreamTable: rows or JSON text, or the bytes of one file, which is known by its name and content."""
    asked, table = call.request, stream_of(namespace, call)
    check_format(asked.format, asked.options)
    if asked.file is None:
        contract = table.definition.contract
        rows = _fitting_rows(call, _shaping(table, contract) if asked.format == "rows" else lambda _: None)
        origin = BatchOrigin(asked.source, asked.token, digest=asked.digest if asked.token is not None else None)
        return _report(table.take(rows, asked.format, origin, asked.strict, asked.options))
    with _file(_body(call), asked.file) as (path, digest):
        origin = BatchOrigin(asked.source, None, asked.file, digest)
        try:
            file = SourceFile(path, digest, bounds=REQUEST)
            return _report(table.take(None, asked.format, origin, asked.strict, asked.options, file))
        except LanceNamespaceError as error:
            raise type(error)(str(error).replace(path, asked.file)) from None


def apply(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """ApplyToStreamTable: the body has a row for each part, its `kind` and its `rows`, an Arrow stream."""
    table, parts, sent = stream_of(namespace, call), list[StatementRows](), _body(call)
    body = sent.read_all() if sent.schema.names == ["kind", "rows"] else None
    if body is None or body.num_rows > len(KINDS):
        raise InvalidInputError("The body is no statement: a row of `kind` and `rows` for each kind.")
    size = body.nbytes

    def accept(more: int) -> None:
        nonlocal size
        size += more
        if call.accept is not None:
            call.accept(size)  # of all parts together

    for kind, rows in zip(body.column(0).to_pylist(), body.column(1).to_pylist(), strict=True):
        if kind not in KINDS or not isinstance(rows, bytes):
            raise InvalidInputError(f"The rows of a statement are an Arrow stream, of a kind of {', '.join(KINDS)}.")
        part = read_stream(rows, accept)
        shape(table.definition, given(part.schema.empty_table()))
        parts.append(StatementRows(kind, part.read_all()))
    return {"position": table.apply(parts, call.request.position)}


@contextlib.contextmanager
def _file(sent: pa.RecordBatchReader, name: str) -> Iterator[tuple[str, str]]:
    """The bytes of a file that was sent, in a file of our own, and their digest as the sender told it."""
    body = sent.read_all() if sent.schema.names == ["content", "digest"] else None
    if body is None or body.num_rows != 1:
        raise InvalidInputError("The body is not a file: one row of `content` and `digest`.")
    content, digest = body.column(0)[0].as_py(), body.column(1)[0].as_py()
    ending = "".join(PurePath(name).suffixes[-2:])  # that of compressed JSON is of two parts
    if not isinstance(content, bytes) or not isinstance(digest, str) or not ending.isprintable() or "/" in ending:
        raise InvalidInputError("The body is not a file: one row of `content` and `digest`.")
    with tempfile.NamedTemporaryFile(suffix=ending[-20:]) as file:
        file.write(content)
        file.flush()
        yield file.name, digest


def query(namespace: LanceNamespace, call: Call) -> pa.RecordBatchReader:
    asked = call.request
    return _reader(stream_of(namespace, call).to_arrow(asked.columns, asked.filter, asked.limit, asked.position))


def count(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    return {"count": stream_of(namespace, call).count(call.request.position)}


def changes(namespace: LanceNamespace, call: Call) -> pa.RecordBatchReader:
    """ReadStreamChanges: what a reader was handed is known at the client, who says up to where it has `read`.

    That is nothing if it was of another table (`read_of`) which had the name.
    """
    asked, table = call.request, stream_of(namespace, call)
    start, id = asked.after, table.version_id
    table.expect(id)
    if asked.reader is not None:
        known, is_read = table.readers(kept=True), asked.read is not None and asked.read_of in (None, id)
        start = asked.read if is_read else known.get(asked.reader, asked.after)
        if known.get(asked.reader) != start:
            table.commit_reader(asked.reader, start)
    end = table.position if asked.until is None else asked.until
    if asked.reader is not None:
        end = max(end, start)  # what it was handed is read, whatever it asks for next
    found = table.changes(start, end)
    return _reader(found.replace_schema_metadata({END: str(end).encode(), OF: id.encode()}))


def commit_reader(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    if call.request.reader is None or call.request.position is None:
        raise InvalidInputError("Say which reader, and the position it has read up to.")
    return {"position": stream_of(namespace, call).commit_reader(call.request.reader, call.request.position)}


def deltas(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    told = _projection(namespace, call)
    return {"deltas": [told.delta(each) for each in stream_of(namespace, call).deltas(call.request.after)]}


def files(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    found = stream_of(namespace, call).files(call.request.source or "", call.request.undone)
    return {"files": {path: [asdict(entry) for entry in entries] for path, entries in found.items()}}


def publish(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    return {"published": _published(stream_of(namespace, call).publish())}


def publish_all(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """PublishStreamTables: all at one slot."""
    can = able(namespace)
    assert can.publish is not None
    found = can.publish([object_id(names) for names in call.request.tables])
    return {"published": [_published(each) for each in found]}


def evolve(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    asked = call.request
    table = stream_of(namespace, call)
    changed = table.evolve(unpack_types(asked.add), asked.rename, unpack_types(asked.widen), asked.drop)
    return {"definition": _shown(changed)}


def set_properties(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    return {"definition": _shown(stream_of(namespace, call).set_properties(_settings(call.request.properties)))}


def quarantine(namespace: LanceNamespace, call: Call) -> pa.RecordBatchReader:
    return _reader(stream_of(namespace, call).quarantine())


def drop_reader(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    if call.request.reader is None:
        raise InvalidInputError("Say which reader.")
    stream_of(namespace, call).drop_reader(call.request.reader)
    return {}


def undo(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    asked = call.request
    return _report(stream_of(namespace, call).undo(asked.source, asked.file, asked.token, asked.txn, asked.digest))


def _shown(definition: Definition) -> dict[str, Any]:
    return without_folders(to_properties(definition))


def _settings(properties: Mapping[str, str | None]) -> Mapping[str, str | None]:
    for name in properties:
        if name.startswith(DERIVED):
            raise InvalidInputError(
                f"{name} runs a function where the table is published: set it where the catalog's root is opened."
            )
    return properties


def _partition(text: str) -> Any:
    """A column, or a JSON list of column, transform and width."""
    if not text.startswith("["):
        return text
    try:
        found = msgspec.json.decode(text, type=tuple[str, str, int])
    except msgspec.MsgspecError:
        raise InvalidInputError(f"partition_by {text[:80]!r} is no column, nor column, transform and width.") from None
    return found


def _projection(namespace: LanceNamespace, call: Call) -> Projection:
    metastore = able(namespace).metastore
    assert metastore is not None
    return Projection(call.asker, metastore)


def _report(report: LandingReport) -> dict[str, Any]:
    return dict(vars(report))


def _published(found: Published | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"version": found.version, "position": found.position, "rows": found.rows, "late": found.late,
            "too_late": found.too_late, "schema_id": found.schema_id}  # fmt: skip


def _reader(table: pa.Table) -> pa.RecordBatchReader:
    return table.to_reader()
