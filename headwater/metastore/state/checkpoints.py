"""The checkpoints of a log: which there are, the index that one holds, and writing the next one.

Files of layers are written before the checkpoint that names them, and deleted ten minutes after the last one that
named them: whoever opened the catalog by an older checkpoint reads on meanwhile, and then finds a newer one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from headwater.clock import Clock
from headwater.errors import CorruptFileError
from headwater.metastore.records.deltas import DeltaLog
from headwater.metastore.records.disk_records import LAYERED, NameVersion, Node, decode, encode, seal, unseal
from headwater.metastore.records.layout import CHECKPOINTS, LAYERS, checkpoint_key, checkpoint_slot, layer_key
from headwater.metastore.state.index import Checkpoint, NamedChild, SlotIndex
from headwater.metastore.state.layers import LayerFile, Layers, Pages
from headwater.store import KeyNotFoundError, Store

KEPT_CHECKPOINTS = 2
RETIRED_MS = int(timedelta(minutes=10).total_seconds() * 1000)
_checkpoints = msgspec.msgpack.Decoder(Checkpoint)


class Checkpoints:
    """The checkpoints of one catalog. `damaged` are the files of layers that cannot be read any more."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.pages = Pages(store)
        self.damaged: set[str] = set()
        self._writing = threading.Lock()

    def slots(self) -> list[int]:
        """Return the slots that there are checkpoints of, the newest first."""
        slots = (checkpoint_slot(entry.key) for entry in self.store.children(CHECKPOINTS).entries)
        return sorted((slot for slot in slots if slot is not None), reverse=True)

    def newest(self, up_to: int | None = None) -> SlotIndex | None:
        """Return the index of the newest checkpoint that can be read (of a slot that is not after this one)."""
        for slot in self.slots():
            if up_to is not None and slot > up_to:
                continue
            try:
                found = self.read(slot)
            except CorruptFileError:
                continue
            if self._is_whole(found):
                index = SlotIndex.of(found, self.pages)
                assert index.book.base is not None
                self.pages.fetch(index.book.base.files)
                return index
        return None

    def _is_whole(self, found: Checkpoint) -> bool:
        return self.damaged.isdisjoint(file.id for layer in found.layers for file in layer)

    def avoid(self, key: str) -> bool:
        """Return True if a damaged file is one of a layer that was used up to now; from now on it is not."""
        folder, _, id = key.rpartition("/")
        if folder != LAYERS or id in self.damaged:
            return False
        self.damaged.add(id)
        return True

    def read(self, slot: int) -> Checkpoint:
        """Return the checkpoint of a slot; CorruptFile if it is missing or damaged."""
        key = checkpoint_key(slot)
        try:
            data = self.store.get(key)
        except KeyNotFoundError:
            raise CorruptFileError(key, "it is missing") from None
        return decode(_checkpoints, key, unseal(key, data, LAYERED))

    def files(self, newest: bool = False) -> dict[str, LayerFile]:
        """Return the files of layers that some checkpoint names, or only those of the newest that can be read."""
        found: dict[str, LayerFile] = {}
        for slot in self.slots():
            try:
                checkpoint = self.read(slot)
            except CorruptFileError:
                continue
            found.update((file.id, file) for layer in checkpoint.layers for file in layer)
            if newest:
                break
        return found

    def write(self, index: SlotIndex, lock: threading.RLock, flush: Callable[[], None]) -> int:
        """Write what changed since the last checkpoint, whoever made it, as one layer more; the slot it is of.

        `flush` writes the segments that the index has sealed. It is called with the lock that the entries are taken
        with: a segment that is sealed in between would be named by the checkpoint, and gone if this process died.
        """
        with self._writing:
            retired = self._catch_up(index, lock)
            while True:
                with lock:
                    flush()
                    entries = index.changes()
                    before = index.book.base or Layers(self.pages, [], 0)
                    made = index.checkpoint([])
                try:
                    layers = before.with_layer(self.clock, entries, made.slot)
                    break
                except CorruptFileError as damaged:
                    with lock:
                        index.book.mended(damaged)
            made.layers = layers.layers
            made.retired = self._retired(retired, before, layers)
            self.store.put(checkpoint_key(made.slot), seal(LAYERED, encode(made)))
            with lock:
                index.stand_on(layers, made.located)
            self._tidy(made)
            return made.slot

    def _catch_up(self, index: SlotIndex, lock: threading.RLock) -> dict[str, int]:
        """Stand on the newest checkpoint that another has made since; the files that were of use before it."""
        for slot in self.slots():
            if slot > index.slot:
                continue
            try:
                found = self.read(slot)
            except CorruptFileError:
                continue
            if not self._is_whole(found):
                continue
            with lock:
                if index.book.base is None or found.slot > index.book.base.slot:
                    index.stand_on(Layers(self.pages, found.layers, found.slot), found.located)
            return found.retired
        return {}

    def _retired(self, known: dict[str, int], before: Layers, after: Layers) -> dict[str, int]:
        now = self.clock.now_ms()
        used = {file.id for file in after.files}
        gone = dict.fromkeys((file.id for file in before.files if file.id not in used), now)
        return {**gone, **known}

    def _tidy(self, made: Checkpoint) -> None:
        """Delete all checkpoints but the last few, and the files that were retired long ago."""
        for old in self.slots()[KEPT_CHECKPOINTS:]:
            self.store.delete(checkpoint_key(old))
        self.pages.keep_only([file for layer in made.layers for file in layer])
        long_ago = self.clock.now_ms() - RETIRED_MS
        due = [id for id, since in made.retired.items() if since < long_ago]
        if due:
            used = self.files()
            for id in due:
                if id not in used:
                    self.store.delete(layer_key(id))


class WholeIndex(msgspec.Struct, array_like=True):
    """The content of an index, as values in their order."""

    slot: int
    boundary: int
    published: int
    weight: int
    times: list[int]
    nodes: dict[str, Node]
    names: dict[str, list[NameVersion]]
    children: dict[str, list[str]]
    past: dict[str, list[str]]
    parts: dict[str, list[str]]
    streams: dict[str, DeltaLog]
    old_nodes: list[str]
    old_names: list[str]


_whole = msgspec.msgpack.Decoder(WholeIndex)


def dump(index: SlotIndex) -> bytes:
    """Serialize a whole index into one object, as the file of a named snapshot holds it."""
    cards = dict(index.cards.items())
    listed = {parent: index.children.of(parent).values() for parent in index.children.firsts()}
    children = {parent: [child.key for child in found] for parent, found in listed.items()}
    past = {parent: list(index.past.of(parent)) for parent in index.past.firsts()}
    values: list[Any] = [index.slot, index.boundary, index.published, index.weight, index.times.all().tolist()]
    values.append({key: card.node for key, card in cards.items() if card.node is not None})
    values.append(dict(index.names.items()))
    values += ({parent: found for parent, found in one.items() if found} for one in (children, past))
    values.append({key: card.parts for key, card in cards.items() if card.parts})
    values.append({key: card.deltas for key, card in cards.items() if card.deltas is not None})
    values += [list(index.old.of("o")), list(index.old.of("n"))]
    return encode(values)


def load(key: str, payload: bytes) -> SlotIndex:
    """Return the index that `dump` has serialized. `key`: its file, for errors."""
    found = decode(_whole, key, payload)
    index = SlotIndex()
    index.begin(found.slot, found.times)
    index.published, index.weight = found.published, found.weight
    for node in found.nodes.values():
        index.card(node.key).node = node
    for one, parts in found.parts.items():
        index.card(one).parts = parts
    for one, deltas in found.streams.items():
        index.card(one).deltas = deltas
        if deltas.tail:
            index.tails[one] = None
    for name, versions in found.names.items():
        index.names.put(name, versions)
    for parent, keys in found.children.items():
        for child in filter(None, map(index.node, keys)):
            index.children.put(parent, child.versions[-1].name, NamedChild(child.key, child.kind))
    for parent, keys in found.past.items():
        for one in keys:
            index.past.put(parent, one, True)
    for kind, old in (("o", found.old_nodes), ("n", found.old_names)):
        for one in old:
            index.old.put(kind, one, True)
    return index
