"""Index from the signs of dataset folders to the tables that came to have a dataset there, and in which slot."""

from __future__ import annotations

import msgspec

from headwater.metastore.records.disk_records import Revision
from headwater.metastore.records.serving_copy import LANCE_FORMAT, STREAM_TABLE, default_location, location_of, signs_at
from headwater.metastore.state.index_maps import BETWEEN, Book, Section

_flags = msgspec.msgpack.Decoder(bool)


class FolderIndex:
    """The dataset folders of an index. The slots are known of those that came since the index began."""

    def __init__(self, book: Book) -> None:
        self.is_whole = True
        """Whether `folders` has all of them; the layers of an old checkpoint do not."""
        self.folders: Section[bool] = Section(book, "f", _flags)
        """Where datasets are, or were in a past that is kept: the folder, and the object that says so."""
        self._book = book
        self._came: dict[str, dict[str, int] | tuple[str, int]] = {}
        """By sign, each table that came to have a dataset there, and the slot. Mostly one. Those of the layers are
        not among them."""

    def come(self, key: str, folder: str, slot: int) -> None:
        """An object says from this slot on that its dataset is in this folder."""
        self.folders.put(f"{folder}{BETWEEN}{key}", True)
        table = _table_of(key)
        for sign in signs_at(folder):
            known = self._came.get(sign)
            if known is None:
                self._came[sign] = table, slot
                continue
            if isinstance(known, tuple):
                known = self._came[sign] = _by_table(known)
            known[table] = max(slot, known.get(table, 0))

    def leave(self, key: str, folder: str) -> None:
        """No revision of the object that is kept names this folder."""
        self.folders.put(f"{folder}{BETWEEN}{key}", None)

    def take(self, entry: str) -> None:
        """One of `folders` that no layer has came from another index."""
        if self.folders.get(entry):
            folder, _, key = entry.rpartition(BETWEEN)
            self.come(key, folder, self._book.since)

    def is_before(self, slot: int) -> bool:
        """Return True if what came in a slot or after it may be known by the layers alone."""
        return 0 < self._book.since >= slot

    def tables_by(self, sign: str, since: int) -> list[str]:
        """The tables that came to have a dataset of this sign in a slot or after it; they may be gone since."""
        found = dict.fromkeys(_by_table(self._came.get(sign)))
        if self.is_before(since):
            prefix = self.folders.prefix + (sign if sign.endswith("/") else sign + BETWEEN)
            found |= dict.fromkeys(_table_of(key.rpartition(BETWEEN)[2]) for key, _ in self._book.scan(prefix))
        return list(found)

    def came_by(self, sign: str) -> int:
        """The last slot in which a table came to have a dataset of this sign."""
        return max(_by_table(self._came.get(sign)).values(), default=self._book.since)


def folders_of(kind: str, home: str, revision: Revision) -> tuple[str, ...]:
    """Return the folders of a stream's dataset; of an unpublished stream table, those that its dataset will have."""
    if kind == "stream" and revision.parts[1] == LANCE_FORMAT:
        return (location_of(revision.properties, home),)
    return (default_location(home),) if kind == "table_version" and STREAM_TABLE in revision.properties else ()


def _table_of(key: str) -> str:
    """The table that an object is a part of."""
    return key.partition("/")[0]


def _by_table(known: dict[str, int] | tuple[str, int] | None) -> dict[str, int]:
    return dict([known]) if isinstance(known, tuple) else known or {}
