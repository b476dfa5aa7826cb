"""The one error table: code, exception, HTTP status and CLI exit status of every error.

The exceptions are those of `lance_namespace`, so a caller catches the same classes whichever catalog it
talks to. Three kinds must never be confused: *conflict* (14: read again and retry), *unknown*
(`CommitStateUnknownError`: it may have landed, check before a retry), and the rest (fix the call).
"""

from __future__ import annotations

from dataclasses import dataclass

from lance_namespace.errors import (
    ConcurrentModificationError,
    ErrorCode,
    InternalError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
    TableNotFoundError,
    TableSchemaValidationError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
    ThrottlingError,
    TransactionNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)

__all__ = [
    "ERRORS",
    "CommitStateUnknownError",
    "ConcurrentModificationError",
    "CorruptFileError",
    "ErrorCode",
    "ErrorRow",
    "InternalError",
    "InvalidInputError",
    "InvalidTableStateError",
    "LanceNamespaceError",
    "NamespaceAlreadyExistsError",
    "NamespaceNotEmptyError",
    "NamespaceNotFoundError",
    "PermissionDeniedError",
    "ServiceUnavailableError",
    "TableAlreadyExistsError",
    "TableBranchAlreadyExistsError",
    "TableBranchNotFoundError",
    "TableColumnNotFoundError",
    "TableIndexAlreadyExistsError",
    "TableIndexNotFoundError",
    "TableNotFoundError",
    "TableSchemaValidationError",
    "TableTagAlreadyExistsError",
    "TableTagNotFoundError",
    "TableVersionNotFoundError",
    "ThrottlingError",
    "TransactionNotFoundError",
    "UnauthenticatedError",
    "UnsupportedOperationError",
    "error_for",
    "place_of",
]


class CommitStateUnknownError(ServiceUnavailableError):
    """A commit that the store did not answer, and that may have landed."""


class CorruptFileError(InternalError):
    """A damaged file of the catalog. `key`: relative to the catalog's root."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"The catalog file {key!r} is damaged: {reason}. The rest of the catalog is not affected.")
        self.key = key
        self.reason = reason


@dataclass(frozen=True)
class ErrorRow:
    """One row of the error table: an error code with its HTTP status and exit status."""

    code: ErrorCode
    name: str
    exception: type[LanceNamespaceError]
    status: int
    exit: int


def _row(exception: type[LanceNamespaceError], status: int, exit: int) -> ErrorRow:
    name = exception.__name__.removesuffix("Error")
    return ErrorRow(exception.code, name, exception, status, exit)


# CLI exits: 1 internal, 3 not found, 4 conflict with what exists, 5 fix the call, 6 not allowed, 7 try later.
# (2 is argparse's own exit for a malformed command line.)
ERRORS: dict[int, ErrorRow] = {
    int(row.code): row
    for row in (
        _row(UnsupportedOperationError, 406, 5),
        _row(NamespaceNotFoundError, 404, 3),
        _row(NamespaceAlreadyExistsError, 409, 4),
        _row(NamespaceNotEmptyError, 409, 4),
        _row(TableNotFoundError, 404, 3),
        _row(TableAlreadyExistsError, 409, 4),
        _row(TableIndexNotFoundError, 404, 3),
        _row(TableIndexAlreadyExistsError, 409, 4),
        _row(TableTagNotFoundError, 404, 3),
        _row(TableTagAlreadyExistsError, 409, 4),
        _row(TransactionNotFoundError, 404, 3),
        _row(TableVersionNotFoundError, 404, 3),
        _row(TableColumnNotFoundError, 404, 3),
        _row(InvalidInputError, 400, 5),
        _row(ConcurrentModificationError, 409, 4),
        _row(PermissionDeniedError, 403, 6),
        _row(UnauthenticatedError, 401, 6),
        _row(ServiceUnavailableError, 503, 7),
        _row(InternalError, 500, 1),
        _row(InvalidTableStateError, 409, 4),
        _row(TableSchemaValidationError, 400, 5),
        _row(ThrottlingError, 429, 7),
        _row(TableBranchNotFoundError, 404, 3),
        _row(TableBranchAlreadyExistsError, 409, 4),
    )
}


def error_for(code: int, message: str) -> LanceNamespaceError:
    """Return the exception for a code from a server; Internal (18) for an unknown code."""
    row = ERRORS.get(code, ERRORS[int(ErrorCode.INTERNAL)])
    return row.exception(message)


def place_of(error: BaseException) -> str:
    """Return the last place in our code that an error came from, for a log line without a stack."""
    place, traceback = "", error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "headwater" in code.co_filename:
            place = f"{code.co_filename.rpartition('headwater/')[2]}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
