"""Look-ups of names that the catalog can answer from memory: remembered for as long as its state is the current one.

Only requests whose answer depends on names alone: those that ask for a version, a tag, a branch or details open
a dataset, and are not among them. What is asked is decided on the request as it was understood, not on its text.
"""

from __future__ import annotations

from headwater.namespace.abilities import CatalogAbilities
from headwater.rest.call import SESSION, Call
from headwater.rest.dispatch import LOOKUPS
from headwater.rest.reply import Reply

MORE_THAN_NAMES = ("version", "tag", "branch", "load_detailed_metadata", "check_declared", "context")
CHANGES_ANSWER = ("with_table_uri", "vend_credentials")
MAX_BYTES = 32 * 1024 * 1024
MAX_ANSWER = 64 * 1024
OVERHEAD = 512
"""Bytes of an entry beside those of its answer."""
Key = tuple[object, ...]


class NameLookups:
    """The answers to look-ups in one state of the catalog."""

    def __init__(self, abilities: CatalogAbilities, vends: bool = False) -> None:
        self._current = abilities.current_state
        self._operations = LOOKUPS - {"DescribeTable"} if vends else LOOKUPS  # credentials are made, and expire
        self._state: object = None
        self._kept: dict[Key, Reply] = {}
        self._bytes = 0

    def state(self, call: Call) -> object | None:
        """The state that answers this call from memory now; None when it takes more than that."""
        if (
            self._current is None
            or not SESSION.isdisjoint(call.headers)
            or call.route.operation not in self._operations
        ):
            return None
        asked = call.request.__dict__
        if any(asked.get(name) for name in MORE_THAN_NAMES) or asked.get("version") is not None:
            return None
        return self._current(call.id)

    def find(self, call: Call, state: object) -> Reply | None:
        if state != self._state or "if-none-match" in call.headers:
            return None
        return self._kept.get(_key(call))

    def keep(self, call: Call, state: object, reply: Reply) -> None:
        """Remember an answer; those of an older state are forgotten."""
        if state != self._state:
            self._kept.clear()
            self._state, self._bytes = state, 0
        size = len(reply.body) + OVERHEAD
        if reply.status != 200 or "if-none-match" in call.headers or len(reply.body) > MAX_ANSWER:
            return
        if self._bytes + size <= MAX_BYTES:
            self._kept[_key(call)] = reply
            self._bytes += size


def _key(call: Call) -> Key:
    asked = call.request.__dict__
    return call.route.operation, call.id, call.caller, *(asked.get(name) for name in CHANGES_ANSWER)
