"""The exact inverse of a committed transaction, as rules over a draft: every object it touched is as it was before.

Exact or not at all: where later work stands on it, the reasons are gathered and the undo is refused (19). A transaction
that was itself an undo is one like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from headwater.errors import InvalidTableStateError
from headwater.metastore.dataset_folders import taken_datasets
from headwater.metastore.deltas import Segments, read_deltas, stream_of
from headwater.metastore.draft import AppendedDelta, Draft, DroppedDelta
from headwater.metastore.edits import PENDING
from headwater.metastore.index import NAMED
from headwater.metastore.layout import canonical, digest
from headwater.metastore.objects import Delta, UndoStep, delta_of
from headwater.metastore.records import NewRevision, Node, Revision, Txn, decode_delta
from headwater.metastore.ref_record import (
    REFS_FORMAT,
    RefRecord,
    format_record,
    is_as_left,
    left_standing,
    lost_rows,
    new_branches,
    parse_record,
    reverted,
)
from headwater.metastore.retention import VOIDS
from headwater.metastore.serving_copy import (
    FILLED,
    LANCE_FORMAT,
    LOCATION,
    PUBLISHED,
    READER_FORMAT,
    RECORD_FORMAT,
    STREAM_TABLE,
    as_before,
    location_of,
    without_numbers,
)
from headwater.metastore.slot_views import Item, Place, place_at, version_at
from headwater.metastore.table_parts import DELTA_FORMAT, create_part
from headwater.names import format_name
from headwater.table_refs import BRANCH

Void = Callable[[tuple[str, ...], str], bool]
"""Voids what the transaction landed in a stream table, by its path and version, and takes the records of its sources
back; whether there were rows. The log of one has no gaps, so a delta is not taken out of it; another one says that it
does not count."""

Held = Callable[[str], Mapping[int, object]]
Written = Callable[[str, str], bool]
"""What stands on the versions of the Lance dataset in a folder: its tags and branches."""

Restores = list[tuple[str, int]]
"""Tables by their keys, each with the Lance version that its next one is to be like."""

SHOWN = 10


class ColumnChanges(NamedTuple):
    """What a change of a stream table has done to its columns, by their numbers."""

    added: Set[int]
    widened: Set[int]


Columns = Callable[[Mapping[str, Any], Mapping[str, Any]], ColumnChanges]
"""Tells it from the properties of the table version before and after."""


class Reverted(NamedTuple):
    """An object that the transaction touched: what it was before (None: not there), and what it is now."""

    node: Node
    before: Revision | None
    now: Revision

    @property
    def back(self) -> bool:
        """Whether it is there once the transaction is undone."""
        return self.before is not None and self.before.alive

    @property
    def moves(self) -> bool:
        """Whether a name of it is to be mapped anew."""
        if self.before is None or self.back != self.now.alive:
            return True
        was, now = self.before, self.now
        return (was.parent, was.parts, was.aliases) != (now.parent, now.parts, now.aliases)


class Undo:
    """Undoes one transaction in a draft. `reasons` says why it cannot be; then the draft is of no use any more.

    `restores` is filled where somebody can make Lance versions: the transaction gets one more of each table, like the
    one before what is undone. Without it, the newest versions are taken away.
    """

    def __init__(
        self,
        draft: Draft,
        segments: Segments,
        number: int,
        txn: Txn,
        fresh: str,
        void: Void | None,
        held: Held,
        written: Written,
        restores: Restores | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.draft = draft
        self.segments = segments
        self.number = number
        self.txn = txn
        self.fresh = fresh
        self.void = void
        self.held = held
        self.written = written
        self.restores = restores
        self.columns = columns
        self.reasons: list[str] = []
        self.steps: list[UndoStep] = []
        self.targets = {c.key: self._target(c) for c in txn.changes if c.kind != "delta"}
        self.gone = {key for key, target in self.targets.items() if not target.back}

    def run(self) -> list[UndoStep]:
        """All of it, or InvalidTableState (19) with every reason why not."""
        if not self.txn.changes:
            self.reasons.append("it changed nothing that can be undone, as a collection does")
        deltas = [change for change in self.txn.changes if change.kind == "delta"]
        voided = self._voided(deltas)
        for target in self.targets.values():
            if not self._is_given_back(target, voided):
                self._check(target)
        if not self.reasons:
            self._undo(deltas, voided)
        if self.reasons:
            raise self._refused()
        return self.steps

    def _undo(self, deltas: list[NewRevision], voided: set[str]) -> None:
        named = [target for target in self.targets.values() if target.node.kind in NAMED]
        for target in named:
            place = place_at(self.draft, target.node.key) if target.moves and target.now.alive else None
            if place is not None:
                self._unmap(place)
        for target in named:
            self._restore(target)
        for target in self.targets.values():
            below = self._is_below_gone(target.node.key) or self._is_given_back(target, voided)
            if target.node.kind not in NAMED and not below and self._require_there(target.node.key):
                self._restore_refs(target) if _is_refs(target) else self._restore(target)
        for target in named:
            if target.moves and target.back:
                self._map(target)
        for target in named:
            if not target.back and target.node.kind == "namespace":
                self._require_empty(target)
        back = {target.node.key for target in named if target.back and not target.now.alive}
        for table, other in taken_datasets(self.draft, back):
            self.reasons.append(f"the files of {self._name(table)} are those of the table {self._name(other)} now")
        self._undo_deltas(deltas, voided)

    # Objects

    def _target(self, change: NewRevision) -> Reverted:
        node = self.draft.base.index.node(change.key)
        assert node is not None
        return Reverted(node, version_at(node.versions, self.number - 1), node.versions[-1])

    def _check(self, target: Reverted) -> None:
        """The object is still as the transaction left it, and nothing was done inside of what it created or dropped:
        that may have come back meanwhile, and been dropped again."""
        key, kind = target.node.key, target.node.kind
        self.draft.relied_on(key)
        if key in self.draft.items:
            self.reasons.append(f"this transaction changes {self._name(key)} as well")
        elif not self._is_as_left(target):
            self.reasons.append(f"{self._name(key)} was changed again in slot {target.now.slot}")
        elif not (target.back and target.now.alive) and kind not in ("namespace", "snapshot", "root"):
            self._require_untouched(key)
        if target.back and not target.now.alive:
            self._check_dropped(target)
        elif target.back and kind == "table_version":
            self._require_unfilled(target)

    def _require_unfilled(self, target: Reverted) -> None:
        """No rows that came since have values in a column that the transaction added to a stream table. Of a column
        that it widened none may have come at all: also at a position of the past they could not be read any more."""
        if self.columns is None:
            return
        assert target.before is not None
        key, left = target.node.key, version_at(target.node.versions, self.number)
        changed = self.columns(target.before.properties, left.properties)
        for stream in filter(self._is_log, self.draft.base.index.parts(key) if any(changed) else ()):
            self.draft.reads.add(f"d{stream}")
            landed = [delta for delta in self._visible(stream) if delta.slot >= self.number]
            voided = {position for delta in landed for position in delta.properties.get(VOIDS, ())}
            later = [delta for delta in landed if delta.slot > self.number and delta.position not in voided]
            if _fills(later, changed.added):
                self.reasons.append(f"rows of {self._name(key)} that came since fill a column that it added")
            if _fills(landed, changed.widened):
                self.reasons.append(
                    f"rows of {self._name(key)} fill a column that it widened: undo only what it landed"
                )

    def _is_log(self, stream: str) -> bool:
        item = self.draft.item(stream)
        return item is not None and item.revision.parts[1] == DELTA_FORMAT

    def _is_as_left(self, target: Reverted) -> bool:
        """Whether it is as the transaction left it; what changed it since may have been undone as well."""
        left, now = version_at(target.node.versions, self.number), target.now
        if left.slot == now.slot:
            return True
        if _is_refs(target):
            return is_as_left(*self._records(target))
        return left.alive == now.alive and _content(left) == _content(now)

    def _require_untouched(self, key: str) -> None:
        index = self.draft.base.index
        self.draft.reads.update((f"c{key}", f"d{key}"))
        deltas = index.stream(key)
        if deltas is not None and deltas.changed > self.number:
            self.reasons.append(f"{self._name(key)} was written to in slot {deltas.changed}")
        for part in index.parts(key):
            node = index.node(part)
            if node is not None and node.versions[-1].slot > self.number:
                self.reasons.append(f"{self._name(part)} was changed in slot {node.versions[-1].slot}")
            self._require_untouched(part)

    def _check_dropped(self, target: Reverted) -> None:
        kind, key = target.node.kind, target.node.key
        above = key.rpartition("/")[0]
        if kind == "stream" and target.now.parts[1] == LANCE_FORMAT:
            self.reasons.append(f"{self._name(key)} lost Lance versions, whose files may be gone")
        elif kind == "table_version" and self.draft.base.index.parts(above)[-1] != key:
            self.reasons.append(f"{self._name(above)} has a newer table version")

    def _restore(self, target: Reverted) -> None:
        node, before, now = target
        if target.back:
            assert before is not None
            properties = as_before(before.properties, now.properties)
            revision = msgspec.structs.replace(
                before, operation="update" if now.alive else "create", properties=properties
            )
        else:
            revision = msgspec.structs.replace(now, operation="delete", txn="", slot=PENDING)
        was = self._path(node.key)
        self.draft.change(Item(node, revision), was)
        path = self._path(node.key) or was
        self.draft.paths[node.key] = path
        present = place_at(self.draft.base, node.key)
        self.steps.append(_step(target, path, present.path if present is not None else path))

    def _restore_refs(self, target: Reverted) -> None:
        """A record of tags and branches is not put back but goes on: what was changed is changed back, so that the
        files in the table's folder are."""
        path, (before, left, now) = self._path(target.node.key), self._records(target)
        record = reverted(before, left, now)
        self.reasons += left_standing(now, record)
        self.reasons += lost_rows(before, left, lambda name: self._is_written(target.node.key, name))
        revision = msgspec.structs.replace(target.now, operation="update", properties=format_record(record))
        self.draft.change(Item(target.node, revision), path)
        self.steps.append(UndoStep("update", target.node.kind, path, target.node.id))
        self.steps += (UndoStep("drop", BRANCH, path, name) for name in new_branches(before, left))

    def _is_written(self, refs: str, branch: str) -> bool:
        for key in self.draft.base.index.parts(refs.rpartition("/")[0]):
            item = self.draft.item(key)
            if item is not None and item.revision.alive and item.revision.parts[1] == LANCE_FORMAT:
                return self.written(location_of(item.revision.properties, item.node.home), branch)
        return False

    def _records(self, target: Reverted) -> tuple[RefRecord, RefRecord, RefRecord]:
        """What a record was before the transaction, what it left, and what there is now."""
        left, now = version_at(target.node.versions, self.number), parse_record(target.now.properties)
        before = RefRecord(now.id) if target.before is None else parse_record(target.before.properties)
        return before, parse_record(left.properties), now

    def _require_empty(self, target: Reverted) -> None:
        for child in self.draft.children(target.node.key):
            self.reasons.append(f"{self._name(target.node.key)} holds {self._name(child)} now")

    def _require_there(self, key: str) -> bool:
        """Whether all above a part is there, once what the transaction dropped is back."""
        steps = key.split("/")
        above = ["/".join(steps[:end]) for end in range(1, len(steps))]
        lost = [one for one in above if one.strip("/") and self.draft.item(one) is None]
        for one in lost:
            self.draft.relied_on(one)
            self.reasons.append(f"{self._name(one)} was dropped since")
        return not lost

    def _is_below_gone(self, key: str) -> bool:
        steps = key.split("/")
        return any("/".join(steps[:end]) in self.gone for end in range(1, len(steps)))

    # Names

    def _unmap(self, place: Place) -> None:
        parent = place_at(self.draft, place.item.revision.parent) if len(place.path) > 1 else None
        self._each_name(parent.locator if parent else "", place, None)

    def _map(self, target: Reverted) -> None:
        place = place_at(self.draft, target.node.key)
        if place is None:
            self.reasons.append(f"the namespace that held {target.now.name!r} is gone, or inside of it now")
            return
        above = place_at(self.draft, place.item.revision.parent)
        assert above is not None
        self._each_name(above.locator, place, place.key)

    def _each_name(self, above: str, place: Place, key: str | None) -> None:
        """Map or unmap the names of an object and of all below it, where what was undone may come back beside what was
        made since: a name has one object."""
        revision = place.item.revision
        for name in (revision.name, *revision.aliases):
            mapped = digest(canonical(above, name))
            if key is not None and self.draft.mapped(revision.parent, mapped) not in (None, key):
                self.reasons.append(f"the name {format_name((*place.path[:-1], name))} is taken by another object")
                return
            self.draft.name(revision.parent, mapped, key)
        if place.item.node.kind == "namespace":
            for child in list(self.draft.children(place.key)):
                below = place_at(self.draft, child)
                if below is not None:
                    self._each_name(place.locator, below, None if key is None else child)

    # Deltas

    def _voided(self, deltas: list[NewRevision]) -> set[str]:
        """The table versions of stream tables into which the transaction landed rows, or that took some of a source
        and none was good."""
        streams = {stream_of(change.key)[0] for change in deltas if self._format(change) != LANCE_FORMAT}
        versions = {stream.rpartition("/")[0] for stream in streams if not self._is_below_gone(f"{stream}/x")}
        records = (key for key, target in self.targets.items() if self.void is not None and _is_record(target))
        versions |= {key.rpartition("/")[0] for key in records if not self._is_below_gone(key)}
        items = {version: self.draft.item(version) for version in versions}
        return {key for key, item in items.items() if item is not None and STREAM_TABLE in item.revision.properties}

    def _is_given_back(self, target: Reverted, voided: set[str]) -> bool:
        """Records of what a source gave are taken back by what voids its rows."""
        above = target.node.key.rpartition("/")[0]
        is_partition = target.node.kind == "partition" and above.rpartition("/")[0] in voided
        return self.void is not None and ((_is_record(target) and above in voided) or is_partition)

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
        had_rows = self.void(table, version.rsplit("/", 1)[-1])
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
        if self.restores is not None:
            self._undo_by_another(stream, table, min(own))
            return
        held = self.held(location_of(item.revision.properties, item.node.home))
        for position in sorted(own & held.keys()):
            self.reasons.append(f"{held[position]} stands on version {position} of {format_name(table.path)}")
        kept = [delta for delta in self._visible(stream) if delta.position not in own]
        properties = {**item.revision.properties, LOCATION: location_of(item.revision.properties, item.node.home)}
        self.draft.change(Item(item.node, msgspec.structs.replace(item.revision, operation="delete")), table.path)
        new = create_part(
            self.draft, table, above, "stream", (f"{LANCE_FORMAT}-{self.fresh}", LANCE_FORMAT), properties
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
        self.draft.reads.add(f"d{stream}")
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

    def _visible(self, stream: str, after: int = 0) -> Iterator[Delta]:
        base = self.draft.base
        for stored in read_deltas(self.segments, stream, base.index.deltas(stream), after, base.at):
            yield delta_of(decode_delta(stream, stored.body), stored.slot)

    def _readers(self, stream: str) -> Iterator[tuple[str, int]]:
        for key in self.draft.parts(stream.rpartition("/")[0]):
            item = self.draft.item(key)
            if item is not None and item.revision.parts[1] == READER_FORMAT:
                self.draft.relied_on(key)
                yield from ((name, int(position)) for name, position in item.revision.properties.items())

    # Telling

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


def _is_record(target: Reverted) -> bool:
    return target.node.kind == "stream" and target.now.parts[1] == RECORD_FORMAT


def _is_refs(target: Reverted) -> bool:
    return target.node.kind == "stream" and target.now.parts[1] == REFS_FORMAT


def _fills(deltas: Iterable[Delta], columns: Set[int]) -> bool:
    return any(not columns.isdisjoint(delta.properties.get(FILLED, ())) for delta in deltas)


def _content(revision: Revision) -> tuple[object, ...]:
    return revision.parent, revision.parts, without_numbers(revision.properties), revision.aliases


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


def _step(target: Reverted, path: tuple[str, ...], present: tuple[str, ...]) -> UndoStep:
    part = "" if target.node.kind in NAMED else target.node.id
    if not target.back:
        return UndoStep("drop", target.node.kind, path, part)
    assert target.before is not None
    if not target.now.alive:
        return UndoStep("undrop", target.node.kind, path, part)
    was, now = target.before, target.now
    if (was.parent, was.parts) != (now.parent, now.parts):
        return UndoStep("rename", target.node.kind, path, f"was {now.name}", (present,))
    if was.aliases != now.aliases:
        others = sorted(set(was.aliases) ^ set(now.aliases))
        names = tuple((*path[:-1], name) for name in others)
        return UndoStep("alias", target.node.kind, path, ", ".join(was.aliases), names)
    return UndoStep("update", target.node.kind, path, part)
