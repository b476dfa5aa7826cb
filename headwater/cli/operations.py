"""Verbs that are one operation of the protocol: the line as its request, and its response printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import lance_namespace as api
from pydantic import ValidationError

from headwater.cli.consent import ask
from headwater.cli.output import show
from headwater.errors import InvalidInputError, NamespaceNotFoundError
from headwater.rest.routes import BY_OPERATION

Fields = dict[str, Any]
FIELDS: dict[str, Callable[[argparse.Namespace], Fields]] = {
    "DeclareTable": lambda given: {"location": given.location, "properties": dict(given.set) or None},
    "RegisterTable": lambda given: {
        "location": given.location, "mode": given.mode, "properties": dict(given.set) or None
    },
    "DeregisterTable": lambda given: {},
    "ExplainTableQueryPlan": lambda given: {
        "query": {"k": 10, "vector": {}, "filter": given.where}, "verbose": given.verbose or None
    },
    "AnalyzeTableQueryPlan": lambda given: {"k": 10, "vector": {}, "filter": given.where},
    "DescribeTableVersion": lambda given: {"version": given.version, "branch": given.branch},
    "BatchDeleteTableVersions": lambda given: {"ranges": given.versions, "branch": given.branch},
    "UpdateTableSchemaMetadata": lambda given: {"metadata": dict(given.set), "branch": given.branch},
    "DescribeTransaction": lambda given: {},
}  # fmt: skip
"""The fields of each request, from the arguments of its verb."""


def run(given: argparse.Namespace) -> int:
    """Call one operation. DeclareTable also makes the catalog and the namespaces above the table."""
    request, method = _request(given), BY_OPERATION[given.operation].method
    if given.operation == "BatchDeleteTableVersions":
        ask(given, f"`headwater delete-versions {given.id}` cannot be taken back everywhere.")
    creates = given.operation == "DeclareTable"
    namespace = given.target.opening.writing() if creates else given.target.opening.reading()
    try:
        answer = getattr(namespace, method)(request)
    except NamespaceNotFoundError:
        if not creates or len(request.id) < 2:
            raise
        given.target.made().create_namespace(request.id[:-1], exist_ok=True)
        answer = getattr(namespace, method)(request)
    show(answer, given.json)
    return 0


def _request(given: argparse.Namespace) -> Any:
    named = given.name_of(given.id)
    if not named:
        raise InvalidInputError(f"`headwater {given.command.name}` needs the name of a table.")
    fields = {name: value for name, value in FIELDS[given.operation](given).items() if value is not None}
    try:
        return getattr(api, BY_OPERATION[given.operation].request_model).from_dict({"id": list(named), **fields})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_url=False))
        raise InvalidInputError(f"{given.command.name}: {problems}") from None
