"""Index of Lance datasets by folder and owner: two tables in one folder would overwrite each other's versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headwater.metastore.commit.draft import Draft
from headwater.metastore.records.disk_records import Node
from headwater.metastore.records.serving_copy import (
    KEEP_DATA,
    LANCE_FORMAT,
    default_location,
    location_of,
    signs_at,
    signs_near,
)
from headwater.metastore.state.index import SlotIndex
from headwater.metastore.state.index_maps import folders_of
from headwater.metastore.state.slot_views import SlotView


def lance_streams(index: SlotIndex) -> Iterator[Node]:
    """Every lance stream that is kept, also of what was dropped."""
    for node in index.nodes():
        if node.kind == "stream" and node.versions[-1].parts[1] == LANCE_FORMAT:
            yield node


def stream_location(stream: Node) -> str:
    return location_of(stream.versions[-1].properties, stream.home)


def dropped_locations(index: SlotIndex, boundary: int | None = None) -> Iterator[str]:
    """The folders of datasets that were dropped (up to a slot), but for those that were to be left where they are."""
    for stream in lance_streams(index):
        steps = stream.key.split("/")
        above = (index.node("/".join(steps[:end])) for end in range(1, len(steps) + 1))
        last = [node.versions[-1] for node in above if node is not None]
        gone = [revision for revision in last if not revision.alive]
        past = any(boundary is None or revision.slot <= boundary for revision in gone)
        if past and not stream.versions[-1].properties.get(KEEP_DATA):
            yield stream_location(stream)


def taken_datasets(draft: Draft, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Of tables that come back, those whose dataset is at, inside or around that of another table by now, with that
    other one, which was registered there meanwhile: not before the slot that dropped the one that comes back."""
    for table in tables:
        before = draft.base.item(table, dropped=True)
        left = before.revision.slot if before is not None and not before.revision.alive else draft.base.at
        for folder in list(_folders(draft, table)):
            for other in tables_near(draft, folder, left):
                if other not in tables:
                    yield table, other


def tables_near(view: SlotView, folder: str, since: int = 0) -> Iterator[str]:
    """Return the keys of the tables with a dataset in a folder, inside of it or around it.

    `since`: only tables that came there in this slot or later. A transaction depends on it that no other one comes.
    """
    near = set(signs_near(folder))
    for table in dict.fromkeys(key.split("/")[0] for key in view.near(folder, since)):
        item = view.item(table) if table else None
        folders = _folders(view, table) if item is not None and item.node.kind == "table" else ()
        if any(not near.isdisjoint(signs_at(own)) for own in folders):
            yield table


def new_signs(draft: Draft) -> Iterator[str]:
    """The signs of the datasets that there are after the transaction, and were not: what a `FolderRead` depends on."""
    for key, item in draft.items.items():
        before = draft.base.item(key, dropped=True) if item.revision.number > 1 else None
        came = before is None or not before.revision.alive
        if item.revision.alive:
            known = () if before is None or came else folders_of(item.node.kind, item.node.home, before.revision)
            for folder in folders_of(item.node.kind, item.node.home, item.revision):
                yield from () if folder in known else signs_at(folder)
            if before is not None and came:
                yield from _signs_below(draft.base.index, key)


def _signs_below(index: SlotIndex, key: str) -> Iterator[str]:
    for part in index.parts(key):
        node = index.node(part)
        for folder in folders_of(node.kind, node.home, node.versions[-1]) if node is not None else ():
            yield from signs_at(folder)
        yield from _signs_below(index, part)


def _folders(view: SlotView, table: str) -> Iterator[str]:
    for version in view.parts(table):
        items = [item for stream in view.parts(version) if (item := view.item(stream)) is not None]
        own = [location_of(i.revision.properties, i.node.home) for i in items if i.revision.parts[1] == LANCE_FORMAT]
        above = view.item(version)
        yield from own or ([default_location(above.node.home)] if above is not None else [])
