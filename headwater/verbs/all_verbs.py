"""The whole table of verbs, and how a row reads its request and describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError
from headwater.namespace.abilities import abilities_of
from headwater.verbs import catalog, object_verbs, streams, table_versions
from headwater.verbs.verb import VERBS, Verb, VerbRequest, VerbSession

MODULES = (streams, catalog, object_verbs, table_versions)
"""The modules whose import fills the table."""
BY_OPERATION: dict[str, Verb] = {row.operation: row for row in VERBS.values()}


def row_of(request: VerbRequest) -> Verb:
    """Return the row of a request."""
    return VERBS[type(request)]


def answer(session: VerbSession, request: VerbRequest) -> Any:
    """Return what the handler of a request answers in a session."""
    return row_of(request).handler(session, request)


def ask(namespace: LanceNamespace, request: VerbRequest, rows: pa.Table | None = None) -> Any:
    """Return the answer to a request of the catalog in this process, or of the server that it is behind."""
    call = abilities_of(namespace).call
    if call is not None:
        return call(request, rows)
    return answer(VerbSession(namespace, rows=None if rows is None else rows.to_reader), request)


def read_request(row: Verb, fields: Mapping[str, object]) -> VerbRequest:
    """Return the request of these fields. Raise InvalidInput (13) for a field that is missing or of another type."""
    try:
        return msgspec.convert(fields, row.request, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{row.operation}: {_problem(str(error))}.") from None


def _problem(text: str) -> str:
    """Return the sentence of a validation error, with the field where clients look for it, at its beginning."""
    problem, at, path = text.partition(" - at `$.")
    return f"{path.removesuffix('`')}: {problem}" if at else problem.replace("Object missing", "there is no")


def fields_of(row: Verb) -> dict[str, Any]:
    """Return the types of the fields of a request, by name, without its id."""
    return {name: kind for name, kind in get_type_hints(row.request).items() if name != "id"}


def schema_of(row: Verb) -> dict[str, Any]:
    """Return the JSON schema of a request."""
    whole = msgspec.json.schema(row.request)
    found: dict[str, Any] = whole["$defs"][row.operation]
    return {key: value for key, value in found.items() if key != "title"}
