"""Named readers: how far each has read a table's changes, kept in the catalog."""

from __future__ import annotations

from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.metastore import Snapshot, Transaction
from headwater.streams.layout import READER, READERS
from headwater.streams.opening import Stream


def readers(snapshot: Snapshot | Transaction, stream: Stream) -> dict[str, int]:
    """The position of each reader."""
    try:
        found = snapshot.get_stream(stream.path, READERS, version=stream.version).properties
    except TableNotFoundError:
        return {}
    return {name: int(position) for name, position in found.items()}


def set_reader(tx: Transaction, stream: Stream, name: str, position: int, before: int) -> None:
    """Move a reader on. It must still be where it was: two processes that read as one reader do not both get rows."""
    known = readers(tx, stream)
    if known.get(name, before) != before:
        raise InvalidInputError(
            f"The reader {name!r} of {stream.name} was moved to {known[name]} by another process while it read. "
            "Read again."
        )
    _write(tx, stream, {**known, name: position})


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
