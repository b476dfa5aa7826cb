"""Calls beyond `LanceNamespace`, made in this process (`LocalTransport`) or over HTTP (`HttpTransport`).

Both take the request of a verb (`headwater/verbs/`). What a client holds on to, a transaction, the past or a stream
table, each of them opens in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from lance_namespace import LanceNamespace

from headwater.catalog.streams import CatalogStream, create_stream, is_stream
from headwater.catalog.table import CatalogTable
from headwater.catalog.transactions import CatalogTransaction, Face, HttpTransaction, LocalTransaction, metastore_of
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore import LogEntry
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.remote_streams import create_remote
from headwater.streams.definition import Definition
from headwater.verbs.all_verbs import answer
from headwater.verbs.catalog import LogPage, ReadLog
from headwater.verbs.stream_requests import PublishStreamTables
from headwater.verbs.verb import VerbRequest, VerbSession

Moment = int | datetime | str
FIRST_PAGE, LARGEST_PAGE = 10, 1000


@runtime_checkable
class Remote(Protocol):
    """A catalog behind a server that has verbs, a past, transactions and stream tables."""

    def call(self, request: VerbRequest) -> Any:
        """Return the answer of the server to the request of a verb."""
        ...

    def at(self, moment: Moment) -> LanceNamespace: ...

    def begin(self, message: str) -> LanceNamespace:
        """Begin a transaction, and return the catalog inside it."""
        ...

    def commit(self) -> int:
        """Commit the transaction that this catalog is inside of, and return its slot."""
        ...

    def abort(self) -> None: ...

    def stream_table(self, id: ObjectId, serving: Callable[[], object]) -> Any: ...

    def is_stream_table(self, id: ObjectId) -> bool: ...


class LocalTransport:
    """A catalog of any kind that this process has opened. A verb that it cannot do is Unsupported (0)."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self.namespace = namespace
        self._session = VerbSession(namespace)

    def call(self, request: VerbRequest) -> Any:
        """Return the answer of the verb's handler."""
        return answer(self._session, request)

    def at(self, moment: Moment) -> LanceNamespace:
        return metastore_of(self.namespace).at(moment)

    def begin(self, message: str, author: str | None, face: Face) -> CatalogTransaction:
        near = metastore_of(self.namespace)
        near.registry.check_writable()
        return LocalTransaction(near, message, author, face)

    def stream_table(self, serving: CatalogTable) -> object | None:
        """Return the stream table that a table is the serving copy of; None for any other table."""
        namespace = self.namespace
        if isinstance(namespace, MetastoreNamespace) and is_stream(namespace, serving.id):
            return CatalogStream(namespace, serving.id)
        return None

    def create_stream_table(self, serving: CatalogTable, definition: Definition) -> CatalogStream:
        return create_stream(metastore_of(self.namespace), serving.id, definition)

    def publish(self, ids: Sequence[ObjectId]) -> list[Any]:
        """Publish stream tables in one commit. The answer has more fields than a server returns."""
        return metastore_of(self.namespace).publish(ids)

    @property
    def mirrored(self) -> MetastoreNamespace:
        """The catalog that has a mirror, or can have one."""
        return metastore_of(self.namespace)


class HttpTransport:
    """A catalog behind a server."""

    def __init__(self, server: Remote) -> None:
        self.namespace = server
        self.call = server.call
        self.at = server.at

    def begin(self, message: str, author: str | None, face: Face) -> CatalogTransaction:
        if author is not None:
            raise InvalidInputError("Behind a server, the author of a transaction is who the server takes you for.")
        return HttpTransaction(self.namespace.begin(message), face)

    def stream_table(self, serving: CatalogTable) -> object | None:
        server, id = self.namespace, serving.id
        return server.stream_table(id, lambda: serving) if server.is_stream_table(id) else None

    def create_stream_table(self, serving: CatalogTable, definition: Definition) -> Any:
        return create_remote(self.namespace.stream_table(serving.id, lambda: serving), definition)

    def publish(self, ids: Sequence[ObjectId]) -> list[Any]:
        return list(self.call(PublishStreamTables(tables=[list(id.names) for id in ids])))

    @property
    def mirrored(self) -> MetastoreNamespace:
        raise UnsupportedOperationError("A mirror is turned on where the storage is, not through a server.")


Transport = LocalTransport | HttpTransport


WAIT_SECONDS, LOOK_SECONDS = 20.0, 0.5
"""How long a server waits for the next commit, and how often a process looks for it where the catalog is opened."""


def transport_of(namespace: LanceNamespace) -> Transport:
    """Return the transport of a catalog."""
    return HttpTransport(namespace) if isinstance(namespace, Remote) else LocalTransport(namespace)


def follow_log(transport: Transport, after: int | None, below: tuple[str, ...]) -> Iterator[LogPage]:
    """Yield pages of the transactions after a commit (by default the newest) as they are committed, without end."""
    if after is None:
        after = transport.call(ReadLog(limit=0)).slot
    while True:
        page: LogPage = transport.call(ReadLog(after=after, wait_seconds=WAIT_SECONDS, limit=LARGEST_PAGE, below=below))
        if page.until > after:
            yield page
        if not page.entries and page.until <= after and isinstance(transport, LocalTransport):
            metastore_of(transport.namespace).clock.sleep(LOOK_SECONDS)  # a server waits itself
        after = page.until


def read_log(transport: Transport, after: int | None, wait: float) -> Iterator[LogEntry]:
    """Yield the transactions after a commit, a page at a time. The first page is small: many readers want few."""
    limit = FIRST_PAGE
    while True:
        page: LogPage = transport.call(ReadLog(after=after, wait_seconds=wait, limit=limit))
        yield from page.entries
        if not page.entries or page.entries[-1].slot >= page.slot:
            return
        after, limit = page.entries[-1].slot, min(limit * FIRST_PAGE, LARGEST_PAGE)
