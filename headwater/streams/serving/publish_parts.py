"""Parts of a publish into a large table: events by the fragment of the serving copy that has their key.

The tasks divide the fragments, so that the keys of the serving copy are looked through once, however many tasks there
are. Each reads all events, folds those whose keys its fragments have, and writes the deletion vectors of these. Then
other tasks fold the events of keys that no fragment has.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwater.streams.fold.events import Rules, encode_lines
from headwater.streams.log.log_files import BUCKET_ROWS, Logged
from headwater.streams.log.stored_events import Share
from headwater.streams.reading.fresh_reads import Touched, base_state, rows_of_keys
from headwater.streams.reading.position_views import PositionView, Published
from headwater.streams.rows.row_keys import KeyIndex, Mask
from headwater.streams.serving.copy_rows import are_few
from headwater.streams.serving.merge import lines_now
from headwater.streams.serving.serving_copy import Lake

LEAST_BASE = 4
"""Reading an event takes as long as looking through so many keys of a base."""


@dataclass(frozen=True)
class InFragments:
    """The events whose keys some fragments of the serving copy have."""

    fragments: tuple[int, ...]


@dataclass(frozen=True)
class OfNewKeys:
    """The events whose keys no fragment has, or a share of them. `known`: a mask of the others, packed."""

    known: str
    share: Share | None


def fragment_parts(dataset: Any, events: int, base: int, tasks: int) -> list[InFragments]:
    """Return the parts of a publish for at most so many tasks; none: it is not to be divided by fragments.

    Each task reads all events. So they are no more than a task may hold, and few beside the rows of the base.
    """
    if dataset is None or events > BUCKET_ROWS or events * LEAST_BASE > base or are_few(events, base):
        return []
    metadata = [each.metadata for each in dataset.get_fragments()]
    found = even_parts({each.id: each.physical_rows for each in metadata}, tasks)
    return [InFragments(each) for each in found] if len(found) > 1 else []


def even_parts(rows: Mapping[int, int], tasks: int) -> list[tuple[int, ...]]:
    """Divide fragments into at most so many parts of about as many rows, those side by side together. Pure."""
    ids, ends = list(rows), np.cumsum(list(rows.values()))
    middles = ends - np.array(list(rows.values())) / 2
    of = (middles * tasks / max(int(ends[-1]), 1)).astype(int).tolist() if ids else []
    return [tuple(id for id, part in zip(ids, of, strict=True) if part == number) for number in sorted(set(of))]


def events_of(
    lake: Lake, view: PositionView, rules: Rules, log: Logged, current: Published, part: InFragments | OfNewKeys
) -> tuple[Logged, Touched | None, Mask]:
    """The events of a part, what the base knows of their keys (None: there is no event), and a mask of them."""
    lines = encode_lines(view.stream.definition, lines_now(lake, view, current, rules))
    based = replace(view, base=replace(current, lines=lines))
    rows, ids = rules.schema.empty_table(), np.empty(0, np.int64)
    addresses = ids
    if isinstance(part, OfNewKeys):
        mask = ~unpacked_mask(part.known, len(log.events))
        if part.share is not None:
            mask &= part.share.of_keys([log.events.rows.column(name) for name in rules.keys])
    else:
        every = KeyIndex([log.events.rows.column(name) for name in rules.keys])
        rows, ids, addresses = rows_of_keys(lake, based, current, rules, every, log.events.rows, part.fragments)
        there = np.zeros(every.count, bool)
        there[every.find([rows.column(name) for name in rules.keys])] = True
        mask = there[every.codes]
    own = chosen(log, mask)
    if not len(own.events):
        return own, None, mask
    index = KeyIndex([own.events.rows.column(name) for name in rules.keys])
    return own, Touched(index, base_state(lake, based, rules, rows, index), ids, addresses), mask


def chosen(log: Logged, mask: Mask) -> Logged:
    """Return only the events of a mask, which must hold no truncation."""
    if mask.all():
        return log
    places, judged = np.flatnonzero(mask), log.judged
    if judged is not None and judged.batches is not None:
        judged = replace(judged, batches=judged.batches[places])
    return Logged(log.events.take(places), log.positions[places], log.deltas[places], log.numbers[places], judged)


def packed_mask(mask: Mask) -> str:
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 1)).decode()


def unpacked_mask(text: str, size: int) -> Mask:
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(raw, count=size).astype(bool)


def joined_masks(texts: Sequence[str], size: int) -> Mask:
    """Return the mask of events that stand in any of these packed masks."""
    found: Mask = np.logical_or.reduce([unpacked_mask(text, size) for text in texts])
    return found
