"""Garbage collection. A boundary is committed first; then everything that no slot from it on can show is deleted.

The slots below the boundary give up their bodies but not their numbers, so a writer that was stalled for a year still
finds its slot taken. Files are listed before the index is read: whatever is listed belongs to a slot the index knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.metastore.commit import Committer
from headwater.metastore.deltas import read_deltas
from headwater.metastore.draft import Draft
from headwater.metastore.index import Index
from headwater.metastore.layout import (
    CHECKPOINTS,
    SEGMENTS,
    TXNS,
    checkpoint_key,
    checkpoint_slot,
    is_dataset_folder,
    is_table_data,
    parse_key,
    segment_key,
    slot_key,
)
from headwater.metastore.log import Log
from headwater.metastore.objects import Collected
from headwater.metastore.records import COLLECTED, decode_delta, is_collected, seal
from headwater.metastore.rules import Header
from headwater.metastore.serving import dropped_locations, lance_streams, stream_location
from headwater.metastore.verify import EVERYTHING, expected, kept_deltas
from headwater.metastore.views import IndexView
from headwater.registry import overlap
from headwater.store import Entry, KeyNotFoundError
from headwater.store.layout import OWN_FOLDER
from headwater.store.protocol import check_key

ORPHAN_AGE = timedelta(days=7)


def collect(log: Log, committer: Committer, keep: timedelta | int, author: str) -> Collected:
    """Collect up to the boundary that `keep` asks for; safe beside writers, readers and other collections."""
    age = keep if isinstance(keep, timedelta) else ORPHAN_AGE
    index = log.refresh()
    if not index.slot:
        return Collected(0, 0, 0, 0, 0)
    log.repair()
    boundary = _boundary(log, index, keep)
    listed = list(log.store.list())
    doomed = set(_doomed_files(log, index, boundary))
    with log.lock:
        folders = set(dropped_locations(index, boundary))
    if boundary > index.boundary:
        header = Header(log.clock.uuid(), log.clock.now_ms(), f"collect up to slot {boundary}", author)
        committer.commit(Draft(IndexView(index, index.slot)), header, boundary)
    index = log.refresh()
    _fresh_checkpoint(log, index)
    before_ms = log.clock.now_ms() - int(age.total_seconds() * 1000)
    folders |= set(_stillborn_folders(listed, before_ms))
    data = _delete_folders(log, index, listed, folders)
    data += _delete_data(log, index, listed, doomed, before_ms)
    published = _delete_published(log, index, listed)
    segments = _delete_segments(log, index, listed)
    slots = _empty_slots(log, index.boundary)
    if sweep := log.store.abilities.sweep:
        sweep(before_ms)
    return Collected(index.boundary, published, slots, segments, data)


def _boundary(log: Log, index: Index, keep: timedelta | int) -> int:
    if isinstance(keep, timedelta):
        if keep < timedelta(0):
            raise InvalidInputError("keep is how far back to stay readable: it is not negative.")
        wanted = index.slot_at(log.clock.now_ms() - int(keep.total_seconds() * 1000))
    elif isinstance(keep, int) and not isinstance(keep, bool) and keep >= 0:
        wanted = index.slot - keep
    else:
        raise InvalidInputError(f"keep is a timedelta or a number of slots, not {keep!r}.")
    return min(max(wanted, index.boundary), index.slot)


def _doomed_files(log: Log, index: Index, boundary: int) -> Iterator[str]:
    """The data files of deltas that no slot from the boundary on can show."""
    with log.lock:
        for key in list(index.old_nodes):
            node = index.node(key)
            if node is not None and not node.versions[-1].alive and node.versions[-1].slot <= boundary:
                for stream in (stream for stream in index.streams if f"{stream}/".startswith(f"{key}/")):
                    yield from _files(log, index, stream, None)
        for stream, deltas in index.streams.items():
            dropped = {position for position, slot in deltas.dropped.items() if slot <= boundary}
            if dropped:
                yield from _files(log, index, stream, dropped)


def _stillborn_folders(listed: list[Entry], before_ms: int) -> Iterator[str]:
    """Folders of datasets whose creator died: long untouched, and none of their manifests ever got its final name.

    What a deregistered table leaves has final manifests, and stays.
    """
    files: dict[str, list[Entry]] = defaultdict(list)
    for entry in listed:
        folder, _, inside = entry.key.partition("/")
        if inside and is_dataset_folder(folder):
            files[folder].append(entry)
    for folder, entries in files.items():
        if all(e.modified_ms < before_ms and not e.key.endswith(".manifest") for e in entries):
            yield folder


def _delete_folders(log: Log, index: Index, listed: list[Entry], folders: set[str]) -> int:
    """Delete datasets folder by folder. One that a stream still kept is at, around or inside stays."""
    with log.lock:
        kept = [stream_location(node) for node in lance_streams(index)]
    doomed = sorted(one for one in folders if not any(overlap(one, other) for other in kept) and _is_data(f"{one}/x"))
    for folder in doomed:
        log.store.delete_tree(folder)
    return sum(any(entry.key.startswith(f"{folder}/") for folder in doomed) for entry in listed) if doomed else 0


def _files(log: Log, index: Index, stream: str, positions: set[int] | None) -> Iterator[str]:
    deltas = index.streams[stream]
    after = min(positions) - 1 if positions else 0
    for stored in read_deltas(log.segments, stream, deltas, after, EVERYTHING, dropped=True):
        if positions is None or stored.position in positions:
            for file in decode_delta(stream, stored.body).files:
                yield file.path


def _fresh_checkpoint(log: Log, index: Index) -> None:
    """A checkpoint that knows the boundary; those that reach back behind it are of no use any more."""
    log.checkpoint()
    for entry in log.store.children(CHECKPOINTS).entries:
        slot = checkpoint_slot(entry.key)
        if slot is not None and slot <= index.boundary and slot < log.checkpointed:
            log.store.delete(checkpoint_key(slot))


def _delete_published(log: Log, index: Index, listed: list[Entry]) -> int:
    """In the order of their keys: a deleting mapping goes after what it deletes, so no reader sees a name come back."""
    candidates = [entry.key for entry in listed if parse_key(entry.key) is not None]
    with log.lock:
        kept = {key for key, _ in expected(log, index)}
    garbage = [key for key in candidates if key not in kept]
    for key in garbage:
        log.store.delete(key)
    return len(garbage)


def _delete_segments(log: Log, index: Index, listed: list[Entry]) -> int:
    used = {segment_key(run.segment) for deltas in index.streams.values() for run in deltas.runs}
    garbage = [entry.key for entry in listed if entry.key.startswith(f"{SEGMENTS}/") and entry.key not in used]
    for key in garbage:
        log.store.delete(key)
    return len(garbage)


def _empty_slots(log: Log, boundary: int) -> int:
    """Take the bodies of the slots up to the boundary, the oldest first; those before were taken earlier."""
    first = boundary
    while first > 0 and not _is_empty(log, first):
        first -= 1
    for number in range(first + 1, boundary + 1):
        log.store.put(slot_key(number), seal(COLLECTED, b""), durable=False)
    return boundary - first


def _is_empty(log: Log, number: int) -> bool:
    try:
        return is_collected(log.store.get(slot_key(number)))
    except KeyNotFoundError:
        return False


def _delete_data(log: Log, index: Index, listed: list[Entry], doomed: set[str], before_ms: int) -> int:
    """Data files in the root that only collected deltas named, and old ones in a table's data folder that none does.

    A path that is not a plain key inside the root, or is a file of the catalog itself, is never touched.
    """
    present = {entry.key for entry in listed}
    orphans = {entry.key for entry in listed if entry.modified_ms < before_ms and is_table_data(entry.key)}
    candidates = {key for key in (doomed & present) | orphans if _is_data(key)}
    if not candidates:
        return 0
    with log.lock:
        for stream, stored in kept_deltas(log, index):
            for file in decode_delta(stream, stored.body).files:
                candidates.discard(file.path)
                if "://" in file.path or file.path.startswith("/"):
                    candidates = {key for key in candidates if not file.path.endswith(f"/{key}")}
    for key in sorted(candidates):
        log.store.delete(key)
    return len(candidates)


def _is_data(key: str) -> bool:
    try:
        check_key(key)
    except LanceNamespaceError:
        return False
    return not key.startswith((f"{OWN_FOLDER}/", f"{TXNS}/")) and parse_key(key) is None
