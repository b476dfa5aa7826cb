"""Rows out: query, explain, analyze, count (lance-rest-openapi.yaml, QueryTable).

A query is a vector search, a full-text search or a plain scan. `k` is the number of results to return and `offset`
the number to skip before them, in all three; `k` 0 means Lance's own default: 10 for a vector search, else no limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import lance_namespace as api
import pyarrow as pa
from lance_namespace_urllib3_client.models.query_table_request_columns import QueryTableRequestColumns

from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.namespace.data.fulltext import full_text_query
from headwater.namespace.requests import check_vectors
from headwater.tables.columns.fields import SYSTEM_COLUMNS, dimension, find_field, is_multivector, require_field
from headwater.tables.expressions import check_sql
from headwater.tables.handle import TableHandle
from headwater.tables.scan.prune import FIRST_ROWS, row_windows
from headwater.tables.translate import translating
from headwater.tables.write.arrow import to_file

DEFAULT_K = 10
DEFAULT_VECTOR_COLUMN = "vector"
MAX_ROWS = 2**62
MAX_NEIGHBOURS = 1_000_000
"""How many rows a vector or full-text search may be asked for, those that are skipped and refined included."""
MAX_EFFORT = {
    "nprobes": 65_536,
    "minimum_nprobes": 65_536,
    "maximum_nprobes": 65_536,
    "refine_factor": 1000,
    "ef": 65_536,
}
"""How hard a search may be asked to look."""
MAX_ALIASES = 1000
DISTANCES = ("l2", "euclidean", "cosine", "dot", "hamming")

READ_AHEAD_BYTES = 16 * 1024 * 1024
"""What a scan may read before it is asked for; Lance's own default is 2 GiB, which nobody may be there to take."""
BATCH_BYTES = 1024 * 1024

Query: TypeAlias = "api.QueryTableRequest | api.AnalyzeTableQueryPlanRequest"


def query_table(table: TableHandle, request: api.QueryTableRequest) -> api.QueryTableResponse:
    """QueryTable: the results as an Arrow IPC file. Errors 11 version, 12 column, 13 InvalidInput, 19, 22 branch."""
    reader = query_batches(table, request)
    return api.QueryTableResponse(data=to_file(reader))


def query_batches(table: TableHandle, request: api.QueryTableRequest) -> pa.RecordBatchReader:
    """QueryTable with the results as they are found. An error met on the way is a named one too."""
    dataset, options = _plan(table, request, request.branch)
    with translating(table, "query"):
        if _is_plain(options) and not _is_small(options):
            schema, batches = _in_windows(dataset, options)
        else:
            reader = dataset.scanner(**options).to_reader()
            schema, batches = reader.schema, iter(reader)
    return pa.RecordBatchReader.from_batches(schema, _translated(table, batches))


def _is_plain(options: Mapping[str, object]) -> bool:
    """Return True if the rows are those of the table, in its order: neither filtered nor searched for."""
    return not any(options.get(name) for name in ("filter", "nearest", "full_text_query"))


def _is_small(options: Mapping[str, Any]) -> bool:
    """Return True if all the rows asked for are one window at most."""
    return options["limit"] is not None and options["limit"] <= FIRST_ROWS


def _in_windows(dataset: lance.LanceDataset, options: Mapping[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    kept = {name: value for name, value in options.items() if name not in ("offset", "limit")}
    total, start = dataset.count_rows(), options["offset"] or 0
    stop = total if options["limit"] is None else min(total, start + options["limit"])

    def scan(offset: int, limit: int) -> lance.LanceScanner:
        return dataset.scanner(offset=offset, limit=limit, **kept)

    return scan(0, 1).projected_schema, row_windows(scan, start, stop)


def _translated(table: TableHandle, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        with translating(table, "query"):
            try:
                batch = next(batches)
            except StopIteration:
                return
        yield batch


def explain_table_query_plan(table: TableHandle, request: api.ExplainTableQueryPlanRequest) -> str:
    """ExplainTableQueryPlan: the plan as text; nothing is read but what planning needs."""
    scanner = make_scanner(table, request.query, request.branch or request.query.branch)
    with translating(table, "explain a query of"):
        return _without_place(table, scanner.explain_plan(verbose=bool(request.verbose)))


def analyze_table_query_plan(table: TableHandle, request: api.AnalyzeTableQueryPlanRequest) -> str:
    """AnalyzeTableQueryPlan: the plan with what running it took."""
    scanner = make_scanner(table, request, request.branch)
    with translating(table, "analyze a query of"):
        return _without_place(table, scanner.analyze_plan())


def _without_place(table: TableHandle, plan: str) -> str:
    """A plan names the data's place; a caller is told the table instead."""
    path = table.uri.split("://", 1)[-1].strip("/")
    return plan.replace("/" + path, str(table.id)).replace(path, str(table.id))


def count_table_rows(table: TableHandle, request: api.CountTableRowsRequest) -> api.CountTableRowsResponse:
    """CountTableRows: errors 11 version, 12 column, 13 InvalidInput, 19, 22 branch."""
    predicate = check_sql("predicate", request.predicate)
    dataset = table.open(request.version, request.branch)
    with translating(table, "count the rows of"):
        return api.CountTableRowsResponse(count=dataset.count_rows(predicate))


def make_scanner(table: TableHandle, query: Query, branch: str | None) -> lance.LanceScanner:
    """Return the scan that a query asks for, checked before anything is read."""
    dataset, options = _plan(table, query, branch)
    with translating(table, "query"):
        return dataset.scanner(**options)


def _plan(table: TableHandle, query: Query, branch: str | None) -> tuple[lance.LanceDataset, dict[str, Any]]:
    """Return the table's data, and the options of the scan that a query asks for."""
    skip = _count("offset", query.offset) or 0
    count = _count("k", query.k)
    where = check_sql("filter", query.filter)
    _check_search(query)
    dataset = table.open(query.version, branch)
    options: dict[str, Any] = {
        "columns": _columns(dataset.schema, query.columns),
        "filter": where,
        "prefilter": bool(query.prefilter),
        "with_row_id": bool(query.with_row_id),
        "fast_search": bool(query.fast_search),
        "offset": skip or None,
        "io_buffer_size": READ_AHEAD_BYTES,
        "batch_size_bytes": BATCH_BYTES,
    }
    with translating(table, "query"):
        vectors = query_vectors(query)
        if vectors is not None:
            if query.full_text_query is not None:
                raise InvalidInputError("A query has a vector or full_text_query, not both: ask twice and join.")
            nearest = _nearest(dataset, query, vectors, count or DEFAULT_K, skip)
            return dataset, {**options, "nearest": nearest}
        if query.full_text_query is not None and query.full_text_query.model_dump(exclude_none=True):
            options["full_text_query"] = full_text_query(dataset, query.full_text_query)
            _check_neighbours(query, min((count or DEFAULT_K) + skip, dataset.count_rows()), 1)
        return dataset, {**options, "limit": count or None}


def _nearest(
    dataset: lance.LanceDataset, query: Query, vectors: list[list[float]], count: int, skip: int
) -> dict[str, Any]:
    column, field = vector_column(dataset.schema, query.vector_column)
    check_dimension(column, field, vectors)
    many = len(vectors) > 1 and not is_multivector(field.type)
    if many and skip:
        raise InvalidInputError("offset cannot be used with several query vectors: leave it out.")
    k = max(1, min(count + skip, dataset.count_rows()))
    _check_neighbours(query, k, len(vectors))
    return {
        "column": column,
        "q": vectors if many or is_multivector(field.type) else vectors[0],
        "k": k,
        "metric": query.distance_type.lower() if query.distance_type else None,
        "refine_factor": query.refine_factor,
        "use_index": not query.bypass_vector_index,
        "ef": query.ef,
        "distance_range": _bounds(query),
        **_probes(query),
    }


def query_vectors(query: Query) -> list[list[float]] | None:
    """Return the vectors to search for; None when there are none and the query is no vector search."""
    if query.vector is None:
        return None
    single, several = query.vector.single_vector, query.vector.multi_vector
    if single and several:
        raise InvalidInputError("vector holds one of single_vector and multi_vector.")
    vectors = [single] if single else list(several or [])
    check_vectors(vectors)
    if not all(math.isfinite(value) for vector in vectors for value in vector):
        raise InvalidInputError("The values of a query vector are finite numbers: leave out infinity and NaN.")
    return [[float(value) for value in vector] for vector in vectors] or None


def vector_column(schema: pa.Schema, path: str | None) -> tuple[str, pa.Field[Any]]:
    """Return the column to search: the one named, else `vector`, else the only vector column."""
    if path is not None:
        return require_field(schema, path)
    found = find_field(schema, DEFAULT_VECTOR_COLUMN)
    if found is not None:
        return found
    candidates = [field for field in schema if dimension(field.type) is not None]
    if len(candidates) != 1:
        names = ", ".join(field.name for field in candidates) or "none"
        raise InvalidInputError(f"vector_column is missing: name the column to search (vector columns: {names}).")
    return candidates[0].name, candidates[0]


def check_dimension(column: str, field: pa.Field[pa.DataType], vectors: list[list[float]]) -> None:
    size = dimension(field.type)
    if size is None:
        raise InvalidInputError(f"The column {column!r} holds no vectors: it is {field.type}.")
    for vector in vectors:
        if len(vector) != size:
            raise InvalidInputError(f"The vectors of {column!r} have {size} values, the query vector {len(vector)}.")


def _check_search(query: Query) -> None:
    for name, most in MAX_EFFORT.items():
        value = getattr(query, name)
        if value is not None and not 1 <= value <= most:
            raise InvalidInputError(f"{name} must be between 1 and {most}, not {value}.")
    if query.distance_type is not None and query.distance_type.lower() not in DISTANCES:
        raise InvalidInputError(f"distance_type must be one of {', '.join(DISTANCES)}.")


def _check_neighbours(query: Query, k: int, searches: int) -> None:
    """A search holds what it finds in memory; a plain scan does not, and may be as long as it likes."""
    wanted = k * (query.refine_factor or 1) * searches
    if wanted > MAX_NEIGHBOURS:
        raise InvalidInputError(
            f"The search asks for {wanted} rows (k and offset, times refine_factor and the vectors); at most "
            f"{MAX_NEIGHBOURS} can be found at once: ask for fewer."
        )


def _probes(query: Query) -> dict[str, int]:
    """`nprobes` counts only when neither of the bounds is given (lance-rest-openapi.yaml)."""
    low, high = query.minimum_nprobes, query.maximum_nprobes
    if low is None and high is None:
        return {} if query.nprobes is None else {"nprobes": query.nprobes}
    if low is not None and high is not None and low > high:
        raise InvalidInputError("minimum_nprobes is greater than maximum_nprobes.")
    bounds = {"minimum_nprobes": low, "maximum_nprobes": high}
    return {name: value for name, value in bounds.items() if value is not None}


def _bounds(query: Query) -> tuple[float | None, float | None] | None:
    low, high = query.lower_bound, query.upper_bound
    if low is None and high is None:
        return None
    for value in (low, high):
        if value is not None and not math.isfinite(value):
            raise InvalidInputError("lower_bound and upper_bound are finite numbers.")
    return (None if low is None else float(low), None if high is None else float(high))


def _columns(schema: pa.Schema, asked: QueryTableRequestColumns | None) -> list[str] | dict[str, str] | None:
    if asked is None or (asked.column_names is None and asked.column_aliases is None):
        return None
    if asked.column_names is not None and asked.column_aliases is not None:
        raise InvalidInputError("columns holds one of column_names and column_aliases.")
    if len(asked.column_aliases or {}) > MAX_ALIASES:
        raise InvalidInputError(f"columns has more than {MAX_ALIASES} expressions.")
    if asked.column_aliases is not None:
        return {_alias(name): check_sql("columns", text) or "" for name, text in asked.column_aliases.items()}
    return [_column(schema, path) for path in asked.column_names or []]


def _alias(name: str) -> str:
    if not name:
        raise InvalidInputError("columns has an empty name.")
    return name


def _column(schema: pa.Schema, path: str) -> str:
    if path in SYSTEM_COLUMNS:
        return path
    return require_field(schema, path)[0]


def _count(field: str, value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_ROWS:
        raise InvalidInputError(f"{field} must be a whole number between 0 and {MAX_ROWS}, not {value!r}.")
    return value
