"""The record of what a source has given to a table: tokens of batches, files, batches of streaming queries.

One record per (table, source), kept as properties of streams without deltas: a head that counts, and pages that a
token or a file is hashed to, so that a commit rewrites a few kilobytes however much was taken: tokens are forgotten,
and files, which are not, go to a new level with twice the pages when one is full. It is read and written
in the transaction that commits the deltas: two writers of one source conflict and serialize, others never meet.

An entry is a list: digest of the content, transaction, the last position before it, rows, quarantined, number, time.
The position a batch got is found from the transaction, since it is not known before the commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.metastore import Object, Transaction
from headwater.streams.layout import PAGES, RECORD, RECORDS, source_page, source_record

KEPT_TOKENS = 10_000
KEPT_MS = 30 * 24 * 3600 * 1000
TOKEN, FILE, UNDONE = "t:", "f:", "u:"
"""What an entry is of: a batch by its token, a file that was taken, a file that was taken and undone."""
ROOM = 64
"""So many files, about, have their entries on one page."""


@dataclass(frozen=True)
class LedgerEntry:
    """Ledger entry of a batch or file that was taken."""

    digest: str
    txn: str
    after: int
    rows: int
    quarantined: int
    number: int = 0
    time: int = 0

    def to_list(self) -> list[object]:
        return [self.digest, self.txn, self.after, self.rows, self.quarantined, self.number, self.time]


class Ledger:
    """The record of one source, inside a transaction on a table."""

    def __init__(self, tx: Transaction, path: Sequence[str], version: str, source: str) -> None:
        self._tx = tx
        self._path = path
        self._version = version
        self.source = source

    def token(self, token: str, digest: str) -> LedgerEntry | None:
        """Return the entry of a batch that was taken with this token; 13 if it was another batch."""
        found = self._generations(TOKEN + token)
        if not found:
            return None
        if found[-1].digest != digest:
            raise InvalidInputError(
                f"The token {token!r} was used for another batch of the source {self.source!r}: each has its own."
            )
        return found[-1]

    def file(self, name: str, digest: str) -> LedgerEntry | None:
        """Return the entry of a file that was taken with this very content."""
        return next((entry for entry in self._generations(FILE + name) if entry.digest == digest), None)

    def files(self) -> dict[str, list[LedgerEntry]]:
        """Return every file that was taken, and its generations."""
        return files_taken(self._tx.streams(self._path, self._version), self.source)

    def take_token(self, token: str, entry: LedgerEntry) -> None:
        self._take(TOKEN + token, entry, replace=True)

    def take_file(self, name: str, entry: LedgerEntry) -> None:
        self._take(FILE + name, entry, replace=False)

    def _generations(self, key: str) -> list[LedgerEntry]:
        pages = (self._read(source_page(self.source, key, level)) for level in range(self._level(key) + 1))
        return [LedgerEntry(*entry) for page in pages for entry in page.get(key, [])]

    def _level(self, key: str) -> int:
        """Return the level that is being filled: tokens stay at the first."""
        if not key.startswith(FILE):
            return 0
        return level_of(int(self._read(source_record(self.source)).get("files", 0)))

    def _take(self, key: str, entry: LedgerEntry, replace: bool) -> None:
        head = self._read(source_record(self.source))
        number = int(head.get("count", 0)) + 1
        id = source_page(self.source, key, self._level(key))
        files = int(head.get("files", 0)) + key.startswith(FILE)
        self._write(source_record(self.source), {"source": self.source, "count": number, "files": files})
        page = self._read(id)
        made = LedgerEntry(entry.digest, entry.txn, entry.after, entry.rows, entry.quarantined, number, entry.time)
        page[key] = [made.to_list()] if replace else [*page.get(key, []), made.to_list()]
        self._write(id, _forgotten(page, number, entry.time))

    def _read(self, id: str) -> dict[str, Any]:
        try:
            return dict(self._tx.get_stream(self._path, id, version=self._version).properties)
        except TableNotFoundError:
            return {}

    def _write(self, id: str, properties: dict[str, object]) -> None:
        try:
            self._tx.get_stream(self._path, id, version=self._version)
        except TableNotFoundError:
            self._tx.create_stream(self._path, RECORD, self._version, id)
        self._tx.update_stream(self._path, id, properties, version=self._version)


def level_of(files: int) -> int:
    """Return the level of pages for the next file after so many: each has room for twice as many as the one before."""
    level, room = 0, ROOM * PAGES
    while files >= room:
        level += 1
        room += ROOM * PAGES << level
    return level


def files_taken(streams: Sequence[Object], source: str, kind: str = FILE) -> dict[str, list[LedgerEntry]]:
    """Return every file that was taken from a source, and its generations, from the streams of a table version.

    With `UNDONE` those that were undone since.
    """
    found: dict[str, list[LedgerEntry]] = {}
    for stream in streams:
        if stream.id.startswith(f"{source_record(source)}-"):
            for name, entries in stream.properties.items():
                if name.startswith(kind):
                    found.setdefault(name.removeprefix(kind), []).extend(LedgerEntry(*entry) for entry in entries)
    return {name: sorted(entries, key=lambda entry: entry.number) for name, entries in found.items()}


def taken_with(streams: Sequence[Object], digest: str) -> set[tuple[str, str]]:
    """Return the files of this content that were taken, from any source, and by which transaction; a digest may be cut
    short."""
    if not digest:
        raise InvalidInputError("The digest is empty: it may be cut short, and not to nothing.")
    found = set()
    for stream in streams:
        for name, entries in stream.properties.items() if stream.id.startswith(RECORDS) else ():
            if name.startswith(FILE):
                file = name.removeprefix(FILE)
                found |= {(str(entry[1]), file) for entry in entries if str(entry[0]).startswith(digest)}
    return found


def batches_with(streams: Sequence[Object], token: str) -> set[tuple[str, str]]:
    """Return the batches that were taken with a token: the transaction and the source of each."""
    names = {each.id: str(each.properties["source"]) for each in streams if "source" in each.properties}
    found = set()
    for stream in streams:
        for entry in stream.properties.get(TOKEN + token, ()) if stream.id.startswith(RECORDS) else ():
            found.add((str(entry[1]), names.get("-".join(stream.id.split("-")[:2]), "")))
    return found


def give_back(
    tx: Transaction,
    path: Sequence[str],
    version: str,
    source: str | None,
    txns: Collection[str],
    batches: Collection[tuple[str, str]] = (),
) -> list[LedgerEntry]:
    """Forget what these transactions took from a source (None: from any), and of others these batches; but of files
    that they were undone. The entries that were given back."""
    given: list[LedgerEntry] = []
    for stream in tx.streams(path, version):
        if not stream.id.startswith(RECORDS if source is None else f"{source_record(source)}-"):
            continue
        if "source" in stream.properties:  # it counts, and holds no entry
            continue
        kept: dict[str, list[object]] = {}
        for name, found in stream.properties.items():
            for entry in found:
                is_back = entry[1] in txns or (entry[1], name) in batches
                is_back = is_back and not name.startswith(UNDONE)
                if not is_back:
                    kept.setdefault(name, []).append(entry)
                    continue
                given.append(LedgerEntry(*entry))
                if name.startswith(FILE):
                    kept.setdefault(UNDONE + name.removeprefix(FILE), []).append(entry)
        if kept != stream.properties:
            tx.update_stream(path, stream.id, kept, version=version)
    return given


def _forgotten(page: dict[str, Any], number: int, now: int) -> dict[str, Any]:
    """Return the page without tokens that are too many or too old; files are never forgotten."""
    return {
        key: entries
        for key, entries in page.items()
        if key.startswith((FILE, UNDONE)) or (entries[-1][5] > number - KEPT_TOKENS and entries[-1][6] > now - KEPT_MS)
    }
