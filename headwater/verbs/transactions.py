"""Verbs of transactions: begin, commit and abort.

Between them a server makes every operation with the header `x-headwater-transaction` inside the transaction, under the
same access rules as any other (rest/dispatch.py). A transaction belongs to the caller who began it.
"""

from __future__ import annotations

from headwater.errors import InvalidInputError
from headwater.namespace.abilities import Transactions
from headwater.verbs.verb import NOTHING, VerbRequest, VerbSession, WorkPlace, require, verb

MAX_MESSAGE_CHARS = 4096


class BeginTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of BeginTransaction."""

    message: str = ""


class CommitTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of CommitTransaction."""

    transaction: str


class AbortTransaction(VerbRequest, frozen=True, kw_only=True):
    """Arguments of AbortTransaction."""

    transaction: str


@verb("transaction/begin", NOTHING, WorkPlace.SERVER, field="transaction")
def begin(session: VerbSession, request: BeginTransaction) -> str:
    """Begin a transaction and return its id, for the header x-headwater-transaction."""
    length = len(request.message)
    if length > MAX_MESSAGE_CHARS:
        raise InvalidInputError(f"The message has {length} characters: at most {MAX_MESSAGE_CHARS} are kept.")
    return _transactions(session).begin(session.caller, request.message, session.author)


@verb("transaction/commit", NOTHING, field="slot")
def commit(session: VerbSession, request: CommitTransaction) -> int:
    """Commit all changes of a transaction in one slot. Error 14 names what others changed."""
    return _transactions(session).commit(session.caller, request.transaction)


@verb("transaction/abort", NOTHING, WorkPlace.SERVER)
def abort(session: VerbSession, request: AbortTransaction) -> None:
    """Abort a transaction."""
    _transactions(session).abort(session.caller, request.transaction)


def _transactions(session: VerbSession) -> Transactions:
    return require(session.can.transactions, "has no transactions: a metastore catalog has")
