"""Where a table's Lance dataset is: a record of its stream of format `lance`, whose positions are Lance versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from headwater.metastore.index import SlotIndex
from headwater.metastore.records import Node
from headwater.metastore.slot_views import SlotView

LANCE_FORMAT = "lance"
LOCATION = "location"
"""The property of a lance stream that holds the dataset's folder, relative to the root."""
KEEP_DATA = "keep_data"
"""Set when a table was deregistered: collection leaves the folder."""

PUBLISHED = "position"
"""Set in a version that is a publish of a stream table: up to this position of its change log."""
READER_FORMAT = "reader"
"""The format of a stream whose properties are the positions of named readers."""
RECORD_FORMAT = "record"
"""The format of streams whose properties say what a source has given to a stream table."""
STREAM_TABLE = "stream"
"""The property of a table version that makes its table a stream table."""


def location_of(properties: Mapping[str, Any], stream_home: str) -> str:
    """Of a stream that does not name one, beside its table version's directory: `<table home>/<version>.lance`."""
    return str(properties.get(LOCATION) or f"{stream_home.rsplit('/', 1)[0]}.lance")


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


def taken_datasets(view: SlotView, tables: Collection[str]) -> Iterator[tuple[str, str]]:
    """Of tables that come back, those whose dataset is at, inside or around that of another table by now, with that
    other one: it was registered there meanwhile, and two tables at one place would overwrite each other's versions."""
    own = {place: table for table in tables for place in _datasets(view, table)}
    around = {above: table for place, table in own.items() for above in _with_above(place)}
    for other in _tables(view, "") if own else ():
        for place in _datasets(view, other) if other not in tables else ():
            found = around.get(place) or next((own[above] for above in _with_above(place) if above in own), None)
            if found is not None:
                yield found, other


def _tables(view: SlotView, namespace: str) -> Iterator[str]:
    for key in view.children(namespace):
        item = view.item(key)
        if item is not None and item.node.kind == "namespace":
            yield from _tables(view, key)
        elif item is not None:
            yield key


def _datasets(view: SlotView, table: str) -> Iterator[str]:
    for version in view.parts(table):
        for stream in view.parts(version):
            item = view.item(stream)
            if item is not None and item.revision.parts[1] == LANCE_FORMAT:
                yield location_of(item.revision.properties, item.node.home).strip("/")


def _with_above(place: str) -> Iterator[str]:
    steps = place.split("/")
    return ("/".join(steps[:end]) for end in range(1, len(steps) + 1))
