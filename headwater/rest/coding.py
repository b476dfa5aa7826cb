"""From the text of a request to a request model, and from a response to bytes. Pure: no socket, no catalog.

How released clients speak: the id is percent-encoded with `+` for a space (pylance) or `%20` (the generated
client); the delimiter is always a query parameter; Arrow bodies take their parameters from the query string
or from `x-lance-table-*` headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, unquote, unquote_plus

import lance_namespace
import msgspec
from lance_namespace import LanceNamespace
from pydantic import BaseModel, ValidationError

from headwater.adapter import TABLE_WORK, AdaptedNamespace
from headwater.errors import InvalidInputError
from headwater.names import DELIMITER, ROOT, ObjectId, check_delimiter, parse
from headwater.namespace.requests import PageRequest, with_ignore_missing
from headwater.namespace.vending.decision import without_headers
from headwater.rest.call import Call
from headwater.rest.remote_client import read_shapes
from headwater.rest.routes import ROUTES, Answer, BodyKind, Param, ParameterKind, Route, RouteTarget
from headwater.verbs.all_verbs import BY_OPERATION as VERB_ROWS
from headwater.verbs.all_verbs import read_request

JSON = b"application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"
ARROW_FILE = b"application/vnd.apache.arrow.file"
TABLE_HEADER = "x-lance-table-"
MAX_QUERY_FIELDS = 256
REMEMBERED_CHARS = 256
MAX_SHOWN = 150
MAX_PROBLEMS = 100
MAX_COMMAS = 1 << 20
"""Of a JSON body: a bound of its values that costs nothing to find. Query vectors have the most."""

_LISTS = frozenset({"ListTableIndices", *(r.operation for r in ROUTES if any(p.name == "limit" for p in r.query))})
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def read_query(text: str) -> dict[str, list[str]]:
    """Return the query string as lists of values by name; short ones, which callers repeat, are remembered."""
    if not text:
        return {}
    return _remembered_query(text) if len(text) <= REMEMBERED_CHARS else _parse_query(text)


def _parse_query(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        raise InvalidInputError(f"The query string cannot be read: {error}.") from None


_remembered_query = lru_cache(1024)(_parse_query)


def read_json(data: bytes) -> dict[str, object]:
    """Return the JSON object of a body; an empty body and `null`, which LanceDB sends, are an empty object."""
    if not data:
        return {}
    if len(data) > MAX_COMMAS and data.count(b",") > MAX_COMMAS:
        raise InvalidInputError(f"The body has more than {MAX_COMMAS} values: send it in parts.")
    try:
        value = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidInputError(f"The body is not valid JSON: {error}.") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInputError("The body must be a JSON object.")
    return value


def read_delimiter(query: Mapping[str, list[str]]) -> str:
    """Return the delimiter of a request: a query parameter, `$` when absent (components/parameters/delimiter)."""
    delimiter = query.get("delimiter", [DELIMITER])[-1] or DELIMITER
    check_delimiter(delimiter)
    return delimiter


def read_id(raw: str, delimiter: str, body_id: object = None) -> ObjectId:
    """Return the route's id. A raw `+` is a space, as pylance writes it, unless the body's id says it is a plus.

    A body id, if present, must equal the route's.
    """
    found = _remembered_id(raw, delimiter) if len(raw) <= REMEMBERED_CHARS else _parse_id(raw, delimiter)
    if body_id is None:
        return found
    if not isinstance(body_id, list) or not all(isinstance(name, str) for name in body_id):
        raise InvalidInputError("The body's id must be a list of names.")
    if list(found.names) == body_id:
        return found
    if "+" in raw:
        found = _parse_encoded(unquote, raw, delimiter)
        if list(found.names) == body_id:
            return found
    said, named = repr(body_id)[:MAX_SHOWN], repr(list(found.names))[:MAX_SHOWN]
    raise InvalidInputError(f"The body's id {said} is not the id of the route, {named}.")


def _parse_id(raw: str, delimiter: str) -> ObjectId:
    return _parse_encoded(unquote_plus, raw, delimiter)


_remembered_id = lru_cache(8192)(_parse_id)


def _parse_encoded(decode: Any, raw: str, delimiter: str) -> ObjectId:
    try:
        text = decode(raw, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInputError("The id in the route is not valid percent-encoded UTF-8.") from None
    return parse(text, delimiter)


def read_ids(call: Call) -> tuple[ObjectId, ...]:
    """The ways to read a route's id before its body is there: two, when it has a `+` (see `read_id`)."""
    if call.route.target is RouteTarget.NONE:
        return (ROOT,)
    delimiter = read_delimiter(read_query(call.query))
    found = read_id(call.raw_id, delimiter)
    return (found, _parse_encoded(unquote, call.raw_id, delimiter)) if "+" in call.raw_id else (found,)


def read_call(call: Call, body: dict[str, object], max_page: int) -> None:
    """Understand a call: fill in its id, delimiter and request model, from path, query, headers and JSON body."""
    route, query = call.route, read_query(call.query)
    call.delimiter = read_delimiter(query)
    fields: dict[str, object] = {"metadata": body} if route.body is BodyKind.MAP else dict(body)
    fields.pop("identity", None)
    call.id = ROOT
    if route.target is not RouteTarget.NONE:
        call.id = read_id(call.raw_id, call.delimiter, fields.get("id") if route.body is not BodyKind.MAP else None)
        if call.id.is_root and route.target is not RouteTarget.NAMESPACE:
            raise InvalidInputError(f"{route.operation} needs the id of a {route.target.value}, not the root.")
        fields["id"] = list(call.id.names)
    if call.raw_index is not None:
        fields["index_name"] = unquote_plus(call.raw_index)
    _fill(fields, read_params(route, query, call.headers))
    _clamp(route, fields, max_page)
    call.request = without_headers(make_request(route, fields))


def read_params(route: Route, query: Mapping[str, list[str]], headers: Mapping[str, str]) -> dict[str, object]:
    """Return the query parameters of a route as values; beside Arrow bodies, `x-lance-table-*` headers."""
    found: dict[str, object] = {}
    for param in route.query:
        values = query.get(param.name)
        if values is None and route.body is BodyKind.ARROW:
            header = headers.get(TABLE_HEADER + param.name.replace("_", "-"))
            values = [header] if header is not None else None
        if values is not None:
            found[param.name] = _value(param, values)
        elif param.required:
            raise InvalidInputError(f"{route.operation} needs the query parameter {param.name!r}.")
    return found


def _value(param: Param, values: list[str]) -> object:
    text = values[-1]
    if param.kind is ParameterKind.TEXT:
        return text
    if param.kind is ParameterKind.LIST:
        return values
    if param.kind is ParameterKind.BOOL:
        return _bool(param.name, text)
    if param.kind is ParameterKind.INT:
        return _int(param.name, text)
    return _map(param.name, text)


def _bool(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidInputError(f"The parameter {name} must be true or false, not {text[:40]!r}.")
    return text.lower() == "true"


def _int(name: str, text: str) -> int | None:
    if text == "":
        return None
    if len(text) > 19 or not text.lstrip("-").isascii() or not text.lstrip("-").isdigit():
        raise InvalidInputError(f"The parameter {name} must be a whole number, not {text[:40]!r}.")
    return int(text)


def _map(name: str, text: str) -> dict[str, object]:
    try:
        value = _decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInputError(f"The parameter {name} must be a JSON object of strings.")
    return value


def _fill(fields: dict[str, object], params: Mapping[str, object]) -> None:
    for name, value in params.items():
        if fields.get(name) is None:
            fields[name] = value


def _clamp(route: Route, fields: dict[str, object], max_page: int) -> None:
    """A page is never larger than the server's limit; the rest comes with the page token."""
    if route.operation not in _LISTS:
        return
    limit = fields.get("limit")
    if limit is None:
        fields["limit"] = max_page
    elif isinstance(limit, int) and limit < 1:
        raise InvalidInputError(f"limit must be a positive whole number, not {limit}.")
    elif isinstance(limit, int):
        fields["limit"] = min(limit, max_page)
    if fields.get("page_token") == "":
        fields["page_token"] = None


def make_request(route: Route, fields: dict[str, object]) -> object:
    """Return the request model; a field that does not fit it is InvalidInput (13)."""
    row = VERB_ROWS.get(route.request or route.operation)
    if row is not None:
        return read_request(row, fields)
    read_shapes(fields)
    model = PageRequest if route.verb == "PAGE" else getattr(lance_namespace, route.request_model)
    try:
        return model.model_validate(with_ignore_missing(fields))
    except ValidationError as error:
        raise InvalidInputError(f"{route.operation}: {'; '.join(_problems(error))}.") from None
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError):
        raise InvalidInputError(f"{route.operation}: a field of the request does not have the right shape.") from None


def _problems(error: ValidationError) -> Iterable[str]:
    if error.error_count() > MAX_PROBLEMS:  # a list of them would take seconds
        yield f"{error.error_count()} values of the request are not of the right type"
        return
    for problem in error.errors(include_url=False, include_input=False, include_context=False)[:5]:
        where = ".".join(str(part)[:MAX_SHOWN] for part in problem["loc"][:8])[:MAX_SHOWN]
        said = problem["msg"][:MAX_SHOWN]
        yield f"{where}: {said}" if where else said


def write_answer(route: Route, response: Any) -> bytes:
    """Return the bytes of a response that is not Arrow, in the shape that the document gives to it."""
    if route.answer is Answer.EMPTY:
        return b""
    if route.answer is Answer.NUMBER:
        return str(int(getattr(response, "count", response))).encode()
    if route.answer is Answer.TEXT:
        return _encode(_text(response))
    if route.answer is Answer.MAP:
        return _encode(getattr(response, "metadata", response) or {})
    if isinstance(response, BaseModel):
        return response.__pydantic_serializer__.to_json(response, exclude_none=True, by_alias=True)
    return _encode({key: value for key, value in dict(response or {}).items() if value is not None})


def _text(response: object) -> str:
    for name in ("plan", "analysis"):
        if isinstance(getattr(response, name, None), str):
            return str(getattr(response, name))
    return str(response)


def encode_json(value: object) -> bytes:
    return _encode(value)


def implements(namespace: LanceNamespace, method: str) -> bool:
    """Return True if a catalog implements an operation; the interface alone refuses it.

    Rows of a back end that describes tables are worked on at the location that it tells.
    """
    if isinstance(namespace, AdaptedNamespace) and method in TABLE_WORK:
        return implements(namespace, "describe_table")
    kind = type(namespace.adapted if isinstance(namespace, AdaptedNamespace) else namespace)
    return getattr(kind, method, None) is not getattr(LanceNamespace, method, None)
