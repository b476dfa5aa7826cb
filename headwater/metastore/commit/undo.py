"""The exact inverse of a committed transaction, as rules over a draft: every object it touched is as it was before.

Exact or not at all: where later work stands on it, the reasons are gathered and the undo is refused (19). A transaction
that was itself an undo is one like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

import msgspec

from headwater.metastore.commit.draft import ChildrenRead, LogRead
from headwater.metastore.commit.edits import PENDING
from headwater.metastore.commit.table_parts import DELTA_FORMAT
from headwater.metastore.commit.undo_deltas import DeltaUndo
from headwater.metastore.records.deltas import VOIDS, stream_of
from headwater.metastore.records.disk_records import NewRevision, Node, Revision
from headwater.metastore.records.layout import canonical, digest
from headwater.metastore.records.objects import Delta, UndoStep
from headwater.metastore.records.ref_record import (
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
from headwater.metastore.records.serving_copy import (
    FILLED,
    LANCE_FORMAT,
    RECORD_FORMAT,
    STREAM_TABLE,
    as_before,
    location_of,
    without_numbers,
)
from headwater.metastore.state.index import NAMED
from headwater.metastore.state.lookup import taken_datasets
from headwater.metastore.state.slot_views import Item, Place, place_at, version_at
from headwater.names import format_name
from headwater.table_refs import BRANCH, is_written


class Reverted(NamedTuple):
    """An object that the transaction touched: what it was before (None: not there), and what it is now."""

    node: Node
    before: Revision | None
    now: Revision

    @property
    def back(self) -> bool:
        """True if it is there once the transaction is undone."""
        return self.before is not None and self.before.alive

    @property
    def moves(self) -> bool:
        """True if the undo changes what a name of the object maps to."""
        if self.before is None or self.back != self.now.alive:
            return True
        was, now = self.before, self.now
        return (was.parent, was.parts, was.aliases) != (now.parent, now.parts, now.aliases)


class TransactionUndo(DeltaUndo):
    """The undo of one transaction in a draft. `reasons` says why it is refused; the draft is of no use any more then.

    `restores` is filled where somebody can make Lance versions: the transaction gets one more of each table, like the
    one before what is undone. Without it, the newest versions are taken away.
    """

    targets: dict[str, Reverted]

    def run(self) -> list[UndoStep]:
        """Undo all of it, or raise InvalidTableState (19) with every reason why not."""
        self.targets = {change.key: self._target(change) for change in self.txn.changes if change.kind != "delta"}
        self.gone = {key for key, target in self.targets.items() if not target.back}
        if not self.txn.changes:
            self.reasons.append("it changed nothing that can be undone, as a collection does")
        deltas = [change for change in self.txn.changes if change.kind == "delta"]
        voided = self._voided(deltas)
        for target in self.targets.values():
            if not self._is_given_back(target, voided):
                self._check(target)
        if not self.reasons:
            self._apply(deltas, voided)
        if self.reasons:
            raise self._refused()
        return self.steps

    def _apply(self, deltas: list[NewRevision], voided: set[str]) -> None:
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
        self.draft.depend_on(key)
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
            self.draft.reads.add(LogRead(stream))
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
        """Return True if it is as the transaction left it; what changed it since may have been undone as well."""
        left, now = version_at(target.node.versions, self.number), target.now
        if left.slot == now.slot:
            return True
        if _is_refs(target):
            return is_as_left(*self._records(target))
        return left.alive == now.alive and _content(left) == _content(now)

    def _require_untouched(self, key: str) -> None:
        index = self.draft.base.index
        self.draft.reads.update((ChildrenRead(key), LogRead(key)))
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
                return is_written(self.log.store, location_of(item.revision.properties, item.node.home), branch)
        return False

    def _records(self, target: Reverted) -> tuple[RefRecord, RefRecord, RefRecord]:
        """Return a record before the transaction, after it, and now."""
        left, now = version_at(target.node.versions, self.number), parse_record(target.now.properties)
        before = RefRecord(now.id) if target.before is None else parse_record(target.before.properties)
        return before, parse_record(left.properties), now

    def _require_empty(self, target: Reverted) -> None:
        for child in self.draft.children(target.node.key):
            self.reasons.append(f"{self._name(target.node.key)} holds {self._name(child)} now")

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
        """Return the table versions of stream tables into which the transaction landed rows, or that took some of a
        source and none was good."""
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


def _is_record(target: Reverted) -> bool:
    return target.node.kind == "stream" and target.now.parts[1] == RECORD_FORMAT


def _is_refs(target: Reverted) -> bool:
    return target.node.kind == "stream" and target.now.parts[1] == REFS_FORMAT


def _fills(deltas: Iterable[Delta], columns: Set[int]) -> bool:
    return any(not columns.isdisjoint(delta.properties.get(FILLED, ())) for delta in deltas)


def _content(revision: Revision) -> tuple[object, ...]:
    return revision.parent, revision.parts, without_numbers(revision.properties), revision.aliases


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
