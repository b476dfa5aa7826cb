"""Cache of the small files of the change log: a tail of many of them is landed, read and published by one process.

A file never changes, and its name is never used again. To open one as Parquet takes longer than to land its rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from weakref import WeakKeyDictionary

import pyarrow as pa

from headwater.store import Store

LARGEST = 1 << 15
"""Bytes of rows in a file that is kept."""
FILES, BYTES = 4096, 16 << 20


class SmallFiles:
    """The columns of the last small files that were written or read through one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, key: str) -> pa.Table | None:
        return self._tables.get(key)

    def keep(self, key: str, table: pa.Table) -> None:
        """Keep the whole of a file, if it is small."""
        size = table.nbytes
        if size > LARGEST:
            return
        with self._lock:
            if key in self._tables:
                return
            self._tables[key] = table
            self._bytes += size
            while len(self._tables) > FILES or self._bytes > BYTES:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes


_lock = threading.Lock()
_known: WeakKeyDictionary[Store, SmallFiles] = WeakKeyDictionary()


def small_files(store: Store) -> SmallFiles:
    """Return the cache of a store."""
    found = _known.get(store)
    if found is None:
        with _lock:
            found = _known.setdefault(store, SmallFiles())
    return found


def forget(store: Store) -> None:
    """Read the files anew from now on: who proves that they are whole does."""
    with _lock:
        _known.pop(store, None)
