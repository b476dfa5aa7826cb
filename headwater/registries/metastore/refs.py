"""Tags and branches of the tables of a metastore, as their records and the files in their folders say together."""

from __future__ import annotations

import threading
from collections import OrderedDict

from headwater.metastore import Reading
from headwater.metastore.records.ref_record import REFS_FORMAT, KnownRefs, RefRecord, known_refs, parse_record
from headwater.model import Table
from headwater.names import ObjectId
from headwater.registries.metastore.mapping import NOT_FOUND
from headwater.store import Store
from headwater.table_refs import applied_key, applied_marks, read_refs

REMEMBERED = 10_000


def ref_record_of(state: Reading, table: ObjectId) -> RefRecord | None:
    """The record of a table's tags and branches; None if none was changed through the catalog."""
    try:
        return parse_record(state.get_stream(table, format=REFS_FORMAT).properties)
    except NOT_FOUND:
        return None


class RecordedRefs:
    """Looks at folders. What was seen to be applied is remembered: it stays so."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._applied: OrderedDict[str, int] = OrderedDict()

    def read(self, table: Table, record: RefRecord) -> KnownRefs:
        """Return the refs. It reads the mark first, so that a change is either seen or still due."""
        applied = self.applied(table, record)
        files = {(ref.kind, ref.name): ref for ref in read_refs(self.store, table.location)}
        return known_refs(files, record, applied)

    def applied(self, table: Table, record: RefRecord) -> int:
        """Up to which change of the record the files are as it says."""
        with self._lock:
            known = self._applied.get(record.id, 0)
        if known < record.count:
            known = max(known, *applied_marks(self.store, table.location, record.id).values(), 0)
            self._remember(record, known)
        return known

    def mark(self, table: Table, record: RefRecord) -> None:
        """The files are as the record says."""
        if self.applied(table, record) < record.count:
            before = applied_marks(self.store, table.location, record.id)
            self.store.put(applied_key(table.location, record.id, record.count), b"")
            for key, number in before.items():
                if number < record.count:
                    self.store.delete(key)
            self._remember(record, record.count)

    def _remember(self, record: RefRecord, applied: int) -> None:
        with self._lock:
            self._applied[record.id] = max(applied, self._applied.get(record.id, 0))
            while len(self._applied) > REMEMBERED:
                self._applied.popitem(last=False)
