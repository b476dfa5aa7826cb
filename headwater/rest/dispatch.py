"""From a routed call to an answer, over any LanceNamespace. Answers are made in worker threads.

A data worker hosts the same dispatcher (`Hosted`) over a catalog that the worker opens for itself. A call comes as JSON
with its rows beside, and stands where it stood in the server: in its transaction, at its moment, in the name of its
caller. A commit is sent back to the server, which makes one slot of those that come together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from urllib.parse import unquote

import lance_namespace
import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.adapter import adapt
from headwater.clock import SystemClock
from headwater.errors import (
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
    TableTagNotFoundError,
    UnsupportedOperationError,
)
from headwater.imports import warm
from headwater.names import ROOT, ObjectId
from headwater.namespace.abilities import CatalogAbilities, abilities_of
from headwater.namespace.requests import parse_moment
from headwater.namespace.vending import FileAccess, Keep, Vendor, check_request, vend
from headwater.rest.auth.access import OWNER, check, check_route, is_filtered, storage_access
from headwater.rest.auth.object_rights import check_objects, list_visible
from headwater.rest.body import BodySpool, too_large
from headwater.rest.call import AT, ELSEWHERE, TABLE_VERSION, TRANSACTION, UNREAD, Call
from headwater.rest.coding import ARROW_FILE, JSON, encode_json, read_call, read_ids, read_json, write_answer
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.idempotency import GivenAnswer, Repeats, fingerprint
from headwater.rest.near_names import with_nearest
from headwater.rest.page.catalog_questions import ALL_HANDLERS, QUESTIONS
from headwater.rest.remote_client import LEVEL, completed, is_remote, shaped
from headwater.rest.reply import Headers, Reply, context_headers, etag, is_known_to_client, joined, refusal
from headwater.rest.routes import BY_OPERATION, Answer, BodyKind, Permission
from headwater.rest.settings import Limits
from headwater.rest.work import RowStreams, Work, begun, call_of, encoded
from headwater.tables.handle import noting_unread
from headwater.verbs.catalog import commit_after
from headwater.verbs.table_versions import NO_VERSIONS
from headwater.verbs.verb import SessionKind, require
from headwater.workers.channel import ask
from headwater.workers.child import find

JSON_HEADERS: Headers = ((b"content-type", JSON),)
UNREAD_HEADERS: Headers = ((UNREAD.encode(), b"true"),)
ENDS = frozenset({"BeginTransaction", "CommitTransaction", "AbortTransaction"})
MAX_PAST = 16
MAX_AUTHORS = 64
LOOKUPS = frozenset({"DescribeTable", "TableExists", "DescribeNamespace", "NamespaceExists"})
MAX_RECALLED = 8192
MAX_RECALLED_CHARS = 512
Handler = Callable[[LanceNamespace, Call], Any]


class Dispatcher:
    """Calls the catalog and shapes what it says."""

    def __init__(
        self,
        namespace: LanceNamespace,
        abilities: CatalogAbilities,
        limits: Limits,
        repeats: Repeats,
        extensions: Mapping[str, Handler],
        vendor: Vendor,
        work: Work | None = None,
        read_only: bool = False,
    ) -> None:
        self._read_only = read_only
        self._namespace = namespace
        self._abilities = abilities
        self._limits = limits
        self._vendor = vendor
        self._work = work
        self._rows = RowStreams(namespace, abilities)
        self._repeats = repeats
        self._extensions = extensions
        self._lock = threading.Lock()
        self._past: dict[int, Dispatcher] = {}
        self._authors: dict[str, Dispatcher] = {}
        self._understood: dict[tuple[str, str, bytes], tuple[ObjectId, str, object]] = {}

    def authorize(self, call: Call) -> None:
        """Decide, before the first byte of a body is taken in, all that the route, the query and the caller decide."""
        self._check_change(call)
        if TRANSACTION in call.headers:
            self._check_within(call)
        elif AT in call.headers:
            self._check_past(call)
        if call.route.body is BodyKind.ARROW:
            self._understand(call, {})
            check(call.asker, call)
        elif call.has_body and call.asker is not OWNER:
            check_route(call.asker, call.route, read_ids(call))

    def understand(self, call: Call) -> None:
        """Read what is asked, and check that the caller may ask it."""
        if call.route.body is BodyKind.ARROW:
            return
        if call.operation in LOOKUPS:
            self._recall(call)
        else:
            self._understand(call, read_json(call.body_bytes))
        if is_remote(call):
            call.request = completed(call)
        elsewhere = self._read_only or not ELSEWHERE.isdisjoint(call.headers)
        if elsewhere and call.operation == "ReadStreamChanges" and call.request.reader is not None:
            raise InvalidInputError("A reader's position is not kept here: read without `reader`.")
        check(call.asker, call)

    def ask(self, call: Call) -> Reply:
        """Return the answer to a call that was not read from a request: the page's, in the name of its visitor."""
        self._check_change(call)
        check(call.asker, call)
        check_limits(call, self._limits.depth, self._limits.properties)
        check_objects(call, self._standing)
        return self._apply(call)

    def _check_change(self, call: Call) -> None:
        if self._read_only and (call.route.changes or call.operation in ENDS):
            raise UnsupportedOperationError(
                f"This server is read-only (serve --read-only): it takes no {call.operation}."
            )

    def answer(self, call: Call) -> Reply:
        """Return the answer to a call that was authorized and understood."""
        try:
            check_objects(call, self._standing)
            key = call.headers.get("idempotency-key")
            if key is not None and call.route.changes:
                return self._once(call, key)
            return self._apply(call)
        except (NamespaceNotFoundError, TableNotFoundError) as error:
            raise with_nearest(self._namespace, call, error) from None
        finally:
            call.drop_body()

    def respond(self, call: Call) -> Any:
        """Return the response where the call stands: in its transaction, at its moment, in the name of its caller.

        Of rows the chunks of an Arrow file, the first of which is made.
        """
        with noting_unread(call.unread):
            if TRANSACTION in call.headers:
                return self._within(call)
            return (self._at(call) if AT in call.headers else self._by(call))._chosen(call)._call(call)

    def _standing(self, call: Call) -> CatalogAbilities:
        """Return the abilities of the catalog in the session of a call: its transaction, the past, or the present.

        This reads records, and no data.
        """
        if TRANSACTION in call.headers:
            assert self._abilities.transactions is not None
            return abilities_of(self._abilities.transactions.seen(call.asker.name, call.headers[TRANSACTION]))
        return self._at(call)._abilities if AT in call.headers else self._abilities

    def _by(self, call: Call) -> Dispatcher:
        """Return the dispatcher that changes the catalog with the caller as author of its commits."""
        by, name = self._abilities.by, call.asker.author
        if by is None or call.asker is OWNER or not (call.route.changes or call.operation in ENDS):
            return self
        with self._lock:
            known = self._authors.get(name)
        if known is None:
            namespace = by(name)
            known = self._over(namespace, self._read_only)
            with self._lock:
                self._authors[name] = known
                while len(self._authors) > MAX_AUTHORS:
                    del self._authors[next(iter(self._authors))]
        return known

    def _over(self, namespace: LanceNamespace, read_only: bool) -> Dispatcher:
        """Return a dispatcher over another view of the catalog, which works in this process."""
        can = abilities_of(namespace)
        return Dispatcher(namespace, can, self._limits, self._repeats, self._extensions, self._vendor, None, read_only)

    def _check_within(self, call: Call) -> None:
        """Error 13 for what cannot be part of a transaction, before anything is read."""
        if self._abilities.transactions is None:
            raise UnsupportedOperationError("This server's catalog has no transactions: a metastore catalog has.")
        if SessionKind.TRANSACTION not in call.route.sessions or AT in call.headers:
            raise InvalidInputError(f"{call.operation} cannot be part of a transaction: leave {TRANSACTION} out.")

    def _within(self, call: Call) -> object:
        """Run one operation of a transaction, and note what it read when it ends."""
        assert self._abilities.transactions is not None
        sent = call.body.view.nbytes if isinstance(call.body, BodySpool) else len(call.body)
        with self._abilities.transactions.using(call.asker.name, call.headers[TRANSACTION], sent) as inside:
            return self._over(inside, self._read_only)._chosen(call)._call(call)

    def _check_past(self, call: Call) -> None:
        """Error 13 for what the past cannot be asked, before anything is read."""
        if self._abilities.at is None:
            raise UnsupportedOperationError("This server's catalog keeps no past: a metastore catalog does.")
        if call.route.changes or SessionKind.PAST not in call.route.sessions:
            raise InvalidInputError(f"{call.operation} is not for the catalog as it was: leave {AT} out.")

    def _at(self, call: Call) -> Dispatcher:
        """Return the dispatcher of a moment of the past. A few are kept: the past never changes."""
        moment = parse_moment(unquote(call.headers[AT]))
        with self._lock:
            known = self._past.get(moment) if isinstance(moment, int) else None
        assert self._abilities.at is not None
        if known is not None:
            assert self._abilities.metastore is not None
            self._abilities.metastore.at(moment)  # error 13 if it was collected since
            return known
        try:
            namespace = self._abilities.at(moment)
        except TableTagNotFoundError:
            if call.asker.may(Permission.DESCRIBE, ROOT):
                raise
            raise TableTagNotFoundError(f"There is no snapshot {moment!r}.") from None  # the others are not told
        made = self._over(namespace, read_only=True)
        with self._lock:
            if isinstance(moment, int):
                self._past[moment] = made
            while len(self._past) > MAX_PAST:
                del self._past[next(iter(self._past))]
        return made

    def _chosen(self, call: Call) -> Dispatcher:
        """Return the dispatcher that has a table at another version than its active one, if the call asks for one."""
        if call.chosen_table is None:
            return self
        version = call.headers[TABLE_VERSION].rpartition("=")[2]
        choose = require(self._abilities.table_version, NO_VERSIONS)
        return self._over(choose(call.chosen_table, version), self._read_only)

    def has_news(self, call: Call) -> bool:
        """Return True if the log has a new entry for a caller that waits, and always for the past."""
        if AT in call.headers:
            return True
        metastore = require(self._abilities.metastore)
        return metastore.slot > commit_after(metastore, call.request)

    def newest(self) -> int:
        """Return the newest commit of the catalog."""
        return require(self._abilities.metastore).slot

    def _recall(self, call: Call) -> None:
        """A look-up that came before, to the letter, means what it meant then."""
        text = (call.route.operation, call.target, call.body_bytes)
        known = self._understood.get(text)
        if known is None:
            self._understand(call, read_json(call.body_bytes))
            if len(call.target) + len(call.body_bytes) <= MAX_RECALLED_CHARS:
                if len(self._understood) >= MAX_RECALLED:
                    self._understood.clear()
                self._understood[text] = (call.id, call.delimiter, call.request)
        else:
            call.id, call.delimiter, call.request = known

    def _understand(self, call: Call, fields: dict[str, object]) -> None:
        read_call(call, fields, self._limits.page)
        check_limits(call, self._limits.depth, self._limits.properties)
        check_request(call.request)

    def _once(self, call: Call, key: str) -> Reply:
        """Idempotency-Key: the change is made at most once, and a repeat gets the first answer.

        A change inside a transaction is made when the transaction has it. The same change in another transaction, or to
        another version of the table, is another change.
        """
        body = call.body.view if isinstance(call.body, BodySpool) else call.body
        session = (call.headers[name] for name in (TRANSACTION, TABLE_VERSION) if name in call.headers)
        target = " ".join((*session, call.target))
        begun = self._repeats.begin(call.asker.name, key, fingerprint(call.route.verb, target, body))
        if isinstance(begun, GivenAnswer):
            return Reply(begun.status, begun.body, (*JSON_HEADERS, (b"idempotency-replayed", b"true")))
        try:
            reply = self._apply(call)
        except Exception as error:
            refused = refusal(error, call.request_id, call.id)
            self._repeats.end(begun, refused.status, refused.body)
            raise
        kept = reply.body if self._vendor.is_silent else without_options(reply.body)
        self._repeats.end(begun, reply.status, kept)  # credentials are for this caller and this moment
        return reply

    def _apply(self, call: Call) -> Reply:
        route = call.route
        far = self._work is not None and self._work.takes(call)
        response = self._work.respond(call) if far else self.respond(call)  # type: ignore[union-attr]
        told = UNREAD_HEADERS if call.unread else ()
        if route.answer is Answer.ARROW:
            headers = ((b"content-type", ARROW_FILE), *told)
            if isinstance(response, bytes):
                return Reply(200, response, headers)
            chunks = joined(response)
            return Reply(200, next(chunks, b""), headers, stream=chunks, of_worker=far)
        asked_to_vend = getattr(call.request, "vend_credentials", None)
        access = storage_access(call.asker, call)
        response = vend(response, self._vendor, access, asked_to_vend, is_done=route.changes)
        remote = is_remote(call)
        if remote:
            response = shaped(route, response)
        body = encode_json(response) if route.extension else write_answer(route, response)
        headers = (*JSON_HEADERS, *told) if body else told
        if remote:
            headers += LEVEL
        context = getattr(response, "context", None)
        if context:
            headers += context_headers(context)
        if route.tagged:
            tag = etag(body)
            headers += ((b"etag", tag),)
            if is_known_to_client(tag, call.headers.get("if-none-match")):
                return Reply(304, b"", headers[1:])
        return Reply(route.status, body, headers)

    def _call(self, call: Call) -> Any:
        operation = call.route.operation
        if call.route.answer is Answer.ARROW:
            return begun(self._extend(call) if call.route.extension else self._rows.give(call.request))
        if call.route.extension:
            return self._extend(call)
        if is_filtered(call.asker, call.route):
            return self._with_delimiter(self._visible(call), call)
        if call.route.body is BodyKind.ARROW:
            return self._rows.take(call, lambda size: self._accept(call, size))
        if operation == "ListNamespaces" and call.raw_id == "table" and call.delimiter == ".":
            return self._list_of_root(call)
        response = getattr(self._namespace, call.route.method)(call.request)
        return self._with_delimiter(response, call) if operation == "ListAllTables" else response

    def _list_of_root(self, call: Call) -> object:
        """List the root's tables for `/v1/namespace/table/list`, as clients shorten `/v1/namespace/./table/list`.

        A namespace named `table` wins, unless the request has a parameter that only ListTables has.
        """
        if "include_declared" not in call.query:
            try:
                return self._namespace.list_namespaces(call.request)
            except NamespaceNotFoundError:
                pass
        tables = replace(call, route=BY_OPERATION["ListTables"], raw_id=".")
        read_call(tables, {}, self._limits.page)
        check(tables.asker, tables)
        if is_filtered(tables.asker, tables.route):
            return self._visible(tables)
        return self._namespace.list_tables(tables.request)

    def _visible(self, call: Call) -> object:
        return list_visible(self._namespace, call, self._abilities)

    def _with_delimiter(self, response: Any, call: Call) -> Any:
        """ListAllTables names tables in string style: with the delimiter that the caller speaks."""
        ours = self._abilities.delimiter
        if call.route.operation != "ListAllTables" or call.delimiter == ours:
            return response
        tables = [name.replace(ours, call.delimiter) for name in response.tables]
        return response.model_copy(update={"tables": tables})

    def _accept(self, call: Call, size: int) -> None:
        """Limits count what a body unpacks to: its rows will take that much wherever they go."""
        if size > self._limits.arrow_body:
            raise too_large(self._limits.arrow_body)
        if call.holding is not None:
            call.holding.grow_to(size)

    def _extend(self, call: Call) -> object:
        call.accept = lambda size: self._accept(call, size)
        return self._extensions[call.route.operation](self._namespace, call)


def without_options(body: bytes) -> bytes:
    """Return the bytes of an answer without the storage options in it."""
    return encode_json(vend(read_json(body), Keep(), FileAccess.NONE)) if b"storage_options" in body else body


def check_limits(call: Call, depth: int, most: int) -> None:
    """Depth of names and size of properties; the rest is bounded where it is read."""
    if call.id.level > depth:
        raise InvalidInputError(f"The id has {call.id.level} levels; this server takes at most {depth}.")
    properties = getattr(call.request, "properties", None)
    if isinstance(properties, dict):
        size = sum(len(str(key)) + len(str(value)) for key, value in properties.items())
        if size > most:
            raise InvalidInputError(f"The properties hold {size} characters; at most {most} are taken.")


_ROUTES = {route.operation: route for route in (*ALL_ROUTES, *(question.route for question in QUESTIONS.values()))}


class Hosted:
    """Answers calls in a worker."""

    def __init__(self, namespace: LanceNamespace, limits: Limits) -> None:
        self._namespace = namespace
        can = abilities_of(namespace)
        self._leaves, self._left = False, list[bytes]()
        if can.metastore is not None:
            can.metastore.commit_by(self._commit)
        self._dispatcher = Dispatcher(namespace, can, limits, Repeats(None, SystemClock()), ALL_HANDLERS, Keep())

    def answer(self, told: Any, body: pa.Buffer | None) -> Any:
        """Return the response to a call, with the tables whose unread rows it lacks; of rows the chunks of an Arrow
        file, behind one of JSON. If the call leaves its commit to the server, the transaction is a chunk behind the
        JSON."""
        route = _ROUTES[told["operation"]]
        call = call_of(route, told, body)
        self._leaves, self._left = told["leaves"], []
        response = self._dispatcher.respond(call)
        beside = {"unread": sorted(call.unread)}
        if route.answer is Answer.ARROW:
            return chain((msgspec.json.encode(beside),), response)
        found = encoded(response) | beside
        return iter((msgspec.json.encode(found), *self._left)) if self._left else found

    def _commit(self, saved: bytes) -> Any:
        """Have the server commit a transaction, now or with the answer of the call."""
        if not self._leaves:
            return ask(saved)
        self._leaves, self._left = False, [saved]
        return (0,)

    def is_ready(self, told: object, body: None) -> bool:
        """Return True: a worker that is asked has opened the catalog."""
        return True

    def ask(self, told: Any, body: None) -> object:
        """Return one operation of the catalog, as the server itself asks it (`FarNamespace`)."""
        request = getattr(lance_namespace, told["model"]).model_validate(told["request"])
        return encoded(getattr(self._namespace, told["method"])(request))


def host(opener: str, target: str | None, properties: dict[str, str], limits: dict[str, Any] | None = None) -> Hosted:
    """Return the catalog that `opener` ("module:function") opens, ready for calls."""
    warm()
    return Hosted(adapt(find(opener)(target, properties)), Limits(**(limits or {})))
