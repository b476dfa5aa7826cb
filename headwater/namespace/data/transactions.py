"""Transactions of a table (lance-rest-openapi.yaml, DescribeTransaction and AlterTransaction).

An operation is over when it answers, so every transaction that can be found has succeeded and is fixed for good. A
transaction is named by the id that an answer gave, or by the number of the version it made.
"""

from __future__ import annotations

import re

import lance
from lance_namespace import (
    AlterTransactionRequest,
    AlterTransactionResponse,
    DescribeTransactionRequest,
    DescribeTransactionResponse,
)

from headwater.errors import (
    InvalidInputError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)
from headwater.tables.handle import TableHandle
from headwater.tables.opening import open_table
from headwater.tables.translate import translating

SUCCEEDED = "SUCCEEDED"
MAX_VERSIONS_SEARCHED = 1000
STATUSES = ("queued", "running", "succeeded", "failed", "canceled")
_VERSION = re.compile(r"[1-9]\d{0,18}", re.ASCII)


def describe_transaction(table: TableHandle, request: DescribeTransactionRequest) -> DescribeTransactionResponse:
    """DescribeTransaction of the table's id followed by the transaction's: error 10 TransactionNotFound."""
    properties = _find(table, _name(request.id))
    return DescribeTransactionResponse(status=SUCCEEDED, properties=properties)


def alter_transaction(table: TableHandle, request: AlterTransactionRequest) -> AlterTransactionResponse:
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
    return AlterTransactionResponse(status=SUCCEEDED, properties=properties)


def _name(id: list[str] | None) -> str:
    if not id or not id[-1] or len(id[-1]) > 255:
        raise InvalidInputError("A transaction is named by its table's id followed by its own.")
    return id[-1]


def _find(table: TableHandle, name: str) -> dict[str, str]:
    dataset = open_table(table)
    with translating(table, "find a transaction of"):
        if _VERSION.fullmatch(name):
            found = _read(dataset, int(name)) if int(name) <= dataset.version else None
        else:
            found = _search(dataset, name)
    if found is None:
        raise TransactionNotFoundError(
            f"Table {table.id} has no transaction {name!r} among its last {MAX_VERSIONS_SEARCHED} versions."
        )
    return found


def _search(dataset: lance.LanceDataset, uuid: str) -> dict[str, str] | None:
    oldest = max(1, dataset.version - MAX_VERSIONS_SEARCHED + 1)
    for version in range(dataset.version, oldest - 1, -1):
        found = _read(dataset, version)
        if found is not None and found["uuid"] == uuid:
            return found
    return None


def _read(dataset: lance.LanceDataset, version: int) -> dict[str, str] | None:
    """The transaction that made a version; None when the version is gone or keeps none."""
    try:
        transaction = dataset.read_transaction(version)
    except (OSError, ValueError, TypeError):  # TypeError: pylance 14 cannot show a compaction that rewrote indices
        return None
    if transaction is None:
        return None
    return {
        **(transaction.transaction_properties or {}),
        "uuid": str(transaction.uuid),
        "version": str(version),
        "read_version": str(transaction.read_version),
        "operation": type(transaction.operation).__name__,
    }
