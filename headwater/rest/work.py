"""Runs the work of a call in the server process, or in worker processes that can be killed without harming it.

The server itself handles JSON, names and the records of the catalog. What opens a table, parses SQL or rows, or runs a
user's function is a worker's (`needs_worker`), which answers with the same dispatcher (`rest/dispatch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import chain
from typing import Any, Protocol

import lance_namespace
import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace
from pydantic import BaseModel

from headwater.adapter import ANSWERED, AdaptedNamespace
from headwater.decoding.arrow import read_stream
from headwater.errors import ConcurrentModificationError, InternalError
from headwater.metastore import Metastore
from headwater.names import ObjectId
from headwater.namespace.abilities import CatalogAbilities, abilities_of
from headwater.rest.auth.access import OWNER, Caller, Grant
from headwater.rest.body import BodySpool
from headwater.rest.call import SESSION, TRANSACTION, Call
from headwater.rest.coding import make_request
from headwater.rest.reply import byte_chunks, file_parts
from headwater.rest.routes import Answer, BodyKind, Permission, Route, WorkPlace
from headwater.workers import Pool
from headwater.workers.channel import Chunk

Accept = Callable[[int], None]
Chunks = Generator[Chunk, None, None]
HOST = "headwater.rest.dispatch:host"
"""The function that makes a worker ready for calls."""
LANDINGS = frozenset({"AppendToStreamTable", "UpsertIntoStreamTable"})
"""Calls whose one commit is the last thing that they do: the server makes it when it has their answer, so that neither
process waits for the other in between."""
DETAILS = ("version", "tag", "branch", "load_detailed_metadata")
"""Fields of look-ups whose answer is in the table, and not in the catalog."""


def needs_worker(call: Call) -> bool:
    """Return True if a call may open a table or parse a caller's text. In a transaction every call may."""
    if call.route.runs is WorkPlace.LOOKUP and any(getattr(call.request, name, None) for name in DETAILS):
        return True
    return call.route.runs in (WorkPlace.WORKER, WorkPlace.LONG) or TRANSACTION in call.headers


class Work(Protocol):
    """Does the work of calls somewhere else."""

    @property
    def most_held(self) -> int:
        """Return how many answers may hold their worker while they are read slowly."""
        ...

    def takes(self, call: Call) -> bool: ...

    def respond(self, call: Call) -> Any:
        """Return the response, as the protocol's model or as JSON; of rows an Arrow file, in chunks or as bytes."""
        ...


class FarNamespace(AdaptedNamespace):
    """A back end of others that only workers open: none of its code runs here."""

    def __init__(self, impl: str, pool: Pool | None) -> None:
        self.impl = impl
        self._pool = pool

    def namespace_id(self) -> str:
        return f"headwater.FarNamespace {{ impl: {self.impl!r} }}"

    def ask(self, operation: str, *asked: Any) -> Any:
        assert self._pool is not None
        request = asked[0].model_dump(mode="json", by_alias=True, exclude_none=True)
        told = {"method": operation, "model": type(asked[0]).__name__, "request": request}
        return decoded(self._pool.run("ask", told))

    def check_answers(self) -> None:
        """Raise the error that keeps a worker from opening the back end, or the back end from answering."""
        assert self._pool is not None
        self._pool.run("is_ready", {})
        with suppress(*ANSWERED):
            self.list_namespaces(lance_namespace.ListNamespacesRequest(id=[], limit=1))


class InWorkers:
    """In a worker of a pool, whose death is an error of this one call.

    What a worker has prepared to be committed is committed here, so that those which come together share a slot.
    """

    def __init__(self, pool: Pool, namespace: LanceNamespace) -> None:
        self._pool = pool
        self._everything = isinstance(namespace, FarNamespace)
        self._metastore = abilities_of(namespace).metastore

    @property
    def most_held(self) -> int:
        return self._pool.limits.most_long

    def takes(self, call: Call) -> bool:
        return call.route.runs is not WorkPlace.KEYS and (self._everything or needs_worker(call))

    def respond(self, call: Call) -> Any:
        if call.operation in LANDINGS and TRANSACTION not in call.headers and self._metastore is not None:
            return self._land(call, self._metastore)
        found = self._run(call)
        is_stream = call.route.answer is Answer.ARROW
        chunks = iter(found) if is_stream else None
        told = found if chunks is None else msgspec.json.decode(next(chunks))
        call.unread.update(told["unread"])
        if chunks is None:
            return decoded(told)
        return b"".join(chunks) if isinstance(found, list) else chunks

    def _land(self, call: Call, metastore: Metastore) -> Any:
        """Return the response to a landing, which is committed here. On a conflict the worker makes it again."""
        found = self._run(call, leaves=True)
        if isinstance(found, dict):  # nothing to commit
            return decoded(found)
        answer, *saved = found
        try:
            _, *positions = metastore.commit_saved(b"".join(saved))
        except ConcurrentModificationError:
            return decoded(self._run(call))
        response = decoded(msgspec.json.decode(answer))
        if response["position"] < 0:
            response["position"] = positions[response["position"]]
        return response

    def _run(self, call: Call, leaves: bool = False) -> Any:
        found = self._pool.run(
            "answer",
            told_of(call, leaves),
            _rows_of(call),
            call.route.changes,
            call.can_stop,
            is_long=call.route.runs is WorkPlace.LONG,
            answers=None if self._metastore is None else self._metastore.commit_saved,
            views=call.route.answer is Answer.ARROW,
        )
        if call.route.runs is WorkPlace.LONG and self._metastore is not None:
            _ = self._metastore.slot  # a collection is committed by the worker alone
        return found

    def close(self) -> None:
        self._pool.close()


def _rows_of(call: Call) -> bytes | int | None:
    """Return the body, where it is rows: its file, which the worker maps, or its bytes."""
    if call.route.body is not BodyKind.ARROW:
        return None
    file = call.body.file_number if isinstance(call.body, BodySpool) else None
    return call.body_bytes if file is None else file


class RowStreams:
    """The operations of a catalog that take rows or give them, as streams where it can."""

    def __init__(self, namespace: LanceNamespace, abilities: CatalogAbilities) -> None:
        self._namespace = namespace
        self._abilities = abilities

    def take(self, call: Call, accept: Accept) -> Any:
        """Return the answer to a call with rows. `accept` gets the bytes that they unpack to, and may refuse them."""
        can, body = self._abilities, call.body
        streaming = {
            "CreateTable": can.create_table_rows,
            "InsertIntoTable": can.insert_rows,
            "MergeInsertIntoTable": can.merge_rows,
        }[call.operation]
        if streaming is None:
            return getattr(self._namespace, call.route.method)(call.request, call.body_bytes)
        return streaming(call.request, read_stream(body.buffer if isinstance(body, BodySpool) else body, accept))

    def give(self, request: Any) -> Any:
        """Return the rows of a query: a reader, or the bytes of a whole answer."""
        query = self._abilities.query_rows
        return query(request) if query is not None else self._namespace.query_table(request)


def begun(rows: Any) -> Chunks:
    """Return the chunks of an Arrow file, the first of them made: what is refused is refused here."""
    chunks: Any = file_parts(rows) if isinstance(rows, pa.RecordBatchReader) else byte_chunks(rows)
    return _closing(chain((next(chunks, b""),), chunks), chunks)


def _closing(chunks: Any, source: Chunks) -> Chunks:
    try:
        yield from chunks
    finally:
        source.close()


def told_of(call: Call, leaves: bool = False) -> dict[str, object]:
    """Return a call as JSON for a worker. Its rows travel beside. `leaves`: the server makes its commit."""
    return {
        "leaves": leaves,
        "operation": call.operation,
        "id": call.id.names,
        "delimiter": call.delimiter,
        "raw_id": call.raw_id,
        "query": call.query,
        "request": _fields(call.request),
        "headers": {name: call.headers[name] for name in SESSION if name in call.headers},
        "caller": None if call.asker is OWNER else _caller_told(call.asker),
    }


def _fields(request: Any) -> object:
    if isinstance(request, msgspec.Struct):
        return msgspec.to_builtins(request)
    return request.model_dump(mode="json", by_alias=True, exclude_none=True)


def call_of(route: Route, told: dict[str, Any], body: pa.Buffer | None) -> Call:
    """Return the call that was told of."""
    return Call(
        route,
        ObjectId(tuple(told["id"])),
        told["delimiter"],
        make_request(route, told["request"]),
        OWNER if told["caller"] is None else _caller_of(told["caller"]),
        query=told["query"],
        headers=told["headers"],
        body=b"" if body is None else BodySpool(body),
        raw_id=told["raw_id"],
    )


def _caller_told(caller: Caller) -> dict[str, object]:
    grants = [[grant.permissions.value, grant.scope.names] for grant in caller.grants]
    return {"name": caller.name, "title": caller.title, "grants": grants}


def _caller_of(told: dict[str, Any]) -> Caller:
    grants = (Grant(Permission(value), ObjectId(tuple(scope))) for value, scope in told["grants"])
    return Caller(told["name"], tuple(grants), told["title"])


def encoded(response: object) -> dict[str, object]:
    """Return a response in JSON, with the name of its model if it has one."""
    if isinstance(response, BaseModel):
        return {
            "model": type(response).__name__,
            "value": response.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
    return {"model": None, "value": msgspec.to_builtins(response, str_keys=True)}


def decoded(told: dict[str, Any]) -> Any:
    if told["model"] is None:
        return told["value"]
    model = getattr(lance_namespace, told["model"], None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InternalError(
            f"A worker answered with a {str(told['model'])[:80]}, which is not an answer of the protocol."
        )
    return model.model_validate(told["value"])
