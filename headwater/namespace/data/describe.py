"""Facts of a table's data for DescribeTable, and statistics."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from lance_namespace import GetTableStatsRequest, GetTableStatsResponse

from headwater.errors import InvalidInputError
from headwater.imports import lance
from headwater.namespace.data.models import FragmentStats, FragmentSummary, JsonArrowSchema, TableBasicStats
from headwater.namespace.data.refs import tag_version
from headwater.namespace.data.schema import schema_to_json
from headwater.tables.handle import TableHandle, unread_rows
from headwater.tables.translate import translating

SMALL_FRAGMENT_ROWS = 100_000
UNREAD_ROWS = "headwater.unread_rows"
"""In the metadata of a table with a write-ahead log of Lance's: what is not shown."""


@dataclass(frozen=True)
class DataFacts:
    """Facts of a table's data for DescribeTable. Without details only `version` is set."""

    version: int
    schema: JsonArrowSchema | None = None
    stats: TableBasicStats | None = None
    metadata: dict[str, str] | None = None
    arrow_schema: pa.Schema | None = None


def describe_data(
    table: TableHandle,
    version: int | None = None,
    load_detailed_metadata: bool = True,
    branch: str | None = None,
    tag: str | None = None,
) -> DataFacts:
    """DescribeTable's facts at a version, tag or branch: errors 8, 11, 13, 19, 22."""
    if tag is not None:
        if version is not None or branch is not None:
            raise InvalidInputError("tag cannot be used together with version or branch.")
        version, branch = tag_version(table, tag)
    dataset = table.open(version, branch)
    if not load_detailed_metadata:
        return DataFacts(dataset.version)
    has_log = dataset.mem_wal_index_details() is not None
    unread = {UNREAD_ROWS: unread_rows(table.name)} if has_log else {}
    with translating(table, "describe"):
        return DataFacts(
            version=dataset.version,
            schema=schema_to_json(dataset.schema),
            stats=basic_stats(dataset),
            metadata={**dataset.schema_metadata, **dataset.metadata, **unread},
            arrow_schema=dataset.schema,
        )


def basic_stats(dataset: lance.LanceDataset) -> TableBasicStats:
    """Read from the manifest alone."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    return TableBasicStats(num_deleted_rows=sum(one.num_deletions for one in fragments), num_fragments=len(fragments))


def get_table_stats(table: TableHandle, request: GetTableStatsRequest) -> GetTableStatsResponse:
    """GetTableStats: rows and fragment lengths count what is not deleted. Errors 19, 22 branch."""
    dataset = table.open(branch=request.branch)
    with translating(table, "read the statistics of"):
        return statistics(dataset)


def statistics(dataset: lance.LanceDataset) -> GetTableStatsResponse:
    """Return the numbers of rows, bytes, fragments and indices of one version of a table."""
    lengths = sorted(fragment.metadata.num_rows for fragment in dataset.get_fragments())
    return GetTableStatsResponse(
        total_bytes=sum(field.bytes_on_disk for field in dataset.stats.data_stats().fields),
        num_rows=sum(lengths),
        num_indices=len(dataset.describe_indices()),
        fragment_stats=FragmentStats(
            num_fragments=len(lengths),
            num_small_fragments=sum(length < SMALL_FRAGMENT_ROWS for length in lengths),
            lengths=summary(lengths),
        ),
    )


def summary(lengths: list[int]) -> FragmentSummary:
    """The spread of sorted lengths; all zero of none."""
    if not lengths:
        return FragmentSummary(min=0, max=0, mean=0, p25=0, p50=0, p75=0, p99=0)
    return FragmentSummary(
        min=lengths[0],
        max=lengths[-1],
        mean=sum(lengths) // len(lengths),
        p25=percentile(lengths, 25),
        p50=percentile(lengths, 50),
        p75=percentile(lengths, 75),
        p99=percentile(lengths, 99),
    )


def percentile(lengths: list[int], percent: int) -> int:
    """The length at a rank of the sorted lengths, rounded down."""
    return lengths[percent * (len(lengths) - 1) // 100]
