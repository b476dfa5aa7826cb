"""Named snapshots: a state of the catalog, or of some tables, that stays readable past every collection.

Each is an index of its own, with one revision of each object and only the deltas that reading needs, in a file of its
own. A record in the log names the file. The file is written first; the record commits only if no collection has passed
the state meanwhile, and a collection looks at the records after its boundary is committed: so none deletes what a
snapshot needs, whichever of the two comes first.

One that a transaction takes is of the transaction's own slot, so its file comes after its record. Until it is there,
whoever needs it makes it of the index, and a collection writes it before its boundary can pass the slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from headwater.errors import CorruptFileError, TableTagAlreadyExistsError, TableTagNotFoundError
from headwater.metastore.commit.draft import Draft
from headwater.metastore.commit.log import Log
from headwater.metastore.commit.rules import refused
from headwater.metastore.commit.table_parts import find_active
from headwater.metastore.records.deltas import DeltaLog, Stored, base_of, last_position, read_deltas
from headwater.metastore.records.disk_records import (
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
from headwater.metastore.records.layout import (
    ROOT_NODE,
    canonical,
    check_named_id,
    digest,
    snapshot_home,
    snapshot_key,
    snapshot_node,
)
from headwater.metastore.records.objects import NamedSnapshot, PinnedTable, time_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.metastore.state.checkpoints import dump, load
from headwater.metastore.state.index import NamedChild, SlotIndex
from headwater.metastore.state.lookup import lance_streams, stream_location
from headwater.metastore.state.slot_views import (
    ROOT,
    IndexView,
    Item,
    Place,
    place_at,
    place_of,
    resolve_table,
    version_at,
)
from headwater.names import object_id
from headwater.wording import did_you_mean

FILE, SLOT, TABLES = "file", "slot", "tables"
"""Properties of a record: the id of its file, and the slot it is of; or, if that is its transaction's own, the ids of
the tables it is of (nil: all)."""
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
        """Return the record of a snapshot; NotFound (12) if there is none of this name."""
        item = IndexView(self.log.index, self.log.index.slot).item(snapshot_node(name))
        if item is None:
            known = sorted(found.revision.name for found in alive(self.log.index))
            listed = f"The catalog has {', '.join(known[:20])}." if known else "The catalog has none."
            raise TableTagNotFoundError(
                f"There is no snapshot {name!r}.{did_you_mean(name, known)} {listed} A time is a datetime with a zone."
            )
        return item.revision

    def read(self, revision: Revision) -> Read:
        """Return the tables that a named snapshot pins, and the index to read them with."""
        id = str(revision.properties[FILE])
        if id not in self._read:
            key = snapshot_key(id)
            data = self.log.store.get_all([key])[0] or self._made(revision)
            if data is None:
                raise CorruptFileError(key, "it is missing")
            found = decode(_pinned, key, unseal(key, data, PINNED))
            while len(self._read) >= CACHED:
                self._read.pop(next(iter(self._read)))
            self._read[id] = tuple(found.tables), load(key, found.index)
        return self._read[id]

    def all(self) -> list[NamedSnapshot]:
        """Return the snapshots that the index knows."""
        with self.log.lock:
            records = [item.revision for item in alive(self.log.index)]
        return [self.told(revision.name, revision) for revision in records]

    def pinned(self, location: str) -> dict[int, str]:
        """Return the versions of the Lance dataset in a folder that snapshots need, with a snapshot's name."""
        found: dict[int, str] = {}
        with self.log.lock:
            for item in alive(self.log.index):
                _, index = self.read(item.revision)
                streams = [node.key for node in lance_streams(index) if stream_location(node) == location]
                for stored in (one for key in streams for one in index.deltas(key).tail):
                    found[stored.position] = item.revision.name
        return found

    def settle(self, revision: Revision) -> None:
        """Write the file of a snapshot that a transaction has taken, unless it is there."""
        key = snapshot_key(str(revision.properties[FILE]))
        if SLOT in revision.properties or self.log.store.head(key) is not None:
            return
        data = self._made(revision)
        if data is not None:
            self.log.store.put(key, data)

    def _made(self, revision: Revision) -> bytes | None:
        """Return the file of a snapshot that a transaction has taken; None if its slot cannot be read any more."""
        with self.log.lock:
            slot = taken_at(self.log.index, revision)
            if slot is None:
                return None
            view, keys = IndexView(self.log.index, slot), revision.properties[TABLES]
            found = None if keys is None else [place_at(view, key) for key in keys]
            return self._sealed(view, None if found is None else [place for place in found if place is not None])

    def _sealed(self, view: IndexView, tables: Sequence[Place] | None) -> bytes:
        made = Pinning(self.log, view)
        made.take(tables)
        return seal(PINNED, encode(Pinned(made.tables, dump(made.index))))

    def told(self, name: str, revision: Revision) -> NamedSnapshot:
        tables, index = self.read(revision)
        return NamedSnapshot(name, index.slot, time_of(index.times.last), tables)

    def write(self, id: str, view: IndexView, tables: Sequence[Sequence[str]] | None) -> None:
        """Write the file of a new snapshot of what a view shows."""
        with self.log.lock:
            if view.at < view.index.boundary:
                raise refused("its snapshot was collected")
            found = None if tables is None else [resolve_table(view, object_id(path)) for path in tables]
            data = self._sealed(view, found)
        self.log.store.put(snapshot_key(id), data)


def taken_at(index: SlotIndex, revision: Revision) -> int | None:
    """Return the slot of the transaction that took a snapshot, where its file can be made of the index; else None.

    An undo may have brought the record back since: then an older revision names the file.
    """
    node = index.node(snapshot_node(revision.name))
    if SLOT in revision.properties or node is None:
        return None
    file = revision.properties[FILE]
    slot = min(each.slot for each in node.versions if each.properties[FILE] == file)
    return slot if slot >= index.boundary else None


def alive(index: SlotIndex) -> list[Item]:
    """Return the records of all named snapshots that are not dropped."""
    view = IndexView(index, index.slot)
    return [item for key in view.parts("") if (item := view.item(key)) is not None]


def create(draft: Draft, name: str, of: dict[str, Any]) -> None:
    """The record of a snapshot: `of` says which file, and which state."""
    check_named_id(name, "snapshot")
    key = snapshot_node(name)
    draft.depend_on(key)
    before = draft.item(key, dropped=True)
    if before is not None and before.revision.alive:
        raise TableTagAlreadyExistsError(f"There is a snapshot {name!r} already: drop it, or choose another name.")
    node = before.node if before is not None else Node(key, name, "snapshot", snapshot_home(name), [])
    revision = Revision(0, 0, "create", "", 0, "", (name,), of)
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
        self.index.begin(view.at, [view.index.times.of(view.at)])

    def take(self, tables: Sequence[Place] | None) -> None:
        """All there is, or these tables with the namespaces on the way to them; and the root's own properties."""
        root = self.view.item(ROOT_NODE)
        if root is not None:
            self._copy(root)
        if tables is None:
            self._take_below(ROOT)
            return
        for found in tables:
            place = ROOT
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
        active = find_active(self.view, table)
        for above in self._take_parts(table.key):
            streams = list(self._take_parts(above))
            for stream in streams:
                list(self._take_parts(stream))
            taken = self._take_deltas(streams)
            if active is not None and active.node.key == above:
                version, position = taken
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
