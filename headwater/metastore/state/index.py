"""The index: the folded slots, with every revision and mapping kept, so that any slot can be read.

It mirrors the published layout: objects by key, Name Resolution Directories by `<parent>/<digest>`. It stands on the
layers of a checkpoint, of which only what is asked for is read, so opening costs next to nothing. A slot is folded in
two steps: what it touches is looked up, which may read, and then all of it is changed, which cannot fail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headwater.metastore.records.deltas import DeltaLog, Segment, stream_of
from headwater.metastore.records.disk_records import Mapped, NameVersion, NewRevision, Node, Revision, Slot, decode_body
from headwater.metastore.state.index_maps import Book, FolderIndex, Pairs, RecentSlots, Section, SlotTimes, folders_of
from headwater.metastore.state.layers import Layer, LayerEntry, Layers, Pages

CHECKPOINT_CHANGES = 2000
NAMED = ("namespace", "table")
_names = msgspec.msgpack.Decoder(list[NameVersion])


class Card(msgspec.Struct, array_like=True, gc=False):
    """All that the index has of one key: the object, the keys of its parts, and of a stream its deltas."""

    node: Node | None = None
    parts: list[str] = []
    deltas: DeltaLog | None = None


class NamedChild(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a namespace listing: the key and the kind of the child."""

    key: str
    kind: str


class Checkpoint(msgspec.Struct, array_like=True):
    """An index as a checkpoint has it: the layers that its maps are in, newest first, and the little beside them."""

    slot: int
    boundary: int
    published: int
    weight: int
    time: int
    tails: list[str]
    layers: list[Layer]
    retired: dict[str, int] = {}
    """Files of earlier layers that somebody may still read, each with the time since when nobody needs to."""
    located: bool = False
    """Whether the layers say where all datasets are; they did not always."""


_cards = msgspec.msgpack.Decoder(Card)
_children = msgspec.msgpack.Decoder(NamedChild)
_flags = msgspec.msgpack.Decoder(bool)


class SlotIndex:
    """The state of the catalog at every slot from `boundary` to `slot`."""

    def __init__(self) -> None:
        self.book = Book()
        self.times = SlotTimes(self.book)
        self.published = 0
        self.weight = 0
        self.cards: Section[Card] = Section(self.book, "o", _cards)
        self.names: Section[list[NameVersion]] = Section(self.book, "n", _names)
        self.children: Pairs[NamedChild] = Pairs(self.book, "c", _children)
        self.past: Pairs[bool] = Pairs(self.book, "p", _flags)
        self.old: Pairs[bool] = Pairs(self.book, "x", _flags)
        """The objects (`o`) and names (`n`) that have a past: more than one version, or a last one that deletes."""
        self.tails: dict[str, None] = {}
        """The streams that have deltas which no segment holds yet."""
        self.touched: dict[str, int] = {}
        self.members: dict[str, int] = {}
        self.datasets = FolderIndex(self.book)
        self.sorted_names: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.names_then: dict[tuple[str, str, int], list[str]] = {}
        self.resolved: dict[tuple[str, ...], Any] = {}
        """Where namespaces and tables of the newest slot are, as far as somebody asked."""
        self.recent = RecentSlots()

    @property
    def slot(self) -> int:
        return self.book.slot

    @property
    def boundary(self) -> int:
        return self.times.boundary

    @property
    def since(self) -> int:
        """The slot from which on every change was folded here."""
        return self.book.since

    # Reading

    def node(self, key: str) -> Node | None:
        card = self.cards.get(key)
        return None if card is None else card.node

    def parts(self, key: str) -> Sequence[str]:
        """Return the keys of a table's versions, a version's streams, a stream's partitions, in order of creation."""
        card = self.cards.get(key)
        return () if card is None else card.parts

    def stream(self, key: str) -> DeltaLog | None:
        card = self.cards.get(key)
        return None if card is None else card.deltas

    def deltas(self, key: str) -> DeltaLog:
        """Return the deltas of a stream; none, if it is not there or has none yet."""
        return self.stream(key) or DeltaLog()

    def nodes(self) -> Iterator[Node]:
        return (card.node for _, card in self.cards.items() if card.node is not None)

    def streams(self) -> Iterator[tuple[str, DeltaLog]]:
        return ((key, card.deltas) for key, card in self.cards.items() if card.deltas is not None)

    def name_versions(self, name: str) -> list[NameVersion]:
        return self.names.get(name) or []

    def tables_by(self, sign: str, since: int) -> list[str]:
        """Return the tables that came to have a dataset of this sign in a slot or after it; they may be gone since."""
        if self.datasets.is_before(since) and not self.datasets.is_whole:
            self._find_folders()
        return self.datasets.tables_by(sign, since)

    def _find_folders(self) -> None:
        """Look at all objects, once, where a checkpoint of old does not say where datasets are; the next one does."""
        for node in list(self.nodes()):
            for folder in folders_of(node.kind, node.home, node.versions[-1]):
                self.datasets.come(node.key, folder, self.since)
        self.datasets.is_whole = True

    # Folding

    def fold(self, number: int, slot: Slot) -> Segment | None:
        """Take in the next slot. Every so many changes the tails are sealed: the segment to write is returned."""
        self.look_up(slot)
        self.book.slot = number
        if self.recent.add(number, slot) is None:
            self.resolved.clear()
        self.times.add(slot.time)
        self.published = max(self.published, slot.published)
        for txn in slot.transactions:
            for change in txn.changes:
                self._change(number, change)
            for mapped in txn.mappings:
                self._map(number, txn.id, mapped)
        if slot.boundary > self.boundary:
            self._forget_before(slot.boundary)
        self.weight += _weight(slot)
        if self.weight < CHECKPOINT_CHANGES:
            return None
        self.weight = 0
        tails, self.tails = self.tails, {}
        return {stream: self._seal(number, stream) for stream in tails}

    def look_up(self, slot: Slot) -> None:
        """Read all that a slot changes: nothing was changed yet if that fails."""
        for txn in slot.transactions:
            for change in txn.changes:
                above = change.key.rpartition("/")[0]
                if change.kind == "delta":
                    self.cards.get(above.rpartition("/")[0])
                else:
                    self.cards.get(change.key)
                    if change.kind not in NAMED:
                        self.cards.get(above)
                    if change.operation == "create":
                        for part in self.parts(change.key):
                            self._look_below(part)
            for mapped in txn.mappings:
                self.names.get(f"{mapped.parent}/{mapped.digest}")
        if slot.boundary > self.boundary:
            self._look_back()
        if self.weight + _weight(slot) >= CHECKPOINT_CHANGES:
            for stream in self.tails:
                self.cards.get(stream)

    def _seal(self, number: int, stream: str) -> list[Any]:
        log = self.card(stream).deltas
        assert log is not None
        return log.seal(number)

    def _change(self, slot: int, change: NewRevision) -> None:
        if change.kind == "delta":
            stream, _, position = stream_of(change.key)
            card = self.card(stream)
            log = card.deltas
            if log is None:
                log = card.deltas = DeltaLog()
            if change.operation == "create":
                log.add(position, slot, change.body)
                self.tails[stream] = None
            else:
                log.drop(position, slot)
            return
        body = decode_body("a slot's revision", change.body)
        revision = Revision(
            slot,
            body.revision,
            body.operation,
            body.txn,
            body.time,
            body.parent,
            body.parts,
            body.properties,
            body.aliases,
            change.link,
        )
        card = self.card(change.key)
        node, before = card.node, None
        if node is None:
            node = card.node = Node(change.key, body.id, body.kind, body.home, [revision])
        else:
            before = node.versions[-1]
            node.versions.append(revision)
            self.old.put("o", change.key, True)
        self._place(change.key, body.kind, before, revision)
        if revision.alive:
            self._settle(node, before, revision)

    def _settle(self, node: Node, before: Revision | None, now: Revision) -> None:
        """Know the folders of the datasets that there are with an object, and were not. A new one has no parts yet."""
        is_back = before is not None and not before.alive
        known = () if before is None or is_back else folders_of(node.kind, node.home, before)
        for folder in folders_of(node.kind, node.home, now):
            if folder not in known:
                self.datasets.come(node.key, folder, now.slot)
        if is_back:
            self._settle_below(node.key, now.slot)

    def _settle_below(self, key: str, slot: int) -> None:
        for part in self.parts(key):
            below = self.node(part)
            if below is not None and below.versions and below.versions[-1].alive:
                for folder in folders_of(below.kind, below.home, below.versions[-1]):
                    self.datasets.come(part, folder, slot)
                self._settle_below(part, slot)

    def _place(self, key: str, kind: str, before: Revision | None, now: Revision) -> None:
        """Keep the lists of children, the slot at which each last changed, and that at which one came or went."""
        self.touched[now.parent] = now.slot
        if before is None or before.alive != now.alive or before.parent != now.parent:
            self.members[now.parent] = now.slot
            if before is not None:
                self.members[before.parent] = now.slot
        if kind not in NAMED:
            if before is None:
                self.card(now.parent).parts.append(key)
            return
        if before is not None and before.alive:
            if before.parent != now.parent or not now.alive:
                self.touched[before.parent] = now.slot
                self.past.put(before.parent, key, True)
            if before.parent != now.parent or before.name != now.name or not now.alive:
                self._leave(before.parent, before.name, key)
        if not now.alive:
            self.past.put(now.parent, key, True)
        else:
            self.children.put(now.parent, now.name, NamedChild(key, kind))

    def _leave(self, parent: str, name: str, key: str) -> None:
        """The name is free, unless another object of the same slot has taken it already."""
        taken = self.children.known(parent, name)
        if taken is None or taken.key == key:
            self.children.put(parent, name, None)

    def _map(self, slot: int, txn: str, mapped: Mapped) -> None:
        name = f"{mapped.parent}/{mapped.digest}"
        versions = self.names.get(name)
        if versions:
            self.old.put("n", name, True)
        else:
            versions = []
        versions.append(NameVersion(slot, mapped.number, mapped.operation, mapped.object_id, txn))
        self.names.put(name, versions)

    # Forgetting

    def forget(self, boundary: int) -> None:
        """Forget what cannot be seen at or after the boundary."""
        self._look_back()
        self._forget_before(boundary)

    def _look_back(self) -> None:
        """Read all that forgetting may change."""
        self.times.all()
        for name in self.old.of("n"):
            self.names.get(name)
        for key in self.old.of("o"):
            self._look_below(key)
        for parent in self.past.firsts():
            for key in self.past.of(parent):
                self.cards.get(key)

    def _look_below(self, key: str) -> None:
        above = key.rpartition("/")[0]
        self.cards.get(above)
        for part in self.parts(key):
            self._look_below(part)

    def _forget_before(self, boundary: int) -> None:
        """Every process does the same at the same slot."""
        self.times.forget_before(boundary)
        for name in list(self.old.of("n")):
            kept = _kept(self.name_versions(name), boundary)
            self.names.put(name, kept or None)
            if len(kept) < 2 and not (kept and kept[-1].operation == "delete"):
                self.old.put("n", name, None)
        for key in list(self.old.of("o")):
            node = self.node(key)
            if node is not None:
                self.card(key)
                kept = _kept(node.versions, boundary)
                self._unsettle(node, kept)
                node.versions[:] = kept
                if not node.versions:
                    self._forget(key)
            if node is None or (len(node.versions) < 2 and not (node.versions and not node.versions[-1].alive)):
                self.old.put("o", key, None)
        for parent in self.past.firsts():
            for key in [key for key in self.past.of(parent) if not self._was_child(key, parent)]:
                self.past.put(parent, key, None)

    def _was_child(self, key: str, parent: str) -> bool:
        node = self.node(key)
        return node is not None and any(revision.parent == parent for revision in node.versions)

    def _unsettle(self, node: Node, kept: Sequence[Revision] = ()) -> None:
        """Remove an object's dataset folders from the index, except those that a kept revision names."""
        held = {folder for revision in kept for folder in folders_of(node.kind, node.home, revision)}
        for revision in node.versions:
            for folder in folders_of(node.kind, node.home, revision):
                if folder not in held:
                    self.datasets.leave(node.key, folder)

    def _forget(self, key: str) -> None:
        card = self.cards.get(key)
        if card is not None and card.node is not None:
            self._unsettle(card.node)
        self.cards.put(key, None)
        self.tails.pop(key, None)
        above = key.rpartition("/")[0]
        if key in self.parts(above):
            self.card(above).parts.remove(key)
        for part in list(card.parts) if card is not None else ():
            self._forget(part)

    # Being made

    def begin(self, slot: int, times: Sequence[int]) -> None:
        """An index of this slot that knows the times of the last slots."""
        self.book.slot = self.book.since = slot
        self.datasets.is_whole = False
        self.times.begin(slot, times)

    def card(self, key: str) -> Card:
        """Return the card of a key, made if there is none, that is about to be changed."""
        card = self.cards.get(key)
        if card is None:
            card = Card()
            self.cards.put(key, card)
        else:
            self.cards.mark(key)
        return card

    # Checkpoints

    def _maps(self) -> dict[str, Section[Any] | Pairs[Any]]:
        found = (self.cards, self.names, self.children, self.past, self.old, self.datasets.folders)
        return {one.prefix: one for one in found}

    def changes(self) -> list[LayerEntry]:
        """Return the changes since the checkpoint below, sorted, as the next layer stores them."""
        maps = self._maps()
        found = [(key, maps[key[0]].encoded(key[1:])) for key in self.book.changed]
        found += self.times.changes()
        found.sort(key=lambda item: item[0])
        return found

    def stand_on(self, base: Layers, located: bool) -> None:
        """A checkpoint of a slot that is folded already: it holds all that was changed up to it."""
        self.book.stand_on(base)
        self.datasets.is_whole = located
        self.times.stand_on(base.slot)

    def checkpoint(self, layers: list[Layer]) -> Checkpoint:
        """Return the part of a checkpoint that is not in its layers."""
        return Checkpoint(
            self.slot,
            self.boundary,
            self.published,
            self.weight,
            self.times.last,
            list(self.tails),
            layers,
            located=self.datasets.is_whole,
        )

    @classmethod
    def of(cls, found: Checkpoint, pages: Pages) -> SlotIndex:
        """Return the index that a checkpoint holds. Nothing of its layers is read yet."""
        index = cls()
        index.begin(found.slot, [found.time])
        index.times.boundary, index.published, index.weight = found.boundary, found.published, found.weight
        index.tails, index.datasets.is_whole = dict.fromkeys(found.tails), found.located
        index.book.base = Layers(pages, found.layers, found.slot)
        return index

    def take_over(self, other: SlotIndex) -> None:
        """Stand on the layers of another index of the same slot, which was made of other files."""
        maps, theirs = self._maps(), other._maps()
        other.times.all()  # nothing is changed yet if that cannot be read
        self.book.base, self.datasets.is_whole = other.book.base, other.datasets.is_whole
        for key in [key for key in other.book.changed if key not in self.book.changed]:
            maps[key[0]].take(key[1:], theirs[key[0]])  # type: ignore[arg-type]
            if key[0] == self.datasets.folders.prefix:
                self.datasets.take(key[1:])
        self.times.take(other.times)


def _weight(slot: Slot) -> int:
    return sum(len(txn.changes) + 1 for txn in slot.transactions)


def _kept(versions: list[Any], boundary: int) -> list[Any]:
    """Return the revisions that a read at or after the boundary can see."""
    start = max(bisect_right(versions, boundary, key=lambda version: version.slot) - 1, 0)
    if versions and versions[start].slot <= boundary and versions[start].operation == "delete":
        start += 1
    return versions[start:]
