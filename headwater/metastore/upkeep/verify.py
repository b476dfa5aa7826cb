"""Is the catalog sound? The root read by the published layout alone, against the index; and every private file.

The same expectation drives `repair`: what can be written anew from the slots and the index is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from headwater.errors import CorruptFileError, InvalidTableStateError, LanceNamespaceError, TransactionNotFoundError
from headwater.metastore.commit.log import Log, files_of_slot
from headwater.metastore.commit.slot_rebuild import strays
from headwater.metastore.records.deltas import Stored, delta_key, read_deltas
from headwater.metastore.records.disk_records import (
    CATALOG,
    LAYERED,
    PINNED,
    SEGMENT,
    Body,
    Revision,
    Slot,
    body_of,
    decode_body,
    decode_delta,
    is_collected,
    unseal,
)
from headwater.metastore.records.layout import (
    CHECKPOINTS,
    FORMAT_KEY,
    MappingFile,
    RevisionFile,
    TxnFile,
    below,
    digest,
    is_table_data,
    layer_key,
    mapping_key,
    parse_key,
    revision_key,
    segment_key,
    slot_key,
    snapshot_key,
    txn_key,
)
from headwater.metastore.records.layout import canonical as canonical_string
from headwater.metastore.records.objects import Problem
from headwater.metastore.state.index import SlotIndex
from headwater.metastore.state.layers import check_file
from headwater.metastore.state.slot_views import ROOT, IndexView, Place, children_of, resolve_namespace
from headwater.metastore.upkeep.named_snapshots import FILE, taken_at
from headwater.names import ObjectId
from headwater.store import KeyNotFoundError, Store
from headwater.store.seam import OWN_FOLDER

EVERYTHING = 1 << 62


def verify(log: Log) -> list[Problem]:
    """Return every damaged, missing or contradicting file, each named once.

    Others may commit, checkpoint and collect meanwhile: what is found is looked at again, and only what stays counts.
    """
    found = _problems(log)
    if found:
        again = _problems(log)
        found = {key: again[key] for key in found if key in again}
    return [Problem(key, reason) for key, reason in sorted(found.items())]


def _problems(log: Log) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        log.refresh()
    except CorruptFileError as damaged:
        found[damaged.key] = str(damaged)
    except InvalidTableStateError as lost:
        found[slot_key(log.index.slot + 1)] = str(lost)
    for problem in (*_private(log), *_published(log)):
        found.setdefault(problem.key, problem.reason)
    if not found:
        found.update((problem.key, problem.reason) for problem in _tree(log))
    return found


def repair(log: Log) -> list[str]:
    """Write anew what is missing or damaged in the published layout; the keys."""
    broken = [(key, data) for key, data, _ in _broken(log) if data is not None]
    log.store.put_all(broken)
    return [key for key, _ in broken]


def expected(log: Log, index: SlotIndex, skips_damaged: bool = False) -> Iterator[tuple[str, bytes | None]]:
    """Yield every file that must be there: the published ones, with their bytes (None: they are not known any more),
    and the data files that deltas name in a table's own folder.

    `skips_damaged`: leave out what a damaged slot or segment tells. A collection must not: it would delete those files.
    """
    for number in range(index.boundary + 1, index.slot + 1):
        slot = _slot(log, number, skips_damaged)
        if slot is not None:
            yield from files_of_slot(number, slot)
    for node in index.nodes():
        for revision in node.versions:
            data = body_of(node, revision)
            for home in (node.home, revision.link) if revision.link else (node.home,):
                yield revision_key(home, revision.number, revision.operation, revision.txn), data
            yield txn_key(revision.time, revision.txn), None
    for name, versions in index.names.items():
        parent, digest = name.split("/")
        above = index.node(parent) if parent else None
        for version in versions:
            home = above.home if above else ""
            yield mapping_key(home, digest, version.number, version.operation, version.txn, version.object_id), b""
    yield from _expected_deltas(log, index, skips_damaged)


def _expected_deltas(log: Log, index: SlotIndex, skips_damaged: bool) -> Iterator[tuple[str, bytes | None]]:
    for stream, stored in kept_deltas(log, index, skips_damaged):
        node = index.node(stream)
        assert node is not None
        body = decode_delta(delta_key(stream, "?", stored.position), stored.body)
        home = f"{node.home}/{body.partition}/{stored.position}"
        yield revision_key(home, 1, "create", body.txn), stored.body
        yield txn_key(body.time, body.txn), None
        yield from ((file.path, None) for file in body.files if is_table_data(file.path))


def kept_deltas(log: Log, index: SlotIndex, skips_damaged: bool = False) -> Iterator[tuple[str, Stored]]:
    """Yield every delta that some slot from the boundary on can show.

    `skips_damaged`: a damaged segment, named elsewhere, ends its stream; else CorruptFile.
    """
    for stream, deltas in index.streams():
        try:
            for stored in read_deltas(log.segments, stream, deltas, 0, EVERYTHING, dropped=True):
                if deltas.dropped.get(stored.position, EVERYTHING) > index.boundary:
                    yield stream, stored
        except CorruptFileError:
            if not skips_damaged:
                raise


def _slot(log: Log, number: int, skips_damaged: bool) -> Slot | None:
    """Return a slot; None for one that another collection has emptied. What cannot be read now is an error."""
    try:
        return log.read_slot(number)
    except TransactionNotFoundError:
        return None
    except (CorruptFileError, InvalidTableStateError):
        if not skips_damaged:
            raise
        return None


def _published(log: Log) -> Iterator[Problem]:
    for key, _, reason in _broken(log):
        yield Problem(key, reason)


def _broken(log: Log) -> Iterator[tuple[str, bytes | None, str]]:
    """Yield the published files that are not as they must be, and those of transactions whose slot is gone."""
    sizes = {entry.key: entry.size for entry in log.store.list() if not entry.key.startswith(f"{OWN_FOLDER}/")}
    dashed = {txn_key(file.start, file.txn): key for key in sizes if isinstance(file := parse_key(key), TxnFile)}
    seen: set[str] = set()
    for wanted, data in expected(log, log.index, skips_damaged=True):
        key = wanted if wanted in sizes else dashed.get(wanted, wanted)  # the document spells both
        if key in seen:
            continue
        seen.add(key)
        if key not in sizes:
            yield key, data, "it is missing"
        elif data is not None and (sizes[key] != len(data) or (data and not _holds(log, key, data))):
            yield key, data, "its content is not what was committed"
    unknown = [key for key in sizes if key not in seen and isinstance(parse_key(key), TxnFile)]
    for key, number in strays(log.store, unknown):
        if number > log.index.boundary:  # past the head, or another writer took the number of a slot that was lost
            yield key, None, f"its transaction was committed in slot {number}, which does not hold it any more"


def _holds(log: Log, key: str, data: bytes) -> bool:
    try:
        return log.store.get(key) == data
    except KeyNotFoundError:
        return False


def _private(log: Log) -> Iterator[Problem]:
    """Slots, checkpoints, segments and the format file: each must be there, whole, and of its kind."""
    index = log.index
    if index.slot:
        yield from _check(log, FORMAT_KEY, CATALOG)
    for entry in log.store.children(CHECKPOINTS).entries:
        yield from _check(log, entry.key, LAYERED)
    yield from _layers(log)
    for number in range(index.boundary + 1, index.slot + 1):
        try:
            log.read_slot(number)
        except LanceNamespaceError as error:
            yield Problem(slot_key(number), str(error))
    for revision in {str(revision.properties[FILE]): revision for revision in snapshot_records(index)}.values():
        key = snapshot_key(str(revision.properties[FILE]))
        if taken_at(index, revision) is None or log.store.head(key) is not None:
            yield from _check(log, key, PINNED)
    for segment in sorted({run.segment for _, deltas in index.streams() for run in deltas.runs}):
        if segment not in log.segments.pending:
            yield from _check(log, segment_key(segment), SEGMENT)


def _layers(log: Log) -> Iterator[Problem]:
    """Yield files of layers: those of the newest checkpoint must be there, and all that are there must be whole.

    A process that stalled, or a power cut, can put a superseded checkpoint back whose files were deleted meanwhile.
    """
    needed = log.checkpoints.files(newest=True)
    for id, layer in log.checkpoints.files().items():
        if id in needed or log.store.head(layer_key(id)) is not None:
            try:
                check_file(log.store, layer)
            except CorruptFileError as error:
                yield Problem(error.key, str(error))


def snapshot_records(index: SlotIndex) -> Iterator[Revision]:
    """Yield the records of every named snapshot that is there, or that an undo could bring back."""
    for key in index.parts(""):
        node = index.node(key)
        yield from node.versions if node is not None else ()


def _check(log: Log, key: str, kind: bytes) -> Iterator[Problem]:
    """Yield a problem if the file is missing, damaged or of another kind."""
    try:
        data = log.store.get(key)
        if not (kind == SEGMENT and is_collected(data)):
            unseal(key, data, kind)
    except KeyNotFoundError:
        yield Problem(key, "it is missing")
    except LanceNamespaceError as error:
        yield Problem(key, str(error))


def _tree(log: Log) -> Iterator[Problem]:
    """Compare the published layout with the index, name by name."""
    seen = published_tree(log.store)
    known = dict(_known(IndexView(log.index, log.index.slot), ROOT))
    for path in sorted(seen.keys() | known.keys()):
        if seen.get(path) != known.get(path):
            what = "nothing" if path not in seen else "something else"
            yield Problem(
                "/".join(path), f"a reader of the published layout sees {what} at this name than is committed"
            )


def _known(view: IndexView, parent: Place) -> Iterator[tuple[tuple[str, ...], tuple[str, str, int]]]:
    for child in children_of(view, parent):
        for name in (child.name, *child.aliases):
            yield (*parent.path, name), (child.id, child.kind, child.revision)
        if child.kind == "namespace":
            yield from _known(view, resolve_namespace(view, ObjectId(child.path)))


# The published layout alone

Seen = tuple[str, str, int]


class PublishedReader:
    """The newest revision file of each directory, and the newest mapping file of each Name Resolution Directory."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.revisions: dict[str, RevisionFile] = {}
        self.mappings: dict[str, dict[str, MappingFile]] = defaultdict(dict)
        for entry in store.list():
            match parse_key(entry.key):
                case RevisionFile() as file if file.number > self._number(self.revisions.get(file.home)):
                    self.revisions[file.home] = file
                case MappingFile() as file if file.number > self._number(self.mappings[file.home].get(file.digest)):
                    self.mappings[file.home][file.digest] = file

    @staticmethod
    def _number(file: RevisionFile | MappingFile | None) -> int:
        return file.number if file is not None else 0

    def walk(self, home: str, path: tuple[str, ...], canonical: str) -> Iterator[tuple[tuple[str, ...], Seen]]:
        """Yield every name in a directory, and all below those that are namespaces."""
        for name_digest, file in sorted(self.mappings.get(home, {}).items()):
            if file.operation == "delete":
                continue
            body = self._object(below(home, file.object_id))
            if body is None:
                yield (*path, name_digest), (file.object_id, "missing", 0)
                continue
            names = (str(body.parts[0]), *body.aliases)
            name = next(
                (name for name in names if digest(canonical_string(canonical, name)) == name_digest), name_digest
            )
            yield (*path, name), (body.id, body.kind, body.revision)
            if body.kind == "namespace" and name == names[0]:
                yield from self.walk(body.home, (*path, name), canonical_string(canonical, name))

    def _object(self, home: str) -> Body | None:
        file = self.revisions.get(home)
        if file is None or file.operation == "delete":
            return None
        try:
            key = revision_key(file.home, file.number, file.operation, file.txn)
            return decode_body(key, self.store.get(key))
        except (KeyNotFoundError, CorruptFileError):
            return None


def published_tree(store: Store) -> dict[tuple[str, ...], Seen]:
    """Return each name, with the id, kind and revision of what it names."""
    return dict(PublishedReader(store).walk("", (), ""))
