"""The dialect of LanceDB's remote client: `lancedb.connect("db://...", host_override=...)`, in Python and TypeScript.

The client calls the routes of the Lance REST document, and writes some requests and reads some answers in shapes of
its own. The shapes of its requests are accepted from everybody; its answers are sent to this client alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from headwater.errors import ErrorCode, InvalidTableStateError, UnsupportedOperationError
from headwater.names import DELIMITER
from headwater.namespace.requests import DELETED_ROWS, LANCE_TYPES, check_vectors
from headwater.paging import token_after
from headwater.rest.call import Call
from headwater.rest.routes import BY_OPERATION, Route

if TYPE_CHECKING:
    from headwater.rest.reply import Reply

DATABASE = "x-lancedb-database"
"""The header that only this client sends: the name in its `db://` address. A server has one catalog, so any will do."""
LEVEL = ((b"phalanx-version", b"0.3.0"),)
"""The level of LanceDB's protocol that the server has: structured full-text queries and several vectors in a request.

Not uploads in parts (0.4) nor blobs (0.5).
"""
NO_LIMIT = 2**63 - 1
MOST_ROWS = 2**62
UNPAGED = frozenset({"ListTableTags", "ListTableVersions", "ListTableIndices", "ListTableBranches"})
"""Lists that the client reads in one request, without a page token: it would lose what a first page leaves out."""
SHAPED = frozenset({"ListTableTags", "ListTableVersions", "UpdateTable", "DeleteFromTable"})
FINAL = frozenset(
    {
        ErrorCode.TABLE_ALREADY_EXISTS,
        ErrorCode.TABLE_INDEX_ALREADY_EXISTS,
        ErrorCode.TABLE_TAG_ALREADY_EXISTS,
        ErrorCode.INVALID_TABLE_STATE,
    }
)
"""Conflicts with what exists, which a repetition does not mend."""
INDEX_DEFAULTS: dict[str, object] = {
    "lance_tokenizer": None, "custom_stop_words": None, "min_ngram_length": 3, "max_ngram_length": 3,
    "prefix_only": False, "index_operators": False, "preserve_original": False, "split_identifiers": False,
    "split_on_numerics": False, "block_size": 128,
}  # fmt: skip
"""Options of a full-text index that the client always sends and the document does not have."""
ALL_TABLES = BY_OPERATION["ListAllTables"]


def is_remote(call: Call) -> bool:
    """Return True for a request of LanceDB's remote client."""
    return DATABASE in call.headers


def reroute(call: Call) -> None:
    """Make the list of all tables that of the root namespace: the client refuses names with a delimiter in them."""
    if call.route is ALL_TABLES:
        call.route, call.raw_id = BY_OPERATION["ListTables"], DELIMITER


def read_shapes(fields: dict[str, object]) -> None:
    """Rewrite the fields of a request from the client's shapes into those of the document, in place."""
    for query in (fields, fields.get("query")):  # a plan is asked for with a query inside
        if isinstance(query, dict):
            _read_query(query)
    if "index_type" in fields:
        _read_index(fields)
    if isinstance(fields.get("on"), str):
        fields["on"] = [fields["on"]]
    if "new_namespace" in fields:
        fields.setdefault("new_namespace_id", fields.pop("new_namespace"))


def _read_query(fields: dict[str, object]) -> None:
    vector, columns, words = fields.get("vector", ...), fields.get("columns"), fields.get("full_text_query")
    if vector is None:  # required and may be null (QueryTableRequest); the model takes an empty one for null
        fields["vector"] = {}
    elif isinstance(vector, list):
        many = bool(vector) and isinstance(vector[0], list)
        fields["vector"] = {"multi_vector" if many else "single_vector": vector} if vector else {}
    vector = fields.get("vector")
    if isinstance(vector, dict):  # before the model looks at each number
        single, several = vector.get("single_vector"), vector.get("multi_vector")
        check_vectors([single] if single else several if isinstance(several, list) else [])
    if isinstance(words, dict) and "query" in words:
        structured = isinstance(words["query"], dict)
        kept = words if words.get("columns") else {"query": words["query"]}
        fields["full_text_query"] = {"structured_query": words} if structured else {"string_query": kept}
    if "k" not in fields:
        return
    if fields.get("order_by"):
        raise UnsupportedOperationError("order_by is not supported by this server: order the rows that come back.")
    if fields["k"] == NO_LIMIT:
        fields["k"] = MOST_ROWS
    if fields.get("maximum_nprobes") == 0:  # as many as there are
        fields["maximum_nprobes"] = None
    if isinstance(columns, list):
        fields["columns"] = {"column_names": columns}
    elif isinstance(columns, dict) and columns.keys().isdisjoint(("column_names", "column_aliases")):
        fields["columns"] = {"column_aliases": columns}


def _read_index(fields: dict[str, object]) -> None:
    if fields.get("distance_type") is None and "metric_type" in fields:
        fields["distance_type"] = fields["metric_type"]
    for name, default in INDEX_DEFAULTS.items():
        if fields.get(name, default) != default:
            raise UnsupportedOperationError(f"The index option {name} is not supported by this server: leave it out.")


def completed(call: Call) -> Any:
    """Return the request with what the client leaves out and needs in the answer."""
    request, update = call.request, dict[str, Any]()
    if call.operation == "DescribeTable":
        update = {"load_detailed_metadata": True, "context": {**(request.context or {}), **LANCE_TYPES}}
    elif call.operation in UNPAGED:
        update = {"limit": None}
    elif call.operation == "ListTables" and call.path.startswith(ALL_TABLES.path) and request.page_token:
        update = {"page_token": token_after(request.page_token)}  # `table_names` continues after a name
    return request.model_copy(update=update) if update else request


def shaped(route: Route, response: Any) -> object:
    """Return an answer in the shape that the client reads. It has no word for a table without a version: error 19."""
    if route.operation == "DescribeTable" and response.version is None:
        raise InvalidTableStateError("The table is declared and has no version yet: write it first.")
    if route.operation not in SHAPED or not isinstance(response, BaseModel):
        return response
    answer = response.model_dump(by_alias=True, exclude_none=True)
    if route.operation == "ListTableTags":
        return answer["tags"]
    if route.operation == "ListTableVersions":
        answer["versions"].sort(key=lambda each: each["version"])
    elif route.operation == "UpdateTable":
        answer["rows_updated"] = answer["updated_rows"]
    else:
        answer[DELETED_ROWS] = int(answer.pop("context", {}).get(DELETED_ROWS, 0))
    return answer


def refused(reply: Reply) -> Reply:
    """Return an error with the status by which the client knows it: it repeats a 409 and hides the reason."""
    return replace(reply, status=400) if reply.code in FINAL else reply
