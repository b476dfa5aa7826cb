"""Garbage of a metastore: files that nothing needs, each with the reason. This module deletes nothing.

Needed is what a slot from the boundary on can show, what a named snapshot pins, and what a manifest names that is left:
so a tag, a branch, a published version with its tombstones, and an unpublished tail keep their files.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

import msgspec

from headwater.errors import LanceNamespaceError
from headwater.lance_manifest import MEM_WAL, names_in
from headwater.metastore.commit.log import Log
from headwater.metastore.records.deltas import read_deltas
from headwater.metastore.records.disk_records import DeltaBody, Node, decode_delta
from headwater.metastore.records.layout import (
    LAYERS,
    SEGMENTS,
    SNAPSHOTS,
    TXNS,
    is_dataset_folder,
    is_table_data,
    layer_key,
    parse_key,
    segment_key,
    snapshot_key,
)
from headwater.metastore.records.objects import Removal
from headwater.metastore.records.ref_record import REFS_FORMAT, parse_record
from headwater.metastore.records.serving_copy import KEEP_DATA
from headwater.metastore.state.index import SlotIndex
from headwater.metastore.state.lookup import dropped_locations, lance_streams, stream_location
from headwater.metastore.upkeep.named_snapshots import FILE, Snapshots
from headwater.metastore.upkeep.verify import EVERYTHING, expected, kept_deltas, snapshot_records
from headwater.store import Entry
from headwater.store.seam import OWN_FOLDER, check_key, get_in_parts
from headwater.table_refs import read_refs

Files = dict[str, tuple[str, int]]
"""The data files of deltas that are forgotten: each with the folder of its Lance dataset ("" if it is of none) and the
position, which is the version then."""

OWN_FOLDERS = ("data/", "_deletions/", "_indices/", "_transactions/")
"""Where the files are that the versions of a Lance dataset name."""


class PendingDeletes(msgspec.Struct, array_like=True):
    """The files and the folders of Lance datasets that a boundary leaves without use, and the index then forgets.

    It is written before the boundary is committed, and again with what a snapshot or a tag keeps: so the next
    collection finishes one that died or came too early.
    """

    files: Files
    locations: list[str]

    def __bool__(self) -> bool:
        return bool(self.files or self.locations)


@dataclass
class Kept:
    """Files that the index and the named snapshots need."""

    files: set[str] = field(default_factory=set)
    locations: dict[str, bool] = field(default_factory=dict)
    """The folders of Lance datasets; whether it is ours to tidy up."""
    snapshots: set[str] = field(default_factory=set)


def kept_by(log: Log, index: SlotIndex, snapshots: Snapshots | None) -> Kept:
    """Gathers what must stay: for the index, and for the named snapshots unless there is to be none of that.

    A snapshot that cannot be read is an error: it may need anything.
    """
    kept = Kept()
    with log.lock:
        _keep(kept, index, ((stream, stored.body) for stream, stored in kept_deltas(log, index)))
        if snapshots is None:
            return kept
        for revision in list(snapshot_records(index)):
            _, pinned = snapshots.read(revision)
            kept.snapshots.add(snapshot_key(str(revision.properties[FILE])))
            deltas = ((stream, one.body) for stream, found in pinned.streams() for one in found.tail)
            _keep(kept, pinned, deltas)
    return kept


def _keep(kept: Kept, index: SlotIndex, deltas: Iterable[tuple[str, bytes]]) -> None:
    places = {node.key: node for node in lance_streams(index)}
    for node in places.values():
        ours = not node.versions[-1].properties.get(KEEP_DATA)
        location = stream_location(node)
        kept.locations[location] = ours and kept.locations.get(location, True)
    for stream, data in deltas:
        kept.files.update(_files_of(decode_delta(stream, data), places.get(stream)))


def _files_of(body: DeltaBody, stream: Node | None) -> Iterator[str]:
    """Yield the files of a delta, the tombstones of a publish, and the name its manifest was staged under."""
    yield from (file.path for file in body.files)
    yield from (str(file[0]) for file in body.properties.get("tombstones", ()) if file)
    if stream is not None and body.properties.get("staged"):
        yield f"{stream_location(stream)}/{body.properties['staged']}"


def _doomed_files(log: Log, index: SlotIndex, boundary: int) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the data files of deltas that no slot from the boundary on can show."""
    for key in list(index.old.of("o")):
        node = index.node(key)
        if node is not None and not node.versions[-1].alive and node.versions[-1].slot <= boundary:
            for stream in _streams_in(index, key):
                yield from _deltas_to_delete(log, index, stream, None)
    for stream, deltas in index.streams():
        dropped = {position for position, slot in deltas.dropped.items() if slot <= boundary}
        if dropped:
            yield from _deltas_to_delete(log, index, stream, dropped)


def _streams_in(index: SlotIndex, key: str) -> Iterator[str]:
    if index.stream(key) is not None:
        yield key
    for part in index.parts(key):
        yield from _streams_in(index, part)


def _deltas_to_delete(
    log: Log, index: SlotIndex, stream: str, positions: set[int] | None
) -> Iterator[tuple[str, tuple[str, int]]]:
    after = min(positions) - 1 if positions else 0
    node = index.node(stream)
    lance = node if node is not None and node.versions[-1].parts[1] == "lance" else None
    for stored in read_deltas(log.segments, stream, index.deltas(stream), after, EVERYTHING, dropped=True):
        if positions is None or stored.position in positions:
            for path in _files_of(decode_delta(stream, stored.body), lance):
                yield path, (stream_location(lance) if lance is not None else "", stored.position)


def recorded_refs(index: SlotIndex) -> dict[str, set[int]]:
    """By the location of a Lance dataset, the versions that the records of its table's tags and branches name."""
    found: dict[str, set[int]] = defaultdict(set)
    for stream in lance_streams(index):
        for key in index.parts(stream.key.rpartition("/")[0]):
            node = index.node(key)
            if node is not None and node.versions[-1].parts[1] == REFS_FORMAT:
                record = parse_record(node.versions[-1].properties)
                entries = (*record.tag.values(), *record.branch.values())
                found[stream_location(stream)] |= {
                    each.to.version for each in entries if each.to and not each.to.branch
                }
    return found


def pending_by(log: Log, index: SlotIndex, boundary: int, before: Iterable[PendingDeletes]) -> PendingDeletes:
    """Return the pending deletes of a boundary, and those of earlier boundaries that still exist."""
    with log.lock:
        files = dict(_doomed_files(log, index, boundary))
        locations = dict.fromkeys(dropped_locations(index, boundary))
    for earlier in before:
        files.update(earlier.files)
        locations.update(dict.fromkeys(earlier.locations))
    return PendingDeletes(files, sorted(locations))


class Folders:
    """Folders, to be asked what is in or around one of them, at a cost that does not grow with their number."""

    def __init__(self, folders: Iterable[str]) -> None:
        self.all = {folder.strip("/") for folder in folders}
        self.above = {above for folder in self.all for above in ancestors(folder)}

    def around(self, key: str) -> bool:
        """Return True if one of the folders holds the key."""
        return any(above in self.all for above in ancestors(key))

    def overlap(self, folder: str) -> bool:
        """Return True if one of the folders is this one, in it or around it."""
        inner = folder.strip("/")
        return inner in self.all or inner in self.above or self.around(inner)


def ancestors(key: str) -> Iterator[str]:
    """Yield the folders that a key is in, outermost first."""
    end = key.find("/")
    while end >= 0:
        yield key[:end]
        end = key.find("/", end + 1)


@dataclass
class Garbage:
    """Existing files, pending deletes of a boundary, and the age from which an unneeded file has no writer."""

    log: Log
    listed: list[Entry]
    pending: PendingDeletes
    before_ms: int
    recorded: dict[str, set[int]] = field(default_factory=dict)
    """By location, the versions that tags and branches stand on which may not be in the folder yet."""

    def judge(self, index: SlotIndex, kept: Kept) -> list[Removal]:
        """Return all that can go, in the order in which it must."""
        self.recorded = recorded_refs(index)
        found = list(self._folders(kept))
        gone = Folders(removal.key for removal in found)
        found += (removal for removal in self._data(kept) if not gone.around(removal.key))
        taken = {removal.key for removal in found}
        found += (r for r in self._datasets(kept, taken) if r.key not in taken)
        found += self._published(index)
        found += self._segments(index)
        found += self._snapshots(kept)
        found += self._layers()
        return found

    def saved(self, live: Kept, removals: Iterable[Removal]) -> PendingDeletes:
        """Return the pending deletes that a snapshot or a tag still needs, though the index does not."""
        gone = {removal.key for removal in removals}
        there = {entry.key for entry in self.listed} - gone - live.files
        files = {key: value for key, value in self.pending.files.items() if key in there}
        needed, counts = Folders(live.locations), self._counts(self.pending.locations)
        stayed = [one for one in self.pending.locations if one not in gone and counts[one]]
        return PendingDeletes(files, [one for one in stayed if not needed.overlap(one)])

    def _counts(self, folders: Iterable[str]) -> Counter[str]:
        """Return the number of files in each folder."""
        wanted = set(folders)
        return Counter(above for entry in self.listed for above in ancestors(entry.key) if above in wanted)

    def _folders(self, kept: Kept) -> Iterator[Removal]:
        """Datasets as a whole. One that a stream still kept is at, around or inside stays."""
        reasons = dict.fromkeys(self._stillborn(), "its creator died: it has no version, and was not touched since")
        reasons |= dict.fromkeys(self.pending.locations, "its table was dropped, and the drop is behind the boundary")
        needed, counts = Folders(kept.locations), self._counts(reasons)
        for folder in sorted(reasons):
            if counts[folder] and not needed.overlap(folder) and _is_data(f"{folder}/x"):
                yield Removal("folder", folder, reasons[folder], counts[folder])

    def _stillborn(self) -> Iterator[str]:
        """Yield folders of datasets whose creator died: long untouched, and none of their manifests ever got its final
        name.

        What a deregistered table leaves has final manifests, and stays. Those of a transaction are hidden until then.
        """
        files: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.listed:
            folder, _, inside = entry.key.partition("/")
            if inside and is_dataset_folder(folder):
                files[folder].append(entry)
        for folder, entries in files.items():
            if all(self._is_old(entry) and not _is_final(entry.key) for entry in entries):
                yield folder

    def _data(self, kept: Kept) -> Iterator[Removal]:
        """Data files that only forgotten deltas named, and old ones in a table's data folder that none does.

        A path that is not a plain key inside the root, or is a file of the catalog itself, is never touched.
        """
        elsewhere = [path for path in kept.files if "://" in path or path.startswith("/")]
        tagged: dict[str, set[int]] = {}
        for entry in self.listed:
            key = entry.key
            is_pending = key in self.pending.files
            is_orphan = self._is_old(entry) and is_table_data(key)
            if not (is_pending or is_orphan) or key in kept.files or not _is_data(key):
                continue
            if any(path.endswith(f"/{key}") for path in elsewhere):
                continue
            if is_pending and not self._is_tagged(*self.pending.files[key], tagged):
                yield Removal("data", key, "only deltas behind the boundary named it")
            elif not is_pending:
                yield Removal("data", key, "no delta names it: its writer died before the commit")

    def _is_tagged(self, location: str, version: int, known: dict[str, set[int]]) -> bool:
        """Return True if a tag or a branch of the dataset stands on the version."""
        if not location:
            return False
        if location not in known:
            known[location] = {ref.version for ref in read_refs(self.log.store, location) if not ref.branch}
            known[location] |= self.recorded.get(location, set())
        return version in known[location]

    def _datasets(self, kept: Kept, taken: set[str]) -> Iterator[Removal]:
        """Yield leftovers of dead writers in dataset folders: staged manifests, and files that no manifest names."""
        by_location = self._by_location(kept)
        files, folders = set[str](), set[str]()
        for entries in by_location.values():
            leftovers = [entry for entry in entries if self._is_leftover(entry, kept)]
            for entry in leftovers:
                yield Removal("staged", entry.key, "its writer died: no version is recorded by this name")
            gone = taken | {entry.key for entry in leftovers}
            manifests = [entry.key for entry in entries if _is_manifest(entry.key) and entry.key not in gone]
            there = (data for data in get_in_parts(self.log.store, manifests) if data is not None)
            try:
                named = names_in(there)
            except ValueError:
                return  # a manifest that is not understood may name anything, also in the folders of others
            files |= named[0]
            folders |= named[1]
        for location, entries in by_location.items():
            for entry in entries:
                inside = entry.key.removeprefix(f"{location}/")
                if inside.startswith(OWN_FOLDERS) and self._is_old(entry) and not _is_named(inside, files, folders):
                    yield Removal("data", entry.key, "no version left names it: its writer died, or they went")

    def _by_location(self, kept: Kept) -> dict[str, list[Entry]]:
        ours = [location for location, is_ours in kept.locations.items() if is_ours and _is_data(f"{location}/x")]
        known = Folders(kept.locations)
        found: dict[str, list[Entry]] = {one: [] for one in ours if one not in known.above and not known.around(one)}
        for entry in self.listed:
            for above in ancestors(entry.key):
                if above in found:
                    found[above].append(entry)
        return found

    def _is_leftover(self, entry: Entry, kept: Kept) -> bool:
        staged = _is_hidden(entry.key) or ".manifest-" in entry.key.rsplit("/", 1)[-1]
        elsewhere = "/tree/" in entry.key or f"/{MEM_WAL}/" in entry.key
        return staged and not elsewhere and entry.key not in kept.files and self._is_old(entry)

    def _published(self, index: SlotIndex) -> Iterator[Removal]:
        """In the order of their keys, so that of one name the oldest mapping goes first."""
        candidates = [entry.key for entry in self.listed if parse_key(entry.key) is not None]
        with self.log.lock:
            needed = {key for key, _ in expected(self.log, index)}
        for key in candidates:
            if key not in needed:
                yield Removal("published", key, "no slot from the boundary on shows it")

    def _segments(self, index: SlotIndex) -> Iterator[Removal]:
        used = {segment_key(run.segment) for _, deltas in index.streams() for run in deltas.runs}
        for entry in self.listed:
            if entry.key.startswith(f"{SEGMENTS}/") and entry.key not in used:
                yield Removal("segment", entry.key, "all its deltas are forgotten")

    def _layers(self) -> Iterator[Removal]:
        needed = {layer_key(id) for id in self.log.checkpoints.files()}
        for entry in self.listed:
            if entry.key.startswith(f"{LAYERS}/") and entry.key not in needed and self._is_old(entry):
                yield Removal("layer", entry.key, "no checkpoint names it")

    def _snapshots(self, kept: Kept) -> Iterator[Removal]:
        for entry in self.listed:
            if entry.key.startswith(f"{SNAPSHOTS}/") and entry.key not in kept.snapshots and self._is_old(entry):
                yield Removal("snapshot", entry.key, "no named snapshot is read from it")

    def _is_old(self, entry: Entry) -> bool:
        return entry.modified_ms < self.before_ms


def _is_final(key: str) -> bool:
    return key.endswith(".manifest") and not _is_hidden(key)


def _is_hidden(key: str) -> bool:
    """Return True if a manifest is in the folder of those that no transaction has committed yet."""
    return "/_staged/" in key


def _is_manifest(key: str) -> bool:
    return ".manifest" in key.rsplit("/", 1)[-1]


def _is_named(inside: str, files: Set[str], folders: Set[str]) -> bool:
    """Return True if a version names the file, or the folder it is in."""
    return inside in files or "/".join(inside.split("/")[:2]) in folders


def _is_data(key: str) -> bool:
    try:
        check_key(key)
    except LanceNamespaceError:
        return False
    return not key.startswith((f"{OWN_FOLDER}/", f"{TXNS}/")) and parse_key(key) is None
