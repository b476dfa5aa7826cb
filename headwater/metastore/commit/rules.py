"""The rules of a commit, pure: does a transaction still hold at the head, and which records does it become?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.metastore.commit.draft import (
    AppendedDelta,
    ChildrenRead,
    DeltaRead,
    Draft,
    DroppedDelta,
    FolderRead,
    LifecycleRead,
    LogRead,
    MembersRead,
    NameRead,
    ObjectRead,
    PartRead,
    Read,
)
from headwater.metastore.commit.table_parts import DELTA_FORMAT, Values, taken_values
from headwater.metastore.records.deltas import delta_key, stream_of
from headwater.metastore.records.disk_records import (
    DeltaBody,
    Mapped,
    NewRevision,
    Node,
    Revision,
    Txn,
    body_of,
    encode,
)
from headwater.metastore.records.layout import FORMAT, below
from headwater.metastore.records.serving_copy import PUBLISHED
from headwater.metastore.state.index import NAMED, SlotIndex
from headwater.metastore.state.lookup import new_signs
from headwater.metastore.state.slot_views import IndexView, Item
from headwater.names import format_name


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a transaction: its id, author, message and start."""

    id: str
    start: int
    message: str
    author: str


@dataclass(slots=True)
class Group:
    """Changes of the transactions in a slot that is being written; the index has none of them yet."""

    written: set[Read] = field(default_factory=set)
    positions: dict[str, int] = field(default_factory=dict)
    partitions: dict[str, Values] = field(default_factory=dict)


MAX_TOLD = 8
"""So many of the things that others changed are named by a conflict."""


def conflict(index: SlotIndex, draft: Draft) -> str | None:
    """Return the conflict of a transaction with the slots after its snapshot: they changed what it read or wrote."""
    if index.slot == draft.base.at:
        return None
    if draft.base.at < index.boundary:
        return "its snapshot was collected meanwhile"
    if any(item.revision.number and index.node(key) is None for key, item in draft.items.items()):
        return "a collection has forgotten what it brings back"
    changed = [(slot, read) for read in draft.reads if (slot := read.last_change(index)) > draft.base.at]
    if not changed:
        return None
    told = dict.fromkeys(f"slot {slot} changed {read.changed}{_of(index, draft, read)}" for slot, read in changed)
    more = f", and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return f"{', '.join(sorted(told)[:MAX_TOLD])}{more}"


def _of(index: SlotIndex, draft: Draft, read: Read) -> str:
    """Return the object that was read, by the name it has for the transaction or has had since."""
    key, is_name = read.owner, isinstance(read, NameRead)
    views = [draft.base, IndexView(index, index.slot)]
    names: list[str] = []
    if isinstance(read, NameRead):
        known = next((view for view in views if view.mapped(key, read.digest)), None)
        if known is not None:  # an object that came to the name since is told by it, not by the name it had
            is_name, key, views = False, known.mapped(key, read.digest) or "", [known, *views]
    while key:
        item = next((found for view in views if (found := view.item(key, dropped=True))), None)
        if item is None:
            break
        names.insert(0, item.revision.name)
        key = item.revision.parent
    where = format_name(names)
    return (f" in {where}" if is_name else f" ({where})") if where else ""


def refused(reason: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(
        f"The transaction was not committed: {reason} after it began. Nothing was changed: read and decide again, "
        "or use run(), which does."
    )


def compile_txn(index: SlotIndex, draft: Draft, header: Header, group: Group, max_key: int) -> Txn:
    """Return the records of a transaction that follows the head. Positions are assigned here. Marks `group`."""
    changes: list[NewRevision] = []
    for key, item in draft.items.items():
        if not _stillborn(index, draft, key):
            _compile_item(index, draft, header, key, item, changes)
    for append in draft.appends:
        if draft.items:  # else nothing on its path was changed since it was looked up
            if _stillborn(index, draft, append.stream):
                continue
            append.path = _path(draft, append.stream)
        changes.extend(_compile_append(index, append, header, group))
    _check_published(draft.appends)
    changes.extend(_compile_drop(drop, header) for drop in draft.dropped_deltas)
    mappings = _compile_names(index, draft)
    for change in changes:
        _check_length(change, max_key)
    group.written.update(_written(draft, changes, mappings))
    return Txn(header.id, header.start, header.message, header.author, tuple(changes), tuple(mappings))


def _stillborn(index: SlotIndex, draft: Draft, key: str) -> bool:
    """Return True if the object, or one it is a part of, was created and dropped again in this transaction."""
    steps = key.split("/")
    for end in range(1, len(steps) + 1):
        above = "/".join(steps[:end])
        item = draft.items.get(above)
        if item is not None and not item.revision.alive and index.node(above) is None:
            return True
    return False


def _compile_item(
    index: SlotIndex, draft: Draft, header: Header, key: str, item: Item, changes: list[NewRevision]
) -> None:
    before = index.node(key)
    last = before.versions[-1] if before is not None else None
    alive = item.revision.alive
    if not alive and (last is None or not last.alive):
        return  # brought back and dropped again in this transaction
    operation = "delete" if not alive else "create" if last is None or not last.alive else "update"
    revision = Revision(
        0,
        last.number + 1 if last is not None else 1,
        operation,
        header.id,
        header.start,
        item.revision.parent,
        item.revision.parts,
        item.revision.properties,
        item.revision.aliases,
    )
    link = _link(draft, item)
    changes.append(_change(item.node, revision, _path(draft, key), link))


def _path(draft: Draft, key: str) -> tuple[str, ...]:
    """Return the object's path as this transaction leaves it; of a dropped object, the path it was dropped at."""
    item = draft.item(key, dropped=True)
    if item is None or not item.revision.alive:
        return draft.paths.get(key, ())
    if item.node.kind not in NAMED:
        return _path(draft, item.revision.parent)
    return (*_path(draft, item.revision.parent), item.revision.name) if item.revision.parent else (item.revision.name,)


def _change(node: Node, revision: Revision, path: tuple[str, ...], link: str) -> NewRevision:
    return NewRevision(
        node.kind, revision.operation, node.key, node.home, revision.number, path, body_of(node, revision), link
    )


def _link(draft: Draft, item: Item) -> str:
    """A moved object's directory stays; below its new parent stands a second one with its revisions only."""
    if item.node.kind not in ("namespace", "table"):
        return ""
    parent = draft.item(item.revision.parent, dropped=True) if item.revision.parent else None
    expected = below(parent.node.home if parent else "", item.node.id)
    return "" if expected == item.node.home else expected


def _compile_append(index: SlotIndex, append: AppendedDelta, header: Header, group: Group) -> list[NewRevision]:
    changes = _compile_partition(index, append, header, group)
    append.position = group.positions[append.stream] = _position(index, append, group)
    home = f"{append.stream_home}/{append.partition}/{append.position}"
    body = DeltaBody(
        FORMAT,
        "delta",
        str(append.position),
        append.position,
        append.type,
        append.partition,
        append.files,
        append.properties,
        1,
        "create",
        header.id,
        header.start,
    )
    key = delta_key(append.stream, append.partition, append.position)
    changes.append(NewRevision("delta", "create", key, home, 1, append.path, encode(body)))
    return changes


def _compile_partition(index: SlotIndex, append: AppendedDelta, header: Header, group: Group) -> list[NewRevision]:
    """The partition of a new delta, unless it is there: then its values are those the append names, if it does."""
    key = f"{append.stream}/{append.partition}"
    node = index.node(key)
    last = node.versions[-1] if node is not None else None
    if key in group.partitions:
        taken_values(append.partition, append.values, group.partitions[key])
        return []
    if last is not None and last.alive:
        taken_values(append.partition, append.values, last.parts[1])
        group.partitions[key] = last.parts[1]
        return []
    group.partitions[key] = append.values
    home = f"{append.stream_home}/{append.partition}"
    made = Node(key, append.partition, "partition", home, [])
    number = last.number + 1 if last is not None else 1
    parts = (append.partition, append.values)
    revision = Revision(0, number, "create", header.id, header.start, append.stream, parts, {})
    return [_change(made, revision, append.path, "")]


def _position(index: SlotIndex, append: AppendedDelta, group: Group) -> int:
    """Return the next position of the stream; a position that was asked for must not be taken or passed."""
    log = index.stream(append.stream)
    last = group.positions.get(append.stream, log.last if log is not None else 0)
    if append.wanted is None:
        return last + 1
    if append.wanted <= last:
        raise ConcurrentModificationError(
            f"Position {append.wanted} of this stream is taken: the last one is {last}. Read again and decide again."
        )
    return append.wanted


def _check_published(appends: Sequence[AppendedDelta]) -> None:
    """Error 13 for a version that publishes a position inside the transaction: it would show half of what this lands.

    Of the positions that a transaction takes in a change log, only the last can be read at or published.
    """
    for append in appends:
        shown, version = append.properties.get(PUBLISHED), append.stream.rpartition("/")[0]
        if shown is None or append.position is None:
            continue
        own = [each.position for each in appends if each.stream == f"{version}/{DELTA_FORMAT}" and each.position]
        if own and own[0] <= shown < own[-1]:
            raise InvalidInputError(
                f"This transaction publishes {format_name(append.path)} and lands rows in it afterwards: the version "
                "would show half of what it lands. Nothing was changed: publish the table again after its last rows."
            )


def _compile_drop(drop: DroppedDelta, header: Header) -> NewRevision:
    key = delta_key(drop.stream, drop.partition, drop.position)
    body = DeltaBody(
        FORMAT,
        "delta",
        str(drop.position),
        drop.position,
        "delete",
        drop.partition,
        (),
        {},
        2,
        "delete",
        header.id,
        header.start,
    )
    home = f"{drop.stream_home}/{drop.partition}/{drop.position}"
    return NewRevision("delta", "delete", key, home, 2, drop.path, encode(body))


def _compile_names(index: SlotIndex, draft: Draft) -> list[Mapped]:
    """Return the net effect on each Name Resolution Directory.

    Numbers go on from the last one known. A directory whose past was collected begins above the boundary, so that a
    mapping file that is still waiting to be deleted is never the newest.
    """
    head = IndexView(index, index.slot)
    mappings: list[Mapped] = []
    for (parent, digest), key in draft.names.items():
        before = head.mapped(parent, digest)
        if before == key:
            continue
        versions = index.name_versions(f"{parent}/{digest}")
        number = (versions[-1].number if versions else index.boundary) + 1
        operation = "delete" if key is None else "create" if before is None else "update"
        above = draft.item(parent, dropped=True) if parent else None
        home = above.node.home if above else ""
        mappings.append(Mapped(parent, home, digest, number, operation, key or before or ""))
    return mappings


def _written(draft: Draft, changes: list[NewRevision], mappings: list[Mapped]) -> set[Read]:
    """The reads of another transaction that these changes would break."""
    written: set[Read] = {NameRead(mapped.parent, mapped.digest) for mapped in mappings}
    for change in changes:
        if change.kind == "delta":
            stream, _, position = stream_of(change.key)
            written.add(LogRead(stream))
            if change.operation == "delete":
                written.add(DeltaRead(stream, position))
            continue
        written.add(ObjectRead(change.key))
        if change.operation != "update":
            written.add(PartRead(change.key))
        if change.kind == "table_version":
            written.add(LifecycleRead(change.key))
        if change.kind == "partition":
            above = change.key.rsplit("/", 1)[0]
            written.update((ChildrenRead(above), MembersRead(above)))
    for key, item in draft.items.items():
        before = draft.base.item(key, dropped=True)
        parents = {item.revision.parent, before.revision.parent if before is not None else item.revision.parent}
        stays = before is not None and before.revision.alive == item.revision.alive and len(parents) == 1
        written.update(ChildrenRead(parent) for parent in parents)
        written.update(MembersRead(parent) for parent in parents if not stays)
    written.update(FolderRead(sign) for sign in new_signs(draft))
    return written


def _check_length(change: NewRevision, max_key: int) -> None:
    if len(change.home.encode()) + len(change.link.encode()) + 80 > max_key:
        raise InvalidInputError(
            f"The directory of {'/'.join(change.path)!r} would have too long a name for this store: nest less deeply."
        )
