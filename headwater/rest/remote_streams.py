"""A stream table behind a REST server, held as one that is opened directly: rows travel as Arrow."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import msgspec
import pyarrow as pa

from headwater.arguments import checked
from headwater.errors import InvalidInputError
from headwater.metastore import Delta
from headwater.names import ObjectId, format_name
from headwater.streams.definition import Definition, from_properties
from headwater.streams.deleting import as_rows, repeatable
from headwater.streams.landing import BatchOrigin, LandingReport
from headwater.streams.ledger import LedgerEntry
from headwater.streams.packing import END, OF, SENT_FILES, pack, pack_types
from headwater.streams.position_views import AtPosition
from headwater.streams.sources.debezium import records
from headwater.streams.sources.files import SourceFile, find_files, is_files, opened
from headwater.streams.sources.formats import in_batches, total
from headwater.streams.statements import StatementRows
from headwater.tables.write.arrow import Frames, to_stream


class Sender(Protocol):
    """How a call of an extension reaches the server: the tail of its path, its fields, and its Arrow body."""

    def __call__(
        self, tail: str, fields: Mapping[str, Any], rows: pa.Table | None = None, arrow: bool = False
    ) -> Any: ...


@dataclass(frozen=True)
class RemotePublished(AtPosition):
    """The last publish of a table, as the server tells it."""

    version: int
    position: int
    rows: int = 0
    late: int = 0
    too_late: int = 0
    schema_id: int = 0


@dataclass(frozen=True)
class HandedChanges:
    """Up to where a reader was handed changes, and of which table, by its id."""

    position: int
    of: str | None = None


Handed = dict[tuple[ObjectId, str], HandedChanges]


@checked
class RemoteStream(Frames):
    """A stream table of a server. The same calls as `CatalogStream`; what it cannot is not there."""

    is_stream: ClassVar[bool] = True

    def __init__(self, send: Sender, id: ObjectId, serving: Callable[[], Any], handed: Handed) -> None:
        self._handed = handed
        self._sender = send
        self._serving = serving
        self._expected: str | None = None
        self.id = id

    @property
    def name(self) -> str:
        return format_name(self.id.names)

    def __repr__(self) -> str:
        return f"RemoteStream({self.name!r})"

    @property
    def serving(self) -> Any:
        """The Lance table as last published."""
        return self._serving()

    def search(self, *args: Any, **options: Any) -> Any:
        """As `serving.search`: the rows as last published."""
        return self.serving.search(*args, **options)

    # Landing

    def append(self, rows: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        return self._land("append", pack(rows), token=token, source=source)

    def upsert(self, rows: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        return self._land("upsert", pack(rows), token=token, source=source)

    def delete(self, what: Any, token: str | None = None, source: str | None = None) -> LandingReport:
        rows = what if isinstance(what, str) else as_rows(self.definition, repeatable(what))
        return self._land("delete", pack(rows), token=token, source=source)

    def ingest(
        self,
        data: Any,
        format: str = "rows",
        source: str | None = None,
        token: str | None = None,
        strict: bool = False,
        digest: str | None = None,
        **options: Any,
    ) -> LandingReport:
        """As `StreamTable.ingest`. Files are those of this machine: they are read here and sent.

        `digest`: what a batch with a token is known by, if not by its rows.
        """
        known = {"format": format, "source": source, "strict": strict, "options": options or None}
        if not is_files(data):
            return self._land("ingest", _change_data(data, format), token=token, digest=digest, **known)
        batches = in_batches(self, find_files(data), format)
        return total([self.ingest_files(batch, format, source, strict, **options) for batch in batches])

    def ingest_files(
        self,
        files: Sequence[SourceFile],
        format: str = "rows",
        source: str | None = None,
        strict: bool = False,
        **options: Any,
    ) -> LandingReport:
        """Send files in one request: on a table with a lateness they are one batch, in one transaction."""
        content = pa.array([_content(file) for file in files], pa.large_binary())
        body = [pa.array([file.path for file in files]), content, pa.array([file.digest for file in files])]
        known = {"format": format, "source": source, "strict": strict, "options": options or None}
        return self._land("ingest", pa.table(body, SENT_FILES), **known)

    def apply(self, parts: Sequence[StatementRows], position: int | None = None) -> int:
        """As `StreamTable.apply`."""
        kinds, rows = pa.array([part.kind for part in parts], pa.string()), [stream_body(part.rows) for part in parts]
        body = pa.table({"kind": kinds, "rows": pa.array(rows, pa.large_binary())})
        return int(self._send("apply", {"position": position}, body)["position"])

    def _land(self, tail: str, rows: pa.Table, **fields: Any) -> LandingReport:
        BatchOrigin(fields.get("source"), fields.get("token"))  # 13 here, for a query parameter is always a text
        told = self._send(tail, fields, rows)
        names = {name: tuple(told[name]) for name in ("added", "widened")}
        return LandingReport(**{**told, **names})

    # Reading

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        position: int | None = None,
    ) -> pa.Table:
        fields = {"columns": list(columns) if columns is not None else None, "filter": filter, "limit": limit}
        return self._rows("query", {**fields, "position": position})

    def count(self, position: int | None = None) -> int:
        return int(self._send("count", {"position": position})["count"])

    def changes(self, after: int = 0, until: int | None = None, reader: str | None = None) -> pa.Table:
        """As `StreamTable.changes`. What a reader was handed counts as read when this process comes back for more."""
        fields = {"after": after, "until": until, "reader": reader}
        if reader is None:
            return self._rows("changes", fields).replace_schema_metadata(None)
        known = self._handed.get((self.id, reader))
        read = {"read": known.position, "read_of": known.of} if known is not None else {}
        found = self._rows("changes", {**fields, **read})
        told = found.schema.metadata or {}
        self._handed[self.id, reader] = HandedChanges(int(told[END]), told[OF].decode() if OF in told else None)
        return found.replace_schema_metadata(None)

    def commit_reader(self, name: str, position: int | None = None) -> int:
        """Say that a reader has read up to a position: what this process was handed last, if not told."""
        known = self._handed.get((self.id, name)) if position is None else HandedChanges(position)
        if known is None:
            raise InvalidInputError(f"The reader {name!r} of {self.name} was handed nothing: name the position.")
        of = {"of": known.of} if known.of is not None else {}
        told = self._send("commit_reader", {"reader": name, "position": known.position, **of})
        self._handed.pop((self.id, name), None)
        return int(told["position"])

    def quarantine(self) -> pa.Table:
        return self._rows("quarantine", {})

    def deltas(self, after: int = 0) -> list[Delta]:
        return msgspec.convert(self._send("deltas", {"after": after})["deltas"], list[Delta])

    def files(self, source: str = "", undone: bool = False) -> dict[str, list[LedgerEntry]]:
        told = self._send("files", {"source": source, "undone": undone})["files"]
        return {path: [LedgerEntry(**entry) for entry in entries] for path, entries in told.items()}

    @property
    def schema(self) -> pa.Schema:
        return self.definition.schema

    @property
    def definition(self) -> Definition:
        return _definition(self._told("definition"))

    @property
    def version_id(self) -> str:
        return str(self._told("id")["id"])

    @property
    def position(self) -> int:
        return int(self._told("position")["position"])

    @property
    def published(self) -> RemotePublished | None:
        found = self._told("published")["published"]
        return None if found is None else RemotePublished(**found)

    def readers(self) -> dict[str, int]:
        told = self._told("readers", "id")
        handed = {name: self._handed.get((self.id, name), HandedChanges(0)) for name in told["readers"]}
        return {
            name: max(position, handed[name].position) if handed[name].of == told["id"] else position
            for name, position in told["readers"].items()
        }

    # Changing

    def publish(self) -> RemotePublished:
        return RemotePublished(**self._send("publish", {})["published"])

    def evolve(
        self,
        add: Mapping[str, Any] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
    ) -> Definition:
        types = {"add": pack_types(dict(add or {})), "widen": pack_types(dict(widen or {}))}
        dropped = [drop] if isinstance(drop, str) else list(drop)
        return _definition(self._send("evolve", {**types, "rename": dict(rename or {}), "drop": dropped}))

    def set_properties(self, properties: Mapping[str, str | None]) -> Definition:
        return _definition(self._send("properties", {"properties": dict(properties)}))

    def drop_reader(self, name: str) -> None:
        self._send("drop_reader", {"reader": name})
        self._handed.pop((self.id, name), None)

    def undo(
        self,
        source: str | None = None,
        file: str | None = None,
        token: str | None = None,
        txn: str | None = None,
        digest: str | None = None,
    ) -> LandingReport:
        told = self._send("undo", {"source": source, "file": file, "token": token, "txn": txn, "digest": digest})
        return LandingReport(told["position"], told["rows"], told["quarantined"])

    def _told(self, *fields: str) -> dict[str, Any]:
        """What the server tells of the table: a transaction relies on no more than it asked for."""
        return dict(self._send("describe", {"fields": fields}))

    def expect(self, id: str | None) -> RemoteStream:
        """As `StreamTable.expect`, for reads and `apply`."""
        self._expected = id
        return self

    def _send(self, tail: str, fields: Mapping[str, Any], rows: pa.Table | None = None) -> Any:
        return self._sender(tail, self._of(fields), rows)

    def _rows(self, tail: str, fields: Mapping[str, Any]) -> pa.Table:
        found: pa.Table = self._sender(tail, self._of(fields), arrow=True)
        return found

    def _of(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return fields if self._expected is None else {"of": self._expected, **fields}


def create_remote(stream: RemoteStream, made: Definition) -> RemoteStream:
    """Make a stream table at the server."""
    fields = {
        "keys": list(made.keys),
        "sequence": list(made.sequence),
        "partition_by": [json.dumps([each.column, each.transform, each.width]) for each in made.partition_by],
        "properties": dict(made.properties) or None,
    }
    stream._send("create", fields, made.schema.empty_table())
    return stream


def stream_body(rows: pa.Table) -> bytes:
    return to_stream(rows.to_reader())


def _content(file: SourceFile) -> bytes:
    if os.path.isdir(file.path):
        raise InvalidInputError(f"{file.path} is a folder: only single files are sent to a server.")
    with opened(file) as path, open(path, "rb") as content:
        return content.read()


def _change_data(data: Any, format: str) -> pa.Table:
    if format != "debezium" or isinstance(data, (str, bytes)):
        return pack(data)
    messages = records(data)
    return pack(messages if isinstance(messages, str) else json.dumps(messages, default=_json_value))


def _json_value(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else str(value)


def _definition(told: Mapping[str, Any]) -> Definition:
    found = from_properties(told["definition"])
    assert found is not None
    return found
