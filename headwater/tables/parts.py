"""What one task reads: a tagged union, planned by a driver, sent as JSON, decoded once by whoever reads it."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np


class Part(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """One part of a scan, of a stream's batch or of a range of changes."""


class Whole(Part, frozen=True, tag="whole"):
    """The whole table: a search, or a filter that an index answers."""


class Fragments(Part, frozen=True, tag="fragments"):
    """Some fragments. A stream's parts each name the version they are read at, and a gap's the rows by a filter.

    `key`: the one partition that all rows of the part are of.
    """

    fragments: tuple[int, ...]
    version: int | None = None
    filter: str | None = None
    key: tuple[int | str | None, ...] | None = None


class Slice(Part, frozen=True, tag="slice"):
    """A range of rows of one large fragment."""

    fragments: tuple[int]
    offset: int
    limit: int


class Rows(Part, frozen=True, tag="rows"):
    """Rows that an index found, by their ids: 8 bytes each, little endian, in base64."""

    rows: str
    count: int

    @staticmethod
    def of(ids: Any) -> Rows:
        packed = np.ascontiguousarray(ids, dtype="<u8").tobytes()
        return Rows(base64.b64encode(packed).decode(), len(ids))

    def ids(self) -> list[int]:
        found: list[int] = np.frombuffer(base64.b64decode(self.rows), dtype="<u8").tolist()
        return found


class Appended(Part, frozen=True, tag="appended"):
    """Changes: fragments that a version appended, at a time in microseconds."""

    fragments: tuple[int, ...]
    version: int
    micros: int


class Rewritten(Part, frozen=True, tag="rewritten"):
    """Changes: a version that changed or deleted rows, and the fragments it added."""

    added: tuple[int, ...]
    version: int
    micros: int


class Tail(Part, frozen=True, tag="tail"):
    """Of a stream table: the rows that the log after its base touches, one of so many shares of the keys."""

    share: int = 0
    shares: int = 1


class Piece(Part, frozen=True, tag="piece"):
    """Of a stream table as a stream finds it: some fragments of the base, or all that the log after it touches."""

    slot: int
    position: int
    fragments: tuple[int, ...] | None = None


class Positions(Part, frozen=True, tag="positions"):
    """Of a stream table's log: the changes after a position up to another, one of so many shares of the keys."""

    slot: int
    after: int
    until: int
    share: int = 0
    shares: int = 1


ScanPart = Whole | Fragments | Slice | Rows
ChangePart = Appended | Rewritten
LogPart = Piece | Positions
AnyPart = ScanPart | ChangePart | LogPart | Tail


def chosen(part: ScanPart) -> frozenset[int] | None:
    """The fragments a part names; None: all of them."""
    return frozenset(part.fragments) if isinstance(part, Fragments | Slice) else None
