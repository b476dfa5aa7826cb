"""Roles: named sets of permissions. Five are built in; a catalog may define more, one object each, while it is served.

Where a role is asked for, permissions may stand as well: `reader`, `describe,write`, `analyst,drop`.
A record of rights is created once and never overwritten, so that no writer can undo what another has done. What changes
has a folder of numbered records, `<folder>/<number>.json`, of which the newest holds. A writer creates the next number
after the one that it read; one that finds the number taken reads again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_

import msgspec

from headwater.errors import ConcurrentModificationError, InvalidInputError, TransactionNotFoundError
from headwater.rest.routes import NOTHING, Permission
from headwater.rest.settings import OWN_ROLES
from headwater.store import KeyNotFoundError, Store, create

ATTEMPTS = 100
_NUMBERED = re.compile(r"(.+)/([0-9]{8})\.json")


def newest_of(keys: Iterable[str]) -> dict[str, str]:
    """The key of the newest numbered record of each folder among the keys."""
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
    """The built-in role that is exactly this, or the permissions joined by commas."""
    return next((name for name, role in ROLES.items() if role == permissions), ",".join(names_of(permissions)))


class _Record(msgspec.Struct):
    name: str
    permissions: list[str] | None
    """None: it was removed."""


_records = msgspec.json.Decoder(_Record)


def defined_roles(store: Store) -> dict[str, Permission]:
    """The roles that a catalog defines itself."""
    keys = [entry.key for entry in store.list(OWN_ROLES)]
    newest = newest_of(keys)
    first = (key for key in keys if key.endswith(".json") and key.count("/") == OWN_ROLES.count("/") + 1)
    chosen = {**{key.removesuffix(".json"): key for key in first}, **newest}
    found = {}
    for folder, key in chosen.items():
        record = _read(store, key)
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
    """The records of a role, `<number>.json`; the first may stand beside it, as `<name>.json`."""
    return f"{OWN_ROLES}/{name}"


def _read(store: Store, key: str) -> _Record | None:
    try:
        return _records.decode(store.get(key))
    except (KeyNotFoundError, msgspec.MsgspecError):  # By a role that cannot be read nobody may do anything.
        return None
