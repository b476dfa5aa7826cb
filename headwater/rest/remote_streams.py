"""The handle of a stream table behind a REST server. Rows travel as Arrow."""

from __future__ import annotations

import base64
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from headwater import notebook
from headwater.arguments import checked
from headwater.errors import InvalidInputError
from headwater.names import ObjectId, format_name
from headwater.streams.definition import Definition, from_properties
from headwater.streams.log.landing import BatchOrigin, LandingReport
from headwater.streams.log.statements import StatementRows, as_rows, repeatable
from headwater.streams.rows.input_rows import END, OF, SENT_FILES, pack, pack_types
from headwater.streams.sources.debezium import records
from headwater.streams.sources.files import SourceFile, find_files, is_files, opened
from headwater.streams.sources.formats import in_batches, total
from headwater.streams.table import StreamTable
from headwater.tables.write.arrow import Frames, to_stream
from headwater.verbs import stream_requests as requests
from headwater.verbs.table_versions import definition_fields
from headwater.verbs.verb import VerbRequest

Given = ParamSpec("Given")
Answer = TypeVar("Answer")
Send = Callable[..., Any]
"""Sends the request of a verb, and the rows that go with it, to a server and returns its answer."""


@dataclass(frozen=True)
class HandedChanges:
    """The position up to which a reader was handed changes, and the id of the table."""

    position: int
    of: str | None = None


Handed = dict[tuple[ObjectId, str], HandedChanges]


def _sent_as(
    kind: Callable[..., VerbRequest], local: Callable[Concatenate[StreamTable, Given], Answer]
) -> Callable[Concatenate[RemoteStream, Given], Answer]:
    """Return a method that sends the arguments of a method of `StreamTable` to the server.

    It has the signature and the docstring of that method. `kind`: the request, whose fields are the arguments.
    """
    signature = inspect.signature(local)

    @wraps(local)
    def send(self: RemoteStream, /, *args: Given.args, **options: Given.kwargs) -> Answer:
        _, *fields = signature.bind(self, *args, **options).arguments.items()
        answer: Answer = self._ask(kind, **dict(fields))
        return answer

    return send


@checked
class RemoteStream(Frames):
    """A stream table of a server, with those calls of `CatalogStream` that a server has."""

    is_stream: ClassVar[bool] = True

    def __init__(self, send: Send, id: ObjectId, serving: Callable[[], Any], handed: Handed) -> None:
        self._handed = handed
        self._send = send
        self._serving = serving
        self._expected: str | None = None
        self.id = id

    @property
    def name(self) -> str:
        return format_name(self.id.names)

    def __repr__(self) -> str:
        return f"RemoteStream({self.name!r})"

    def _repr_html_(self) -> str:
        return notebook.stream(self)

    @property
    def serving(self) -> Any:
        """The serving copy: the Lance table as last published."""
        return self._serving()

    @property
    def table_versions(self) -> Any:
        """The table versions by id, each a handle that reads and writes it."""
        at: Any = self.serving
        return at.table_versions.opened_by(
            lambda there: there.stream_table(self.id, lambda: replace(at, namespace=there))
        )

    def search(self, *args: Any, **options: Any) -> Any:
        """Search the serving copy: `serving.search`."""
        return self.serving.search(*args, **options)

    # requests.LandingRequest

    def append(self, rows: object, token: str | None = None, source: str | None = None) -> LandingReport:
        return self._land(requests.AppendToStreamTable, pack(rows), token=token, source=source)

    def upsert(self, rows: object, token: str | None = None, source: str | None = None) -> LandingReport:
        return self._land(requests.UpsertIntoStreamTable, pack(rows), token=token, source=source)

    def delete(self, what: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        rows = what if isinstance(what, str) else as_rows(self.definition, repeatable(what))
        return self._land(requests.DeleteFromStreamTable, pack(rows), token=token, source=source)

    def ingest(
        self,
        data: object,
        format: str = "rows",
        source: str | None = None,
        token: str | None = None,
        strict: bool = False,
        digest: str | None = None,
        **options: object,
    ) -> LandingReport:
        """As `StreamTable.ingest`. Files are those of this machine: the client reads and sends them.

        `digest`: what a batch with a token is known by, if not by its rows.
        """
        if not is_files(data):
            known = {"format": format, "source": source, "strict": strict, "options": options}
            rows = _change_data(data, format)
            return self._land(requests.IngestIntoStreamTable, rows, token=token, digest=digest, **known)
        batches = in_batches(self, find_files(data), format)
        return total([self.ingest_files(batch, format, source, strict, **options) for batch in batches])

    def ingest_files(
        self,
        files: Sequence[SourceFile],
        format: str = "rows",
        source: str | None = None,
        strict: bool = False,
        **options: object,
    ) -> LandingReport:
        """Send files in one request: on a table with a lateness they are one batch, in one transaction."""
        content = pa.array([_content(file) for file in files], pa.large_binary())
        body = [pa.array([file.path for file in files]), content, pa.array([file.digest for file in files])]
        known = {"format": format, "source": source, "strict": strict, "options": options}
        return self._land(requests.IngestIntoStreamTable, pa.table(body, SENT_FILES), **known)

    def apply(self, parts: Sequence[StatementRows], position: int | None = None) -> int:
        """As `StreamTable.apply`."""
        kinds, rows = pa.array([part.kind for part in parts], pa.string()), [stream_body(part.rows) for part in parts]
        body = pa.table({"kind": kinds, "rows": pa.array(rows, pa.large_binary())})
        return int(self._ask(requests.ApplyToStreamTable, body, position=position))

    def _land(self, kind: type[requests.LandingRequest], rows: pa.Table, **fields: Any) -> LandingReport:
        BatchOrigin(fields.get("source"), fields.get("token"))  # 13 here, for a query parameter is always a text
        report: LandingReport = self._send(kind(id=self.id.names, **fields), rows)
        return report

    # Reading

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> pa.Table:
        chosen = list(columns) if columns is not None else None
        return self._rows(requests.QueryStreamTable, columns=chosen, filter=filter, limit=limit, position=position)

    def count(self, position: int | None = None) -> int:
        return int(self._ask(requests.CountStreamTable, position=position))

    def changes(self, after: int = 0, until: int | None = None, reader: str | None = None) -> pa.Table:
        """As `StreamTable.changes`. What a reader was handed counts as read when this process comes back for more."""
        known = None if reader is None else self._handed.get((self.id, reader))
        read = {} if known is None else {"read": known.position, "read_of": known.of}
        found = self._rows(requests.ReadStreamChanges, after=after, until=until, reader=reader, **read)
        if reader is not None:
            told = found.schema.metadata or {}
            self._handed[self.id, reader] = HandedChanges(int(told[END]), told[OF].decode() if OF in told else None)
        return found.replace_schema_metadata(None)

    def commit_reader(self, name: str, position: int | None = None) -> int:
        """Record that a reader has read up to a position; by default what this process was handed last."""
        known = self._handed.get((self.id, name)) if position is None else HandedChanges(position)
        if known is None:
            raise InvalidInputError(f"The reader {name!r} of {self.name} was handed nothing: name the position.")
        of = {"of": known.of} if known.of is not None else {}
        done = self._ask(requests.CommitStreamReader, reader=name, position=known.position, **of)
        self._handed.pop((self.id, name), None)
        return int(done)

    def retry_quarantined(self, reason: str | None = None, source: str | None = None) -> LandingReport:
        """As `StreamTable.retry_quarantined`, judged by the checks that the rows landed under."""
        report: LandingReport = self._ask(requests.RetryStreamQuarantine, reason=reason, source=source)
        return report

    quarantine = _sent_as(requests.QueryStreamQuarantine, StreamTable.quarantine)
    drop_quarantined = _sent_as(requests.DropStreamQuarantine, StreamTable.drop_quarantined)
    deltas = _sent_as(requests.ListStreamDeltas, StreamTable.deltas)
    files = _sent_as(requests.ListStreamFiles, StreamTable.files)
    undo = _sent_as(requests.UndoStreamIngest, StreamTable.undo)

    @property
    def schema(self) -> pa.Schema:
        return self.definition.schema

    @property
    def definition(self) -> Definition:
        return _definition(self._described("definition")["definition"])

    @property
    def version_id(self) -> str:
        return str(self._described("id")["id"])

    @property
    def position(self) -> int:
        return int(self._described("position")["position"])

    @property
    def published(self) -> requests.RemotePublished | None:
        found = self._described("published")["published"]
        return None if found is None else requests.RemotePublished(**found)

    def readers(self) -> dict[str, int]:
        found = self._described("readers", "id")
        handed = {name: self._handed.get((self.id, name), HandedChanges(0)) for name in found["readers"]}
        return {
            name: max(position, handed[name].position) if handed[name].of == found["id"] else position
            for name, position in found["readers"].items()
        }

    # Changing

    def publish(self) -> requests.RemotePublished:
        published: requests.RemotePublished = self._ask(requests.PublishStreamTable)
        return published

    def evolve(
        self,
        add: Mapping[str, object] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, object] | None = None,
        drop: Sequence[str] = (),
    ) -> Definition:
        types = {"add": pack_types(dict(add or {})), "widen": pack_types(dict(widen or {}))}
        dropped = [drop] if isinstance(drop, str) else list(drop)
        done = self._ask(requests.EvolveStreamTable, rename=dict(rename or {}), drop=dropped, **types)
        return _definition(done)

    def set_properties(self, properties: Mapping[str, str | None]) -> Definition:
        return _definition(self._ask(requests.SetStreamProperties, properties=dict(properties)))

    def drop_reader(self, name: str) -> None:
        self._ask(requests.DropStreamReader, reader=name)
        self._handed.pop((self.id, name), None)

    def _described(self, *fields: str) -> dict[str, Any]:
        """Return fields of DescribeStreamTable: a transaction depends on no more than it has asked for."""
        return dict(self._ask(requests.DescribeStreamTable, fields=list(fields)))

    def expect(self, id: str | None) -> RemoteStream:
        """As `StreamTable.expect`, for reads and `apply`."""
        self._expected = id
        return self

    def _ask(self, kind: Callable[..., VerbRequest], rows: pa.Table | None = None, /, **fields: object) -> Any:
        of = {} if self._expected is None else {"of": self._expected}
        return self._send(kind(id=self.id.names, **{**of, **fields}), rows)

    def _rows(self, kind: Callable[..., VerbRequest], **fields: object) -> pa.Table:
        rows: pa.Table = self._ask(kind, **fields)
        return rows


def create_remote(stream: RemoteStream, made: Definition) -> RemoteStream:
    """Make a stream table at the server."""
    request = requests.CreateStreamTable(id=stream.id.names, **definition_fields(made))
    stream._send(request, made.schema.empty_table())
    return stream


def stream_body(rows: pa.Table | None) -> bytes:
    """Return rows as the bytes of an Arrow stream."""
    assert rows is not None
    return to_stream(rows.to_reader())


def _content(file: SourceFile) -> bytes:
    if os.path.isdir(file.path):
        raise InvalidInputError(f"{file.path} is a folder: only single files are sent to a server.")
    with opened(file) as path, open(path, "rb") as content:
        return content.read()


def _change_data(data: object, format: str) -> pa.Table:
    if format != "debezium" or isinstance(data, (str, bytes)):
        return pack(data)
    messages = records(data)
    return pack(messages if isinstance(messages, str) else json.dumps(messages, default=_json_value))


def _json_value(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)


def _definition(properties: Mapping[str, object]) -> Definition:
    found = from_properties(properties)
    assert found is not None
    return found
