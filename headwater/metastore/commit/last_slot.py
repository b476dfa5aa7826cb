"""The slot that was folded last: if another object has its key now, the catalog was deleted, and perhaps made again.

Whoever still has the old one open would write after the slots of the new one, and leave it unreadable for everybody.
"""

from __future__ import annotations

from collections.abc import Collection

from headwater.errors import InvalidTableStateError
from headwater.metastore.records.disk_records import decode_slot, is_collected
from headwater.metastore.records.layout import slot_key
from headwater.store import KeyNotFoundError, Store


class LastSlot:
    """The number of a slot, and what tells its object from another one. A store without `identity` is not looked at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._identity = store.abilities.identity
        self._number = 0
        self._known: object = None

    def saw(self, number: int) -> None:
        """Note the slot that was folded last."""
        if self._identity is not None:
            self._number, self._known = number, self._identity(slot_key(number))

    def check(self, number: int, transactions: Collection[str]) -> None:
        """Raise InvalidTableState (19) if the slot that was folded last is another log's, or gone.

        `transactions`: the ids of those that were folded last. A slot that was collected or repaired since is the same.
        """
        if self._known is None or number != self._number or self._identity is None:
            return
        if self._identity(slot_key(number)) == self._known:
            return
        if not self._is_ours(slot_key(number), transactions):
            raise InvalidTableStateError(
                "The catalog that was opened here was deleted since, and what is at its place is another one: open it "
                "again. Nothing was changed."
            )
        self.saw(number)

    def _is_ours(self, key: str, transactions: Collection[str]) -> bool:
        try:
            data = self._store.get(key)
        except KeyNotFoundError:
            return False
        return is_collected(data) or any(txn.id in transactions for txn in decode_slot(key, data).transactions)
