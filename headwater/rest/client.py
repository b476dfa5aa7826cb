"""The client of a Lance REST server: pylance's own `RestNamespace`, with the operations that it lacks.

Batch versions, batch commit, field metadata and the models of version operations go through the generated client of
the same protocol. The verbs beyond the protocol go through `call`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode

import lance_namespace as ln
import msgspec
import pyarrow as pa
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client.api.table_api import TableApi
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from lance_namespace_urllib3_client.exceptions import ApiException
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from headwater.arguments import check_options
from headwater.decoding.arrow import read_file
from headwater.errors import (
    CommitStateUnknownError,
    InvalidInputError,
    LanceNamespaceError,
    ServiceUnavailableError,
    UnsupportedOperationError,
    error_for,
)
from headwater.names import DELIMITER, ObjectId, check_delimiter, format_name, object_id
from headwater.namespace.abilities import CatalogAbilities
from headwater.namespace.requests import AlterNamespaceRequest, RenameNamespaceRequest, format_moment, parse_request
from headwater.namespace.versions import Cleaned, Optimized
from headwater.references import follow
from headwater.rest.call import UNREAD
from headwater.rest.remote_streams import Handed, RemoteStream, stream_body
from headwater.tables.handle import UnreadRowsWarning, unread_rows
from headwater.verbs.all_verbs import row_of
from headwater.verbs.catalog import (
    AbortTransaction,
    AlterNamespaceProperties,
    BeginTransaction,
    CleanUpTableVersions,
    CommitTransaction,
    OptimizeTable,
    RenameNamespace,
)
from headwater.verbs.verb import VerbRequest

NOT_FOUND = (1, 4, 6, 8, 10, 11, 12, 22)
"""Error codes of objects that do not exist."""
ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
JSON = "application/json"
POLICY = ("keep_versions", "keep_days", "grace_seconds")
IN_TRANSACTION = "headers.x-headwater-transaction"
AT_MOMENT = "headers.x-headwater-at"
HEADER_PREFIXES = ("headers.", "header.")
NATIVE_PREFIXES = ("tls.", "dynamic_context_provider.")
"""Properties that only pylance's own client understands."""
Answer = TypeVar("Answer")


class CompleteRestNamespace(RestNamespace):
    """A catalog behind a REST server, with every operation. pylance takes it as a `namespace_client`."""

    def __init__(self, **properties: str) -> None:
        headers = headers_of(properties)
        super().__init__(**native(properties, headers))  # type: ignore[no-untyped-call]
        self._delimiter = properties.get("delimiter", DELIMITER)
        client = ApiClient(Configuration(host=properties["uri"].rstrip("/"), retries=False))
        client.default_headers.update(headers)
        self._tables = TableApi(client)
        self._extensions: set[str] | None = None
        self._properties = dict(properties)
        self._is_plain = not any(key.startswith(NATIVE_PREFIXES) for key in properties)
        self._handed: Handed = {}
        """Changes that readers of this process were handed and have not committed."""

    def abilities(self) -> CatalogAbilities:
        """Return the abilities that a server in front of this one can use."""
        return CatalogAbilities(
            delimiter=self._delimiter,
            alter_namespace=self.alter_namespace_properties,
            rename_namespace=self.rename_namespace,
            clean_up=self.clean_up_table_versions,
            optimize=self.optimize_table,
            in_transaction=IN_TRANSACTION in self._properties,
            remote_past=_past(self._properties.get(AT_MOMENT)),
            table_version=self.table_version,
            call=self.call,
        )

    def __repr__(self) -> str:
        past = self.abilities().past
        return f"RestNamespace({self._properties['uri']!r}{'' if past is None else f', at {past}'})"

    def create_table_version(self, request: object) -> Any:
        if isinstance(request, dict):
            return super().create_table_version(request)
        answer = super().create_table_version(_plain(request))
        return ln.CreateTableVersionResponse.from_dict(answer)

    def describe_table_version(self, request: object) -> Any:
        if isinstance(request, dict):
            return super().describe_table_version(request)
        answer = super().describe_table_version(_plain(request))
        return ln.DescribeTableVersionResponse.from_dict(answer)

    def batch_delete_table_versions(self, request: Any) -> Any:
        if isinstance(request, dict):
            return super().batch_delete_table_versions(request)
        return self._ask(self._tables.batch_delete_table_versions, self._route(request.id), request)

    def batch_create_table_versions(
        self, request: ln.BatchCreateTableVersionsRequest
    ) -> ln.BatchCreateTableVersionsResponse:
        return self._ask(self._tables.batch_create_table_versions, request)

    def batch_commit_tables(self, request: ln.BatchCommitTablesRequest) -> ln.BatchCommitTablesResponse:
        return self._ask(self._tables.batch_commit_tables, request)

    def update_field_metadata(self, request: ln.UpdateFieldMetadataRequest) -> ln.UpdateFieldMetadataResponse:
        return self._ask(self._tables.update_field_metadata, self._route(request.id), request)

    def query_table(self, request: ln.QueryTableRequest) -> ln.QueryTableResponse:
        found = self._read(super().query_table, "query_table", request)
        return ln.QueryTableResponse(data=bytes(found)) if isinstance(found, bytes | bytearray) else found

    def count_table_rows(self, request: ln.CountTableRowsRequest) -> ln.CountTableRowsResponse:
        found = self._read(super().count_table_rows, "count_table_rows", request)
        return ln.CountTableRowsResponse(count=found) if isinstance(found, int) else found

    def explain_table_query_plan(self, request: ln.ExplainTableQueryPlanRequest) -> str:
        return str(self._read(super().explain_table_query_plan, "explain_table_query_plan", request))

    def analyze_table_query_plan(self, request: ln.AnalyzeTableQueryPlanRequest) -> str:
        return str(self._read(super().analyze_table_query_plan, "analyze_table_query_plan", request))

    def _read(self, native: Callable[[Any], Any], operation: str, request: Any) -> Any:
        """Read a table, and warn as the embedded catalog does if its write-ahead log has rows that are not shown.

        Pylance's client keeps the headers of an answer to itself. It alone knows TLS settings and context providers.
        """
        if isinstance(request, dict) or not self._is_plain:
            return native(request)
        told = self._ask(getattr(self._tables, f"{operation}_with_http_info"), self._route(request.id), request)
        if UNREAD in {name.lower() for name in told.headers or {}}:
            warnings.warn(unread_rows(format_name(request.id)), UnreadRowsWarning, stacklevel=3)
        return told.data

    def create_table_scalar_index(self, request: ln.CreateTableIndexRequest) -> Any:
        answer = super().create_table_scalar_index(request)
        return ln.CreateTableScalarIndexResponse.from_dict(answer.to_dict())

    def alter_namespace_properties(self, request: object) -> ln.DescribeNamespaceResponse:
        """Set and remove properties of a namespace. Raise Unsupported (0) if the server has no such route."""
        asked = parse_request(AlterNamespaceRequest, request)
        sent = AlterNamespaceProperties(id=tuple(asked.id or ()), properties=asked.properties, removed=asked.removed)
        return ln.DescribeNamespaceResponse(properties=self.call(sent))

    def rename_namespace(self, request: object) -> ln.DescribeNamespaceResponse:
        """Rename a namespace, with all below it: `id` becomes `new_id`."""
        asked = parse_request(RenameNamespaceRequest, request)
        answer = self.call(RenameNamespace(id=tuple(asked.id or ()), new_id=asked.new_id))
        return ln.DescribeNamespaceResponse(properties=answer)

    def clean_up_table_versions(self, id: list[str], **policy: Any) -> Cleaned:
        """Remove old versions of a table, and free the disk that only they hold."""
        check_options(policy, POLICY, "clean_up")
        cleaned: Cleaned = self.call(CleanUpTableVersions(id=tuple(id), **policy))
        return cleaned

    def optimize_table(self, id: list[str], **policy: Any) -> Optimized:
        """Merge fragments, bring indices up to date, clean up."""
        check_options(policy, POLICY, "optimize")
        optimized: Optimized = self.call(OptimizeTable(id=tuple(id), **policy))
        return optimized

    # Stream tables and the past: extensions of Headwater's servers

    def stream_table(self, id: ObjectId, serving: Callable[[], object]) -> RemoteStream:
        """Return a handle of a stream table, which need not exist. `serving`: returns its serving copy."""
        return RemoteStream(self.call, id, serving, self._handed)

    def at(self, moment: int | datetime | str) -> CompleteRestNamespace:
        """Return the catalog as it was at a commit, a time with a zone or a named snapshot. Each call sends that."""
        text = str(format_moment(moment))
        if not self._has("ReadLog"):
            raise UnsupportedOperationError("This server keeps no past: it is not a Headwater server, or an older one.")
        past = CompleteRestNamespace(**{**self._properties, AT_MOMENT: quote(text, safe="")})
        past._call("GET", "/headwater/v1/capabilities", [], None, {"Accept": JSON})
        return past

    def table_version(self, id: ObjectId, version: str) -> CompleteRestNamespace:
        """Return the catalog with one table at another version than its active one. Each call sends that."""
        if not self._has("ListNamedVersions"):
            raise UnsupportedOperationError(
                "This server has no table versions: it is not a Headwater server, or older."
            )
        text = f"{quote(DELIMITER.join(id.names), safe='')}={version}"
        return CompleteRestNamespace(**{**self._properties, "headers.x-headwater-table-version": text})

    def begin(self, message: str) -> CompleteRestNamespace:
        """Begin a transaction. Return the server's catalog inside it; every call sends its id until it ends."""
        begun = self.call(BeginTransaction(message=message))
        return CompleteRestNamespace(**{**self._properties, IN_TRANSACTION: begun})

    def commit(self) -> int:
        """Commit the transaction, and return its slot. ConcurrentModification (14) names what others changed."""
        request = CommitTransaction(transaction=self._properties[IN_TRANSACTION])
        try:
            return int(self._outside().call(request))
        except ServiceUnavailableError:
            return int(self._outside().call(request))  # the answer was lost: the server knows what became of it

    def abort(self) -> None:
        """Abort the transaction. A server that cannot be reached forgets it by itself."""
        self._outside().call(AbortTransaction(transaction=self._properties[IN_TRANSACTION]))

    def _outside(self) -> CompleteRestNamespace:
        return CompleteRestNamespace(**{key: text for key, text in self._properties.items() if key != IN_TRANSACTION})

    def is_stream_table(self, id: ObjectId) -> bool:
        """Return True if the server has a stream table of that name; False for a server without the extension."""
        if not self._has("DescribeStreamTable"):
            return False
        try:
            self.stream_table(id, lambda: None).definition  # noqa: B018  # asks the server
        except (InvalidInputError, UnsupportedOperationError):
            return False
        return True

    def _has(self, operation: str) -> bool:
        """Return True if the server has an extension. The first call asks for all of them."""
        if self._extensions is None:
            try:
                told = self._call("GET", "/headwater/v1/capabilities", [], None, {"Accept": JSON})
                self._extensions = {each["operation"] for each in msgspec.json.decode(told)["extensions"]}
            except (LanceNamespaceError, msgspec.MsgspecError, KeyError, TypeError):
                self._extensions = set()
        return operation in self._extensions

    def call(self, request: VerbRequest, rows: pa.Table | None = None) -> Any:
        """Send the request of a verb to the server. Return its answer: the value of the verb, or rows as a table."""
        row, fields = row_of(request), msgspec.to_builtins(request)
        path = row.path.replace("{id}", quote(self._route(list(fields.pop("id", ()))), safe=""))
        given = {name: value for name, value in fields.items() if value is not None}
        query: list[tuple[str, str]] = [("delimiter", self._delimiter)]
        if row.takes_rows:
            query += [(name, text) for name, value in given.items() for text in _query_texts(value)]
            body, kind = stream_body(rows), ARROW_STREAM
        else:
            body, kind = msgspec.json.encode(given), JSON
        headers = {"Accept": ARROW_FILE if row.returns_rows else JSON, "Content-Type": kind}
        answer = self._call("POST", f"/headwater/v1/{path}", query, body, headers)
        return read_file(answer).read_all() if row.returns_rows else row.decode(answer)

    def _call(
        self, verb: str, path: str, query: list[tuple[str, str]], body: bytes | None, headers: Mapping[str, str]
    ) -> bytes:
        client = self._tables.api_client
        url = f"{client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        known = {**client.default_headers, **headers}
        try:
            response = client.rest_client.pool_manager.request(verb, url, body=body, headers=known, retries=False)
        except HTTPError as error:
            raise _unanswered(error) from None
        if response.status >= 300:
            raise _refused_call(path, response.status, response.data)
        return bytes(response.data)

    def _route(self, id: list[str] | None) -> str:
        return object_id(id, self._delimiter).format_route(self._delimiter)

    def _ask(self, operation: Callable[..., Answer], *args: object) -> Answer:
        try:
            return operation(*args, delimiter=self._delimiter)
        except ApiException as error:
            raise refused(error.status, error.body) from None
        except HTTPError as error:
            raise _unanswered(error) from None


def _unanswered(error: HTTPError) -> ServiceUnavailableError:
    """Return the error of a request without an answer: it was never sent, or perhaps carried out."""
    if isinstance(error, (NewConnectionError, ConnectTimeoutError)):
        return ServiceUnavailableError(f"The server cannot be reached: {type(error).__name__}.")
    return CommitStateUnknownError(
        f"The server has not answered ({type(error).__name__}). If it was to change something, that may be done: look "
        "before you ask again."
    )


def check_properties(properties: Iterable[str]) -> None:
    """Raise InvalidInput (13) for a property that no REST catalog has."""
    named = [key for key in properties if not key.startswith((*HEADER_PREFIXES, *NATIVE_PREFIXES))]
    check_options(named, ("uri", "delimiter", "ops_metrics_enabled"), "A REST catalog (beside header.* and tls.*)")


def connect_rest(properties: Mapping[str, str]) -> CompleteRestNamespace:
    """Return the catalog of a REST server: `uri`, `delimiter`, and headers as `headers.*` (or `header.*`)."""
    uri = properties.get("uri")
    if not uri or not uri.startswith(("http://", "https://")):
        raise InvalidInputError("A REST catalog needs `uri`, such as http://127.0.0.1:8080.")
    check_delimiter(properties.get("delimiter", DELIMITER))
    return CompleteRestNamespace(**{key: str(value) for key, value in properties.items()})


def headers_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the HTTP headers among the properties."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        for prefix in HEADER_PREFIXES:
            if key.startswith(prefix):
                found[key.removeprefix(prefix)] = follow(str(value), key)
    return found


def token_headers(token: str) -> dict[str, str]:
    """Return the properties that send a token in both ways that servers know."""
    return {"header.x-api-key": token, "header.Authorization": f"Bearer {token}"}


def refused(status: int | None, body: str | bytes | None) -> Exception:
    """Return the exception of an error answer: by its code, or else by its HTTP status."""
    try:
        answer = msgspec.json.decode(body or b"{}")
        return error_for(int(answer["code"]), str(answer.get("error", "")))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return error_for(17 if status in (429, 502, 503, 504) else 18, f"The server answered with HTTP {status}.")


def _refused_call(path: str, status: int, body: bytes) -> Exception:
    """Return the error of an answer. A route that the server lacks is Unsupported (0), not an object that it lacks."""
    error = refused(status, body)
    if status in (404, 405, 501) and not (isinstance(error, LanceNamespaceError) and int(error.code) in NOT_FOUND):
        return UnsupportedOperationError(
            f"This server has no {path.partition('?')[0]}: it does not have Headwater's extensions of the protocol."
        )
    return error


def _query_texts(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, Mapping):
        return [msgspec.json.encode(value).decode()]
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def native(properties: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return the properties for pylance's own client. It follows redirects, and lets go only of `Authorization` on the
    way to another host: so a key is sent there, and never as `x-api-key`."""
    kept = {key: value for key, value in properties.items() if not key.startswith(HEADER_PREFIXES)}
    sent = {name.lower(): value for name, value in headers.items()}
    key = sent.pop("x-api-key", None)
    if key is not None:
        sent.setdefault("authorization", f"Bearer {key}")
    return {**kept, **{f"headers.{name}": value for name, value in sent.items()}}


def _plain(request: Any) -> dict[str, object]:
    return {key: value for key, value in request.model_dump().items() if value is not None}


def _past(moment: str | None) -> str | None:
    """Return a moment as people read it: a number is that of a commit."""
    text = None if moment is None else unquote(moment)
    return f"commit {text}" if text is not None and text.isdigit() else text
