"""Questions and actions of the page about API keys and roles, for callers who may manage the whole catalog.

A caller hands on no right that it lacks: it makes, changes and revokes keys and roles that may do no more than itself.
Keys and roles stand in the store of the server, which may be another one than the catalog's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lance_namespace import LanceNamespace

from headwater.clock import Clock
from headwater.errors import InvalidInputError, PermissionDeniedError, UnsupportedOperationError
from headwater.rest.auth.access import Caller
from headwater.rest.auth.keys import (
    ROLES,
    KeyRecord,
    create_key,
    define_role,
    defined_roles,
    find_key,
    list_keys,
    names_of,
    parse_role,
    remove_role,
    revoke_key,
)
from headwater.rest.call import Call
from headwater.rest.page.page_facts import AccessFacts, KeyFact, MadeKey, RoleFact
from headwater.rest.routes import NOTHING, Permission
from headwater.store import Store

Handler = Callable[[LanceNamespace, Call], Any]
MAX_NAME = 200


class AccessQuestions:
    """Answers from a store of keys."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {
            "PageAccess": self.access,
            "PageCreateKey": self.create_key,
            "PageRevokeKey": self.revoke_key,
            "PageDefineRole": self.define_role,
            "PageRemoveRole": self.remove_role,
        }

    def access(self, namespace: LanceNamespace, call: Call) -> AccessFacts:
        """Return the keys, newest first, and the roles; each tells if the caller may change it."""
        store, now = self._store, self._clock.now_ms()
        defined, mine = defined_roles(store), call.asker.everywhere
        keys = [
            KeyFact(
                one.id, one.name, one.role, one.scope, _state(one, now), one.created_ms, one.expires_ms,
                one.is_valid(now) and _permissions(one, defined) in mine,
            )
            for one in reversed(list_keys(store))
        ]  # fmt: skip
        own = {name: defined[name] for name in sorted(defined)}
        roles = [
            RoleFact(name, names_of(granted), name in ROLES, granted in mine)
            for name, granted in {**ROLES, **own}.items()
        ]
        return AccessFacts(keys, roles)

    def create_key(self, namespace: LanceNamespace, call: Call) -> MadeKey:
        """Make a key and return its text, which is told only this once."""
        store, asked = self._store, call.request
        _hand_on(call.asker, parse_role(asked.role, defined_roles(store)), f"a key with the role {asked.role!r}")
        if len(asked.name) > MAX_NAME:
            raise InvalidInputError(f"The name of a key has at most {MAX_NAME} characters.")
        if asked.expires_ms is not None and asked.expires_ms <= self._clock.now_ms():
            raise InvalidInputError("A key expires in the future: no key was made.")
        record, text = create_key(store, self._clock, asked.role, asked.scope, asked.name, asked.expires_ms)
        return MadeKey(record.id, text, record.role, record.name)

    def revoke_key(self, namespace: LanceNamespace, call: Call) -> dict[str, object]:
        store, id = self._store, call.request.name
        record = find_key(store, id)
        if record is not None:
            _hand_on(call.asker, _permissions(record, defined_roles(store)), f"the key {id}")
        return {"id": revoke_key(store, self._clock, id).id}

    def define_role(self, namespace: LanceNamespace, call: Call) -> dict[str, object]:
        store, asked = self._store, call.request
        before = defined_roles(store).get(asked.name, NOTHING)
        _hand_on(call.asker, parse_role(asked.role, {}) | before, f"the role {asked.name!r}")
        return {"permissions": names_of(define_role(store, asked.name, asked.role))}

    def remove_role(self, namespace: LanceNamespace, call: Call) -> dict[str, object]:
        store, name = self._store, call.request.name
        _hand_on(call.asker, defined_roles(store).get(name, NOTHING), f"the role {name!r}")
        remove_role(store, name)
        return {"name": name}


def no_keys(namespace: LanceNamespace, call: Call) -> object:
    """Answer for a server that takes no keys of a store. Raise UnsupportedOperation (0)."""
    raise UnsupportedOperationError(
        "This server takes no API keys of its catalog: there are none to manage. Its operator decides who may call it."
    )


def _permissions(record: KeyRecord, defined: Mapping[str, Permission]) -> Permission:
    """Return what a key may do within its scope; nothing if its role is gone."""
    grants = record.caller(defined).grants
    return grants[0].permissions if grants else NOTHING


def _hand_on(caller: Caller, granted: Permission, what: str) -> None:
    """Raise PermissionDenied (15) if a caller would decide about rights that it lacks itself."""
    lacking = names_of(granted & ~caller.everywhere)
    if lacking:
        raise PermissionDeniedError(
            f"{caller.name} may not manage {what}: it lacks the permission {', '.join(lacking)} itself. "
            "Nothing was changed."
        )


def _state(record: KeyRecord, now_ms: int) -> str:
    return "valid" if record.is_valid(now_ms) else "revoked" if record.revoked_ms is not None else "expired"
