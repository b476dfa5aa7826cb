"""The audit log: who asked, from where, for what, and whether it was allowed. One JSON object a line.

Every call of a route is noted once, when it is over, and every refusal. A key that was refused is named by its id,
never by its secret; of other credentials only their kind is told.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading

import msgspec

from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.rest.auth.access import needs
from headwater.rest.auth.keys import split_key
from headwater.rest.call import Call
from headwater.rest.coding import read_ids
from headwater.rest.routes import NO_ROUTE

log = logging.getLogger("headwater.server")
REFUSALS = frozenset({15, 16, 21})
MAX_OBJECTS = 100
MAX_TEXT = 512
MAX_KEY_ID = 32


class Audit:
    """Appends lines to a file that only its owner may read; a file that was moved away is made anew."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._file = -1
        try:
            self._file = _open(path)
        except OSError as error:
            raise InvalidInputError(f"The audit log {path!r} cannot be written: {error.strerror}.") from None

    def note(self, call: Call) -> None:
        """One line for a call that is over; what a caller neither asked of the catalog nor was refused is left out."""
        if call.route is NO_ROUTE and call.code not in REFUSALS:
            return
        line = msgspec.json.encode(line_of(call, self._clock.now_ms())) + b"\n"
        try:
            with self._lock:
                self._file = _same(self._file, self._path)
                os.write(self._file, line)
        except OSError as error:
            log.error(msgspec.json.encode({"failure": "audit log", "reason": error.strerror}).decode())


def line_of(call: Call, now_ms: int) -> dict[str, object]:
    """Return the audit line of a call. Pure."""
    caller = call.caller
    found: dict[str, object] = {
        "time_ms": now_ms,
        "request_id": call.request_id,
        "caller": caller.name if caller is not None else None,
        "address": call.address,
        "operation": call.operation if call.route is not NO_ROUTE else f"{call.verb[:20]} {call.path[:MAX_TEXT]}",
        "objects": objects_of(call),
        "allowed": call.code not in REFUSALS,
        "status": call.status,
        "code": call.code,
    }
    return found if caller is not None else {**found, "credential": credential_of(call)}


def objects_of(call: Call) -> list[str]:
    """The ids that a call is about: all members of a batch, both ends of a rename; as written, if it is no id."""
    try:
        if call.request is not None:
            named = [need.id for need in itertools.islice(needs(call), MAX_OBJECTS)]
        else:
            named = list(read_ids(call)[:1]) if call.raw_id else []
    except LanceNamespaceError:
        return [call.raw_id[:MAX_TEXT]]
    return [id.format_route() for id in dict.fromkeys(named)]


def credential_of(call: Call) -> str | None:
    """Return the credential of an unknown caller: the id of a key, or only the kind of credential."""
    shown = call.headers.get("x-api-key") or call.headers.get("authorization", "").partition(" ")[2].strip()
    if not shown:
        return None
    parts = split_key(shown)
    if parts is not None and parts[0].isascii() and len(parts[0]) <= MAX_KEY_ID:
        return f"key:{parts[0]}"
    return "a token" if shown.count(".") == 2 else "a key"


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _same(file: int, path: str) -> int:
    """The file, or the one that now has its name."""
    try:
        there, ours = os.stat(path), os.fstat(file)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return file
    except FileNotFoundError:
        pass
    again = _open(path)
    os.close(file)
    return again
