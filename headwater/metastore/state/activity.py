"""Facts of the log for an overview: the first changes of large commits, changed objects, and commits over time."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from headwater.metastore.commit.log import Log
from headwater.metastore.records.disk_records import Slot
from headwater.metastore.records.objects import LogEntry
from headwater.metastore.state.history import heads_of


class Activity:
    """Reads of the log that cost as much as they return, however many objects a commit changed."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._last: tuple[int, Slot] | None = None

    def heads(self, slot: int, kinds: Collection[str], most: int) -> list[tuple[LogEntry, int]]:
        """Return the transactions of a slot with their first `most` changes of some kinds, and how many each has."""
        return list(heads_of(slot, self._read(slot), kinds, most))

    def changed_since(self, slot: int) -> set[str]:
        """Return the ids of the namespaces and tables that were changed after a slot, or had a part changed."""
        slots = (self._read(number) for number in range(slot + 1, self._log.refresh().slot + 1))
        return {change.key.partition("/")[0] for read in slots for txn in read.transactions for change in txn.changes}

    def _read(self, number: int) -> Slot:
        """Read a slot. The last one stays in memory: after a large commit two questions read it."""
        last = self._last
        if last is None or last[0] != number:
            last = self._last = number, self._log.read_slot(number)
        return last[1]

    def slots_at(self, times: Iterable[int]) -> list[int]:
        """Return the newest slot at each of some times, in milliseconds; the oldest that is kept for earlier times."""
        index = self._log.refresh()
        with self._log.lock:
            return [max(index.boundary, index.times.slot_at(time)) for time in times]

    def span(self) -> tuple[int, int]:
        """Return the times of the oldest and the newest commit that are kept, in milliseconds; zeros without any."""
        index = self._log.refresh()
        with self._log.lock:
            times = index.times.all()
            return next((time for time in times[:2] if time), 0), times[-1]
