"""The object that a data worker hosts: the server's own dispatcher over a catalog that the worker opens for itself.

A call comes as JSON with its rows beside, and stands where it stood in the server: in its transaction, at its moment,
in the name of its caller. A commit is sent back to the server, which makes one slot of those that come together.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import lance_namespace
import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.adapter import adapt
from headwater.clock import SystemClock
from headwater.imports import warm
from headwater.namespace.abilities import abilities_of
from headwater.namespace.vending import Keep
from headwater.rest.dispatch import Dispatcher
from headwater.rest.extensions import ALL_ROUTES
from headwater.rest.idempotency import Repeats
from headwater.rest.page.catalog_questions import ALL_HANDLERS, QUESTIONS
from headwater.rest.routes import Answer
from headwater.rest.settings import Limits
from headwater.rest.work import call_of, encoded
from headwater.workers.channel import ask
from headwater.workers.child import find

_ROUTES = {route.operation: route for route in (*ALL_ROUTES, *(question.route for question in QUESTIONS.values()))}


class Hosted:
    """Answers calls in a worker."""

    def __init__(self, namespace: LanceNamespace, limits: Limits) -> None:
        self._namespace = namespace
        can = abilities_of(namespace)
        if can.metastore is not None:
            can.metastore.commit_by(ask)
        self._dispatcher = Dispatcher(namespace, can, limits, Repeats(None, SystemClock()), ALL_HANDLERS, Keep())

    def answer(self, told: Any, body: pa.Buffer | None) -> Any:
        """The response to a call, with the tables whose unread rows it lacks; of rows the chunks of an Arrow file,
        behind one of JSON."""
        route = _ROUTES[told["operation"]]
        call = call_of(route, told, body)
        response = self._dispatcher.respond(call)
        beside = {"unread": sorted(call.unread)}
        if route.answer is Answer.ARROW:
            return chain((msgspec.json.encode(beside),), response)
        return encoded(response) | beside

    def is_ready(self, told: Any, body: None) -> bool:
        """Return True: a worker that is asked has opened the catalog."""
        return True

    def ask(self, told: Any, body: None) -> Any:
        """One operation of the catalog, as the server itself asks it (`FarNamespace`)."""
        request = getattr(lance_namespace, told["model"]).model_validate(told["request"])
        return encoded(getattr(self._namespace, told["method"])(request))


def host(opener: str, target: str | None, properties: dict[str, str], limits: dict[str, Any] | None = None) -> Hosted:
    """The catalog that `opener` ("module:function") opens, ready for calls."""
    warm()
    return Hosted(adapt(find(opener)(target, properties)), Limits(**(limits or {})))
