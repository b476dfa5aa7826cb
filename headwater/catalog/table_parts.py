"""The tags, branches and indices of a table: `table.tags["best"] = 3`, `del table.branches["try"]`.

Also searches as requests, and two searches joined into one answer.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Self

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.arguments import check_options, checked
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexNotFoundError,
    TableTagNotFoundError,
)
from headwater.names import ObjectId, format_name
from headwater.namespace.requests import build
from headwater.paging import all_pages
from headwater.tables.columns.fields import ROW_ID
from headwater.wording import closest_path, did_you_mean


class Tags(MutableMapping[str, int]):
    """The tags of a table: names of versions. Assignment creates or moves a tag."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId) -> None:
        self._namespace = namespace
        self._id = list(id.names)

    def __getitem__(self, name: str) -> int:
        request = build(api.GetTableTagVersionRequest, id=self._id, tag=name)
        try:
            return int(self._namespace.get_table_tag_version(request).version)
        except TableTagNotFoundError as missing:
            raise _MissingTagError(str(missing)).near(name, self) from None

    def __setitem__(self, name: str, version: int) -> None:
        if name in self:
            self._namespace.update_table_tag(build(api.UpdateTableTagRequest, id=self._id, tag=name, version=version))
        else:
            self.create(name, version)

    def __delitem__(self, name: str) -> None:
        self._namespace.delete_table_tag(build(api.DeleteTableTagRequest, id=self._id, tag=name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __repr__(self) -> str:
        return repr({name: int(found.version) for name, found in self._all()})

    def create(self, name: str, version: int, branch: str | None = None) -> None:
        """Create a tag, also of a version on a branch. Raises TableTagAlreadyExists."""
        request = build(api.CreateTableTagRequest, id=self._id, tag=name, version=version, branch=branch)
        self._namespace.create_table_tag(request)

    def branch_of(self, name: str) -> str | None:
        """Return the branch of the tagged version; None for the main branch."""
        return next((found.branch for tag, found in self._all() if tag == name), None)

    def _all(self) -> Iterator[tuple[str, Any]]:
        return all_pages(self._namespace.list_table_tags, build(api.ListTableTagsRequest, id=self._id), "tags")


class Listed(Mapping[str, Any]):
    """A mapping of the parts of a table by name, which lists them again at each access."""

    def __init__(self, namespace: LanceNamespace, id: ObjectId) -> None:
        self._namespace = namespace
        self._id = list(id.names)

    def __getitem__(self, name: str) -> Any:
        for found, item in self._all():
            if found == name:
                return item
        raise self._missing(str(name))

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._all())

    def __len__(self) -> int:
        return sum(1 for _ in self._all())

    def __repr__(self) -> str:
        return repr(list(self))

    @abstractmethod
    def _all(self) -> Iterator[tuple[str, Any]]: ...

    @abstractmethod
    def _missing(self, name: str) -> KeyError:
        """Return the error of a missing name: a KeyError, so that `in` and `get` work."""


class Branches(Listed):
    """The branches of a table other than the main one, each with its origin."""

    def create(self, name: str, version: int | None = None, branch: str | None = None) -> None:
        """Create a branch from a version, by default the newest, of the main branch or of `branch`."""
        request = build(api.CreateTableBranchRequest, id=self._id, name=name, from_version=version, from_branch=branch)
        self._namespace.create_table_branch(request)

    def __delitem__(self, name: str) -> None:
        self._namespace.delete_table_branch(build(api.DeleteTableBranchRequest, id=self._id, name=name))

    def _all(self) -> Iterator[tuple[str, Any]]:
        return all_pages(
            self._namespace.list_table_branches, build(api.ListTableBranchesRequest, id=self._id), "branches"
        )

    def _missing(self, name: str) -> KeyError:
        return _MissingBranchError(f"Table {format_name(self._id)} has no branch {name[:200]!r}.").near(name, self)


def near_name(catalog: Any, name: Any) -> str | None:
    """Return the full name of the table or namespace that is most like a name that does not exist."""
    near = closest_path(catalog._id(name).names, lambda parent: [*catalog.namespaces(parent), *catalog.tables(parent)])
    return None if near is None else format_name(near)


class Missing(KeyError):
    """A KeyError whose text is a sentence. It ends with the name that was meant, looked for when it is read."""

    meant: Callable[[], str] | None = None

    def near(self, name: str, known: Iterable[str]) -> Self:
        self.meant = functools.partial(did_you_mean, name, known)
        return self

    def __str__(self) -> str:
        text = str(self.args[0]) if self.args else ""
        try:
            return text if self.meant is None else f"{text}{self.meant()}"
        except LanceNamespaceError:
            return text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args


class _MissingTagError(Missing, TableTagNotFoundError):
    """TableTagNotFound (8)."""


class _MissingBranchError(Missing, TableBranchNotFoundError):
    """TableBranchNotFound (22)."""


SCALAR_TYPES = ("BTREE", "BITMAP", "LABEL_LIST", "FTS", "INVERTED", "NGRAM", "ZONEMAP", "BLOOM_FILTER", "RTREE")

INDEX_OPTIONS = (
    *("name", "branch", "distance_type", "num_partitions", "num_sub_vectors", "num_bits", "sample_rate", "m", "stem"),
    *("max_iterations", "target_partition_size", "ef_construction", "with_position", "base_tokenizer", "language"),
    *("max_token_length", "lower_case", "remove_stop_words", "ascii_folding"),
)
"""Options of CreateTableIndex."""


@checked
class Indices(Listed):
    """The indices of a table by name, each with its columns, type and number of rows."""

    def __delitem__(self, name: str) -> None:
        self._namespace.drop_table_index(build(api.DropTableIndexRequest, id=self._id, index_name=name))

    def create(self, column: str, type: str | None, schema: pa.Schema, **options: Any) -> None:
        """Create an index on a column. `type`: by default what fits the column (`index_type_of`)."""
        check_options(options, INDEX_OPTIONS, "An index")
        if type is None and column not in schema.names:
            raise TableColumnNotFoundError(
                f"The table has no column {column[:200]!r}: it has {', '.join(schema.names)}."
            )
        kind = (type or index_type_of(schema.field(column).type)).upper()
        request = build(api.CreateTableIndexRequest, id=self._id, column=column, index_type=kind, **options)
        if kind in SCALAR_TYPES:
            self._namespace.create_table_scalar_index(request)
        else:
            self._namespace.create_table_index(request)

    def stats(self, name: str) -> Any:
        """Return the numbers of indexed and unindexed rows of an index."""
        request = build(api.DescribeTableIndexStatsRequest, id=self._id, index_name=name)
        return self._namespace.describe_table_index_stats(request)

    def _all(self) -> Iterator[tuple[str, Any]]:
        request = build(api.ListTableIndicesRequest, id=self._id)
        return ((item.index_name, item) for item in all_pages(self._namespace.list_table_indices, request, "indexes"))

    def _missing(self, name: str) -> KeyError:
        return _MissingIndexError(f"Table {format_name(self._id)} has no index {name[:200]!r}.").near(name, self)


class _MissingIndexError(Missing, TableIndexNotFoundError):
    """TableIndexNotFound (6)."""


def index_type_of(kind: pa.DataType) -> str:
    """Return the default index type of a column: IVF_PQ for vectors, label list, full text, or by value."""
    if pa.types.is_fixed_size_list(kind):
        return "IVF_PQ"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "LABEL_LIST"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "FTS"
    if pa.types.is_boolean(kind):
        return "BITMAP"
    return "BTREE"


RANK_OFFSET = 60
"""Reciprocal rank fusion: a row at rank r of a search gets 1 / (60 + r), and the searches are added up."""
RELEVANCE = "_relevance"
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
    **options: Any,
) -> dict[str, Any]:
    """Return the fields of a QueryTable request for one search. Its filter applies before the search."""
    check_options(options, SEARCH_OPTIONS, "A search")
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
