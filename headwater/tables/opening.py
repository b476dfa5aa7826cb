"""Opening a table at a version of a branch, and what a commit left behind."""

from __future__ import annotations

import re

import lance

from headwater.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
)
from headwater.tables.handle import TableHandle
from headwater.tables.translate import named_error, translating

MAIN = "main"
MAX_REF_CHARS = 255
MAX_VERSION = 2**63 - 1
_TAG = re.compile(r"[\w.-]+", re.ASCII)


def open_table(table: TableHandle, version: int | None = None, branch: str | None = None) -> lance.LanceDataset:
    """The dataset, or 11 TableVersionNotFound, 22 TableBranchNotFound, 19 InvalidTableState (no readable data)."""
    branch = None if branch in (None, "", MAIN) else check_branch(branch)
    check_version(table, version)
    with translating(table, "open", otherwise=InvalidTableStateError):
        try:
            return table.open(version, branch)
        except Exception as error:
            raise _not_opened(table, error, version, branch) from None


def _not_opened(table: TableHandle, error: Exception, version: int | None, branch: str | None) -> LanceNamespaceError:
    found = named_error(table, "open", error, otherwise=InvalidTableStateError)
    if isinstance(found, TableBranchNotFoundError):
        return TableBranchNotFoundError(f"Table {table.id} has no branch {branch!r}.")
    if isinstance(found, TableVersionNotFoundError) and version is not None:
        where = f" of branch {branch!r}" if branch else ""
        return TableVersionNotFoundError(f"Table {table.id} has no version {version}{where}.")
    return found


def check_version(table: TableHandle, version: int | None) -> None:
    """Versions are counted from 1: 13 for what is no version, 11 for one that cannot exist."""
    if version is None:
        return
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        raise InvalidInputError(f"version must be a whole number, at least 1, not {version!r}.")
    if version == 0 or version > MAX_VERSION:
        raise TableVersionNotFoundError(f"Table {table.id} has no version {version}.")


def check_branch(name: object) -> str:
    """A branch is one or more tag-like names joined by '/'. It becomes a path, so nothing else may pass."""
    if not isinstance(name, str) or len(name) > MAX_REF_CHARS:
        raise InvalidInputError(f"A branch name is a text of at most {MAX_REF_CHARS} characters.")
    for segment in name.split("/"):
        _check_segment("branch", name, segment)
    return name


def check_tag(name: object) -> str:
    """A tag has letters, digits, '.', '-' and '_'. It becomes a file name, so nothing else may pass."""
    if not isinstance(name, str) or len(name) > MAX_REF_CHARS:
        raise InvalidInputError(f"A tag name is a text of at most {MAX_REF_CHARS} characters.")
    _check_segment("tag", name, name)
    return name


def _check_segment(kind: str, name: str, segment: str) -> None:
    dotted = segment.startswith(".") or segment.endswith((".", ".lock")) or ".." in segment
    if dotted or not _TAG.fullmatch(segment):
        raise InvalidInputError(
            f"The {kind} name {name[:80]!r} cannot be used: use ASCII letters, digits, '-', '_' and single dots inside."
        )


def transaction_id(dataset: lance.LanceDataset) -> str | None:
    """The id of the transaction that made the version the dataset stands at."""
    transaction = dataset.read_transaction(dataset.version)
    return None if transaction is None else str(transaction.uuid)
