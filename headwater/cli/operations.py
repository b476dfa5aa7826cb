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
    "DeclareTable": lambda args: {"location": args.location, "properties": dict(args.set) or None},
    "RegisterTable": lambda args: {
        "location": args.location, "mode": args.mode, "properties": dict(args.set) or None
    },
    "DeregisterTable": lambda args: {},
    "ExplainTableQueryPlan": lambda args: {
        "query": {"k": 10, "vector": {}, "filter": args.where}, "verbose": args.verbose or None
    },
    "AnalyzeTableQueryPlan": lambda args: {"k": 10, "vector": {}, "filter": args.where},
    "DescribeTableVersion": lambda args: {"version": args.version, "branch": args.branch},
    "BatchDeleteTableVersions": lambda args: {"ranges": args.versions, "branch": args.branch},
    "UpdateTableSchemaMetadata": lambda args: {"metadata": dict(args.set), "branch": args.branch},
    "DescribeTransaction": lambda args: {},
}  # fmt: skip
"""The fields of each request, from the arguments of its verb."""


def run(args: argparse.Namespace) -> int:
    """Call one operation. DeclareTable also makes the catalog and the namespaces above the table."""
    request, method = _request(args), BY_OPERATION[args.operation].method
    if args.operation == "BatchDeleteTableVersions":
        ask(args, f"This will delete the records of versions of {args.id}, in some catalogs for good.")
    creates = args.operation == "DeclareTable"
    namespace = args.target.opening.writing() if creates else args.target.opening.reading()
    try:
        answer = getattr(namespace, method)(request)
    except NamespaceNotFoundError:
        if not creates or len(request.id) < 2:
            raise
        args.target.made().create_namespace(request.id[:-1], exist_ok=True)
        answer = getattr(namespace, method)(request)
    show(answer, args.json)
    return 0


def _request(args: argparse.Namespace) -> Any:
    named = args.name_of(args.id)
    if not named:
        raise InvalidInputError(f"`headwater {args.command.name}` needs the name of a table.")
    fields = {name: value for name, value in FIELDS[args.operation](args).items() if value is not None}
    try:
        return getattr(api, BY_OPERATION[args.operation].request_model).from_dict({"id": list(named), **fields})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_url=False))
        raise InvalidInputError(f"{args.command.name}: {problems}") from None
