"""Descriptions of a table's data: DescribeTable, statistics, and its transactions (lance-rest-openapi.yaml).

An operation is over when it answers, so every transaction that can be found has succeeded and is fixed for good. A
transaction is named by the id that an answer gave, or by the number of the version it made.
`describe_exact` is for Spark, at POST /headwater/v1/table/{id}/describe: Lance's JSON schema loses timestamp units,
zones and decimals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lance_namespace as api
import pyarrow as pa
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client.models.fragment_stats import FragmentStats
from lance_namespace_urllib3_client.models.fragment_summary import FragmentSummary
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema
from lance_namespace_urllib3_client.models.table_basic_stats import TableBasicStats

from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from headwater.imports import lance
from headwater.names import ObjectId, format_name
from headwater.namespace.data.refs import tag_version
from headwater.namespace.data.schema import schema_to_json
from headwater.tables.commit.history import MAX_VERSIONS_SEARCHED, find
from headwater.tables.handle import TableHandle, unread_rows
from headwater.tables.translate import translating
from headwater.types import spark_schema

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


def get_table_stats(table: TableHandle, request: api.GetTableStatsRequest) -> api.GetTableStatsResponse:
    """GetTableStats: rows and fragment lengths count what is not deleted. Errors 19, 22 branch."""
    dataset = table.open(branch=request.branch)
    with translating(table, "read the statistics of"):
        return statistics(dataset)


def statistics(dataset: lance.LanceDataset) -> api.GetTableStatsResponse:
    """Return the numbers of rows, bytes, fragments and indices of one version of a table."""
    lengths = sorted(fragment.metadata.num_rows for fragment in dataset.get_fragments())
    fields: Any = dataset.stats.data_stats().fields  # a list, which its type does not say
    return api.GetTableStatsResponse(
        total_bytes=sum(field.bytes_on_disk for field in fields),
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


SUCCEEDED = "SUCCEEDED"
STATUSES = ("queued", "running", "succeeded", "failed", "canceled")


def describe_transaction(
    table: TableHandle, request: api.DescribeTransactionRequest
) -> api.DescribeTransactionResponse:
    """DescribeTransaction of the table's id followed by the transaction's: error 10 TransactionNotFound."""
    properties = _find(table, _name(request.id))
    return api.DescribeTransactionResponse(status=SUCCEEDED, properties=properties)


def alter_transaction(table: TableHandle, request: api.AlterTransactionRequest) -> api.AlterTransactionResponse:
    """AlterTransaction: error 10 TransactionNotFound; what has succeeded can only be told that it has."""
    properties = _find(table, _name(request.id))
    for action in request.actions:
        status = action.set_status_action.status if action.set_status_action is not None else None
        if status is None:
            raise UnsupportedOperationError("A committed transaction is fixed for good: its properties do not change.")
        if status.lower() not in STATUSES:
            raise InvalidInputError(f"status must be one of {', '.join(STATUSES)}.")
        if status.lower() != "succeeded":
            raise InvalidInputError(
                "The transaction has succeeded: its status does not change. Restore a version instead."
            )
    return api.AlterTransactionResponse(status=SUCCEEDED, properties=properties)


def _name(id: list[str] | None) -> str:
    if not id or not id[-1] or len(id[-1]) > 255:
        raise InvalidInputError("A transaction is named by its table's id followed by its own.")
    return id[-1]


def _find(table: TableHandle, name: str) -> dict[str, str]:
    dataset = table.open()
    with translating(table, "find a transaction of"):
        found = find(dataset, name)
    if found is None:
        raise TransactionNotFoundError(
            f"Table {table.id} has no transaction {name[:80]!r} among its last {MAX_VERSIONS_SEARCHED} versions."
        )
    told = {"uuid": found.uuid, "version": found.version, "read_version": found.read_version}
    return {
        **found.properties,
        **{key: str(value) for key, value in told.items() if value is not None},
        "operation": found.operation,
    }


def describe_exact(namespace: LanceNamespace, id: list[str]) -> dict[str, object]:
    """The table's location, newest version, Spark schema (JSON form), Arrow schema (IPC, hex), rows and bytes."""
    answer = namespace.describe_table(
        api.DescribeTableRequest(id=id, with_table_uri=True, load_detailed_metadata=False)
    )
    uri = answer.table_uri or answer.location
    if not uri:
        raise InvalidTableStateError(f"The catalog gives no location for the table {format_name(id)!r}.")
    client = namespace if answer.managed_versioning else None
    dataset = TableHandle(ObjectId(tuple(id)), uri, dict(answer.storage_options or {}), client).open()
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    return {
        "id": id,
        "location": uri,
        "version": dataset.version,
        "spark_schema": spark_schema(dataset.schema),
        "arrow_schema": dataset.schema.serialize().to_pybytes().hex(),
        "rows": sum(fragment.num_rows for fragment in fragments),
        "bytes": sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files),
        "managed_versioning": bool(answer.managed_versioning),
        "unread_rows": unread_rows(format_name(id)) if dataset.mem_wal_index_details() is not None else None,
    }
