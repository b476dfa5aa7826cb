"""An index as one piece: in the file of a named snapshot, and in checkpoints before there were layers."""

from __future__ import annotations

from typing import Any

import msgspec

from headwater.metastore.deltas import DeltaLog
from headwater.metastore.index import NamedChild, SlotIndex
from headwater.metastore.records import NameVersion, Node, decode, encode


class WholeIndex(msgspec.Struct, array_like=True):
    """The values in their order."""

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
