"""Deltas of a log that nothing needs. Pure over a snapshot; drops nothing.

A delta stays for `log_retention` after the publish that covers it. A reader or a pinned position needs every delta
after the published version it is read from. Tombstones are in files of their own, so no delta is kept for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.metastore import Reading
from headwater.metastore.upkeep.retention import expired
from headwater.streams.layout import LANCE
from headwater.streams.reading.readers import readers
from headwater.streams.stream_lookup import Stream


def collectable(snapshot: Reading, stream: Stream, now_ms: int, pins: Sequence[int] = ()) -> list[int]:
    """The positions of deltas that may be dropped: always all up to some publish."""
    versions = snapshot.deltas(stream.path, format=LANCE, version=stream.version)
    deltas = snapshot.deltas(stream.path, version=stream.version)
    kept_ms = int(stream.definition.log_retention.total_seconds() * 1000)
    return expired(versions, deltas, now_ms - kept_ms, (*readers(snapshot, stream).values(), *pins))
