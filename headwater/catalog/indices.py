"""The indices of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lance_namespace as api
import pyarrow as pa

from headwater.arguments import check_options, checked
from headwater.catalog.refs import Listed, Missing
from headwater.errors import TableColumnNotFoundError, TableIndexNotFoundError
from headwater.names import format_name
from headwater.namespace.requests import build
from headwater.paging import all_pages
from headwater.wording import did_you_mean

SCALAR_TYPES = ("BTREE", "BITMAP", "LABEL_LIST", "FTS", "INVERTED", "NGRAM", "ZONEMAP", "BLOOM_FILTER", "RTREE")

OPTIONS = (
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
        check_options(options, OPTIONS, "An index")
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
        return _MissingIndexError(
            f"Table {format_name(self._id)} has no index {name[:200]!r}.{did_you_mean(name, self)}"
        )


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
