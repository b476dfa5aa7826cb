"""Calls beyond `LanceNamespace`, made in this process (`LocalTransport`) or over HTTP (`HttpTransport`).

Both take the request of a verb (`headwater/verbs/`). What a client holds on to, a transaction, the past or a stream
table, each of them opens in its own way.

Names and identities of a catalog: objects by locator, immutable id or name, and the aliases of an object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from lance_namespace import LanceNamespace

from headwater.arguments import checked, suggesting
from headwater.catalog.table_parts import near_name
from headwater.catalog.transactions import CatalogTransaction, Face, HttpTransaction, LocalTransaction, metastore_of
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.metastore import Locator, LogEntry
from headwater.names import ObjectId, format_name
from headwater.namespace.metastore import MetastoreNamespace
from headwater.notebook import ShownList
from headwater.verbs.verb import VerbRequest, VerbSession

if TYPE_CHECKING:
    from headwater.catalog import streams
    from headwater.catalog.streams import CatalogStream
    from headwater.catalog.table import CatalogTable
    from headwater.rest import remote_streams
    from headwater.streams.definition import Definition
    from headwater.verbs import all_verbs, object_verbs, stream_requests
    from headwater.verbs import catalog as verbs
    from headwater.verbs.catalog import LogPage
    from headwater.verbs.object_verbs import DescribedObject, ObjectPage
else:
    streams = when_used("headwater.catalog.streams")
    remote_streams = when_used("headwater.rest.remote_streams")
    all_verbs, object_verbs = when_used("headwater.verbs.all_verbs"), when_used("headwater.verbs.object_verbs")
    stream_requests = when_used("headwater.verbs.stream_requests")
    verbs = when_used("headwater.verbs.catalog")

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
        return all_verbs.answer(self._session, request)

    def at(self, moment: Moment) -> LanceNamespace:
        return metastore_of(self.namespace).at(moment)

    def begin(self, message: str, author: str | None, face: Face) -> CatalogTransaction:
        near = metastore_of(self.namespace)
        near.registry.check_writable()
        return LocalTransaction(near, message, author, face)

    def stream_table(self, serving: CatalogTable) -> object | None:
        """Return the stream table that a table is the serving copy of; None for any other table."""
        namespace = self.namespace
        if isinstance(namespace, MetastoreNamespace) and streams.is_stream(namespace, serving.id):
            return streams.CatalogStream(namespace, serving.id)
        return None

    def create_stream_table(self, serving: CatalogTable, definition: Definition) -> CatalogStream:
        return streams.create_stream(metastore_of(self.namespace), serving.id, definition)

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
        return remote_streams.create_remote(self.namespace.stream_table(serving.id, lambda: serving), definition)

    def publish(self, ids: Sequence[ObjectId]) -> list[Any]:
        return list(self.call(stream_requests.PublishStreamTables(tables=[list(id.names) for id in ids])))

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
        after = transport.call(verbs.ReadLog(limit=0)).slot
    while True:
        page: LogPage = transport.call(
            verbs.ReadLog(after=after, wait_seconds=WAIT_SECONDS, limit=LARGEST_PAGE, below=below)
        )
        if page.until > after:
            yield page
        if not page.entries and page.until <= after and isinstance(transport, LocalTransport):
            metastore_of(transport.namespace).clock.sleep(LOOK_SECONDS)  # a server waits itself
        after = page.until


def read_log(transport: Transport, after: int | None, wait: float) -> Iterator[LogEntry]:
    """Yield the transactions after a commit, a page at a time. The first page is small: many readers want few."""
    limit = FIRST_PAGE
    while True:
        page: LogPage = transport.call(verbs.ReadLog(after=after, wait_seconds=wait, limit=limit))
        yield from page.entries
        if not page.entries or page.entries[-1].slot >= page.slot:
            return
        after, limit = page.entries[-1].slot, min(limit * FIRST_PAGE, LARGEST_PAGE)


Name = str | Sequence[str]


@suggesting(near_name)
@checked
class ObjectLookup(ABC):
    """The calls of a catalog about the ids, locators and aliases of its objects. Only metastore catalogs have them."""

    @property
    @abstractmethod
    def _transport(self) -> Transport: ...

    @abstractmethod
    def _id(self, name: Name) -> ObjectId: ...

    def find(self, locator: str | Locator) -> DescribedObject:
        """Return the object of a locator or its Canonical String, such as `prod|users`. Aliases are names too.

        Below a table a locator goes on with its version; a stream's id and format; a partition's id and values; a
        position. Raises TableNotFound (4).
        """
        found: DescribedObject = self._transport.call(object_verbs.FindObject(locator=str(locator)))
        return found

    def by_id(self, id: str) -> DescribedObject:
        """Return the namespace or table of an immutable id, whatever its name is now, or another object by its `key`.

        Raises TableNotFound (4).
        """
        found: DescribedObject = self._transport.call(object_verbs.FindObject(key=id))
        return found

    def describe(self, name: Name) -> DescribedObject:
        """Return a namespace or table with its immutable id, locator, aliases and properties."""
        return self.find(Locator(self._id(name).names))

    def objects(self, name: Name = "") -> list[DescribedObject]:
        """Return the namespaces and tables of a namespace, or the versions, streams and partitions of a table."""
        found: list[DescribedObject] = []
        names, token = self._id(name).names, None
        while True:
            page: ObjectPage = self._transport.call(object_verbs.ListObjects(id=names, page_token=token))
            found, token = [*found, *page.objects], page.page_token
            if token is None:
                return ShownList(found, f"Objects of {format_name(names) or 'the root'}")

    def alias(self, name: Name, other: Name) -> None:
        """Add an alias: `other` finds the namespace or table too, in the same namespace. Lists do not show it."""
        self._transport.call(verbs.AddAlias(id=self._id(name).names, alias=self._alias_name(name, other)))

    def unalias(self, name: Name, other: Name) -> None:
        """Remove an alias of a namespace or table."""
        self._transport.call(verbs.RemoveAlias(id=self._id(name).names, alias=self._alias_name(name, other)))

    def _alias_name(self, name: Name, other: Name) -> str:
        """Return an alias as one name; `other` is that name alone, or with the namespace of the object."""
        id, given = self._id(name), self._id(other)
        if given.level == 1 or (not id.is_root and given.level and given.parent == id.parent):
            return given.name
        raise InvalidInputError(
            f"An alias stands beside the name it is for: {other} is in another namespace than {name}."
        )


def branches(catalog: Any, parent: ObjectId, indent: str) -> Iterator[str]:
    """Yield the lines that draw what a namespace of a catalog holds, namespaces first."""
    folders, tables = catalog.namespaces(parent.names), catalog.tables(parent.names)
    for position, name in enumerate((*folders, *tables), start=1):
        last = position == len(folders) + len(tables)
        is_folder = position <= len(folders)
        yield f"{indent}{'└── ' if last else '├── '}{name}{'/' if is_folder else ''}"
        if is_folder:
            yield from branches(catalog, parent.child(name), indent + ("    " if last else "│   "))
