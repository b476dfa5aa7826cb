"""Verbs of transactions: begin, commit and abort.

Between them a server makes every operation with the header `x-headwater-transaction` inside the transaction, under the
same access rules as any other (rest/dispatch.py). A transaction belongs to the caller who began it.
"""

from __future__ import annotations

import msgspec

from headwater.errors import InvalidInputError
from headwater.namespace.abilities import Transactions
from headwater.verbs.verb import NOTHING, Request, VerbSession, WorkPlace, require, verb

MAX_MESSAGE_CHARS = 4096


class BeginTransaction(Request, frozen=True, kw_only=True):
    """Arguments of BeginTransaction."""

    message: str = ""


class BegunTransaction(msgspec.Struct, frozen=True):
    """The id of a transaction that was begun."""

    transaction: str


class CommitTransaction(Request, frozen=True, kw_only=True):
    """Arguments of CommitTransaction."""

    transaction: str


class CommittedTransaction(msgspec.Struct, frozen=True):
    """The commit that holds a transaction."""

    slot: int


class AbortTransaction(Request, frozen=True, kw_only=True):
    """Arguments of AbortTransaction."""

    transaction: str


@verb("transaction/begin", NOTHING, WorkPlace.SERVER)
def begin(session: VerbSession, request: BeginTransaction) -> BegunTransaction:
    """Begin a transaction; its id goes into the header x-headwater-transaction."""
    length = len(request.message)
    if length > MAX_MESSAGE_CHARS:
        raise InvalidInputError(f"The message has {length} characters: at most {MAX_MESSAGE_CHARS} are kept.")
    return BegunTransaction(_transactions(session).begin(session.caller, request.message, session.author))


@verb("transaction/commit", NOTHING)
def commit(session: VerbSession, request: CommitTransaction) -> CommittedTransaction:
    """Make all of its changes, at one slot; 14 names what others changed."""
    return CommittedTransaction(_transactions(session).commit(session.caller, request.transaction))


@verb("transaction/abort", NOTHING, WorkPlace.SERVER)
def abort(session: VerbSession, request: AbortTransaction) -> None:
    """Forget a transaction."""
    _transactions(session).abort(session.caller, request.transaction)


def _transactions(session: VerbSession) -> Transactions:
    return require(session.can.transactions, "has no transactions: a metastore catalog has")
