"""What answers the routes of the catalog's past: its log, the history of an object, what is different, what comes back.

A caller with a scope gets the number of every slot, so that it knows it has missed none, and of each the changes that
it may see; who made the others, and why, is not told.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from lance_namespace import LanceNamespace

from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    UnsupportedOperationError,
)
from headwater.metastore import Metastore, Snapshot, Transaction
from headwater.metastore.index import NAMED
from headwater.metastore.objects import Undone, UndoStep
from headwater.names import ROOT, ObjectId
from headwater.namespace.abilities import abilities_of
from headwater.namespace.requests import parse_moment
from headwater.rest.auth.access import Caller, undo_needs
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.routes import Permission
from headwater.streams.opening import undrop as undrop_in

MAX_WAIT_SECONDS = 30.0
MAX_ENTRIES = 10_000
ANY_UNDO = Permission.WRITE | Permission.DROP | Permission.MANAGE
"""What suffices for every step of an undo."""
Ability = TypeVar("Ability")


def metastore_of(namespace: LanceNamespace) -> Metastore:
    return _able(abilities_of(namespace).metastore)


def _seen(namespace: LanceNamespace) -> Metastore | Snapshot:
    """What a history is asked of: the past that this is, or the present."""
    return abilities_of(namespace).moment or metastore_of(namespace)


def _able(ability: Ability | None, cannot: str = "keeps no history: a metastore catalog does") -> Ability:
    """What a catalog declares that it can do, or error 0 with what it cannot."""
    if ability is None:
        raise UnsupportedOperationError(f"This server's catalog {cannot}.")
    return ability


def _change(namespace: LanceNamespace, work: Callable[[Transaction], object], message: str) -> Any:
    """In the transaction that the call is part of, or in one of its own."""
    return _able(abilities_of(namespace).change)(work, message)


def has_news(namespace: LanceNamespace, call: Call) -> bool:
    """Whether there is a transaction after the slot that a caller of the log has."""
    metastore = metastore_of(namespace)
    return metastore.slot > _after(metastore, call)


def log(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """The transactions after a slot, in order. Whoever waits for the next one waits before this (rest/endpoint.py)."""
    metastore, asked = metastore_of(namespace), call.request
    after = _after(metastore, call)
    newest = _seen(namespace).slot
    found: list[Any] = []
    told = Projection(call.asker, metastore)
    for entry in metastore.log(after) if newest > after else ():
        if entry.slot > newest:
            break
        if len(found) >= min(max(asked.limit, 1), MAX_ENTRIES) and entry.slot != found[-1].slot:
            break  # a slot is told whole, so that its number is where to go on
        found.append(told.log_entry(entry))
    return {"slot": newest, "entries": found}


def history(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """The transactions that touched an object, as far as the caller may be told of them."""
    told = Projection(call.asker, metastore_of(namespace))
    return {"entries": [told.history_entry(entry) for entry in _seen(namespace).history(call.id.names)]}


def diff(namespace: LanceNamespace, call: Call) -> Any:
    metastore, asked = metastore_of(namespace), call.request
    before = metastore.boundary if asked.before is None else parse_moment(asked.before)
    return metastore.diff(before, metastore.slot if asked.after is None else parse_moment(asked.after))


def _after(metastore: Metastore, call: Call) -> int:
    """The slot after which the log is asked for."""
    found = metastore.boundary if call.request.after is None else parse_moment(call.request.after)
    if not isinstance(found, int):
        raise InvalidInputError("The log is read after a slot: `after` is a number.")
    return found


def undrop(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    return {"kind": _change(namespace, lambda tx: undrop_in(tx, call.id.names), f"undrop {call.id}")}


def alias(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    """AddAlias and RemoveAlias: one more name for a namespace or table, beside its own."""
    name = call.request.alias
    if name is None:
        raise InvalidInputError("Say which name: `alias`.")
    if call.operation == "AddAlias":
        _change(namespace, lambda tx: tx.alias(call.id.names, name), f"alias {name}")
    else:
        _change(namespace, lambda tx: tx.unalias(call.id.names, name), f"unalias {name}")
    return {}


def undo(namespace: LanceNamespace, call: Call) -> Any:
    """Undo: needs `write` on all that the transaction touched, and what it takes to drop what goes by it. Who may not
    is not told what that was."""
    asked, take_back = call.request, _able(abilities_of(namespace).undo)
    if asked.txn is None:
        raise InvalidInputError("Say which transaction: `txn`, as the log and histories name it.")
    if not call.asker.may(ANY_UNDO, ROOT):
        _check_undo(take_back, asked.txn, call.asker)
    return Projection(call.asker, metastore_of(namespace)).undone(take_back(asked.txn, asked.dry_run))


def _check_undo(take_back: Callable[[str, bool], Undone], txn: str, caller: Caller) -> None:
    try:
        allowed = all(_may_undo(caller, step) for step in take_back(txn, True).steps)
    except LanceNamespaceError:
        if caller.may(Permission.WRITE, ROOT):
            raise
        allowed = False
    if not allowed:
        raise PermissionDeniedError(
            f"{caller.name} may not undo this transaction, or it cannot be undone: that needs the permission write on "
            "all that it touched, and those to drop what it created."
        )


def _may_undo(caller: Caller, step: UndoStep) -> bool:
    """What comes back had its name until it was dropped: the namespace that it was in decides about it."""
    needed = undo_needs(step.action, step.kind)
    comes_back = step.action == "undrop" and step.kind in NAMED
    own = step.path[:-1] if comes_back else step.path
    return all(caller.may(needed, ObjectId(tuple(name))) for name in (own, *step.names))


def verify(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    find = _able(abilities_of(namespace).verify, "cannot be verified")
    return {"problems": [_told(item) for item in find()]}


def _told(problem: Any) -> dict[str, Any]:
    names = None if problem.id is None else list(problem.id.names)
    return {"kind": problem.kind, "id": names, "key": problem.key, "message": problem.message, "note": problem.note}


def collect(namespace: LanceNamespace, call: Call) -> Any:
    asked, free = call.request, _able(abilities_of(namespace).collect, "cannot be collected")
    keep, grace = (None if age is None else timedelta(seconds=age) for age in (asked.keep_seconds, asked.grace_seconds))
    return free(keep, grace, asked.dry_run)


def snapshot(namespace: LanceNamespace, call: Call) -> Any:
    """TakeSnapshot: needs `manage`, for what it pins stays until it is dropped. In a transaction it is of its slot."""
    take = _able(abilities_of(namespace).snapshot)
    return take(_name(call), call.request.tables) or {}


def snapshots(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    return {"snapshots": _able(abilities_of(namespace).snapshots)()}


def drop_snapshot(namespace: LanceNamespace, call: Call) -> dict[str, Any]:
    _able(abilities_of(namespace).drop_snapshot)(_name(call))
    return {}


def _name(call: Call) -> str:
    if not call.request.name:
        raise InvalidInputError("Say which snapshot: `name`.")
    return str(call.request.name)
