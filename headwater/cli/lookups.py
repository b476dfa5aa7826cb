"""Names, versions and words of a catalog, looked up with as little imported as the catalog allows.

a metastore       read directly: its names and versions are records
a server          asked by plain HTTP
a directory       by the operations on its registry: pylance reads `__manifest`; the protocol's package is not needed
"""

from __future__ import annotations

import argparse
import json
import urllib.error
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

from headwater.cli.target import Target
from headwater.errors import (
    ErrorCode,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableNotFoundError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
    error_for,
)
from headwater.imports import when_used
from headwater.lance_manifest import CHANGE, COMMENT, columns_of
from headwater.metastore import Delta, Metastore, Object, Snapshot
from headwater.metastore.records.objects import time_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT, columns_at
from headwater.names import DELIMITER, ObjectId, format_name
from headwater.references import follow
from headwater.store import KeyNotFoundError, Store
from headwater.wording import closest, closest_path

if TYPE_CHECKING:
    from headwater.catalog import Catalog
    from headwater.model import Table
    from headwater.namespace.registry_kinds import DirectoryNames

http = when_used("urllib.request")
Names = Sequence[str]
PAGE = 1000
TIMEOUT = 60
_HEADERS = ("headers.", "header.")
_NO_CATALOG = "answers, but not as a catalog does: check the address, and the base path of a proxy."


@dataclass(frozen=True)
class Child:
    """One name in a namespace."""

    name: str
    is_table: bool


@dataclass(frozen=True)
class Seen:
    """A version of a table and when it was committed."""

    version: int
    time: datetime | None
    change: str | None = None


@dataclass(frozen=True)
class Words:
    """The texts of an object beside its name: columns with their comments, and properties."""

    columns: Mapping[str, str]
    properties: Mapping[str, str]


class Lookups(Protocol):
    """Look-ups of names, columns and versions in a catalog."""

    def children(self, parent: Names) -> list[Child]:
        """Return the namespaces, then the tables of a namespace, each sorted."""
        ...

    def versions(self, table: Names, branch: str | None) -> list[Seen]:
        """Return the versions of a table, oldest first."""
        ...

    def words(self, child: Child, id: Names) -> Words: ...


def names_of(target: Target, at: int | datetime | str | None = None) -> Lookups:
    """Return the lightest way to look names up, now or at a moment that a metastore remembers."""
    if target.server is not None:
        uri, properties = target.server
        then = {} if at is None else {"headers.x-headwater-at": quote(_text(at), safe="")}
        return ServerLookups(uri, {**properties, **then})
    if target.metastore is not None:
        return MetastoreLookups(target.metastore, at)
    if at is not None:
        target.with_history("history")
    directory = target.directory()
    return CatalogLookups(target.catalog()) if directory is None else DirectoryLookups(directory)


def _text(at: int | datetime | str) -> str:
    return at.isoformat() if isinstance(at, datetime) else str(at)


def walk(found: Lookups, parent: Names = ()) -> Iterator[tuple[Child, tuple[str, ...]]]:
    """Yield everything below a namespace, what is in a namespace right after it."""
    for child in found.children(parent):
        id = (*parent, child.name)
        yield child, id
        if not child.is_table:
            yield from walk(found, id)


class MetastoreLookups:
    """A metastore, now or at a moment."""

    def __init__(self, metastore: Metastore, at: int | datetime | str | None = None) -> None:
        self._store: Store = metastore.store
        self._state: Snapshot = metastore.now() if at is None else metastore.at(at)

    def children(self, parent: Names) -> list[Child]:
        found = [Child(item.name, item.kind == "table") for item in self._state.list(list(parent))]
        return sorted(found, key=lambda child: (child.is_table, child.name))

    def versions(self, table: Names, branch: str | None) -> list[Seen]:
        if branch is not None:
            raise UnsupportedOperationError(
                "The versions of a branch are Lance's: `headwater branches` lists branches."
            )
        found = self._state.get(list(table))
        if found.kind != "table":
            raise TableNotFoundError(f"{format_name(table)} is a namespace, not a table.")
        return [
            Seen(delta.position, _committed(delta), delta.properties.get("change")) for delta in self._deltas(table)
        ]

    def _deltas(self, table: Names) -> list[Delta]:
        try:
            return self._state.deltas(list(table), format=LANCE_FORMAT)
        except (TableNotFoundError, TableVersionNotFoundError):
            return []

    def words(self, child: Child, id: Names) -> Words:
        found: Object = self._state.get(list(id))
        texts = {key: value for key, value in found.properties.items() if isinstance(value, str)}
        return Words(columns_at(self._state, self._store, id) if child.is_table else {}, texts)


def _committed(delta: Delta) -> datetime:
    return time_of(int(delta.properties.get("time", delta.time_ms)))


class ServerLookups:
    """A Lance REST server, asked by plain HTTP."""

    def __init__(self, uri: str, properties: Mapping[str, object]) -> None:
        self._uri = uri.rstrip("/")
        self._delimiter = str(properties.get("delimiter", DELIMITER))
        self._headers = {
            key.partition(".")[2]: follow(str(value), key)
            for key, value in properties.items()
            if key.startswith(_HEADERS)
        }

    def children(self, parent: Names) -> list[Child]:
        folders = self._pages(f"/v1/namespace/{self._route(parent)}/list", "namespaces")
        tables = self._pages(f"/v1/namespace/{self._route(parent)}/table/list", "tables")
        return [*(Child(name, False) for name in folders), *(Child(name, True) for name in tables)]

    def versions(self, table: Names, branch: str | None) -> list[Seen]:
        asked = {"branch": branch} if branch else {}
        found = self._pages(f"/v1/table/{self._route(table)}/version/list", "versions", "POST", **asked)
        seen = [
            Seen(int(item["version"]), _moment(item.get("timestamp_millis")), (item.get("metadata") or {}).get(CHANGE))
            for item in found
        ]
        return sorted(seen, key=lambda item: item.version)

    def words(self, child: Child, id: Names) -> Words:
        if not child.is_table:
            answer = self._ask(f"/v1/namespace/{self._route(id)}/describe", "POST")
            return Words({}, answer.get("properties") or {})
        try:
            answer = self._ask(f"/v1/table/{self._route(id)}/describe", "POST", load_detailed_metadata="true")
        except LanceNamespaceError:
            return Words({}, {})
        fields = (answer.get("schema") or {}).get("fields") or ()
        columns = {field["name"]: (field.get("metadata") or {}).get(COMMENT, "") for field in fields}
        return Words(columns, answer.get("properties") or {})

    def _pages(self, path: str, field: str, method: str = "GET", **asked: str) -> list[Any]:
        found, token = list[Any](), None
        while True:
            page = {"limit": str(PAGE), **asked, **({"page_token": token} if token else {})}
            answer = self._ask(path, method, **page)
            found += answer.get(field) or ()
            token = answer.get("page_token")
            if not token:
                return found

    def _ask(self, path: str, method: str = "GET", **asked: str) -> Any:
        url = f"{self._uri}{path}?{urlencode({**asked, 'delimiter': self._delimiter})}"
        body = b"{}" if method == "POST" else None
        headers = {"Accept": "application/json", "Content-Type": "application/json", **self._headers}
        request = http.Request(url, data=body, headers=headers, method=method)
        try:
            with http.urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refused(error, self._uri) from None
        except json.JSONDecodeError:
            raise ServiceUnavailableError(f"{self._uri} {_NO_CATALOG}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            told = getattr(reason, "strerror", None) or reason
            raise ServiceUnavailableError(f"The server at {self._uri} cannot be reached: {told}.") from None

    def _route(self, names: Names) -> str:
        return quote(ObjectId(tuple(names)).format_route(self._delimiter), safe="")


def _refused(error: urllib.error.HTTPError, uri: str) -> LanceNamespaceError:
    try:
        answer = json.load(error)
        return error_for(int(answer["code"]), str(answer.get("error", "")))
    except (OSError, ValueError, KeyError, TypeError):
        if error.code == 404:  # a catalog's own says what is missing
            return ServiceUnavailableError(f"{uri} {_NO_CATALOG}")
        told = f"The server at {uri} answered HTTP {error.code}."
        return error_for(17 if error.code in (429, 502, 503, 504) else 18, told)


def _moment(millis: int | None) -> datetime | None:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, UTC)


class DirectoryLookups:
    """A directory catalog."""

    def __init__(self, names: DirectoryNames) -> None:
        self._operations, self._versions = names.operations, names.versions

    def children(self, parent: Names) -> list[Child]:
        id = ObjectId(tuple(parent))
        folders, _ = self._operations.list_namespaces(id, None, None)
        tables, _ = self._operations.list_tables(id, None, None)
        return [*(Child(name, False) for name in folders), *(Child(name, True) for name in tables)]

    def versions(self, table: Names, branch: str | None) -> list[Seen]:
        found, _ = self._versions.page(self._table(table), branch, None, None, descending=False)
        return [Seen(item.version.number, _moment(item.version.timestamp_ms), item.version.change) for item in found]

    def words(self, child: Child, id: Names) -> Words:
        if not child.is_table:
            return Words({}, self._operations.describe_namespace(ObjectId(tuple(id))).properties)
        table = self._table(id)
        return Words(self._columns(table), table.properties)

    def _columns(self, table: Table) -> Mapping[str, str]:
        """Return the columns that the newest manifest names; none of a table that is only declared."""
        try:
            found = self._versions.describe(table, None, None)
            return columns_of(self._versions.store.get(found.line.key(found.version.manifest_path)))
        except (KeyNotFoundError, LanceNamespaceError, ValueError):
            return {}

    def _table(self, names: Names) -> Table:
        return self._operations.find_table(ObjectId(tuple(names)))


class CatalogLookups:
    """A back end of others, through the interface that all have."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def children(self, parent: Names) -> list[Child]:
        folders = [Child(name, False) for name in self._catalog.namespaces(parent)]
        return [*folders, *(Child(name, True) for name in self._catalog.tables(parent))]

    def versions(self, table: Names, branch: str | None) -> list[Seen]:
        found = self._catalog[table]
        chosen = found.at(branch=branch) if branch else found
        return [Seen(item.version, item.time, item.change) for item in chosen.versions()]

    def words(self, child: Child, id: Names) -> Words:
        if not child.is_table:
            return Words({}, self._catalog.namespace_properties(id))
        table = self._catalog[id]
        try:
            columns = {field.name: _comment(field.metadata) for field in table.schema}
        except LanceNamespaceError:  # only declared, or out of reach
            columns = {}
        return Words(columns, table.properties)


def _comment(metadata: Mapping[bytes, bytes] | None) -> str:
    return (metadata or {}).get(COMMENT.encode(), b"").decode(errors="replace")


NAMES = (int(ErrorCode.NAMESPACE_NOT_FOUND), int(ErrorCode.TABLE_NOT_FOUND))
PARTS: dict[int, tuple[tuple[str, ...], Callable[[Any], Iterable[str]]]] = {
    int(ErrorCode.TABLE_COLUMN_NOT_FOUND): (("column", "words", "on"), lambda table: table.schema.names),
    int(ErrorCode.TABLE_TAG_NOT_FOUND): (("tag",), lambda table: table.tags),
    int(ErrorCode.TABLE_INDEX_NOT_FOUND): (("column",), lambda table: table.indices),
    int(ErrorCode.TABLE_BRANCH_NOT_FOUND): (("branch",), lambda table: table.branches),
}
"""Parts of a table: the arguments that name one, and the names that there are."""


def nearest(args: argparse.Namespace, error: LanceNamespaceError) -> str | None:
    """The full name of what is there and most like what was asked for; None if nothing is."""
    if not hasattr(args, "target"):
        return None
    named = [getattr(args, key, None) for key in ("table", "name", "namespace", "id", "tables")]
    asked = next((each for each in named if each), "")
    try:
        if int(error.code) in NAMES:
            names = [asked] if isinstance(asked, str) else asked
            return next(filter(None, (near_name(args.target, args.name_of(name)) for name in names if name)), None)
        return _near_part(args, *PARTS[int(error.code)]) if int(error.code) in PARTS else None
    except (LanceNamespaceError, AttributeError):
        return None


def near_name(target: Target, asked: tuple[str, ...]) -> str | None:
    """The full name of what is there and most like a name that is not."""
    found = names_of(target)
    near = closest_path(asked, lambda parent: [child.name for child in found.children(parent)])
    return None if near is None else format_name(near)


def _near_part(args: argparse.Namespace, arguments: Iterable[str], names: Callable[[Any], Iterable[str]]) -> str | None:
    table = args.target.catalog()[args.name_of(args.table)]
    known = list(names(table.serving))
    for argument in arguments:
        said = getattr(args, argument, None) or ()
        words: list[str] = [said] if isinstance(said, str) else list(said)
        for word in words:
            near = closest(word, known)
            if word not in known and near:
                return near
    return None
