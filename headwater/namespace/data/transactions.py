"""Transactions of a table (lance-rest-openapi.yaml, DescribeTransaction and AlterTransaction).

An operation is over when it answers, so every transaction that can be found has succeeded and is fixed for good. A
transaction is named by the id that an answer gave, or by the number of the version it made.
"""

from __future__ import annotations

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
from headwater.tables.commit.history import MAX_VERSIONS_SEARCHED, find
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

SUCCEEDED = "SUCCEEDED"
STATUSES = ("queued", "running", "succeeded", "failed", "canceled")


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
