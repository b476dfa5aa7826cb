"""API keys and roles of a catalog. Keys are records under `.headwater/tokens/` that hold a hash and never the key.

`<id>.json` is the key as it was made, `<id>/<number>.json` as it was changed, and `<id>/revoked.json` ends it whatever
the others say. None is ever overwritten: a change that read the key before it was revoked does not bring it back.

A key is `hw_<id>_<secret>`; the id finds the record, the secret (256 random bits, so a plain hash is enough)
is compared in constant time. A revoked key stays as a record: revoking the last key must not open the catalog.

Roles are named sets of permissions. Five are built in; a catalog may define more, one object each, while it is served.
Where a role is asked for, permissions may stand as well: `reader`, `describe,write`, `analyst,drop`.
A record of rights is created once and never overwritten, so that no writer can undo what another has done. What changes
has a folder of numbered records, `<folder>/<number>.json`, of which the newest holds. A writer creates the next number
after the one that it read; one that finds the number taken reads again.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import or_

import msgspec

from headwater.clock import Clock
from headwater.errors import (
    ConcurrentModificationError,
    CorruptFileError,
    InternalError,
    InvalidInputError,
    TransactionNotFoundError,
    UnauthenticatedError,
)
from headwater.names import object_id
from headwater.rest.auth.access import Caller, Grant
from headwater.rest.routes import NOTHING, Permission
from headwater.rest.settings import OWN_ROLES, TOKENS
from headwater.store import KeyNotFoundError, Store, create

PREFIX = "hw"
REVOKED = "revoked.json"


@dataclass(frozen=True)
class KeyRecord:
    """The stored record of an API key."""

    id: str
    name: str
    role: str
    scope: list[str]
    secret_sha256: str
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None

    def caller(self, defined: Mapping[str, Permission]) -> Caller:
        """Return the caller of the key, with the catalog's own roles. A role that is gone grants nothing."""
        try:
            permissions = parse_role(self.role, defined)
        except InvalidInputError:
            return Caller(f"key:{self.id}", title=self.name)
        return Caller(f"key:{self.id}", (Grant(permissions, object_id(self.scope)),), self.name)

    def is_valid(self, now_ms: int) -> bool:
        return self.revoked_ms is None and (self.expires_ms is None or now_ms < self.expires_ms)


@dataclass(frozen=True)
class _Revocation:
    revoked_ms: int


_records = msgspec.json.Decoder(KeyRecord)
_revocations = msgspec.json.Decoder(_Revocation)


def key_path(id: str) -> str:
    return f"{_folder(id)}.json"


def _folder(id: str) -> str:
    return f"{TOKENS}/{id}"


def _revoked_path(id: str) -> str:
    return f"{_folder(id)}/{REVOKED}"


def create_key(
    store: Store, clock: Clock, role: str, scope: list[str], name: str = "", expires_ms: int | None = None
) -> tuple[KeyRecord, str]:
    """Return a new key, stored hashed; the text is returned once and cannot be had again."""
    id, secret = clock.hex(12), clock.hex(64)
    _check(store, role, scope)
    record = KeyRecord(id, name, role.lower(), scope, _hash(secret), clock.now_ms(), expires_ms)
    if not create(store, key_path(id), msgspec.json.encode(asdict(record))):
        raise InternalError("Two keys drew the same id: try again.")
    return record, f"{PREFIX}_{id}_{secret}"


def list_keys(store: Store) -> list[KeyRecord]:
    """Return every key of the catalog, revoked ones too, oldest first."""
    keys = [entry.key for entry in store.list(TOKENS)]
    made = (key for key in keys if key.endswith(".json") and key.count("/") == TOKENS.count("/") + 1)
    records = [_as_changed(store, key, keys) for key in made]
    return sorted((r for r in records if r is not None), key=lambda record: (record.created_ms, record.id))


def has_keys(store: Store) -> bool:
    """Return True if the catalog ever had a key: then a server requires authentication."""
    return any(entry.key.endswith(".json") for entry in store.list(TOKENS))


def revoke_key(store: Store, clock: Clock, id: str) -> KeyRecord:
    """Mark a key as revoked, for ever. Revoking twice keeps the first time."""
    if _found(store, id).revoked_ms is None:
        create(store, _revoked_path(id), msgspec.json.encode({"revoked_ms": clock.now_ms()}))
    return _found(store, id)


def change_key(
    store: Store, id: str, role: str | None = None, scope: list[str] | None = None, expires_ms: int | None = None
) -> KeyRecord:
    """Give a key another role, scope or end; servers that run take it up within two seconds. A revoked key stays so."""
    _found(store, id)

    def changed(newest: str | None) -> bytes:
        record = _read(store, newest or key_path(id))
        if record is None:
            raise _unknown(id)
        made = replace(
            record,
            role=record.role if role is None else role.lower(),
            scope=record.scope if scope is None else scope,
            expires_ms=record.expires_ms if expires_ms is None else expires_ms,
        )
        _check(store, made.role, made.scope)
        return msgspec.json.encode(asdict(made))

    add_record(store, _folder(id), changed)
    return _found(store, id)


def _check(store: Store, role: str, scope: list[str]) -> None:
    parse_role(role, defined_roles(store))
    object_id(scope)


def _found(store: Store, id: str) -> KeyRecord:
    record = find_key(store, id)
    if record is None:
        raise _unknown(id)
    return record


def _unknown(id: str) -> TransactionNotFoundError:
    return TransactionNotFoundError(f"There is no API key {id[:80]!r}: `headwater token list` shows them.")


def find_key(store: Store, id: str) -> KeyRecord | None:
    if not (id.isascii() and id.isalnum() and len(id) <= 32):
        return None
    return _as_changed(store, key_path(id), None)


def _as_changed(store: Store, made: str, keys: Iterable[str] | None) -> KeyRecord | None:
    """Return a key as its newest record has it, and revoked if it ever was. `keys` are those of the store, if known."""
    record = _read(store, made)
    if record is None:
        return None
    folder = made.removesuffix(".json")
    there = [entry.key for entry in store.list(folder)] if keys is None else keys
    newest = newest_of(key for key in there if key.startswith(f"{folder}/")).get(folder)
    changed = record if newest is None else _read(store, newest) or record
    ended = [one.revoked_ms for one in (record, changed) if one.revoked_ms is not None]
    if f"{folder}/{REVOKED}" in there:
        ended.append(_revoked_ms(store.get(f"{folder}/{REVOKED}")))
    return replace(changed, revoked_ms=min(ended, default=None))


def _revoked_ms(data: bytes) -> int:
    """Return the time when a key was revoked. A record that cannot be read revokes it too."""
    try:
        return _revocations.decode(data).revoked_ms
    except msgspec.MsgspecError:
        return 0


def split_key(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a key's text, or None when it is not the text of a key."""
    parts = text.split("_", 2)
    if len(parts) != 3 or parts[0] != PREFIX or not parts[1].isalnum():
        return None
    return parts[1], parts[2]


def check_secret(record: KeyRecord | None, secret: str, now_ms: int) -> KeyRecord:
    """Return the record if the secret is its own and still valid; else Unauthenticated (16), always worded alike."""
    expected = record.secret_sha256 if record is not None else "0" * 64
    matches = hmac.compare_digest(expected.encode(), _hash(secret).encode())
    if record is None or not matches or not record.is_valid(now_ms):
        raise UnauthenticatedError("The API key is not known, or is no longer valid.")
    return record


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(store: Store, key: str) -> KeyRecord | None:
    try:
        return _records.decode(store.get(key))
    except KeyNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CorruptFileError(key, str(error)) from None


ATTEMPTS = 100
_NUMBERED = re.compile(r"(.+)/([0-9]{8})\.json")


def newest_of(keys: Iterable[str]) -> dict[str, str]:
    """Return the key of the newest numbered record of each folder among the keys."""
    found: dict[str, str] = {}
    for key in keys:
        numbered = _NUMBERED.fullmatch(key)
        if numbered is not None and key > found.get(numbered[1], ""):
            found[numbered[1]] = key
    return found


def add_record(store: Store, folder: str, make: Callable[[str | None], bytes]) -> None:
    """Create the next record of a folder. `make` gets the key of the newest one, again for each that others created."""
    for _ in range(ATTEMPTS):
        newest = newest_of(entry.key for entry in store.list(folder)).get(folder)
        number = 0 if newest is None else int(newest.removesuffix(".json")[-8:])
        if create(store, f"{folder}/{number + 1:08d}.json", make(newest)):
            return
    raise ConcurrentModificationError(f"{folder} is changed by others all the time: try again.")


PERMISSIONS = {str(permission.name).lower(): permission for permission in Permission}
ROLES: dict[str, Permission] = {
    "viewer": Permission.DESCRIBE,
    "reader": Permission.DESCRIBE | Permission.SELECT,
    "editor": Permission.DESCRIBE | Permission.SELECT | Permission.WRITE,
    "writer": Permission.DESCRIBE | Permission.SELECT | Permission.WRITE | Permission.DROP,
    "admin": ~NOTHING,
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


def parse_role(text: str, defined: Mapping[str, Permission]) -> Permission:
    """Return the permissions of roles and permissions joined by commas; raise InvalidInput (13) for an unknown word."""
    words = [word.strip().lower() for word in text.split(",")]
    known = {**PERMISSIONS, **defined, **ROLES}
    unknown = [word for word in words if word not in known]
    if unknown:
        roles = ", ".join([*ROLES, *(name for name in sorted(defined) if name not in ROLES)])
        raise InvalidInputError(
            f"{unknown[0][:80]!r} is not a role: use {roles}, or permissions: {', '.join(PERMISSIONS)}."
        )
    return union(known[word] for word in words)


def union(permissions: Iterable[Permission]) -> Permission:
    return reduce(or_, permissions, NOTHING)


def names_of(permissions: Permission) -> list[str]:
    return [name for name, permission in PERMISSIONS.items() if permission in permissions]


def role_of(permissions: Permission) -> str:
    """Return the built-in role that is exactly this, or the permissions joined by commas."""
    return next((name for name, role in ROLES.items() if role == permissions), ",".join(names_of(permissions)))


class _Record(msgspec.Struct):
    name: str
    permissions: list[str] | None
    """None: it was removed."""


_role_records = msgspec.json.Decoder(_Record)


def defined_roles(store: Store) -> dict[str, Permission]:
    """Return the roles that a catalog defines itself."""
    keys = [entry.key for entry in store.list(OWN_ROLES)]
    newest = newest_of(keys)
    first = (key for key in keys if key.endswith(".json") and key.count("/") == OWN_ROLES.count("/") + 1)
    chosen = {**{key.removesuffix(".json"): key for key in first}, **newest}
    found = {}
    for folder, key in chosen.items():
        record = _read_role(store, key)
        if record is not None and record.permissions is not None and role_folder(record.name) == folder:
            found[record.name] = union(PERMISSIONS.get(name, NOTHING) for name in record.permissions)
    return {name: permissions for name, permissions in found.items() if name not in ROLES}


def define_role(store: Store, name: str, permissions: str) -> Permission:
    """Define a role, or define it anew: whoever has it may do this from then on, at running servers too."""
    if name in ROLES or name in PERMISSIONS or not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name[:80]!r} cannot name a role: use lower-case letters, digits, '-' and '_', and no built-in name."
        )
    chosen = parse_role(permissions, {})
    _add(store, _Record(name, names_of(chosen)))
    return chosen


def remove_role(store: Store, name: str) -> None:
    """Remove a role that the catalog defines; whoever has it may do nothing by it any more."""
    if name not in defined_roles(store):
        raise TransactionNotFoundError(f"There is no role {name[:80]!r} to remove: `headwater role list` shows them.")
    _add(store, _Record(name, None))


def _add(store: Store, record: _Record) -> None:
    add_record(store, role_folder(record.name), lambda _: msgspec.json.encode(record))


def role_folder(name: str) -> str:
    """Return the records of a role, `<number>.json`; the first may stand beside it, as `<name>.json`."""
    return f"{OWN_ROLES}/{name}"


def _read_role(store: Store, key: str) -> _Record | None:
    try:
        return _role_records.decode(store.get(key))
    except (KeyNotFoundError, msgspec.MsgspecError):  # By a role that cannot be read nobody may do anything.
        return None
