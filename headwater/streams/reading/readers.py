"""Named readers of a table's changes, and the deltas of its log that neither they nor a retention rule need.

A reader gets every change at least once: its position moves over what it was handed only when the same process comes
back for more, or says so. What is handed out is remembered in the process, so one that dies gets it again.
A delta stays for `log_retention` after the publish that covers it. A reader or a pinned position needs every delta
after the published version it is read from. Tombstones are in files of their own, so no delta is kept for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.metastore import Metastore, Reading, Transaction
from headwater.metastore.records.deltas import expired
from headwater.streams.layout import LANCE, READER, READERS
from headwater.streams.stream_lookup import Stream, open_in

Holder = Metastore | Transaction
"""Where a reader reads: a catalog, or an open transaction, whose positions are nobody else's."""
HANDED: WeakKeyDictionary[Holder, dict[tuple[str, str], int]] = WeakKeyDictionary()
"""Up to where a reader (table version by its id, name) was handed changes by this process."""


def hand_out(holder: Holder, stream: Stream, name: str, position: int) -> None:
    HANDED.setdefault(holder, {})[stream.id, name] = position


def handed(holder: Holder, stream: Stream, name: str) -> int | None:
    """Up to where this process handed out changes that are not yet known to be read."""
    return HANDED.get(holder, {}).get((stream.id, name))


def forget(holder: Holder, stream: Stream, name: str) -> None:
    HANDED.get(holder, {}).pop((stream.id, name), None)


def readers(snapshot: Reading, stream: Stream) -> dict[str, int]:
    """The position of each reader."""
    try:
        found = snapshot.get_stream(stream.path, READERS, version=stream.version).properties
    except TableNotFoundError:
        return {}
    return {name: int(position) for name, position in found.items()}


def set_reader(tx: Transaction, stream: Stream, name: str, position: int) -> bool:
    """Note how far a reader has read; False: the name is another table's by now, which it has not read."""
    if open_in(tx, stream.path).id != stream.id:
        return False
    known = readers(tx, stream)
    if known.get(name) != position:
        _write(tx, stream, {**known, name: position})
    return True


def drop_reader(tx: Transaction, stream: Stream, name: str) -> None:
    known = readers(tx, stream)
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise InvalidInputError(f"{stream.name} has no reader {name!r}; its readers: {names}.")
    _write(tx, stream, {other: position for other, position in known.items() if other != name})


def _write(tx: Transaction, stream: Stream, positions: dict[str, int]) -> None:
    try:
        tx.get_stream(stream.path, READERS, version=stream.version)
    except TableNotFoundError:
        tx.create_stream(stream.path, READER, stream.version, READERS)
    tx.update_stream(stream.path, READERS, positions, version=stream.version)


def collectable(snapshot: Reading, stream: Stream, now_ms: int, pins: Sequence[int] = ()) -> list[int]:
    """The positions of deltas that may be dropped: always all up to some publish."""
    versions = snapshot.deltas(stream.path, format=LANCE, version=stream.version)
    deltas = snapshot.deltas(stream.path, version=stream.version)
    kept_ms = int(stream.definition.log_retention.total_seconds() * 1000)
    return expired(versions, deltas, now_ms - kept_ms, (*readers(snapshot, stream).values(), *pins))
