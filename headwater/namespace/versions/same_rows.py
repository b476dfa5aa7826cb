"""A check that a staged version has the rows of the version before: clients may not change rows of a log. Pure.

The two manifests decide, not the client's transaction. Row ids are read from RowIdSequence and U64Segment of Lance's
`rowids.proto`; a deletion file is an Arrow file with a column of offsets, or a roaring bitmap in its portable form.

A fragment that is in both has the same rows, deletions and row ids, and the kept columns in the same files. Fragments
that were replaced had, together, the same live rows as those in their place: by their row ids, and by the versions in
which each was last changed, which an update advances and a rewrite does not. They hold every kept column. Other columns
are the client's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.decoding.arrow import read_file
from headwater.decoding.bounds import FILES
from headwater.errors import InvalidInputError
from headwater.lance_manifest import DELETION_SUFFIXES, FRAGMENT, MAX_FRAGMENT, SCHEMA, has_mem_wal, manifest_message
from headwater.protobuf import Value, as_bytes, as_number, numbers, parse
from headwater.registries.manifest.format import live_rows

Ids = npt.NDArray[np.uint64]
MAX_ROWS = 1 << 32
"""A fragment has fewer rows: a sequence that says more is none."""
NO_RUNS, WITH_RUNS = 12346, 12347
BITMAP_BYTES = 8192


def row_ids(sequence: bytes) -> Ids:
    """Return the row ids of a fragment in row order, deleted ones included. ValueError: this is no sequence."""
    found = [_segment(as_bytes(value)) for field, value, _ in parse(sequence) if field == 1]
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def row_versions(sequence: bytes) -> Ids:
    """Return the version that last changed each row of a fragment, in row order (RowDatasetVersionSequence)."""
    found = []
    for field, value, _ in parse(sequence):
        if field == 1:
            run = _values(as_bytes(value))
            rows = len(_segment(as_bytes(run.get(1, b""))))
            found.append(np.full(rows, as_number(run.get(2, 0)), np.uint64))
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def deleted_places(data: bytes, is_bitmap: bool) -> Ids:
    """Return the offsets of deleted rows in a deletion file. ValueError: it cannot be read."""
    if is_bitmap:
        return _roaring(data)
    try:
        return np.concatenate(
            [batch.column(0).to_numpy(zero_copy_only=False) for batch in read_file(data, FILES)] or [np.empty(0)]
        ).astype(np.uint64)
    except (InvalidInputError, pa.ArrowException) as error:
        raise ValueError(f"a deletion file that cannot be read: {type(error).__name__}") from None


def _segment(message: bytes) -> Ids:
    for field, value, _ in parse(message):
        reader = SEGMENTS.get(field)
        if reader is not None:
            return reader(as_bytes(value))
    raise ValueError("a segment of row ids of an unknown kind")


def _range(message: bytes) -> Ids:
    values = _values(message)
    start, end = as_number(values.get(1, 0)), as_number(values.get(2, 0))
    if not 0 <= end - start <= MAX_ROWS:
        raise ValueError("a range of row ids that is too large")
    return np.arange(start, end, dtype=np.uint64)


def _with_holes(message: bytes) -> Ids:
    holes = _array(as_bytes(_values(message).get(3, b"")))
    return np.setdiff1d(_range(message), holes, assume_unique=True)


def _with_bitmap(message: bytes) -> Ids:
    found = _range(message)
    bits = np.unpackbits(np.frombuffer(as_bytes(_values(message).get(3, b"")), np.uint8), bitorder="little")
    if len(bits) < len(found):
        raise ValueError("a bitmap of row ids that is too short")
    kept: Ids = found[bits[: len(found)].astype(bool)]
    return kept


def _array(message: bytes) -> Ids:
    for field, value, _ in parse(message):
        values = _values(as_bytes(value))
        if field == 3:
            return np.frombuffer(as_bytes(values.get(2, values.get(1, b""))), "<u8").astype(np.uint64)
        if field in (1, 2):
            offsets = np.frombuffer(as_bytes(values.get(2, b"")), "<u2" if field == 1 else "<u4")
            return offsets.astype(np.uint64) + np.uint64(as_number(values.get(1, 0)))
    return np.empty(0, np.uint64)


SEGMENTS: Mapping[int, Callable[[bytes], Ids]] = {1: _range, 2: _with_holes, 3: _with_bitmap, 4: _array, 5: _array}


def _values(message: bytes) -> dict[int, Value]:
    return {field: value for field, value, _ in parse(message)}


def _roaring(data: bytes) -> Ids:
    """Return the numbers in a bitmap (RoaringFormatSpec: cookie, containers by their high bits, offsets, contents)."""
    try:
        return _containers(data)
    except (struct.error, IndexError):
        raise ValueError("a bitmap of deleted rows that is cut") from None


def _containers(data: bytes) -> Ids:
    (cookie,) = struct.unpack_from("<I", data)
    if cookie & 0xFFFF == WITH_RUNS:
        count, at = (cookie >> 16) + 1, 4 + ((cookie >> 16) + 8) // 8
        runs = np.unpackbits(np.frombuffer(data[4:at], np.uint8), bitorder="little").astype(bool).tolist()
    elif cookie == NO_RUNS:
        count, at = struct.unpack_from("<I", data, 4)[0], 8
        runs = [False] * min(count, 1 << 16)
    else:
        raise ValueError("a bitmap of deleted rows of an unknown kind")
    headers = [struct.unpack_from("<HH", data, at + 4 * number) for number in range(count)]
    at += 4 * count + (4 * count if cookie == NO_RUNS or count >= 4 else 0)
    found = []
    for (high, size), is_run in zip(headers, runs, strict=False):
        low, at = _container(data, at, size + 1, is_run)
        found.append(low.astype(np.uint64) + (np.uint64(high) << np.uint64(16)))
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def _container(data: bytes, at: int, size: int, is_run: bool) -> tuple[npt.NDArray[np.int64], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, at)
        pairs = [struct.unpack_from("<HH", data, at + 2 + 4 * number) for number in range(count)]
        runs = [np.arange(start, start + length + 1) for start, length in pairs]
        return np.concatenate(runs), at + 2 + 4 * count
    if size > 4096:
        bits = np.unpackbits(np.frombuffer(data, np.uint8, BITMAP_BYTES, at), bitorder="little")
        return np.flatnonzero(bits), at + BITMAP_BYTES
    return np.frombuffer(data, "<u2", size, at).astype(np.int64), at + 2 * size


NEXT_ROW_ID, STABLE_ROW_IDS = 14, 2
READER_FLAGS, WRITER_FLAGS = 9, 10
NAME, FIELD_ID, PARENT, METADATA = 2, 3, 4, 10
NO_PARENT = 2**64 - 1
ID, FILE, DELETIONS, INLINE_IDS, UPDATED, CREATED = 1, 2, 3, 5, 7, 9
PHYSICAL_ROWS, FIRST = 4, 1
KNOWN = frozenset({ID, FILE, DELETIONS, PHYSICAL_ROWS, INLINE_IDS, UPDATED, CREATED})
Read = Callable[[str], bytes]
"""The bytes of a file of the table, by its key in the table's folder."""


@dataclass(frozen=True)
class Fragment:
    """A fragment as far as it matters here. `rows`: its number of rows, deletions, row ids, and what is not known."""

    id: int
    raw: bytes
    rows: tuple[bytes, ...]
    columns: Mapping[int, tuple[Any, ...]]
    """By field id, in which files its values are, and where there."""
    deletions: bytes | None
    ids: bytes
    updated: bytes | None
    is_known: bool


@dataclass(frozen=True)
class ManifestRows:
    """Rows and columns of a manifest."""

    fields: Mapping[int, tuple[Any, ...]]
    """By id: name, parent and everything else but metadata, in the order of the schema."""
    fragments: Mapping[int, Fragment]
    next_row_id: int
    max_fragment: int
    is_stable: bool


def changed_rows(before: bytes, after: bytes, kept: Collection[str], read: Read) -> str | None:
    """Return why the manifest `after` has other rows than the manifest `before`, or None if it has the same.

    `kept` are the columns that stay as they are. ValueError: a file cannot be understood.
    """
    if has_mem_wal(after) and not has_mem_wal(before):
        return "it sets up a write-ahead log (MemWAL), whose rows would never be in the change log"
    old, new = _rows(before), _rows(after)
    columns = _below(old, kept)
    if not new.is_stable or new.next_row_id != old.next_row_id or new.max_fragment < old.max_fragment:
        return "it counts row ids or fragments in another way"
    if [(id, old.fields[id]) for id in columns] != [(id, field) for id, field in new.fields.items() if id in columns]:
        return "it drops, renames or alters a column that the log fills"
    for id in old.fragments.keys() & new.fragments.keys():
        if old.fragments[id].rows != new.fragments[id].rows:
            return f"it changes the rows of fragment {id}"
        if _kept(old.fragments[id], columns) != _kept(new.fragments[id], columns):
            return f"it changes values of fragment {id} in columns that the log fills"
    gone = [fragment for id, fragment in old.fragments.items() if id not in new.fragments]
    made = [fragment for id, fragment in new.fragments.items() if id not in old.fragments]
    return _replaced(gone, made, columns, read)


def _replaced(gone: list[Fragment], made: list[Fragment], columns: Collection[int], read: Read) -> str | None:
    if sum(live_rows(each.raw) for each in gone) != sum(live_rows(each.raw) for each in made):
        return "it adds or deletes rows"
    if not gone and not made:
        return None
    if any(not each.is_known or each.deletions is not None for each in made):
        return "it has new fragments with deleted rows or parts that are not known"
    stored = {id for each in gone for id in each.columns if id in columns}
    if any(not stored <= each.columns.keys() for each in made):
        return "its new fragments lack a column that the log fills"
    old, new = _live(gone, read), _live(made, read)
    if not np.array_equal(old[0], new[0]):
        return "its rows have other row ids"
    return None if np.array_equal(old[1], new[1]) else "it changes rows"


def _live(fragments: list[Fragment], read: Read) -> tuple[Ids, Ids]:
    """Return the ids of live rows in order, and the version in which each changed last."""
    found = [_live_in(each, read) for each in fragments]
    ids = np.concatenate([each[0] for each in found]) if found else np.empty(0, np.uint64)
    versions = np.concatenate([each[1] for each in found]) if found else np.empty(0, np.uint64)
    order = np.argsort(ids)
    return ids[order], versions[order]


def _live_in(fragment: Fragment, read: Read) -> tuple[Ids, Ids]:
    ids = row_ids(fragment.ids)
    updated = fragment.updated
    versions = np.full(len(ids), FIRST, np.uint64) if updated is None else row_versions(updated)
    if len(versions) != len(ids):
        raise ValueError("a fragment whose rows are counted in two ways")
    if fragment.deletions is None:
        return ids, versions
    values = {field: as_number(value) for field, value, _ in parse(fragment.deletions) if not isinstance(value, bytes)}
    kind = values.get(1, 0)
    if kind not in (0, 1):
        raise ValueError("an unknown kind of deletion file")
    key = f"_deletions/{fragment.id}-{values.get(2, 0)}-{values.get(3, 0)}.{DELETION_SUFFIXES[kind]}"
    places = deleted_places(read(key), is_bitmap=kind == 1)
    if len(places) and int(places.max()) >= len(ids):
        raise ValueError("a deletion file that names rows which are not there")
    gone = places.astype(np.int64)
    return np.delete(ids, gone), np.delete(versions, gone)


def _below(rows: ManifestRows, names: Collection[str]) -> list[int]:
    """Return the ids of columns and of all that is in them, in the order of the schema."""
    found: list[int] = []
    for id, (name, parent, *_) in rows.fields.items():
        if parent in found or (parent == NO_PARENT and name in names):
            found.append(id)
    return found


def _kept(fragment: Fragment, columns: Collection[int]) -> dict[int, tuple[object, ...]]:
    return {id: place for id, place in fragment.columns.items() if id in columns}


def _rows(data: bytes) -> ManifestRows:
    values: dict[int, Value] = {}
    fields: dict[int, tuple[Any, ...]] = {}
    fragments: dict[int, Fragment] = {}
    for number, value, _ in parse(manifest_message(data)):
        if number == SCHEMA:
            field = _fields(as_bytes(value))
            if field[0] in fields:
                raise ValueError("two columns of one id")
            fields[field[0]] = field[1]
        elif number == FRAGMENT:
            fragment = _fragment(as_bytes(value))
            if fragment.id in fragments:
                raise ValueError("two fragments of one id")
            fragments[fragment.id] = fragment
        else:
            values[number] = value
    flags = as_number(values.get(READER_FLAGS, 0)) & as_number(values.get(WRITER_FLAGS, 0))
    newest = max((as_number(values.get(MAX_FRAGMENT, 0)), *fragments))
    next_id = as_number(values.get(NEXT_ROW_ID, 0))
    return ManifestRows(fields, fragments, next_id, newest, bool(flags & STABLE_ROW_IDS))


def _fields(message: bytes) -> tuple[int, tuple[object, ...]]:
    values: dict[int, Value] = {field: value for field, value, _ in parse(message)}
    rest = tuple(raw for field, _, raw in parse(message) if field not in (NAME, FIELD_ID, PARENT, METADATA))
    name, parent = as_bytes(values.get(NAME, b"")).decode(), as_number(values.get(PARENT, 0))
    return as_number(values.get(FIELD_ID, 0)), (name, parent, *rest)


def _fragment(message: bytes) -> Fragment:
    id, rows, columns, known = 0, list[bytes](), dict[int, tuple[Any, ...]](), True
    deletions: bytes | None = None
    updated: bytes | None = None
    ids = b""
    for field, value, raw in parse(message):
        known = known and field in KNOWN
        if field == ID:
            id = as_number(value)
        elif field == FILE:
            for column, place in _file(as_bytes(value)).items():
                columns[column] = (*columns.get(column, ()), place)
        elif field not in (UPDATED, CREATED):
            rows.append(raw)
        deletions = as_bytes(value) if field == DELETIONS else deletions
        ids = as_bytes(value) if field == INLINE_IDS else ids
        updated = as_bytes(value) if field == UPDATED else updated
    return Fragment(id, message, tuple(sorted(rows)), columns, deletions, ids, updated, known)


def _file(message: bytes) -> dict[int, tuple[object, ...]]:
    """Return the data file, and the column in it, of each field."""
    fields: list[int] = []
    places: list[int] = []
    others: list[bytes] = []
    for field, value, raw in parse(message):
        if field == 2:
            fields += numbers(value)
        elif field == 3:
            places += numbers(value)
        else:
            others.append(raw)
    padded = places + [-1] * (len(fields) - len(places))
    return {id: (place, *sorted(others)) for id, place in zip(fields, padded, strict=False)}
