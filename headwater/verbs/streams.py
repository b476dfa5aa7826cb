"""Verbs of stream tables.

Rows are Arrow, as `streams/rows/input_rows.py` packs them. A text in them is a predicate or change data, never the
name of a file here. A derived column runs a function where the table is published, so a client cannot set one.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from headwater.decoding.arrow import read_stream
from headwater.decoding.bounds import REQUEST
from headwater.errors import InvalidInputError
from headwater.metastore import Delta
from headwater.names import ObjectId, object_id
from headwater.streams.definition import Definition, define, to_properties
from headwater.streams.log.batches import shape
from headwater.streams.log.landing import BatchOrigin, LandingReport
from headwater.streams.log.source_ledger import LedgerEntry
from headwater.streams.log.statements import KINDS, StatementRows, check_columns
from headwater.streams.reading.position_views import Published
from headwater.streams.rows.input_rows import (
    END,
    OF,
    SENT_FILES,
    TEXT,
    InputRows,
    as_input_rows,
    unpack,
    unpack_types,
    without_rows,
)
from headwater.streams.serving.derived_columns import without_folders
from headwater.streams.sources.files import SourceFile
from headwater.streams.sources.formats import check_format, check_target, total
from headwater.streams.table import StreamTable
from headwater.streams.table_functions import names_function
from headwater.verbs import stream_requests as requests
from headwater.verbs.verb import ObjectRequest, Permission, SessionKind, VerbSession, WorkPlace, require, verb

FEW_BYTES = 1 << 16
"""Rows that decode to at most this many bytes are decoded before their columns are compared with the table's."""
DESCRIBED = ("definition", "position", "published", "readers", "id")
"""Fields of DescribeStreamTable. A transaction depends on each field that it asks for."""
NO_STREAMS = "has no stream tables: a metastore catalog has"
_PATH = "table/{id}/stream/"
_WRITE, _SELECT, _DESCRIBE = Permission.WRITE, Permission.SELECT, Permission.DESCRIBE
_IN, _ANY = SessionKind.TRANSACTION, SessionKind.ANY


def _table(session: VerbSession, request: ObjectRequest) -> StreamTable:
    """Return the stream table of a request. With `of`, its calls raise ConcurrentModification for another table."""
    return require(session.can.stream, NO_STREAMS)(ObjectId(request.id)).expect(getattr(request, "of", None))


def _rows(session: VerbSession) -> pa.RecordBatchReader:
    assert session.rows is not None
    return session.rows()


def _fitting_rows(
    session: VerbSession,
    request: requests.LandingRequest,
    check: Callable[[InputRows | None], object],
    body: pa.RecordBatchReader | None = None,
) -> Any:
    """Return the rows, or the text, of a write. `check` is called before they are decoded, with no rows but their
    columns, or None for a text: it raises InvalidInput (13) for columns that the table refuses.

    The landing itself checks the rows of a body that decodes to few bytes. A repeated token is not checked: its rows
    landed under the definition of that time.
    """
    body = _rows(session) if body is None else body
    if request.token is None and sum(session.sizes) > FEW_BYTES:
        check(None if body.schema.names == [TEXT] else as_input_rows(unpack(without_rows(body.schema))))
    return unpack(body.read_all())


def _shaping(table: StreamTable) -> Callable[[InputRows | None], object]:
    return lambda rows: None if rows is None else shape(table.definition, rows)


@verb(f"{_PATH}create", _WRITE, sessions=_IN, field="definition")
def create(session: VerbSession, request: requests.CreateStreamTable) -> dict[str, Any]:
    """Create a stream table with the columns of the Arrow body."""
    create_stream = require(session.can.create_stream, NO_STREAMS)
    return _shown(create_stream(ObjectId(request.id), defined(request, _rows(session).schema)).definition)


def defined(request: requests.CreateStreamTable, schema: pa.Schema) -> Definition:
    """Return the definition that a request asks for."""
    _check_settings(request.properties)
    known = {name: text for name, text in request.properties.items() if text is not None}
    partitions = [_partition(text) for text in request.partition_by]
    return define(schema, request.keys, request.sequence, partitions, known)


@verb(f"{_PATH}describe", _DESCRIBE, WorkPlace.SERVER, _ANY)
def describe(session: VerbSession, request: requests.DescribeStreamTable) -> dict[str, Any]:
    """Return the definition of a stream table, its newest position, its last publish and its readers.

    InvalidInput (13) for a plain table, and for a history, which only publishes write.
    """
    table, found = _table(session, request), dict[str, Any]()
    if not table.has_log:
        raise InvalidInputError(f"{table.name} has no change log: use the Lance operations on it.")
    for name in DESCRIBED if request.fields is None else request.fields:
        match name:
            case "definition":
                found[name] = _shown(table.definition)
            case "position":
                found[name] = table.position
            case "published":
                found[name] = None if table.published is None else _published(table.published)
            case "id":
                found[name] = table.version_id
            case "readers":
                found[name] = table.readers(kept=True)
            case _:
                raise InvalidInputError(f"{name!r} is not a field of a stream table: ask for {', '.join(DESCRIBED)}.")
    return found


@verb(f"{_PATH}append", _WRITE, sessions=_IN)
def append(session: VerbSession, request: requests.AppendToStreamTable) -> LandingReport:
    """Append the rows of the Arrow body to a table without keys."""
    table = _table(session, request)
    rows = _fitting_rows(session, request, _shaping(table))
    return table.append(rows, request.token, request.source)


@verb(f"{_PATH}upsert", _WRITE, sessions=_IN)
def upsert(session: VerbSession, request: requests.UpsertIntoStreamTable) -> LandingReport:
    """Insert the rows of the Arrow body, or replace those of the same key."""
    table = _table(session, request)
    rows = _fitting_rows(session, request, _shaping(table))
    return table.upsert(rows, request.token, request.source)


@verb(f"{_PATH}delete", _WRITE, sessions=_IN)
def delete(session: VerbSession, request: requests.DeleteFromStreamTable) -> LandingReport:
    """Delete by the keys or the predicate in the Arrow body."""
    table = _table(session, request)
    rows = _fitting_rows(session, request, lambda rows: check_columns(table.definition, rows))
    return table.delete(rows, request.token, request.source)


@verb(f"{_PATH}ingest", _WRITE, WorkPlace.LONG, _IN)
def ingest(session: VerbSession, request: requests.IngestIntoStreamTable) -> LandingReport:
    """Ingest change data in one of the formats; bad rows go to the quarantine.

    The body is rows or JSON text, or the bytes of files, each known by its name and content. Files of one call are one
    batch on a table with a lateness, as those of `StreamTable.ingest`.
    """
    table, body = _table(session, request), _rows(session)
    check_format(request.format, request.options)
    if body.schema.names != SENT_FILES:
        check = partial(check_target, table.definition, request.format, request.options)
        rows = _fitting_rows(session, request, check, body)
        digest = request.digest if request.token is not None else None
        origin = BatchOrigin(request.source, request.token, digest=digest)
        return table.take(rows, request.format, origin, request.strict, request.options)
    check_target(table.definition, request.format, request.options)
    with _files(body) as files:
        return total(table.ingest_files(files, request.format, request.source, request.strict, **request.options))


@verb(f"{_PATH}apply", _WRITE, sessions=_IN, field="position")
def apply(session: VerbSession, request: requests.ApplyToStreamTable) -> int:
    """Apply a SQL statement: deletes, replaced rows, new rows. With `position`, only to the state that it read.

    The body has a row for each part: its `kind`, and its `rows` as an Arrow stream.
    """
    table, parts, sent = _table(session, request), list[StatementRows](), _rows(session)
    body = sent.read_all() if sent.schema.names == ["kind", "rows"] else None
    if body is None or body.num_rows > len(KINDS):
        raise InvalidInputError("The body is not a statement: a row of `kind` and `rows` for each kind.")
    size = body.nbytes

    def accept(more: int) -> None:
        nonlocal size
        size += more
        if session.accept is not None:
            session.accept(size)  # of all parts together

    for kind, rows in zip(body.column(0).to_pylist(), body.column(1).to_pylist(), strict=True):
        if kind not in KINDS or not isinstance(rows, bytes):
            raise InvalidInputError(f"The rows of a statement are an Arrow stream, of a kind of {', '.join(KINDS)}.")
        part = read_stream(rows, accept)
        shape(table.definition, as_input_rows(without_rows(part.schema)))
        parts.append(StatementRows(kind, part.read_all()))
    return table.apply(parts, request.position)


@contextlib.contextmanager
def _files(sent: pa.RecordBatchReader) -> Iterator[list[SourceFile]]:
    """Write the files of a body to files of our own. Their names and digests are as the client says.

    Their bounds are those of one request, however many they are.
    """
    body, found = sent.read_all(), list[SourceFile]()
    bounds = replace(REQUEST, free_bytes=REQUEST.free_bytes // max(1, body.num_rows))
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(zip(*(column.to_pylist() for column in body.columns), strict=True)):
            name, content, digest = row
            if not isinstance(name, str) or not isinstance(content, bytes) or not isinstance(digest, str):
                raise InvalidInputError("The body holds no file: each row is a name, the content and its digest.")
            path = Path(folder, str(number))
            path.write_bytes(content)
            found.append(SourceFile(name, digest, len(content), bounds=bounds, sent=str(path)))
        if not found:
            raise InvalidInputError("The body holds no file.")
        yield found


@verb(f"{_PATH}query", _SELECT, sessions=_ANY)
def query(session: VerbSession, request: requests.QueryStreamTable) -> pa.RecordBatchReader:
    """Return the rows, newest or at a position, as an Arrow file."""
    found = _table(session, request).to_arrow(request.columns, request.filter, request.limit, request.position)
    return found.to_reader()


@verb(f"{_PATH}count", _SELECT, sessions=_ANY, field="count")
def count(session: VerbSession, request: requests.CountStreamTable) -> int:
    """Return the number of rows."""
    return _table(session, request).count(request.position)


@verb(f"{_PATH}changes", _SELECT, sessions=_ANY)
def changes(session: VerbSession, request: requests.ReadStreamChanges) -> pa.RecordBatchReader:
    """Return the changes after a position, or after that of a reader, as an Arrow file.

    The client knows which changes a reader was handed, and sends the position up to which it has `read`. That counts
    only for the same table (`read_of`), not for another that has its name now.
    """
    table = _table(session, request)
    start, id = request.after, table.version_id
    table.expect(id)
    if request.reader is not None:
        known = table.readers(kept=True)
        start = known.get(request.reader, request.after)
        if request.read is not None and request.read_of in (None, id):
            start = request.read
        if known.get(request.reader) != start:
            table.commit_reader(request.reader, start)
    end = table.position if request.until is None else request.until
    if request.reader is not None:
        end = max(end, start)  # what it was handed is read, whatever it asks for next
    found = table.changes(start, end)
    return found.replace_schema_metadata({END: str(end).encode(), OF: id.encode()}).to_reader()


@verb(f"{_PATH}deltas", _DESCRIBE, WorkPlace.SERVER, _ANY, field="deltas")
def deltas(session: VerbSession, request: requests.ListStreamDeltas) -> Sequence[Delta]:
    """Return the deltas after a position."""
    return _table(session, request).deltas(request.after)


@verb(f"{_PATH}files", _DESCRIBE, WorkPlace.SERVER, field="files")
def files(session: VerbSession, request: requests.ListStreamFiles) -> Mapping[str, Sequence[LedgerEntry]]:
    """Return the files of a source, an entry for each content; with `undone` those that were taken out again."""
    return _table(session, request).files(request.source or "", request.undone)


@verb(f"{_PATH}publish", _WRITE, WorkPlace.LONG, _IN, field="published")
def publish(session: VerbSession, request: requests.PublishStreamTable) -> requests.RemotePublished:
    """Publish a stream table: its serving copy becomes equal to its newest state."""
    return _published(_table(session, request).publish())


@verb("streams/publish", _WRITE, WorkPlace.LONG, _IN, field="published")
def publish_all(session: VerbSession, request: requests.PublishStreamTables) -> list[requests.RemotePublished]:
    """Publish several stream tables in one slot."""
    found = require(session.can.publish, NO_STREAMS)([object_id(names) for names in request.tables])
    return [_published(each) for each in found]


@verb(f"{_PATH}evolve", _WRITE, sessions=_IN, field="definition")
def evolve(session: VerbSession, request: requests.EvolveStreamTable) -> dict[str, Any]:
    """Add, rename, widen and drop columns of a stream table."""
    added, widened = unpack_types(request.add), unpack_types(request.widen)
    return _shown(_table(session, request).evolve(added, request.rename, widened, request.drop))


@verb(f"{_PATH}properties", _WRITE, sessions=_IN, field="definition")
def set_properties(session: VerbSession, request: requests.SetStreamProperties) -> dict[str, Any]:
    """Set properties of a stream table; null removes one."""
    _check_settings(request.properties)
    return _shown(_table(session, request).set_properties(request.properties))


@verb(f"{_PATH}quarantine", _SELECT, sessions=_ANY)
def quarantine(session: VerbSession, request: requests.QueryStreamQuarantine) -> pa.RecordBatchReader:
    """Return the rows that were refused, and why, as an Arrow file."""
    return _table(session, request).quarantine().to_reader()


@verb(f"{_PATH}quarantine/retry", _WRITE, WorkPlace.LONG, _IN)
def retry_quarantine(session: VerbSession, request: requests.RetryStreamQuarantine) -> LandingReport:
    """Take the rows out of the quarantine that fit now; the others stay, and `quarantined` counts them."""
    return _table(session, request).retry_quarantined(request.reason, request.source)


@verb(f"{_PATH}quarantine/drop", _WRITE, sessions=_IN, field="dropped")
def drop_quarantine(session: VerbSession, request: requests.DropStreamQuarantine) -> int:
    """Drop rows of the quarantine."""
    return _table(session, request).drop_quarantined(request.reason, request.source)


@verb(f"{_PATH}commit_reader", _WRITE, WorkPlace.SERVER, _IN, field="position")
def commit_reader(session: VerbSession, request: requests.CommitStreamReader) -> int:
    """Record the position up to which a reader has read."""
    return _table(session, request).commit_reader(request.reader, request.position)


@verb(f"{_PATH}drop_reader", _WRITE, WorkPlace.SERVER, _IN)
def drop_reader(session: VerbSession, request: requests.DropStreamReader) -> None:
    """Drop a reader and its position."""
    _table(session, request).drop_reader(request.reader)


@verb(f"{_PATH}undo", _WRITE, WorkPlace.LONG, _IN)
def undo_ingest(session: VerbSession, request: requests.UndoStreamIngest) -> LandingReport:
    """Undo the ingest of a source, a file, a batch or a transaction."""
    named = (request.source, request.file, request.token, request.txn, request.digest)
    return _table(session, request).undo(*named)


def _shown(definition: Definition) -> dict[str, Any]:
    return without_folders(to_properties(definition))


def _published(found: Published) -> requests.RemotePublished:
    late, too_late, schema, stale = found.late, found.too_late, found.schema_id, found.stale
    return requests.RemotePublished(found.version, found.position, found.rows, late, too_late, schema, stale)


def _check_settings(properties: Mapping[str, str | None]) -> None:
    for name in properties:
        if names_function(name):
            raise InvalidInputError(
                f"{name} runs a function where the table is published: set it where the catalog's root is opened."
            )


def _partition(text: str) -> Any:
    """Return a column, or the column, transform and width of a JSON list."""
    if not text.startswith("["):
        return text
    try:
        return msgspec.json.decode(text, type=tuple[str, str, int])
    except msgspec.MsgspecError:
        raise InvalidInputError(f"partition_by {text[:80]!r} is no column, nor column, transform and width.") from None
