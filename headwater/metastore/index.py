"""The index: the folded slots, in memory, with every revision and mapping kept, so that any slot can be read.

It mirrors the published layout: objects by key, Name Resolution Directories by `<parent>/<digest>`. What comes out of a
checkpoint stays encoded until it is touched, so opening costs little. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import msgspec

from headwater.metastore.deltas import DeltaLog, Segment, stream_of
from headwater.metastore.records import (
    Mapped,
    NameVersion,
    NewRevision,
    Node,
    Revision,
    Slot,
    decode,
    decode_body,
    encode,
)

CHECKPOINT_CHANGES = 2000
NODES_PER_CHANGE = 10
NAMED = ("namespace", "table")
_nodes = msgspec.msgpack.Decoder(Node)
_names = msgspec.msgpack.Decoder(list[NameVersion])


class Checkpoint(msgspec.Struct, array_like=True):
    """An index as a checkpoint file holds it."""

    slot: int
    boundary: int
    published: int
    weight: int
    times: list[int]
    nodes: dict[str, msgspec.Raw]
    names: dict[str, msgspec.Raw]
    children: dict[str, list[str]]
    past: dict[str, list[str]]
    parts: dict[str, list[str]]
    streams: dict[str, DeltaLog]
    old_nodes: list[str]
    old_names: list[str]


_checkpoints = msgspec.msgpack.Decoder(Checkpoint)


class SlotIndex:
    """The state of the catalog at every slot from `boundary` to `slot`."""

    def __init__(self) -> None:
        self.slot = 0
        self.boundary = 0
        self.published = 0
        self.weight = 0
        self.times = array("q", [0])
        self.nodes: dict[str, Node | msgspec.Raw] = {}
        self.names: dict[str, list[NameVersion] | msgspec.Raw] = {}
        self.children: dict[str, dict[str, None]] = {}
        self.past: dict[str, dict[str, None]] = {}
        self.parts: dict[str, list[str]] = {}
        self.streams: dict[str, DeltaLog] = {}
        self.touched: dict[str, int] = {}
        self.members: dict[str, int] = {}
        self.sorted_names: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.resolved: dict[tuple[str, ...], Any] = {}
        """Where namespaces of the newest slot are, as far as somebody asked."""
        self.old_nodes: dict[str, None] = {}
        self.old_names: dict[str, None] = {}

    # Reading

    def node(self, key: str) -> Node | None:
        found = self.nodes.get(key)
        if isinstance(found, msgspec.Raw):
            found = self.nodes[key] = decode(_nodes, "checkpoint", bytes(found))
        return found

    def name_versions(self, name: str) -> list[NameVersion]:
        found = self.names.get(name)
        if isinstance(found, msgspec.Raw):
            found = self.names[name] = decode(_names, "checkpoint", bytes(found))
        return found or []

    def slot_at(self, time_ms: int) -> int:
        """The last slot not younger than a time. Slot times never decrease, whatever the writers' clocks say."""
        return self.boundary + bisect_right(self.times, time_ms) - 1

    def time_of(self, slot: int) -> int:
        return self.times[slot - self.boundary]

    # Folding

    def fold(self, number: int, slot: Slot) -> Segment | None:
        """Take in the next slot. Every so many changes the tails are sealed: the segment to write is returned."""
        self.slot = number
        self.resolved.clear()
        self.times.append(max(self.times[-1], slot.time))
        self.published = max(self.published, slot.published)
        for txn in slot.transactions:
            for change in txn.changes:
                self._change(number, change)
            for mapped in txn.mappings:
                self._map(number, txn.id, mapped)
            self.weight += len(txn.changes) + 1
        if slot.boundary > self.boundary:
            self.forget(slot.boundary)
        if self.weight < max(CHECKPOINT_CHANGES, len(self.nodes) // NODES_PER_CHANGE):
            return None
        self.weight = 0
        return {stream: log.seal(number) for stream, log in self.streams.items() if log.tail}

    def _change(self, slot: int, change: NewRevision) -> None:
        if change.kind == "delta":
            stream, _, position = stream_of(change.key)
            log = self.streams.get(stream)
            if log is None:
                log = self.streams[stream] = DeltaLog()
            if change.operation == "create":
                log.add(position, slot, change.body)
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
        node = self.node(change.key)
        if node is None:
            self.nodes[change.key] = Node(change.key, body.id, body.kind, body.home, [revision])
        else:
            node.versions.append(revision)
            self.old_nodes[change.key] = None
        self._place(change.key, body.kind, node.versions[-2] if node is not None else None, revision)

    def _place(self, key: str, kind: str, before: Revision | None, now: Revision) -> None:
        """Keep the lists of children, the slot at which each last changed, and that at which one came or went."""
        self.touched[now.parent] = now.slot
        if before is None or before.alive != now.alive or before.parent != now.parent:
            self.members[now.parent] = now.slot
            if before is not None:
                self.members[before.parent] = now.slot
        if kind not in NAMED:
            if before is None:
                self.parts.setdefault(now.parent, []).append(key)
            return
        if before is not None and before.alive and (before.parent != now.parent or not now.alive):
            self.touched[before.parent] = now.slot
            self.children[before.parent].pop(key, None)
            self.past.setdefault(before.parent, {})[key] = None
        if not now.alive:
            self.past.setdefault(now.parent, {})[key] = None
        else:
            self.children.setdefault(now.parent, {})[key] = None

    def _map(self, slot: int, txn: str, mapped: Mapped) -> None:
        name = f"{mapped.parent}/{mapped.digest}"
        versions = self.name_versions(name)
        if versions:
            self.old_names[name] = None
        else:
            self.names[name] = versions
        versions.append(NameVersion(slot, mapped.number, mapped.operation, mapped.object_id, txn))

    # Forgetting

    def forget(self, boundary: int) -> None:
        """Forget what cannot be seen at or after the boundary. Every process does the same at the same slot."""
        self.times = self.times[boundary - self.boundary :]
        self.boundary = boundary
        for name in list(self.old_names):
            kept = _kept(self.name_versions(name), boundary)
            if kept:
                self.names[name] = kept
            else:
                del self.names[name]
            if len(kept) < 2 and not (kept and kept[-1].operation == "delete"):
                del self.old_names[name]
        for key in list(self.old_nodes):
            node = self.node(key)
            if node is not None:
                node.versions[:] = _kept(node.versions, boundary)
                if not node.versions:
                    self._forget(key)
            if node is None or (len(node.versions) < 2 and not (node.versions and not node.versions[-1].alive)):
                self.old_nodes.pop(key, None)
        self._prune_past()

    def _prune_past(self) -> None:
        for parent in list(self.past):
            kept = {key: None for key in self.past[parent] if self._was_child(key, parent)}
            if kept:
                self.past[parent] = kept
            else:
                del self.past[parent]

    def _was_child(self, key: str, parent: str) -> bool:
        node = self.node(key)
        return node is not None and any(revision.parent == parent for revision in node.versions)

    def _forget(self, key: str) -> None:
        self.nodes.pop(key, None)
        self.streams.pop(key, None)
        self.children.pop(key, None)
        siblings = self.parts.get(key.rpartition("/")[0])
        if siblings is not None and key in siblings:
            siblings.remove(key)
        for part in self.parts.pop(key, []):
            self._forget(part)

    # Checkpoints

    def dump(self) -> bytes:
        children = {key: list(found) for key, found in self.children.items() if found}
        past = {key: list(found) for key, found in self.past.items()}
        values: list[Any] = [self.slot, self.boundary, self.published, self.weight, self.times.tolist()]
        values += [self.nodes, self.names, children, past, self.parts, self.streams]
        values += [list(self.old_nodes), list(self.old_names)]
        return encode(values)

    @classmethod
    def load(cls, key: str, payload: bytes) -> SlotIndex:
        found = decode(_checkpoints, key, payload)
        index = cls()
        index.slot, index.boundary = found.slot, found.boundary
        index.published, index.weight = found.published, found.weight
        index.times = array("q", found.times)
        index.nodes.update(found.nodes)
        index.names.update(found.names)
        index.children = {parent: dict.fromkeys(keys) for parent, keys in found.children.items()}
        index.past = {parent: dict.fromkeys(keys) for parent, keys in found.past.items()}
        index.parts, index.streams = found.parts, found.streams
        index.old_nodes, index.old_names = dict.fromkeys(found.old_nodes), dict.fromkeys(found.old_names)
        return index


def _kept(versions: list[Any], boundary: int) -> list[Any]:
    """The versions that can be seen at or after the boundary."""
    start = max(bisect_right(versions, boundary, key=lambda version: version.slot) - 1, 0)
    if versions and versions[start].slot <= boundary and versions[start].operation == "delete":
        start += 1
    return versions[start:]


def iterate_nodes(index: SlotIndex) -> Iterator[Node]:
    for key in list(index.nodes):
        node = index.node(key)
        if node is not None:
            yield node
