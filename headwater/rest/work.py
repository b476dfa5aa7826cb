"""Where data work is done: in the server's own process, or in disposable workers that a bomb may take with it.

What only names things stays in the server (`Dispatcher`); whatever reads or writes rows, or runs SQL of a request,
comes through here. A worker opens the catalog for itself, as the sister processes of `serve --workers` do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import lance_namespace
import pyarrow as pa
from lance_namespace import LanceNamespace
from pydantic import BaseModel

from headwater.decoding.arrow import measure_stream, read_stream
from headwater.errors import InternalError
from headwater.namespace.abilities import CatalogAbilities, abilities_of
from headwater.rest.arrow import byte_chunks, file_chunks, file_parts
from headwater.rest.body import BodySpool
from headwater.rest.call import Call
from headwater.rest.coding import make_request
from headwater.rest.routes import BY_OPERATION, Answer, BodyKind, Route
from headwater.workers import Pool
from headwater.workers.channel import Chunk
from headwater.workers.child import find

Accept = Callable[[int], None]
Chunks = Generator[bytes, None, None]
HOST = f"{__name__}:host"

OPERATIONS = frozenset(
    (
        "CreateTable", "InsertIntoTable", "MergeInsertIntoTable", "UpdateTable", "DeleteFromTable", "QueryTable",
        "CountTableRows", "ExplainTableQueryPlan", "AnalyzeTableQueryPlan", "GetTableStats", "CreateTableIndex",
        "CreateTableScalarIndex", "DescribeTableIndexStats", "AlterTableAddColumns", "AlterTableAlterColumns",
        "AlterTableBackfillColumns",
    )
)  # fmt: skip
"""Operations whose work grows with the rows, or with what a request writes into it."""


def is_data_work(route: Route) -> bool:
    return route.operation in OPERATIONS or route.body is BodyKind.ARROW or route.answer is Answer.ARROW


class Work(Protocol):
    """Does the data work of a call. `accept` is told how many bytes a body unpacks to, and may refuse them."""

    def call(self, call: Call) -> Any: ...

    def write(self, call: Call, accept: Accept) -> Any: ...

    def query(self, call: Call) -> Chunks: ...

    def by(self, author: str, namespace: LanceNamespace) -> Work:
        """The same in the name of an author, for whom `namespace` is the catalog."""
        ...


class Here:
    """In this process."""

    def __init__(self, namespace: LanceNamespace, abilities: CatalogAbilities) -> None:
        self._namespace = namespace
        self._abilities = abilities

    def call(self, call: Call) -> Any:
        return self.run(call.route, call.request)

    def write(self, call: Call, accept: Accept) -> Any:
        body = call.body.buffer if isinstance(call.body, BodySpool) else call.body
        return self.take(call.route, call.request, pa.py_buffer(body), accept)

    def query(self, call: Call) -> Chunks:
        return self.chunks(call.request)

    def by(self, author: str, namespace: LanceNamespace) -> Work:
        return Here(namespace, abilities_of(namespace))

    def run(self, route: Route, request: Any) -> Any:
        return getattr(self._namespace, route.method)(request)

    def take(self, route: Route, request: Any, body: pa.Buffer, accept: Accept | None = None) -> Any:
        can = self._abilities
        streaming = {
            "CreateTable": can.create_table_rows,
            "InsertIntoTable": can.insert_rows,
            "MergeInsertIntoTable": can.merge_rows,
        }[route.operation]
        if streaming is None:
            return getattr(self._namespace, route.method)(request, body.to_pybytes())
        return streaming(request, read_stream(body, accept))

    def chunks(self, request: Any) -> Chunks:
        if self._abilities.query_rows is not None:
            return file_chunks(self._abilities.query_rows(request))
        return byte_chunks(self._namespace.query_table(request))

    def parts(self, request: Any) -> Iterator[Chunk]:
        """The same for who copies it anyway."""
        if self._abilities.query_rows is not None:
            return file_parts(self._abilities.query_rows(request))
        return self.chunks(request)


class InWorkers:
    """In a worker of a pool, whose death is an error of this one call."""

    def __init__(self, pool: Pool, author: str | None = None) -> None:
        self._pool = pool
        self._author = author

    def by(self, author: str, namespace: LanceNamespace) -> Work:
        return InWorkers(self._pool, author)

    def call(self, call: Call) -> Any:
        return _decoded(self._run("call", call))

    def write(self, call: Call, accept: Accept) -> Any:
        body = call.body
        accept(measure_stream(body.buffer if isinstance(body, BodySpool) else body))
        file = body.file_number if isinstance(body, BodySpool) else None
        return _decoded(self._run("write", call, call.body_bytes if file is None else file))

    def query(self, call: Call) -> Chunks:
        found: Chunks = self._run("query", call)
        return found

    def _run(self, method: str, call: Call, body: Any = None) -> Any:
        request = call.request.model_dump(by_alias=True, exclude_none=True)
        arguments = {"operation": call.route.operation, "request": request, "author": self._author}
        return self._pool.run(method, arguments, body, call.route.changes, call.can_stop)

    def close(self) -> None:
        self._pool.close()


class Hosted:
    """What a worker hosts: `Here`, called with JSON."""

    def __init__(self, namespace: LanceNamespace) -> None:
        self._here = Here(namespace, abilities_of(namespace))
        self._by = abilities_of(namespace).by

    def call(self, arguments: Any, body: Any) -> Any:
        return _encoded(self._for(arguments).run(*_asked(arguments)))

    def write(self, arguments: Any, body: pa.Buffer) -> Any:
        return _encoded(self._for(arguments).take(*_asked(arguments), body))

    def _for(self, arguments: Any) -> Here:
        """What works in the name of whom the call is made for."""
        author = arguments.get("author")
        if author is None or self._by is None:
            return self._here
        namespace = self._by(author)
        return Here(namespace, abilities_of(namespace))

    def query(self, arguments: Any, body: Any) -> Iterator[Chunk]:
        return self._here.parts(_asked(arguments)[1])


def host(opener: str, target: str | None, properties: dict[str, str]) -> Hosted:
    """The catalog that `opener` ("module:function") opens, ready for data work."""
    import lance  # noqa: F401  # a spare is warm only with this done

    return Hosted(find(opener)(target, properties))


def _asked(arguments: Any) -> tuple[Route, Any]:
    route = BY_OPERATION[arguments["operation"]]
    return route, make_request(route, arguments["request"])


def _encoded(response: Any) -> dict[str, Any]:
    if isinstance(response, BaseModel):
        return {"model": type(response).__name__, "value": response.model_dump(by_alias=True, exclude_none=True)}
    return {"model": None, "value": response}


def _decoded(told: dict[str, Any]) -> Any:
    if told["model"] is None:
        return told["value"]
    model = getattr(lance_namespace, told["model"], None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise InternalError(f"A worker answered with a {str(told['model'])[:80]}, which is no answer of the protocol.")
    return model.model_validate(told["value"])
