"""Old spellings: one verb is one operation of the protocol, and prints its response."""

from __future__ import annotations

import argparse
from typing import Any

import lance_namespace
import pyarrow as pa
from pydantic import ValidationError

from headwater.catalog import CatalogTable
from headwater.cli.consent import ask
from headwater.cli.files import read_rows
from headwater.cli.grammar.old import ASKS
from headwater.cli.grammar.operations import Verb, request_fields
from headwater.cli.output import show
from headwater.errors import InvalidInputError, NamespaceNotFoundError
from headwater.names import ObjectId
from headwater.namespace.row_streams import write_rows
from headwater.rest.routes import BY_OPERATION


def run(given: argparse.Namespace) -> int:
    """One operation; one that creates also makes the catalog and the namespaces above."""
    verb: Verb = given.old
    request = _request(verb, given)
    if verb.name in ASKS:
        ask(given, f"`headwater {verb.name} {given.id}` cannot be taken back everywhere.")
    rows = read_rows(given.file) if verb.data and verb.creates else None
    opening = given.target.opening
    namespace = opening.writing() if verb.creates else opening.reading()
    if verb.data and rows is None:
        rows = read_rows(given.file, CatalogTable(namespace, ObjectId(tuple(request.id))))
    try:
        answer = _call(namespace, verb, request, rows)
    except NamespaceNotFoundError:
        if not verb.creates or len(request.id) < 2:
            raise
        given.target.made().create_namespace(request.id[:-1], exist_ok=True)
        answer = _call(namespace, verb, request, rows)
    show(answer, given.json)
    return 0


def _request(verb: Verb, given: argparse.Namespace) -> Any:
    fields = request_fields(verb, given)
    model = getattr(lance_namespace, BY_OPERATION[verb.operation].request_model)
    try:
        return model.from_dict(fields)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_url=False))
        raise InvalidInputError(f"{verb.name}: {problems}") from None


def _call(namespace: Any, verb: Verb, request: Any, rows: pa.Table | None) -> Any:
    if rows is None:
        return getattr(namespace, verb.method)(request)
    return write_rows(namespace, verb.method, request, rows.to_reader())
