"""Look-ups of names that the catalog can answer from memory: remembered for as long as its state is the current one.

Only requests whose answer depends on names alone: those that ask for a version, a tag, a branch or details open
a dataset, and are not among them.
"""

from __future__ import annotations

from collections.abc import Callable

from lance_namespace import LanceNamespace

from headwater.rest.dispatch import Asked
from headwater.rest.reply import Reply

OPERATIONS = frozenset({"DescribeTable", "TableExists", "DescribeNamespace", "NamespaceExists"})
MORE_THAN_NAMES = (b"true", b"version", b"tag", b"branch")
MAX_BODY = 2048
MAX_KEPT = 16_384
Key = tuple[str, bytes, object]


class Lookups:
    """The answers to look-ups in one state of the catalog."""

    def __init__(self, namespace: LanceNamespace) -> None:
        registry = getattr(namespace, "registry", None)
        self._current: Callable[[], object | None] | None = getattr(registry, "current_state", None)
        self._state: object = None
        self._kept: dict[Key, Reply] = {}

    def state(self, asked: Asked) -> object | None:
        """The state that answers this request from memory now; None when it takes more than that."""
        if self._current is None or asked.match.route.operation not in OPERATIONS:
            return None
        body = asked.body
        if not isinstance(body, bytes) or len(body) > MAX_BODY or "true" in asked.query:
            return None
        if any(word in body for word in MORE_THAN_NAMES):
            return None
        return self._current()

    def find(self, asked: Asked, state: object) -> Reply | None:
        if state != self._state or "if-none-match" in asked.headers:
            return None
        return self._kept.get(_key(asked))

    def keep(self, asked: Asked, state: object, reply: Reply) -> None:
        """Remember an answer; those of an older state are forgotten."""
        if state != self._state:
            self._kept.clear()
            self._state = state
        if reply.status == 200 and "if-none-match" not in asked.headers and len(self._kept) < MAX_KEPT:
            self._kept[_key(asked)] = reply


def _key(asked: Asked) -> Key:
    return asked.target, asked.body if isinstance(asked.body, bytes) else b"", asked.caller
