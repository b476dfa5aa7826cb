"""Events and states: what the fold takes and gives. Pure data, over Arrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.streams.fold.marks import Marks, SequenceLines
from headwater.streams.fold.watermark import Watermark
from headwater.streams.rows.row_keys import Codes

Mask = npt.NDArray[np.bool_]
NO_LINES = SequenceLines()
VERSION = 2
"""Of the fold's rules, as each publish records it. 1: whole events were late or not, and no marks were kept."""


@dataclass(frozen=True)
class Rules:
    """Rules of a table's fold. `lateness`: in the unit of the first sequence column (watermark.py)."""

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    lateness: Any = None

    @property
    def tombstone(self) -> pa.Schema:
        """The columns of a tombstone: key and sequence."""
        return pa.schema([self.schema.field(name) for name in dict.fromkeys((*self.keys, *self.sequence))])

    @property
    def cells(self) -> list[str]:
        """The columns that an event may lack."""
        return [name for name in self.schema.names if name not in self.keys and name not in self.sequence]


@dataclass(frozen=True)
class Truncations:
    """Truncations among events: their sequences, before which event each came, and of which batch it is."""

    rows: pa.Table
    places: Codes
    batches: Codes

    def __len__(self) -> int:
        return int(self.rows.num_rows)


@dataclass(frozen=True)
class Events:
    """Changes in order of arrival. A column that some rows are missing has a mask in `present`, and null there.

    `reads` are rows of a snapshot of their source, which are never too late.
    """

    rows: pa.Table
    deletes: Mask
    present: Mapping[str, Mask] = field(default_factory=dict)
    reads: Mask | None = None
    truncations: Truncations | None = None

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def take(self, indices: Codes) -> Events:
        """Some of the events, or all in a new order, without truncations."""
        present = {name: mask[indices] for name, mask in self.present.items()}
        reads = None if self.reads is None else self.reads[indices]
        return Events(self.rows.take(indices), self.deletes[indices], present, reads)

    def gaps(self, name: str) -> Mask | None:
        """Return a mask of the events that write a column, or None if all do. A delete writes NULL into all."""
        mask = self.present.get(name)
        writes = None if mask is None else mask | self.deletes
        return None if writes is None or writes.all() else writes


@dataclass(frozen=True)
class State:
    """The rows of a table, what is known beside them, and how far its first sequence column has come."""

    rows: pa.Table
    tombstones: pa.Table
    watermark: Watermark = None
    marks: Marks | None = None
    lines: SequenceLines = NO_LINES


@dataclass(frozen=True)
class Folded:
    """Result of folding events into a state.

    `rows` now stand for their keys; `replaces` says which row of the state each takes the place of (-1: none).
    `gone` are rows of the state that were deleted. `settled` are tombstones of the state that hold no more, and
    `unmarked` its marks that do not. `unplaced` are late events which marks could have placed that were never kept.
    """

    rows: pa.Table
    replaces: Codes
    gone: Codes
    tombstones: pa.Table
    settled: Codes
    late: Mask
    too_late: Mask
    watermark: Watermark
    marks: Marks
    unmarked: Codes
    lines: SequenceLines = NO_LINES
    unplaced: Mask | None = None


def empty(rules: Rules) -> State:
    return State(rules.schema.empty_table(), rules.tombstone.empty_table())


def concat(rules: Rules, parts: list[Events]) -> Events:
    """Events one after another, without truncations."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return Events(rules.schema.empty_table(), np.empty(0, bool))
    names = {name for part in parts for name in part.present}
    present = {
        name: np.concatenate([part.present.get(name, np.ones(len(part), bool)) for part in parts]) for name in names
    }
    rows = pa.concat_tables([part.rows for part in parts]).combine_chunks()
    reads = None
    if any(part.reads is not None for part in parts):
        reads = np.concatenate([np.zeros(len(p), bool) if p.reads is None else p.reads for p in parts])
    return Events(rows, np.concatenate([part.deletes for part in parts]), present, reads)
