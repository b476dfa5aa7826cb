"""What answers the routes of transactions: begin, commit, abort.

Between these, every operation with the header `x-headwater-transaction` is made inside the transaction, under the same
authorization as any other (rest/dispatch.py). Whose transaction it is, is who began it.
"""

from __future__ import annotations

from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.namespace.abilities import Transactions, abilities_of
from headwater.rest.auth.access import OWNER
from headwater.rest.call import Call

MAX_MESSAGE_CHARS = 4096


def transactions_of(namespace: LanceNamespace) -> Transactions:
    found = abilities_of(namespace).transactions
    if found is None:
        raise UnsupportedOperationError("This server's catalog has no transactions: a metastore catalog has.")
    return found


def begin(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    message = call.request.message
    if len(message) > MAX_MESSAGE_CHARS:
        raise InvalidInputError(f"The message has {len(message)} characters: at most {MAX_MESSAGE_CHARS} are kept.")
    author = None if call.asker is OWNER else call.asker.author
    return {"transaction": transactions_of(namespace).begin(call.asker.name, message, author)}


def commit(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    return {"slot": transactions_of(namespace).commit(call.asker.name, _id(call))}


def abort(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    transactions_of(namespace).abort(call.asker.name, _id(call))
    return {}


def _id(call: Call) -> str:
    if call.request.transaction is None:
        raise InvalidInputError("Say which transaction: `transaction`.")
    return str(call.request.transaction)
