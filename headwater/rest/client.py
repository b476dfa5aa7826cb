"""The client of a Lance REST server: pylance's own `RestNamespace`, completed where it is not.

What it lacks, or answers in another shape than the interface says, goes through the generated client of the
same protocol: batch versions, batch commit, field metadata, and the version operations with their models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import lance_namespace as ln
import msgspec
from lance.namespace import RestNamespace
from lance_namespace_urllib3_client.api.table_api import TableApi
from lance_namespace_urllib3_client.api_client import ApiClient
from lance_namespace_urllib3_client.configuration import Configuration
from lance_namespace_urllib3_client.exceptions import ApiException
from pydantic import BaseModel
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
from headwater.namespace.requests import (
    AlterNamespaceRequest,
    CleanUpRequest,
    RenameNamespaceRequest,
    format_moment,
    parse_request,
)
from headwater.namespace.versions import Cleaned, Optimized
from headwater.references import follow
from headwater.rest.call import UNREAD
from headwater.rest.remote_streams import Handed, RemotePublished, RemoteStream, stream_body
from headwater.tables.handle import UnreadRowsWarning, unread_rows

NOT_FOUND = (1, 4, 6, 8, 10, 11, 12, 22)
"""The codes of something that a server looked for and did not find."""
ARROW_STREAM = "application/vnd.apache.arrow.stream"
IN_TRANSACTION = "headers.x-headwater-transaction"
HEADER_PREFIXES = ("headers.", "header.")
NATIVE_PREFIXES = ("tls.", "dynamic_context_provider.")
"""Properties that only pylance's own client understands."""
Answer = TypeVar("Answer")


class CompleteRestNamespace(RestNamespace):  # type: ignore[misc]
    """Every operation of the interface over REST. Safe to hand to pylance as a `namespace_client`."""

    def __init__(self, **properties: str) -> None:
        headers = headers_of(properties)
        super().__init__(**native(properties, headers))
        self._delimiter = properties.get("delimiter", DELIMITER)
        client = ApiClient(Configuration(host=properties["uri"].rstrip("/"), retries=False))
        client.default_headers.update(headers)
        self._tables = TableApi(client)
        self._extensions: set[str] | None = None
        self._properties = dict(properties)
        self._is_plain = not any(key.startswith(NATIVE_PREFIXES) for key in properties)
        self._handed: Handed = {}
        """What readers of this process were handed, and have not said to have read."""

    def abilities(self) -> CatalogAbilities:
        """What a server that stands before this one can use beyond the interface."""
        return CatalogAbilities(
            delimiter=self._delimiter,
            alter_namespace=self.alter_namespace_properties,
            rename_namespace=self.rename_namespace,
            clean_up=self.clean_up_table_versions,
            optimize=self.optimize_table,
        )

    def create_table_version(self, request: Any) -> Any:
        if isinstance(request, dict):
            return super().create_table_version(request)
        answer = super().create_table_version(_plain(request))
        return ln.CreateTableVersionResponse.from_dict(answer)

    def describe_table_version(self, request: Any) -> Any:
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

    def query_table(self, request: Any) -> Any:
        found = self._read(super().query_table, "query_table", request)
        return ln.QueryTableResponse(data=bytes(found)) if isinstance(found, bytes | bytearray) else found

    def count_table_rows(self, request: Any) -> Any:
        found = self._read(super().count_table_rows, "count_table_rows", request)
        return ln.CountTableRowsResponse(count=found) if isinstance(found, int) else found

    def explain_table_query_plan(self, request: Any) -> str:
        return str(self._read(super().explain_table_query_plan, "explain_table_query_plan", request))

    def analyze_table_query_plan(self, request: Any) -> str:
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

    def alter_namespace_properties(self, request: Any) -> ln.DescribeNamespaceResponse:
        """An extension of Headwater's servers; Unsupported (0), and why, where the server has no such route."""
        asked = parse_request(AlterNamespaceRequest, request)
        answer = self._ask(
            self._post, f"/headwater/v1/namespace/{quote(self._route(asked.id), safe='')}/properties", asked
        )
        return ln.DescribeNamespaceResponse(properties=answer.get("properties"))

    def rename_namespace(self, request: Any) -> ln.DescribeNamespaceResponse:
        """An extension of Headwater's servers: `id` becomes `new_id`, with all below it."""
        asked = parse_request(RenameNamespaceRequest, request)
        answer = self._ask(self._post, f"/headwater/v1/namespace/{quote(self._route(asked.id), safe='')}/rename", asked)
        return ln.DescribeNamespaceResponse(properties=answer.get("properties"))

    def clean_up_table_versions(self, id: list[str], **policy: Any) -> Cleaned:
        """An extension of Headwater's servers: remove old versions, free the disk that only they hold."""
        return Cleaned(**self._clean_up(id, "clean_up", policy))

    def optimize_table(self, id: list[str], **policy: Any) -> Optimized:
        """An extension of Headwater's servers: merge fragments, bring indices up to date, clean up."""
        answer = self._clean_up(id, "optimize", policy)
        return Optimized(**{**answer, "cleaned": Cleaned(**answer["cleaned"])})

    # Stream tables and the past: extensions of Headwater's servers

    def stream_table(self, id: ObjectId, serving: Callable[[], Any]) -> RemoteStream:
        """A stream table of the server, whether it is there or not."""
        route = quote(self._route(list(id.names)), safe="")
        return RemoteStream(partial(self._extension, f"table/{route}/stream/"), id, serving, self._handed)

    def at(self, moment: int | datetime | str) -> CompleteRestNamespace:
        """The server's catalog as it was at a slot, a time with a zone or a named snapshot: every call says so."""
        text = str(format_moment(moment))
        if not self._has("ReadLog"):
            raise UnsupportedOperationError("This server keeps no past: it is not a Headwater server, or an older one.")
        past = CompleteRestNamespace(**{**self._properties, "headers.x-headwater-at": quote(text, safe="")})
        past._call("GET", "/headwater/v1/capabilities", [], None, {"Accept": "application/json"})
        return past

    def begin(self, message: str) -> CompleteRestNamespace:
        """The server's catalog inside a new transaction: every call says so, until `commit` or `abort`."""
        told = self._extension("transaction/", "begin", {"message": message})
        return CompleteRestNamespace(**{**self._properties, IN_TRANSACTION: told["transaction"]})

    def commit(self) -> int:
        """Make all changes of the transaction; its slot. 14 names what others changed, and nothing is made."""
        asked = {"transaction": self._properties[IN_TRANSACTION]}
        try:
            return int(self._end("commit", asked)["slot"])
        except ServiceUnavailableError:
            return int(self._end("commit", asked)["slot"])  # the answer was lost: the server knows what became of it

    def abort(self) -> None:
        """Forget the transaction. A server that cannot be asked forgets it by itself."""
        self._end("abort", {"transaction": self._properties[IN_TRANSACTION]})

    def _end(self, how: str, asked: dict[str, str]) -> Any:
        outside = {key: value for key, value in self._properties.items() if key != IN_TRANSACTION}
        return CompleteRestNamespace(**outside)._extension("transaction/", how, asked)

    def is_stream_table(self, id: ObjectId) -> bool:
        """Whether the server says so; one without the extension has none."""
        if not self._has("DescribeStreamTable"):
            return False
        try:
            self.stream_table(id, lambda: None).definition  # noqa: B018  # asks the server
        except (InvalidInputError, UnsupportedOperationError):
            return False
        return True

    def publish_tables(self, ids: Sequence[ObjectId]) -> list[RemotePublished]:
        """Publish stream tables at one slot."""
        told = self._extension("", "streams/publish", {"tables": [list(id.names) for id in ids]})
        return [RemotePublished(**each) for each in told["published"]]

    def ask_time(self, tail: str, fields: Mapping[str, Any], id: ObjectId | None = None) -> dict[str, Any]:
        """A question about the catalog's past: `log`, `diff`, `verify`, `collect`, or of one object by its id."""
        prefix = "" if id is None else f"object/{quote(self._route(list(id.names)), safe='')}/"
        return dict(self._extension(prefix, tail, fields))

    def _has(self, operation: str) -> bool:
        """Whether the server has an extension; asked once."""
        if self._extensions is None:
            try:
                told = self._call("GET", "/headwater/v1/capabilities", [], None, {"Accept": "application/json"})
                self._extensions = {each["operation"] for each in msgspec.json.decode(told)["extensions"]}
            except (LanceNamespaceError, msgspec.MsgspecError, KeyError, TypeError):
                self._extensions = set()
        return operation in self._extensions

    def _extension(
        self, prefix: str, tail: str, fields: Mapping[str, Any], rows: Any = None, arrow: bool = False
    ) -> Any:
        given = {name: value for name, value in fields.items() if value is not None}
        query: list[tuple[str, str]] = [("delimiter", self._delimiter)]
        if rows is None:
            body, kind = msgspec.json.encode(given), "application/json"
        else:
            query += [(name, text) for name, value in given.items() for text in _query_texts(value)]
            body, kind = stream_body(rows), ARROW_STREAM
        accept = "application/vnd.apache.arrow.file" if arrow else "application/json"
        answer = self._call(
            "POST", f"/headwater/v1/{prefix}{tail}", query, body, {"Accept": accept, "Content-Type": kind}
        )
        return read_file(answer).read_all() if arrow else msgspec.json.decode(answer)

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

    def _clean_up(self, id: list[str], tail: str, policy: dict[str, Any]) -> dict[str, Any]:
        check_options(policy, ("keep_versions", "keep_days", "grace_seconds"), tail)
        asked = parse_request(CleanUpRequest, {"id": id, **policy})
        return self._ask(self._post, f"/headwater/v1/table/{quote(self._route(asked.id), safe='')}/{tail}", asked)

    def _post(self, path: str, request: BaseModel, delimiter: str) -> dict[str, Any]:
        """A call of an extension, through the same connection as the rest."""
        client = self._tables.api_client
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        sent = client.param_serialize(
            "POST", path, query_params=[("delimiter", delimiter)], header_params=headers, body=request.model_dump()
        )
        response = client.call_api(*sent)
        body = response.read()
        if response.status >= 300:
            raise _refused_extension(response.status, body)
        return dict(msgspec.json.decode(body))

    def _route(self, id: list[str] | None) -> str:
        return object_id(id, self._delimiter).format_route(self._delimiter)

    def _ask(self, operation: Callable[..., Answer], *args: Any) -> Answer:
        try:
            return operation(*args, delimiter=self._delimiter)
        except ApiException as error:
            raise refused(error.status, error.body) from None
        except HTTPError as error:
            raise _unanswered(error) from None


def _unanswered(error: HTTPError) -> ServiceUnavailableError:
    """What became of a request without an answer: it was never sent, or perhaps carried out."""
    if isinstance(error, (NewConnectionError, ConnectTimeoutError)):
        return ServiceUnavailableError(f"The server cannot be reached: {type(error).__name__}.")
    return CommitStateUnknownError(
        f"The server has not answered ({type(error).__name__}). If it was to change something, that may be done: look "
        "before you ask again."
    )


def check_properties(properties: Iterable[str]) -> None:
    """InvalidInput (13) for a property that no REST catalog has."""
    named = [key for key in properties if not key.startswith((*HEADER_PREFIXES, *NATIVE_PREFIXES))]
    check_options(named, ("uri", "delimiter", "ops_metrics_enabled"), "A REST catalog (beside header.* and tls.*)")


def connect_rest(properties: Mapping[str, str]) -> CompleteRestNamespace:
    """A catalog behind a REST server: `uri`, `delimiter`, and headers as `headers.*` (or `header.*`)."""
    uri = properties.get("uri")
    if not uri or not uri.startswith(("http://", "https://")):
        raise InvalidInputError("A REST catalog needs `uri`, such as http://127.0.0.1:8080.")
    check_delimiter(properties.get("delimiter", DELIMITER))
    return CompleteRestNamespace(**{key: str(value) for key, value in properties.items()})


def headers_of(properties: Mapping[str, str]) -> dict[str, str]:
    """The HTTP headers among the properties."""
    found: dict[str, str] = {}
    for key, value in properties.items():
        for prefix in HEADER_PREFIXES:
            if key.startswith(prefix):
                found[key.removeprefix(prefix)] = follow(str(value), key)
    return found


def token_headers(token: str) -> dict[str, str]:
    """The properties that send a token in both ways that servers know."""
    return {"header.x-api-key": token, "header.Authorization": f"Bearer {token}"}


def refused(status: int | None, body: str | bytes | None) -> Exception:
    """The exception of an error answer: its code if it has one, else what its HTTP status says."""
    try:
        answer = msgspec.json.decode(body or b"{}")
        return error_for(int(answer["code"]), str(answer.get("error", "")))
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return error_for(17 if status in (429, 502, 503, 504) else 18, f"The server answered with HTTP {status}.")


def _refused_extension(status: int, body: bytes) -> Exception:
    """A route that is not there is told from an object that is not there: the latter has a code of the protocol."""
    error = refused(status, body)
    known = isinstance(error, LanceNamespaceError) and int(error.code) == 1
    if status in (404, 405, 501) and not known:
        return UnsupportedOperationError(
            "This server cannot change the properties of a namespace: the Lance protocol has no such operation, and "
            "the server does not have Headwater's extension for it. Set them when the namespace is created."
        )
    return error


def _refused_call(path: str, status: int, body: bytes) -> Exception:
    error = refused(status, body)
    if status in (404, 405, 501) and not (isinstance(error, LanceNamespaceError) and int(error.code) in NOT_FOUND):
        return UnsupportedOperationError(f"This server has no {path.partition('?')[0]}: it is not a Headwater server.")
    return error


def _query_texts(value: Any) -> list[str]:
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, Mapping):
        return [msgspec.json.encode(value).decode()]
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def native(properties: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """The properties for pylance's own client. It follows redirects, and lets go only of `Authorization` on the way to
    another host: so a key is sent there, and never as `x-api-key`."""
    kept = {key: value for key, value in properties.items() if not key.startswith(HEADER_PREFIXES)}
    sent = {name.lower(): value for name, value in headers.items()}
    key = sent.pop("x-api-key", None)
    if key is not None:
        sent.setdefault("authorization", f"Bearer {key}")
    return {**kept, **{f"headers.{name}": value for name, value in sent.items()}}


def _plain(request: Any) -> dict[str, Any]:
    return {key: value for key, value in request.model_dump().items() if value is not None}
