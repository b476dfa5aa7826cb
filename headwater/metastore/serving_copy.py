"""Where a table's Lance dataset is: a record of its stream of format `lance`, whose positions are Lance versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwater.metastore.index import SlotIndex
from headwater.metastore.records import Node

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
