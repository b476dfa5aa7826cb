"""Rows that keep their ids in a new fragment: what Lance would work out by walking every row of the table. Pure.

Lance finds the version that a kept row was created in by looking at the ids of all rows, which for a million rows of
ten takes longer than the rest of a publish. We know where each row was. So a commit is made without the ids, and the
manifest that Lance staged for it gets the two fields that say them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from headwater.lance_manifest import FOOTER, FRAGMENT, LENGTH, MAGIC, footer, section
from headwater.protobuf import Value, as_bytes, as_number, number, parse, pick, text
from headwater.streams.rows.row_keys import Codes

FILE, PHYSICAL_ROWS, ROW_IDS, CREATED = 2, 4, 5, 9
"""Fields of a fragment."""
NEXT_ROW_ID = 14
RANGE, HOLES, BITMAP, SORTED, LISTED = 1, 2, 3, 4, 5
"""Kinds of a segment of ids: all of a range, all but some of it, those that a bitmap has, a list in order, any list."""
SEGMENTS = 64
"""Of so many parts in order the ids of a fragment are told each by itself."""
WIDTHS = {1: 2, 2: 4, 3: 8}
"""Kinds of a list, and the bytes of each of its numbers."""


@dataclass(frozen=True)
class KeptIds:
    """The ids that the rows of a fragment keep and the versions they were created in, as a manifest has them."""

    ids: bytes
    created: bytes

    def to_json(self) -> list[str]:
        return [base64.b64encode(each).decode() for each in (self.ids, self.created)]

    @staticmethod
    def from_json(texts: list[str]) -> KeptIds:
        return KeptIds(*(base64.b64decode(each) for each in texts))


def kept(ids: Codes, versions: Codes) -> KeptIds:
    """Of ids in order, and the version that each row was created in."""
    return KeptIds(text(1, _segment(ids)), runs(versions))


def created_versions(metadata: Mapping[int, object], addresses: Codes) -> Codes | None:
    """The versions that rows were created in, by their addresses; None: their fragments do not say it plainly."""
    return row_versions(metadata, addresses, "created_at_version_meta")


def row_versions(metadata: Mapping[int, Any], addresses: Codes, which: str) -> Codes | None:
    """As a field of the fragments' metadata has them, by the addresses of rows; None: it does not say it plainly."""
    found = np.empty(len(addresses), np.int64)
    fragments = addresses >> 32
    begin = np.concatenate([[0], np.flatnonzero(np.diff(fragments)) + 1]) if len(fragments) else np.empty(0, np.int64)
    for id in np.unique(fragments[begin]).tolist():  # those side by side are mostly of one: few are sorted
        told = getattr(metadata[id], which)
        runs = _read_runs(told, metadata[id].physical_rows) if told is not None else None
        if runs is None:
            return None
        mine = fragments == id
        starts, versions = runs
        if len(starts) == 1:
            found[mine] = versions[0]
            continue
        places = addresses[mine] & 0xFFFFFFFF
        found[mine] = versions[np.searchsorted(starts, places, side="right") - 1]
    return found


def ids_of(manifest: bytes) -> dict[int, bytes]:
    """Return the row ids of the fragments of a manifest file, encoded, by the fragments' numbers."""
    found = {}
    for fragment in pick(section(manifest, footer(manifest)[0]), FRAGMENT):
        values = {field: value for field, value, _ in parse(as_bytes(fragment))}
        if ROW_IDS in values:
            found[as_number(values.get(1, 0))] = as_bytes(values[ROW_IDS])
    return found


def ids_at(sequence: bytes, places: Codes) -> Codes | None:
    """Return the ids of the rows at these places of a fragment; None: they are kept in an unknown way."""
    segments = [next(parse(as_bytes(each))) for each in pick(sequence, 1)]
    parts = list[Codes]()
    for kind, value, _ in segments:
        ids = _ids(kind, as_bytes(value), places if len(segments) == 1 else None)
        if ids is None:
            return None
        parts.append(ids)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)[places] if parts else None


def _ids(kind: int, value: bytes, places: Codes | None) -> Codes | None:
    """Return the ids of a segment at some places of it (None: all); None for an unknown kind."""
    if kind in (SORTED, LISTED):
        ids = _listed(value)
        return ids if ids is None or places is None else ids[places]
    if kind not in (RANGE, HOLES, BITMAP):
        return None
    told: dict[int, Value] = {key: inner for key, inner, _ in parse(value)}
    start, end, content = as_number(told.get(1, 0)), as_number(told.get(2, 0)), as_bytes(told.get(3, b""))
    if kind == RANGE:
        return start + (np.arange(end - start) if places is None else places)
    if kind == BITMAP:
        there = np.unpackbits(np.frombuffer(content, np.uint8), count=end - start, bitorder="little").view(np.bool_)
    else:
        holes, there = _listed(content), np.ones(end - start, bool)
        if holes is None:
            return None
        there[holes - start] = False
    ids = np.flatnonzero(there)
    return start + (ids if places is None else ids[places])


def _listed(encoded: bytes) -> Codes | None:
    for kind, value, _ in parse(encoded):
        if kind not in WIDTHS:
            return None
        told: dict[int, Value] = {key: inner for key, inner, _ in parse(as_bytes(value))}
        numbers = np.frombuffer(as_bytes(told.get(2, b"")), f"<u{WIDTHS[kind]}").astype(np.int64)
        return numbers + as_number(told.get(1, 0)) if kind < 3 else numbers
    return np.empty(0, np.int64)


def with_kept(manifest: bytes, fragments: Mapping[str, KeptIds]) -> bytes:
    """A manifest file in which the fragments of these data files keep their ids, and none were used up for them."""
    position, minor = footer(manifest)
    parts: list[bytes] = []
    saved = 0
    fields = list(parse(section(manifest, position)))
    for field, value, raw in fields:
        known = _kept_of(as_bytes(value), fragments) if field == FRAGMENT else None
        if known is not None:
            message, rows = _with(as_bytes(value), known)
            saved += rows
            raw = text(FRAGMENT, message)
        parts.append(raw)
    for place, (field, value, _) in enumerate(fields):
        if field == NEXT_ROW_ID:
            parts[place] = number(NEXT_ROW_ID, as_number(value) - saved)
    message = b"".join(parts)
    return b"".join((manifest[:position], LENGTH.pack(len(message)), message, FOOTER.pack(position, 0, minor, MAGIC)))


def _kept_of(fragment: bytes, fragments: Mapping[str, KeptIds]) -> KeptIds | None:
    for field, value, _ in parse(fragment):
        if field == FILE:
            name = next((as_bytes(inner) for key, inner, _ in parse(as_bytes(value)) if key == 1), b"")
            return fragments.get(name.decode())
    return None


def _with(fragment: bytes, known: KeptIds) -> tuple[bytes, int]:
    """Return the fragment with the ids it keeps, and how many they are."""
    rows = 0
    parts = []
    for field, value, raw in parse(fragment):
        if field == PHYSICAL_ROWS:
            rows = as_number(value)
        if field not in (ROW_IDS, CREATED):
            parts.append(raw)
    return b"".join((*parts, text(ROW_IDS, known.ids), text(CREATED, known.created))), rows


# Ids -----------------------------------------------------------------------------------------------------------------


def id_sequence(ids: Codes) -> bytes | None:
    """Return the ids of a fragment's rows, a segment for each part of them that is in order; None: these are many."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(ids) < 0) + 1, [len(ids)]])
    if len(starts) > SEGMENTS:
        return None
    return b"".join(text(1, _segment(ids[start:end])) for start, end in pairwise(starts.tolist()))


def _segment(ids: Codes) -> bytes:
    """Ids in order, in the fewest bytes."""
    first, end = int(ids[0]), int(ids[-1]) + 1
    limits = (number(1, first) if first else b"") + number(2, end)
    if end - first == len(ids):
        return text(RANGE, limits)
    width = _width(end - 1 - first)[1]
    missing = end - first - len(ids)
    if (end - first + 7) // 8 > width * len(ids):
        return text(SORTED, _list(ids))
    there = np.zeros(end - first, bool)
    there[ids - first] = True
    if missing * width < (end - first + 7) // 8:
        return text(HOLES, limits + text(3, _list(np.flatnonzero(~there) + first)))
    return text(BITMAP, limits + text(3, np.packbits(there, bitorder="little").tobytes()))


def _list(ids: Codes) -> bytes:
    """Ids by their distances to the first, or in full where those are large."""
    first = int(ids[0])
    kind, width = _width(int(ids[-1]) - first)
    if kind == 3:
        return text(kind, text(2, ids.astype("<u8").tobytes()))
    offsets = (ids - first).astype("<u2" if width == 2 else "<u4").tobytes()
    return text(kind, (number(1, first) if first else b"") + text(2, offsets))


def _width(span: int) -> tuple[int, int]:
    """Return the kind of list that holds numbers up to this one, and its bytes for each."""
    return (1, 2) if span < 1 << 16 else (2, 4) if span < 1 << 32 else (3, 8)


# Versions ------------------------------------------------------------------------------------------------------------


def runs(versions: Codes) -> bytes:
    """Versions as runs of rows that have the same."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(versions)) + 1, [len(versions)]])
    parts = []
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        limits = (number(1, start) if start else b"") + number(2, end)
        parts.append(text(1, text(1, text(RANGE, limits)) + number(2, int(versions[start]))))
    return b"".join(parts)


def _read_runs(told: Any, rows: int) -> tuple[Codes, Codes] | None:
    """Return the start and the version of each run.

    The span of a run that Lance compacted has what is left of the places before it: only how many they are counts.
    """
    inline = json.loads(told.json()).get("inline")
    if inline is None:
        return None
    lengths, versions = [], []
    for field, value, _ in parse(bytes(inline)):
        run: dict[int, Value] = {key: inner for key, inner, _ in parse(as_bytes(value))} if field == 1 else {}
        length = _length(as_bytes(run.get(1, b"")))
        if length is None:
            return None
        lengths.append(length)
        versions.append(as_number(run.get(2, 0)))
    if sum(lengths) != rows:
        return None
    return np.cumsum([0, *lengths[:-1]]), np.array(versions, np.int64)


def _length(segment: bytes) -> int | None:
    """Return the number of row ids in a segment, or None for an unknown kind."""
    kind, value = next(((key, as_bytes(inner)) for key, inner, _ in parse(segment)), (0, b""))
    if kind in (SORTED, LISTED):
        return _list_length(value)
    if kind not in (RANGE, HOLES, BITMAP):
        return None
    told: dict[int, Value] = {key: inner for key, inner, _ in parse(value)}
    span = as_number(told.get(2, 0)) - as_number(told.get(1, 0))
    if kind == RANGE:
        return span
    content = as_bytes(told.get(3, b""))
    if kind == HOLES:
        missing = _list_length(content)
        return None if missing is None else span - missing
    return int(np.unpackbits(np.frombuffer(content, np.uint8), count=span, bitorder="little").sum())


def _list_length(encoded: bytes) -> int | None:
    for kind, value, _ in parse(encoded):
        if kind not in WIDTHS:
            return None
        return sum(len(as_bytes(inner)) for key, inner, _ in parse(as_bytes(value)) if key == 2) // WIDTHS[kind]
    return 0
