"""The undo of deltas: landed rows are voided, Lance versions restored or taken away, other deltas dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from headwater.errors import InvalidTableStateError
from headwater.metastore.commit.draft import AppendedDelta, DroppedDelta, LogRead
from headwater.metastore.commit.log import Log
from headwater.metastore.commit.table_parts import create_part, find_version
from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.records.deltas import stream_of
from headwater.metastore.records.disk_records import NewRevision, Txn, decode_delta
from headwater.metastore.records.objects import Delta, UndoStep
from headwater.metastore.records.serving_copy import LANCE_FORMAT, LOCATION, PUBLISHED, READER_FORMAT, location_of
from headwater.metastore.state.slot_views import Item, Place, place_at
from headwater.names import format_name
from headwater.table_refs import held_versions, read_refs

Void = Callable[[Transaction, tuple[str, ...], str, str], bool]
"""Voids in a transaction what another one landed in a stream table, and takes the records of its sources back.

It takes the path and version of the table and the id of the other transaction, and returns True if there were rows. A
log has no gaps, so no delta is taken out of it: another delta says that it does not count.
"""

Restores = list[tuple[str, int]]
"""Tables by their keys, each with the Lance version that its next one is to be like."""

SHOWN = 10


class ColumnChanges(NamedTuple):
    """Changes of a stream table's columns, by column id."""

    added: Set[int]
    widened: Set[int]


Columns = Callable[[Mapping[str, Any], Mapping[str, Any]], ColumnChanges]
"""Tells it from the properties of the table version before and after."""


class DeltaUndo:
    """The half of an undo that concerns deltas and Lance versions, and the reasons why an undo is refused."""

    def __init__(
        self,
        tx: Transaction,
        log: Log,
        number: int,
        txn: Txn,
        void: Void | None = None,
        restores: Restores | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.tx = tx
        self.draft = tx.draft
        self.log = log
        self.number = number
        self.txn = txn
        self.void = void
        self.restores = restores
        self.columns = columns
        self.reasons: list[str] = []
        self.steps: list[UndoStep] = []
        self.gone: set[str] = set()
        """The keys of the objects that are not there once the transaction is undone."""

    # Deltas

    def _undo_deltas(self, deltas: list[NewRevision], voided: set[str]) -> None:
        by_stream: dict[str, list[NewRevision]] = {}
        for change in deltas:
            if not self._is_below_gone(f"{stream_of(change.key)[0]}/x"):
                by_stream.setdefault(stream_of(change.key)[0], []).append(change)
        for stream, changes in by_stream.items():
            if not self._require_there(f"{stream}/x"):
                continue
            if any(each.stream == stream for each in self.draft.appends):
                self.reasons.append(f"this transaction writes to {self._name(stream)} as well")
            elif any(change.operation == "delete" for change in changes):
                self.reasons.append(f"{self._name(stream)} lost deltas, and a dropped delta does not come back")
            elif self._format(changes[0]) == LANCE_FORMAT:
                self._undo_versions(stream, changes)
            elif stream.rpartition("/")[0] not in voided:
                self._drop_newest(stream, changes)
        for version in sorted(voided):
            if self._require_there(f"{version}/x") and not self.reasons:
                self._void(version)

    def _void(self, version: str) -> None:
        table = self._path(version)
        if self.void is None:
            self.reasons.append(
                f"it landed rows in the stream table {format_name(table)}: undo them through the catalog"
            )
            return
        had_rows = self.void(self.tx, table, version.rsplit("/", 1)[-1], self.txn.id)
        self.steps.append(UndoStep("void", "delta", table) if had_rows else UndoStep("update", "stream", table))

    def _drop_newest(self, stream: str, changes: list[NewRevision]) -> None:
        if not self._are_newest(stream, changes):
            return
        first = min(stream_of(change.key)[2] for change in changes)
        for reader, position in self._readers(stream):
            if position >= first:
                self.reasons.append(f"the reader {reader!r} has read {self._name(stream)} up to position {position}")
        for change in changes:
            self._drop(change)

    def _undo_versions(self, stream: str, changes: list[NewRevision]) -> None:
        """Only the newest Lance versions can be undone. If they are taken away, their numbers are used again, and
        positions are not, so what is left moves into a new stream."""
        if any(PUBLISHED in decode_delta(stream, change.body).properties for change in changes):
            self.reasons.append(f"it published {self._name(stream)}: undo the ingest instead")
            return
        if not self._are_newest(stream, changes):
            return
        item, table = self.draft.item(stream), place_at(self.draft, stream.split("/")[0])
        above = self.draft.item(stream.rpartition("/")[0])
        assert item is not None
        assert above is not None
        assert table is not None
        own = {stream_of(change.key)[2] for change in changes}
        if self.restores is not None and find_version(self.draft, table, None).node.key != above.node.key:
            self.reasons.append(f"{self._name(above.node.key)} is not the active table version: activate it first")
            return
        if self.restores is not None:
            self._undo_by_another(stream, table, min(own))
            return
        location = location_of(item.revision.properties, item.node.home)
        held = held_versions(read_refs(self.log.store, location), None)
        for position in sorted(own & held.keys()):
            self.reasons.append(f"{held[position]} stands on version {position} of {format_name(table.path)}")
        kept = [delta for delta in self._visible(stream) if delta.position not in own]
        properties = {**item.revision.properties, LOCATION: location_of(item.revision.properties, item.node.home)}
        self.draft.change(Item(item.node, msgspec.structs.replace(item.revision, operation="delete")), table.path)
        new = create_part(
            self.draft, table, above, "stream", (f"{LANCE_FORMAT}-{self.log.clock.hex(8)}", LANCE_FORMAT), properties
        )
        for delta in kept:
            self.draft.appends.append(_copied(new, table.path, delta))
        for position in sorted(own):
            self.steps.append(UndoStep("drop", "delta", table.path, f"version {position}"))

    def _undo_by_another(self, stream: str, table: Place, first: int) -> None:
        """A version that is like the one before, on top: those that are undone stay in the past, with their numbers."""
        before = max((delta.position for delta in self._visible(stream) if delta.position < first), default=None)
        if before is None:
            self.reasons.append(f"{format_name(table.path)} had no version before: drop the table instead")
            return
        assert self.restores is not None
        self.restores.append((table.key, before))
        self.steps.append(UndoStep("restore", "delta", table.path, f"version {before}"))

    def _are_newest(self, stream: str, changes: list[NewRevision]) -> bool:
        self.draft.reads.add(LogRead(stream))
        own = {stream_of(change.key)[2] for change in changes}
        there = [delta.position for delta in self._visible(stream, min(own) - 1)]
        if not own <= set(there):
            self.reasons.append(f"{self._name(stream)} has lost a delta of it since")
        later = [position for position in there if position not in own]
        if later:
            what = "version" if self._format(changes[0]) == LANCE_FORMAT else "position"
            self.reasons.append(f"{self._name(stream)} has {what} {later[0]} after it")
        return own == set(there)

    def _drop(self, change: NewRevision) -> None:
        stream, partition, position = stream_of(change.key)
        item, path = self.draft.item(stream), self._path(stream)
        assert item is not None
        self.draft.dropped_deltas.append(DroppedDelta(stream, item.node.home, path, partition, position))
        self.steps.append(UndoStep("drop", "delta", path, f"position {position}"))

    def _visible(self, stream: str, after: int = 0) -> Sequence[Delta]:
        return self.draft.base.deltas(self.log.segments, stream, after)

    def _readers(self, stream: str) -> Iterator[tuple[str, int]]:
        for key in self.draft.parts(stream.rpartition("/")[0]):
            item = self.draft.item(key)
            if item is not None and item.revision.parts[1] == READER_FORMAT:
                self.draft.depend_on(key)
                yield from ((name, int(position)) for name, position in item.revision.properties.items())

    # Objects that deltas belong to

    def _require_there(self, key: str) -> bool:
        """Return True if all above a part is there, once what the transaction dropped is back."""
        steps = key.split("/")
        above = ["/".join(steps[:end]) for end in range(1, len(steps))]
        lost = [one for one in above if one.strip("/") and self.draft.item(one) is None]
        for one in lost:
            self.draft.depend_on(one)
            self.reasons.append(f"{self._name(one)} was dropped since")
        return not lost

    def _is_below_gone(self, key: str) -> bool:
        steps = key.split("/")
        return any("/".join(steps[:end]) in self.gone for end in range(1, len(steps)))

    # Names

    # Words

    def _format(self, change: NewRevision) -> str:
        item = self.draft.item(stream_of(change.key)[0], dropped=True)
        return str(item.revision.parts[1]) if item is not None else ""

    def _path(self, key: str) -> tuple[str, ...]:
        table = key.split("/")[0]
        place = place_at(self.draft, table) or place_at(self.draft.base, table)
        return place.path if place is not None else self.draft.paths.get(table, ())

    def _name(self, key: str) -> str:
        change = next((change for change in self.txn.changes if f"{change.key}/".startswith(f"{key}/")), None)
        path = format_name(self._path(key) or (change.path if change is not None else ()))
        below = "/".join(key.split("/")[1:])
        return f"{path} ({below})" if below else path or key

    def _refused(self) -> InvalidTableStateError:
        reasons = list(dict.fromkeys(self.reasons))
        more = f"; and {len(reasons) - SHOWN} more reasons" if len(reasons) > SHOWN else ""
        said = f" ({self.txn.message})" if self.txn.message else ""
        return InvalidTableStateError(
            f"Transaction {self.txn.id}{said} of slot {self.number} cannot be undone: "
            f"{'; '.join(reasons[:SHOWN])}{more}. Nothing was changed."
        )


def _copied(stream: Item, path: tuple[str, ...], delta: Delta) -> AppendedDelta:
    return AppendedDelta(
        stream.node.key,
        stream.node.home,
        path,
        delta.partition,
        None,
        delta.type,
        delta.files,
        delta.properties,
        delta.position,
    )
