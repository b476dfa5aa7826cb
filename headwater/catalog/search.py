"""Searches as requests, and two searches joined into one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headwater.arguments import check_options
from headwater.errors import InvalidInputError
from headwater.tables.columns.fields import ROW_ID

RANK_OFFSET = 60
"""Reciprocal rank fusion: a row at rank r of a search gets 1 / (60 + r), and the searches are added up."""
RELEVANCE = "_relevance"
DEPTH = 10
OPTIONS = (
    *("bypass_vector_index", "distance_type", "ef", "fast_search", "lower_bound", "upper_bound", "nprobes", "offset"),
    *("maximum_nprobes", "minimum_nprobes", "refine_factor", "prefilter", "with_row_id", "version"),
)
"""Options of QueryTable that a search passes on."""
DEEPER = 4
"""Each of two searches looks this many times deeper than the answer is long."""


def search_request(
    vector: Sequence[float] | None = None,
    text: str | None = None,
    column: str | None = None,
    k: int = 10,
    filter: str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the fields of a QueryTable request for one search. Its filter applies before the search."""
    check_options(options, OPTIONS, "A search")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInputError(f"k is how many rows to find, at least 1, not {k!r}.")
    asked: dict[str, Any] = {"k": k, "filter": filter, "prefilter": True, **options}
    if columns is not None:
        asked["columns"] = {"column_names": list(columns)}
    if vector is not None:
        asked["vector"] = {"single_vector": _numbers(vector)}
        asked["vector_column"] = column
    else:
        words: dict[str, Any] = {"query": text}
        if column is not None:
            words["columns"] = [column]
        asked["full_text_query"] = {"string_query": words}
    return asked


def _numbers(vector: Any) -> list[float]:
    try:
        return [float(item) for item in vector]
    except (TypeError, ValueError):
        raise InvalidInputError(f"A vector is a list of numbers, not {str(vector)[:80]!r}.") from None


def depth(k: int | None, limit: int | None) -> int:
    """Return the number of rows that a search finds: `k`, or its other name `limit`; 10 by default."""
    if k is not None and limit is not None and k != limit:
        raise InvalidInputError(f"k and limit are one option, and are given as {k!r} and {limit!r}: give one of them.")
    return next((each for each in (k, limit) if each is not None), DEPTH)


def hybrid(search: Callable[..., pa.Table], vector: Sequence[float], text: str, k: int) -> pa.Table:
    """Join two searches by the rank of each row in both. Return the best `k` rows, with `_relevance`."""
    deep = {"k": k * DEEPER, "with_row_id": True}
    found = [search(vector=vector, **deep), search(text=text, column=None, **deep)]
    relevance: dict[int, float] = {}
    for table in found:
        for rank, row in enumerate(_row_ids(table), start=1):
            relevance[row] = relevance.get(row, 0.0) + 1 / (RANK_OFFSET + rank)
    best = sorted(relevance, key=lambda row: (-relevance[row], row))[:k]
    return _rows(found, best, relevance)


def _row_ids(table: pa.Table) -> list[int]:
    ids: list[Any] = table.column(ROW_ID).to_pylist()
    return ids


def _rows(found: list[pa.Table], best: list[int], relevance: dict[int, float]) -> pa.Table:
    """Return rows in a new order, each from the first search that found it, without columns of one search only."""
    shared = [name for name in found[0].schema.names if name in found[1].schema.names]
    both = pa.concat_tables([table.select(shared) for table in found])
    places: dict[int, int] = {}
    for place, row in enumerate(_row_ids(both)):
        places.setdefault(row, place)
    chosen = both.take(pa.array([places[row] for row in best], pa.int64())).drop_columns([ROW_ID])
    return chosen.append_column(RELEVANCE, pa.array([relevance[row] for row in best], pa.float64()))
