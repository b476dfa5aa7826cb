"""Results of a table's verbs: its versions, what a write did, and searches, which run when their rows are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa

from headwater import notebook
from headwater.arguments import check_options
from headwater.errors import InvalidInputError
from headwater.namespace.requests import DELETED_ROWS
from headwater.tables.columns.fields import ROW_ID
from headwater.tables.write.arrow import Frames

Score = Callable[[pa.Table], Sequence[Any]]


@dataclass(frozen=True)
class TableVersion:
    """One version of a table, the time of its commit, and in words what it changed, where the catalog recorded that."""

    version: int
    time: datetime | None
    change: str | None = None

    def __repr__(self) -> str:
        return f"TableVersion({self.version}, '{self.time:%Y-%m-%d %H:%M:%S}', {self.change!r})"


@dataclass(frozen=True)
class WriteResult:
    """The version that a write made, and how many rows it inserted, updated and deleted; None: the catalog did not say.

    A write of a transaction has no version before the transaction is committed.
    """

    version: int | None
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


def written(answer: object) -> WriteResult:
    """Return the result of a write from the answer of its operation."""

    def counted(*names: str) -> int | None:
        return next((getattr(answer, name) for name in names if getattr(answer, name, None) is not None), None)

    gone = (getattr(answer, "context", None) or {}).get(DELETED_ROWS)
    deleted = int(gone) if gone is not None else counted("num_deleted_rows")
    return WriteResult(
        counted("version"), counted("num_inserted_rows"), counted("num_updated_rows", "updated_rows"), deleted
    )


@dataclass(frozen=True)
class TableSearch(Frames):
    """A search: `table.search(vector).where("price < 10").limit(3).to_pandas()`.

    Each step returns a new search. The rows are found once, when something of them is first asked for.
    """

    read: Callable[..., pa.RecordBatchReader]
    """Reads rows by the fields of a QueryTable request."""
    vector: Sequence[float] | None
    text: str | None
    options: dict[str, Any]
    score: Score | None = None

    def limit(self, rows: int) -> TableSearch:
        """Find this many rows."""
        return self._with(k=rows)

    def where(self, filter: str) -> TableSearch:
        """Find only rows that a SQL condition keeps; several conditions must all hold."""
        known = self.options.get("filter")
        return self._with(filter=f"({known}) AND ({filter})" if known else filter)

    def select(self, columns: Sequence[str]) -> TableSearch:
        """Return only these columns of the rows, and the distance or score."""
        names = [columns] if isinstance(columns, str) else columns
        return self._with(columns=[name for name in names if name not in FOUND])

    def distance_type(self, name: str) -> TableSearch:
        """Compare vectors by `l2`, `cosine`, `dot` or `hamming`."""
        return self._with(distance_type=name)

    def nprobes(self, parts: int) -> TableSearch:
        """Look into this many partitions of a vector index: more finds better rows, and takes longer."""
        return self._with(nprobes=parts)

    def refine_factor(self, factor: int) -> TableSearch:
        """Read this many times more rows from the index, and order them by their exact distances."""
        return self._with(refine_factor=factor)

    def rerank(self, score: Score) -> TableSearch:
        """Order rows by a function that takes their Arrow table and returns a number for each, the best the highest.

        It is given several times as many rows as the search returns; its numbers are the column `_relevance`.
        """
        return replace(self, score=score)

    def to_arrow(self) -> pa.Table:
        """Return the rows, best first."""
        return self._rows

    def count(self) -> int:
        return self._rows.num_rows

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows as dicts, best first."""
        return self._rows.to_pylist()

    @property
    def num_rows(self) -> int:
        return self._rows.num_rows

    @property
    def column_names(self) -> list[str]:
        return self._rows.column_names

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def column(self, name: str) -> pa.ChunkedArray[Any]:
        """Return a column of the rows."""
        return self._rows.column(name)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows as dicts, best first, by the name that Arrow has for it."""
        return self._rows.to_pylist()

    def __getitem__(self, column: int | str) -> Any:
        return self._rows[column]

    def __repr__(self) -> str:
        return str(self._rows)

    def _repr_html_(self) -> str:
        return notebook.rows_of(self._rows)

    def _with(self, **options: object) -> TableSearch:
        return replace(self, options={**self.options, **options})

    @cached_property
    def _rows(self) -> pa.Table:
        k = self.options["k"]
        deep = k if self.score is None else k * DEEPER
        found = self._found({**self.options, "k": deep})
        return found if self.score is None else _reranked(found, self.score, k)

    def _found(self, options: dict[str, Any]) -> pa.Table:
        if self.vector is not None and self.text is not None:
            return hybrid(lambda **one: self._one({**options, **one}), self.vector, self.text, options["k"])
        return self._one({**options, "vector": self.vector, "text": self.text})

    def _one(self, asked: dict[str, Any]) -> pa.Table:
        return self.read(**search_request(**asked)).read_all()


def _reranked(found: pa.Table, score: Score, k: int) -> pa.Table:
    """Return the `k` rows with the highest scores, with these as `_relevance`."""
    scores = [float(each) for each in score(found)]
    if len(scores) != found.num_rows:
        raise InvalidInputError(f"rerank: the function returned {len(scores)} numbers for {found.num_rows} rows.")
    best = sorted(range(len(scores)), key=lambda row: -scores[row])[:k]
    kept = found.drop_columns([RELEVANCE]) if RELEVANCE in found.column_names else found
    chosen = kept.take(pa.array(best, pa.int64()))
    return chosen.append_column(RELEVANCE, pa.array([scores[row] for row in best], pa.float64()))


RANK_OFFSET = 60
"""Reciprocal rank fusion: a row at rank r of a search gets 1 / (60 + r), and the searches are added up."""
RELEVANCE = "_relevance"
FOUND = ("_distance", "_score", RELEVANCE)
"""Columns that a search adds to its rows, whatever columns are chosen."""
DEPTH = 10
SEARCH_OPTIONS = (
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
    **options: object,
) -> dict[str, Any]:
    """Return the fields of a QueryTable request for one search. Its filter applies before the search."""
    check_options(options, SEARCH_OPTIONS, "A search")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidInputError(f"k is how many rows to find, at least 1, not {k!r}.")
    asked: dict[str, object] = {"k": k, "filter": filter, "prefilter": True, **options}
    if columns is not None:
        asked["columns"] = {"column_names": list(columns)}
    if vector is not None:
        asked["vector"] = {"single_vector": _numbers(vector)}
        asked["vector_column"] = column
    else:
        words: dict[str, object] = {"query": text}
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
