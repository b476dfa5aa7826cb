"""Difference between two states of the catalog. It reads only the objects that a slot between them changed.

A state that is kept by a named snapshot has an index of its own: then both are walked.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.metastore.commit.log import Log
from headwater.metastore.records.deltas import find_stored, last_position, read_deltas
from headwater.metastore.records.disk_records import own_values
from headwater.metastore.records.objects import Changed, Diff, Moved, Object, StreamDiff
from headwater.metastore.state.history import log_entries
from headwater.metastore.state.slot_views import IndexView, Item, Place, object_of, place_at, root_properties
from headwater.metastore.state.snapshot import Snapshot


def diff(log: Log, a: Snapshot, b: Snapshot) -> Diff:
    """Return the difference from state `a` to state `b`; either may be the older one."""
    before, after = a.view, b.view
    keys = _touched(log, before, after)
    with log.lock:
        objects = [(place_at(before, key), place_at(after, key)) for key in keys]
        streams = [found for key in keys for found in _streams(log, before, after, key)]
        root = root_properties(before), root_properties(after)
    changed = [c for old, new in objects if (c := _changed(old, new))]
    if root[0] != root[1]:
        changed.append(Changed("", "root", (), *root, (), ()))
    return Diff(
        before.at,
        after.at,
        _sorted([object_of(new) for old, new in objects if old is None and new is not None]),
        _sorted([object_of(old) for old, new in objects if old is not None and new is None]),
        tuple(sorted((m for old, new in objects if (m := _moved(old, new))), key=lambda moved: moved.path)),
        tuple(sorted(changed, key=lambda found: found.path)),
        tuple(sorted(streams, key=lambda found: (found.path, found.version, found.stream))),
    )


def _touched(log: Log, before: IndexView, after: IndexView) -> list[str]:
    """Return the keys of the namespaces and tables that may differ."""
    if before.index is not after.index:
        with log.lock:
            return list(dict.fromkeys((*_walk(before, ""), *_walk(after, ""))))
    first, last = sorted((before.at, after.at))
    changes = (change for entry in log_entries(log, first + 1, last) for change in entry.changes)
    return list(dict.fromkeys(change.key.split("/", 1)[0] for change in changes if not change.key.startswith("/")))


def _walk(view: IndexView, key: str) -> Iterator[str]:
    for child in view.children(key):
        yield child
        yield from _walk(view, child)


def _moved(old: Place | None, new: Place | None) -> Moved | None:
    if old is None or new is None:
        return None
    same = (old.item.revision.parent, old.item.revision.name) == (new.item.revision.parent, new.item.revision.name)
    return None if same else Moved(new.key, new.item.node.kind, old.path, new.path)


def _changed(old: Place | None, new: Place | None) -> Changed | None:
    if old is None or new is None:
        return None
    was, now = old.item.revision, new.item.revision
    if was.properties == now.properties and was.aliases == now.aliases:
        return None
    properties = own_values(was.properties), own_values(now.properties)
    return Changed(new.key, new.item.node.kind, new.path, *properties, was.aliases, now.aliases)


def _streams(log: Log, before: IndexView, after: IndexView, table: str) -> Iterator[StreamDiff]:
    place = place_at(after, table) or place_at(before, table)
    if place is None or place.item.node.kind != "table":
        return
    old, new = dict(_parts(before, table)), dict(_parts(after, table))
    for key in dict.fromkeys((*old, *new)):
        here, there = key in old, key in new
        added = tuple(_since(log, before if here else None, after, key)) if there else ()
        removed = tuple(_since(log, after if there else None, before, key)) if here else ()
        if here and there:
            removed = tuple(sorted((*removed, *_dropped(log, before, after, key))))
            added = tuple(sorted((*added, *_dropped(log, after, before, key))))
        if added or removed:
            item = new.get(key) or old[key]
            version = key.split("/")[1]
            yield StreamDiff(table, place.path, version, item.node.id, str(item.revision.parts[1]), added, removed)


def _parts(view: IndexView, table: str) -> Iterator[tuple[str, Item]]:
    if view.item(table) is None:
        return
    for version in view.parts(table):
        for key in view.parts(version):
            item = view.item(key)
            if item is not None:
                yield key, item


def _since(log: Log, older: IndexView | None, view: IndexView, stream: str) -> Iterator[int]:
    """Yield the positions that one state has behind the last one that the other knows."""
    known = older.index.stream(stream) if older is not None else None
    last = last_position(log.segments, stream, known, older.at) if known is not None and older is not None else 0
    deltas = view.index.deltas(stream)
    for stored in read_deltas(log.segments, stream, deltas, last, view.at):
        yield stored.position


def _dropped(log: Log, before: IndexView, after: IndexView, stream: str) -> list[int]:
    """Return the positions that one state shows and the later one has dropped."""
    known = before.index.deltas(stream)
    gone = after.index.deltas(stream).dropped.items()
    between = (position for position, slot in gone if before.at < slot <= after.at)
    return [position for position in between if find_stored(log.segments, stream, known, position, before.at)]


def _sorted(objects: list[Object]) -> tuple[Object, ...]:
    return tuple(sorted(objects, key=lambda found: found.path))
