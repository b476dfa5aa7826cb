"""From a matched route to an answer, over any LanceNamespace. Runs in worker threads, never in the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError, NamespaceNotFoundError
from headwater.names import DELIMITER
from headwater.namespace.vending import Keep, Vendor, check_request, vend
from headwater.rest.arrow import byte_chunks, file_chunks
from headwater.rest.auth.access import Caller, check, is_filtered, storage_access
from headwater.rest.body import Spool
from headwater.rest.idempotency import Repeats, Stored, fingerprint
from headwater.rest.listing import list_visible
from headwater.rest.reply import Headers, Reply, context_headers, etag, is_known_to_client, refusal
from headwater.rest.routes import BY_OPERATION, Answer, Body, Match
from headwater.rest.settings import Limits
from headwater.rest.wire import ARROW_FILE, JSON, Call, encode_json, read_call, read_json, read_query, write_answer
from headwater.tables.arrow import read_stream

JSON_HEADERS: Headers = ((b"content-type", JSON),)
# What a catalog may have beyond the interface, so that rows stream: the methods of headwater's own catalogs.
READERS = {
    "CreateTable": "create_table_reader",
    "InsertIntoTable": "insert_reader",
    "MergeInsertIntoTable": "merge_insert_reader",
}
BATCHES = "query_batches"


@dataclass(frozen=True)
class Asked:
    """A request as it came: what was matched, by whom, with what."""

    match: Match
    caller: Caller
    request_id: str
    target: str
    query: str
    headers: Mapping[str, str]
    body: bytes | Spool


class Dispatcher:
    """Calls the catalog and shapes what it says."""

    def __init__(
        self,
        namespace: LanceNamespace,
        limits: Limits,
        repeats: Repeats,
        extensions: Mapping[str, Callable[[LanceNamespace, Call, Caller], Any]],
        vendor: Vendor | None = None,
    ) -> None:
        self._namespace = namespace
        self._limits = limits
        self._repeats = repeats
        self._extensions = extensions
        self._vendor = vendor or Keep()
        self._delimiter: str = getattr(getattr(namespace, "properties", None), "delimiter", DELIMITER)

    def answer(self, asked: Asked) -> Reply:
        """The answer to a request; what the catalog refuses becomes an answer too."""
        try:
            call = self._read(asked)
            check(asked.caller, call)
            key = asked.headers.get("idempotency-key")
            if key is not None and call.route.changes:
                return self._once(asked, call, key)
            return self._apply(asked, call)
        finally:
            if isinstance(asked.body, Spool):
                asked.body.close()

    def _read(self, asked: Asked) -> Call:
        route = asked.match.route
        fields = {} if route.body is Body.ARROW else read_json(_bytes(asked.body))
        call = read_call(asked.match, read_query(asked.query), asked.headers, fields, self._limits.page)
        check_limits(call, self._limits)
        check_request(call.request)
        return call

    def _once(self, asked: Asked, call: Call, key: str) -> Reply:
        """Idempotency-Key: the change is made at most once, and a repeat gets the first answer."""
        body = asked.body.view if isinstance(asked.body, Spool) else asked.body
        begun = self._repeats.begin(asked.caller.name, key, fingerprint(call.route.verb, asked.target, body))
        if isinstance(begun, Stored):
            return Reply(begun.status, begun.body, (*JSON_HEADERS, (b"idempotency-replayed", b"true")))
        try:
            reply = self._apply(asked, call)
        except Exception as error:
            refused = refusal(error, asked.request_id)
            self._repeats.end(begun, refused.status, refused.body)
            raise
        self._repeats.end(begun, reply.status, reply.body)
        return reply

    def _apply(self, asked: Asked, call: Call) -> Reply:
        route = call.route
        if route.answer is Answer.ARROW:
            return self._query(call)
        asked_to_vend = getattr(call.request, "vend_credentials", None)
        response = vend(self._call(asked, call), self._vendor, storage_access(asked.caller, call), asked_to_vend)
        body = encode_json(response) if route.extension else write_answer(route, response)
        headers = JSON_HEADERS if body else ()
        context = getattr(response, "context", None)
        if context:
            headers += context_headers(context)
        if route.tagged:
            tag = etag(body)
            headers += ((b"etag", tag),)
            if is_known_to_client(tag, asked.headers.get("if-none-match")):
                return Reply(304, b"", headers[1:])
        return Reply(route.status, body, headers)

    def _call(self, asked: Asked, call: Call) -> Any:
        operation = call.route.operation
        if call.route.extension:
            return self._extensions[operation](self._namespace, call, asked.caller)
        if is_filtered(asked.caller, call.route):
            return self._with_delimiter(list_visible(self._namespace, call, asked.caller, self._delimiter), call)
        if call.route.body is Body.ARROW:
            return self._write(asked, call)
        if operation == "ListNamespaces" and asked.match.id == "table" and call.delimiter == ".":
            return self._list_of_root(asked, call)
        response = getattr(self._namespace, call.route.method)(call.request)
        return self._with_delimiter(response, call) if operation == "ListAllTables" else response

    def _list_of_root(self, asked: Asked, call: Call) -> Any:
        """`/v1/namespace/./table/list` arrives as `/v1/namespace/table/list`: the root's tables, if it must be so.

        It is so when the request has a parameter that only ListTables has, or there is no namespace `table`.
        """
        if "include_declared" not in asked.query:
            try:
                return self._namespace.list_namespaces(call.request)
            except NamespaceNotFoundError:
                pass
        match = Match(BY_OPERATION["ListTables"], ".")
        tables = read_call(match, read_query(asked.query), asked.headers, {}, self._limits.page)
        check(asked.caller, tables)
        if is_filtered(asked.caller, tables.route):
            return list_visible(self._namespace, tables, asked.caller, self._delimiter)
        return self._namespace.list_tables(tables.request)

    def _with_delimiter(self, response: Any, call: Call) -> Any:
        """ListAllTables names tables in string style: with the delimiter that the caller speaks."""
        if call.route.operation != "ListAllTables" or call.delimiter == self._delimiter:
            return response
        tables = [name.replace(self._delimiter, call.delimiter) for name in response.tables]
        return response.model_copy(update={"tables": tables})

    def _write(self, asked: Asked, call: Call) -> Any:
        reader_method = getattr(self._namespace, READERS[call.route.operation], None)
        if reader_method is None:
            return getattr(self._namespace, call.route.method)(call.request, _bytes(asked.body))
        body = asked.body.buffer if isinstance(asked.body, Spool) else asked.body
        return reader_method(call.request, read_stream(body))

    def _query(self, call: Call) -> Reply:
        batches = getattr(self._namespace, BATCHES, None)
        if batches is not None:
            chunks = file_chunks(batches(call.request))
        else:
            response = self._namespace.query_table(call.request)
            chunks = byte_chunks(response)
        first = next(chunks, b"")
        return Reply(200, first, ((b"content-type", ARROW_FILE),), stream=chunks)


def _bytes(body: bytes | Spool) -> bytes:
    return body.bytes if isinstance(body, Spool) else body


def check_limits(call: Call, limits: Limits) -> None:
    """Depth of names and size of properties; the rest is bounded where it is read."""
    if call.id.level > limits.depth:
        raise InvalidInputError(f"The id has {call.id.level} levels; this server takes at most {limits.depth}.")
    properties = getattr(call.request, "properties", None)
    if isinstance(properties, dict):
        size = sum(len(str(key)) + len(str(value)) for key, value in properties.items())
        if size > limits.properties:
            raise InvalidInputError(f"The properties hold {size} characters; at most {limits.properties} are taken.")
