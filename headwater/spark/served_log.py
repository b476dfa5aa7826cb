"""The change log of a stream table behind a server, asked as one that is opened here: rows travel as Arrow.

A state is one piece and a range of positions one part: the server folds, and one task reads what it answers.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from headwater.metastore import Delta
from headwater.rest.client import CompleteRestNamespace
from headwater.rest.remote_streams import RemoteStream
from headwater.streams.definition import Definition
from headwater.streams.reading.change_feed import INSERT
from headwater.tables.scan.parts import Piece, Positions
from headwater.tables.scan.table_scan import Extent


class FollowedAfar:
    """A stream table of a server, as of the moment that it is asked."""

    slot = 0
    """None: a position is all that a server is told."""
    divides = False

    def __init__(self, server: CompleteRestNamespace, stream: RemoteStream) -> None:
        self._server = server
        self._stream = stream

    @property
    def name(self) -> str:
        return self._stream.name

    @cached_property
    def definition(self) -> Definition:
        return self._stream.definition

    @cached_property
    def last(self) -> int:
        return self._stream.position

    def kept(self, after: int = 0) -> list[Delta]:
        return self._stream.deltas(after)

    def pieces(self, position: int) -> tuple[list[Extent], int]:
        return [], self._stream.count(position)

    def piece(self, part: Piece) -> pa.Table:
        return self._stream.to_arrow(list(self.definition.shown), position=part.position)

    def changes(self, part: Positions) -> pa.Table:
        return self._stream.changes(part.after, part.until)

    def inserted(self, part: Positions) -> pa.Table:
        """The rows of transactions that insert and change nothing."""
        found = self.changes(part)
        kinds, positions = found.column(found.num_columns - 3), found.column(found.num_columns - 2).to_numpy()
        inserts = np.asarray(kinds.to_pylist()) == INSERT
        whole = inserts & ~np.isin(positions, positions[~inserts])
        return found.select(self.definition.schema.names).take(np.flatnonzero(whole)).cast(self.definition.schema)

    def published_ms(self) -> int | None:
        published = self._stream.published
        if published is None:
            return None
        asked = {"id": list(self._stream.id.names), "version": published.version}
        millis = self._server.describe_table_version(asked)["version"].get("timestamp_millis")
        return None if millis is None else int(millis)

    def note_read(self, name: str, position: int) -> None:
        if self._stream.readers().get(name) != position:
            self._stream.commit_reader(name, position)
