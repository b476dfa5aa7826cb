"""Named snapshots: a state of the catalog, or of some tables, that stays readable past every collection.

Each is an index of its own, with one revision of each object and only the deltas that reading needs, in a file of its
own. A record in the log names the file. The file is written first; the record commits only if no collection has passed
the state meanwhile, and a collection looks at the records after its boundary is committed: so none deletes what a
snapshot needs, whichever of the two comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from headwater.errors import CorruptFileError, TableTagAlreadyExistsError, TableTagNotFoundError
from headwater.metastore.deltas import DeltaLog, Stored, last_position, read_deltas
from headwater.metastore.draft import Draft
from headwater.metastore.index import NamedChild, SlotIndex
from headwater.metastore.layout import (
    canonical,
    check_named_id,
    digest,
    snapshot_home,
    snapshot_key,
    snapshot_node,
)
from headwater.metastore.log import Log
from headwater.metastore.objects import NamedSnapshot, PinnedTable, time_of
from headwater.metastore.records import (
    PINNED,
    DeltaBody,
    Node,
    Revision,
    decode,
    decode_delta,
    encode,
    seal,
    unseal,
)
from headwater.metastore.retention import base_of
from headwater.metastore.rules import refused
from headwater.metastore.serving_copy import LANCE_FORMAT
from headwater.metastore.slot_views import ROOT, IndexView, Item, Place, place_of, resolve_table, version_at
from headwater.metastore.whole import dump, load
from headwater.names import object_id
from headwater.store import KeyNotFoundError

FILE, SLOT = "file", "slot"
DELTA_FORMAT = "delta"
CACHED = 16


class Pinned(msgspec.Struct, array_like=True):
    """The content of a snapshot's file: what is pinned, and the index to read it by."""

    tables: list[PinnedTable]
    index: bytes


_pinned = msgspec.msgpack.Decoder(Pinned)
Read = tuple[tuple[PinnedTable, ...], SlotIndex]


class Snapshots:
    """The named snapshots of a log. What was read of their files, which never change, is kept."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._read: dict[str, Read] = {}

    def find(self, name: str) -> Revision:
        """The record of a snapshot; NotFound (12) if there is none of this name."""
        item = IndexView(self.log.index, self.log.index.slot).item(snapshot_node(name))
        if item is None:
            known = sorted(found.revision.name for found in alive(self.log.index))
            raise TableTagNotFoundError(f"There is no snapshot {name!r}; known: {', '.join(known[:20]) or 'none'}.")
        return item.revision

    def read(self, revision: Revision) -> Read:
        """What a snapshot pins, and the index it is read by."""
        id = str(revision.properties[FILE])
        if id not in self._read:
            key = snapshot_key(id)
            try:
                found = decode(_pinned, key, unseal(key, self.log.store.get(key), PINNED))
            except KeyNotFoundError:
                raise CorruptFileError(key, "it is missing") from None
            while len(self._read) >= CACHED:
                self._read.pop(next(iter(self._read)))
            self._read[id] = tuple(found.tables), load(key, found.index)
        return self._read[id]

    def told(self, name: str, revision: Revision) -> NamedSnapshot:
        tables, index = self.read(revision)
        return NamedSnapshot(name, index.slot, time_of(index.last_time), tables)

    def write(self, id: str, view: IndexView, tables: Sequence[Sequence[str]] | None) -> None:
        """Write the file of a new snapshot of what a view shows."""
        with self.log.lock:
            if view.at < view.index.boundary:
                raise refused("its snapshot was collected")
            made = Pinning(self.log, view)
            made.take(tables)
            payload = encode(Pinned(made.tables, dump(made.index)))
        self.log.store.put(snapshot_key(id), seal(PINNED, payload))


def alive(index: SlotIndex) -> list[Item]:
    """The records of the snapshots there are."""
    view = IndexView(index, index.slot)
    return [item for key in view.parts("") if (item := view.item(key)) is not None]


def create(draft: Draft, name: str, id: str) -> None:
    """The record of a snapshot whose file is written."""
    check_named_id(name, "snapshot")
    key = snapshot_node(name)
    draft.relied_on(key)
    before = draft.item(key, dropped=True)
    if before is not None and before.revision.alive:
        raise TableTagAlreadyExistsError(f"There is a snapshot {name!r} already: drop it, or choose another name.")
    node = before.node if before is not None else Node(key, name, "snapshot", snapshot_home(name), [])
    revision = Revision(0, 0, "create", "", 0, "", (name,), {FILE: id, SLOT: draft.base.at})
    if before is None:
        draft.add(node, revision, ())
    else:
        draft.change(Item(node, revision), ())


def drop(draft: Draft, item: Item) -> None:
    draft.change(Item(item.node, msgspec.structs.replace(item.revision, operation="delete")), ())


class Pinning:
    """Copies what a view shows into an index of its own."""

    def __init__(self, log: Log, view: IndexView) -> None:
        self.log = log
        self.view = view
        self.tables: list[PinnedTable] = []
        self.index = SlotIndex()
        self.index.begin(view.at, [view.index.time_of(view.at)])

    def take(self, tables: Sequence[Sequence[str]] | None) -> None:
        """All there is, or these tables with the namespaces on the way to them."""
        if tables is None:
            self._take_below(ROOT)
            return
        for path in tables:
            place = ROOT
            found = resolve_table(self.view, object_id(path))
            for key in found.keys[1:]:
                item = self.view.item(key)
                assert item is not None
                if self.index.node(key) is None:
                    self._take(place, item)
                place = place_of(place, item)

    def _take_below(self, parent: Place) -> None:
        for key in self.view.children(parent.key):
            item = self.view.item(key)
            assert item is not None
            self._take(parent, item)
            if item.node.kind == "namespace":
                self._take_below(place_of(parent, item))

    def _take(self, parent: Place, item: Item) -> None:
        key = self._copy(item)
        self.index.children.put(parent.key, item.revision.name, NamedChild(key, item.node.kind))
        for name in (item.revision.name, *item.revision.aliases):
            mapped = f"{parent.key}/{digest(canonical(parent.locator, name))}"
            version = version_at(self.view.index.name_versions(mapped), self.view.at)
            if version is not None:
                self.index.names.put(mapped, [version])
        if item.node.kind == "table":
            self._take_table(place_of(parent, item))

    def _copy(self, item: Item) -> str:
        node = item.node
        self.index.card(node.key).node = Node(node.key, node.id, node.kind, node.home, [item.revision])
        return node.key

    def _take_table(self, table: Place) -> None:
        version = position = None
        for above in self._take_parts(table.key):
            streams = list(self._take_parts(above))
            for stream in streams:
                list(self._take_parts(stream))
            version, position = self._take_deltas(streams)
        self.tables.append(PinnedTable(table.key, table.path, version, position))

    def _take_parts(self, key: str) -> Iterator[str]:
        for part in self.view.parts(key):
            item = self.view.item(part)
            assert item is not None
            self.index.card(key).parts.append(self._copy(item))
            yield part

    def _take_deltas(self, streams: Sequence[str]) -> tuple[int | None, int | None]:
        """The deltas that reading a table version needs; its Lance version and the position of its change log."""
        version = position = None
        formats = {stream: self.view.item(stream).revision.parts[1] for stream in streams}  # type: ignore[union-attr]
        deltas = {stream: list(self._deltas(stream)) for stream in streams}
        lance = [d for stream in streams if formats[stream] == LANCE_FORMAT for d in deltas[stream]]
        changes = [d for stream in streams if formats[stream] == DELTA_FORMAT for d in deltas[stream]]
        base, first = base_of([body for _, body in lance], [body for _, body in changes])
        for stream in streams:
            known = self.view.index.stream(stream)
            if known is None:
                continue
            last = last_position(self.log.segments, stream, known, self.view.at)
            after = {LANCE_FORMAT: first - 1, DELTA_FORMAT: base}.get(formats[stream], 0)
            tail = [stored for stored, _ in deltas[stream] if stored.position > after]
            self.index.card(stream).deltas = DeltaLog(last, self.view.at, [], tail, {})
            if formats[stream] == LANCE_FORMAT:
                version = deltas[stream][-1][0].position if deltas[stream] else None
            elif formats[stream] == DELTA_FORMAT:
                position = last
        return version, position

    def _deltas(self, stream: str) -> Iterator[tuple[Stored, DeltaBody]]:
        known = self.view.index.deltas(stream)
        for stored in read_deltas(self.log.segments, stream, known, 0, self.view.at):
            yield stored, decode_delta(stream, stored.body)
