"""Rows of child tables, made by tasks: parent rows in, changes of the child out, as prepared files of its log.

A part of the work is the parents that changed, in shares of their keys, or all parents: the fragments of the base, and
the rows that the tail touches. The function is called for a parent whose inputs changed. Its children are compared with
those that the child table has, so unchanged children keep their rows, their row ids and their derived values.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.metastore import Reading
from headwater.streams.log.landing import BatchOrigin
from headwater.streams.log.prepared_landing import prepare
from headwater.streams.log.stored_events import LogShard
from headwater.streams.reading.change_feed import AFTER, BEFORE, DELETE, INSERT, changes
from headwater.streams.reading.fresh_reads import read, same_rows, whole_state
from headwater.streams.reading.position_views import PositionView, collected, view_at
from headwater.streams.reading.table_reads import read_touched, read_untouched
from headwater.streams.rows.column_casts import cast_values
from headwater.streams.rows.input_rows import as_json
from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.serving.copy_rows import in_list
from headwater.streams.serving.derived_columns import called, instance, load
from headwater.streams.serving.publish_tasks import TASKS_PER_CORE, task_count
from headwater.streams.serving.serving_copy import CatalogLocation, Lake, open_version
from headwater.streams.sources.formats import take_snapshot
from headwater.streams.stream_lookup import Stream, open_stream
from headwater.streams.table_functions import CHILD_ID, CHILD_NUMBER, SOURCE, TableFunction
from headwater.work import Json, Runner

PARENTS = 1024
"""So many parents are expanded at once: a task holds their children in memory."""
MAX_PUSHED = 4096
"""Children of so many parents are looked up; for more of them the keys of the child table are read."""

ORPHAN_KEYS = 1 << 20
"""A task that looks for children without a parent holds the keys of about so many children."""


@dataclass(frozen=True)
class ChildWork:
    """The work of making children, which tasks divide.

    `slot`: the commit that all of it reads. `parent`: the path of the parent. `identity`: of the function's text.
    `after`: the position of the parent that the children are of so far; None: all children are made again.
    """

    slot: int
    parent: tuple[str, ...]
    child: PositionView
    function: TableFunction
    identity: str
    after: int | None
    known: int


@dataclass(frozen=True)
class ParentPart:
    """A part of the work: parents that changed, parents of fragments, parents that the tail touches, or orphans."""

    kind: str
    share: LogShard | None = None
    fragments: tuple[int, ...] = ()


CHANGED, FRAGMENTS, TOUCHED, ORPHANS = "changed", "fragments", "touched", "orphans"


def can_follow(snapshot: Reading, parent: Stream, after: int) -> bool:
    """Return True if the log still has every change of the parent after a position."""
    try:
        view_at(snapshot, parent, after)
        found = [delta.position for delta in snapshot.deltas(parent.path, after, version=parent.version)]
    except TableVersionNotFoundError:
        return False
    return found == list(range(after + 1, after + len(found) + 1))


def divided(lake: Lake, snapshot: Reading, parent: Stream, work: ChildWork, runner: Runner) -> list[ParentPart]:
    """Return the parts of the work for a runner."""
    if work.after is not None:
        deltas = snapshot.deltas(parent.path, work.after, version=parent.version)
        return [ParentPart(CHANGED, share) for share in _shares(parent, deltas, runner)] if deltas else []
    view = view_at(snapshot, parent)
    parts = [ParentPart(TOUCHED, share) for share in _shares(parent, view.tail, runner)] if view.tail else []
    ids = _fragments(lake, view)
    if ids:
        size = max(1, -(-len(ids) // (1 if runner.spark is None else TASKS_PER_CORE * runner.cores)))
        parts += [ParentPart(FRAGMENTS, None, tuple(ids[at : at + size])) for at in range(0, len(ids), size)]
    if not work.child.position:
        return parts
    count = 1
    while count * ORPHAN_KEYS < work.known:
        count *= 2
    return parts + [ParentPart(ORPHANS, LogShard(number, count) if count > 1 else None) for number in range(count)]


def _shares(parent: Stream, deltas: Sequence[Any], runner: Runner) -> list[LogShard | None]:
    """Divide the keys that deltas have events of. A lateness is judged by all events, so one task has them."""
    rows = sum(file.rows or 0 for delta in deltas for file in delta.files)
    is_whole = runner.spark is None or parent.definition.rules.lateness is not None
    count = 1 if is_whole else task_count(rows, runner.cores, True)
    return [LogShard(number, count) for number in range(count)] if count > 1 else [None]


def run_part(location: CatalogLocation | Lake, work: ChildWork, part: ParentPart) -> list[Json]:
    """Make the children of a part, and return what their commit needs. `location`: the catalog, open in this process
    or as an executor opens it."""
    lake = location if isinstance(location, Lake) else location.catalog()
    snapshot = lake.metastore.at(work.slot)
    parents = _Parents(lake, snapshot, open_stream(snapshot, work.parent), work)
    children = _Children(lake, work)
    made = []
    for rows, keys in parents.batches(part):
        found = children.prepared(expanded(work.function, work.identity, rows), keys)
        made += [found] if found is not None else []
    return made


class _Parents:
    """The parents of a part, as they are at the commit."""

    def __init__(self, lake: Lake, snapshot: Reading, parent: Stream, work: ChildWork) -> None:
        self._lake, self._snapshot, self._parent, self._work = lake, snapshot, parent, work
        self._keys = list(work.function.keys)
        self._columns = list(dict.fromkeys((*work.function.keys, *work.function.inputs)))
        fields = [parent.definition.by_name[name].field for name in self._columns]
        self._nothing = pa.schema(fields).empty_table()

    def batches(self, part: ParentPart) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield parents whose children are to be made, and the keys of all whose children are replaced."""
        for rows, keys in self._found(part):
            for start in range(0, keys.num_rows, PARENTS):
                batch = self._nothing if rows is None else rows.slice(start, PARENTS)
                yield batch, keys.slice(start, PARENTS)

    def _found(self, part: ParentPart) -> Iterator[tuple[pa.Table | None, pa.Table]]:
        if part.kind == ORPHANS:
            yield None, self._orphans(part.share)
            return
        view = view_at(self._snapshot, self._parent)
        if part.kind == CHANGED:
            rows, gone = self._changed(part.share)
            yield None, gone
            yield rows, rows.select(self._keys)
        elif part.kind == TOUCHED:
            rows = read_touched(self._lake, view, self._columns, share=part.share)
            yield rows, rows.select(self._keys)
        else:
            for rows in read_untouched(self._lake, view, part.fragments, self._columns):
                yield rows, rows.select(self._keys)

    def _changed(self, share: LogShard | None) -> tuple[pa.Table, pa.Table]:
        """Return the parents that are new or have other inputs, and the keys of those that are gone."""
        after = self._work.after
        assert after is not None
        if not can_follow(self._snapshot, self._parent, after):
            raise collected(self._parent.name, after + 1)
        found = changes(self._lake, self._snapshot, self._parent, after, None, share)
        rows = found.select(self._columns)
        if not rows.num_rows:
            return rows, rows.select(self._keys)
        codes = KeyIndex([rows.column(name) for name in self._keys]).codes
        _, first = np.unique(codes, return_index=True)
        last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
        kinds = np.array(found.column("_change_type").to_pylist(), object)
        was, now = np.isin(kinds[first], (DELETE, BEFORE)), np.isin(kinds[last], (INSERT, AFTER))
        both = np.flatnonzero(was & now)
        needed = now & ~was
        needed[both] = ~same_rows(rows.take(first[both]), rows.take(last[both]))
        return rows.take(last[np.flatnonzero(needed)]), rows.take(first[was & ~now]).select(self._keys)

    def _orphans(self, share: LogShard | None) -> pa.Table:
        """Return the keys that children have and no parent has."""
        held = self._keys_of(self._work.child, share)
        there = self._keys_of(view_at(self._snapshot, self._parent), share)
        index = KeyIndex([there.column(name) for name in self._keys])
        return held.take(np.flatnonzero(~index.holds([held.column(name) for name in self._keys])))

    def _keys_of(self, view: PositionView, share: LogShard | None) -> pa.Table:
        """Return the distinct keys of parents in a table, read in batches; those of a share only."""
        reads: list[Iterable[pa.Table]] = [[self._nothing.select(self._keys)]]
        if view.tail:
            reads.append([read_touched(self._lake, view, self._keys)])
        if view.base is not None:
            reads.append(read_untouched(self._lake, view, _fragments(self._lake, view), self._keys))
        found = []
        for rows in chain.from_iterable(reads):
            keys = _distinct(rows)
            found.append(keys if share is None else keys.filter(pa.array(share.of_keys(keys.columns))))
        return _distinct(pa.concat_tables(found))


def _fragments(lake: Lake, view: PositionView) -> list[int]:
    if view.base is None:
        return []
    dataset = open_version(lake, view.stream, view.base.version, view.base.manifest)
    return [fragment.fragment_id for fragment in dataset.get_fragments()]


class _Children:
    """The children that the table has, and the changes that make it have others."""

    def __init__(self, lake: Lake, work: ChildWork) -> None:
        self._lake, self._work, self._view = lake, work, work.child
        self._keys = list(work.child.stream.definition.keys)
        self._of_parent = list(work.function.keys)

    def prepared(self, rows: pa.Table, parents: pa.Table) -> Json | None:
        """Write the changes after which `parents` have exactly the children `rows`; None: they have them."""
        schema = pa.schema([self._view.stream.definition.by_name[name].field for name in self._keys])
        own = rows.select(self._keys).cast(schema)
        if _distinct(own).num_rows < own.num_rows:
            raise InvalidInputError(
                f"The function of {self._work.function.of} yielded two rows of one key ({', '.join(self._keys)})."
            )
        within = pa.concat_tables([self._held(parents, schema), own])
        if not within.num_rows:
            return None
        distinct = _distinct(within)
        taken = take_snapshot(self._lake, self._view, rows, True, distinct)
        if not taken.data.length and not taken.bad:
            return None
        how = BatchOrigin(SOURCE), self._work.function.checks, self._work.known
        return prepare(self._lake.store, self._lake.clock, self._view.stream, taken, *how)

    def _held(self, parents: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the keys of the children that parents have."""
        if not self._view.position:
            return schema.empty_table()
        text = in_list(parents) if not self._view.tail and parents.num_rows <= MAX_PUSHED else None
        found = self._every_key if text is None else read(self._lake, self._view, self._keys, text)
        index = KeyIndex([_as(parents.column(name), schema.field(name).type) for name in self._of_parent])
        mine = np.flatnonzero(index.holds([found.column(name) for name in self._of_parent]))
        return found.take(mine).select(self._keys).cast(schema)

    @cached_property
    def _every_key(self) -> pa.Table:
        return whole_state(self._lake, self._view, self._keys).rows.select(self._keys)


def _distinct(keys: pa.Table) -> pa.Table:
    names = keys.schema.names
    return keys.group_by(names).aggregate([]).select(names)


def _as(column: Any, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)


def expanded(function: TableFunction, identity: str, parents: pa.Table) -> pa.Table:
    """Return the children of some parents, in the columns of the child table."""
    rows = parents.to_pylist()
    call = load(function) if rows else None
    what = f"The function {function.function!r} of {function.of}"

    def yielded(batch: Sequence[dict[str, Any]]) -> list[list[Any]]:
        made: Any = instance(call, identity) if inspect.isclass(call) else call
        return [list(made(dict(row))) for row in batch]

    answers = called(yielded, identity, [rows], what) if rows else []
    children = [
        _child(function, row, number, child)
        for row, answer in zip(rows, answers, strict=True)
        for number, child in enumerate(answer)
    ]
    return _table(function, parents.schema, children)


def _child(function: TableFunction, parent: Mapping[str, object], number: int, child: object) -> dict[str, Any]:
    """Return a child with the key of its parent. InvalidInput (13) for what is no row, or has unknown columns."""
    given = [field.name for field in function.columns]
    if not isinstance(child, Mapping):
        raise InvalidInputError(f"The function of {function.of} yielded {child!r:.80}: it yields a dict for each row.")
    unknown = [name for name in child if name not in (*given, *function.keys)]
    if unknown:
        known = ", ".join(given)
        raise InvalidInputError(f"The function of {function.of} gives {unknown[0]!r}, and its schema has: {known}.")
    key = {name: parent[name] for name in function.keys}
    return {**{name: child.get(name) for name in given}, **key, CHILD_NUMBER: number}


def _table(function: TableFunction, parent: pa.Schema, children: Sequence[dict[str, Any]]) -> pa.Table:
    fields = [parent.field(name) for name in function.keys] + list(function.columns)
    columns: dict[str, Any] = {}
    for field in fields:
        values, bad = cast_values([child[field.name] for child in children], field.type)
        if bad.any():
            child = children[int(bad.argmax())]
            key = {name: child[name] for name in function.keys}
            told = f"{child[field.name]!r:.80} does not fit {field.name}, which is {field.type}"
            raise InvalidInputError(f"The function of {function.of}, of the row {key}: {told}.")
        columns[field.name] = values
    if function.id_of is not None:
        made = pa.table({name: columns[name] for name in (*function.keys, *function.id_of)}).to_pylist()
        columns[CHILD_ID] = pa.array(child_ids(made, len(function.keys)), pa.string())
        columns[CHILD_NUMBER] = pa.array([child[CHILD_NUMBER] for child in children], pa.int32())
    return pa.table(columns)


def child_ids(rows: Sequence[Mapping[str, object]], keys: int) -> list[str]:
    """Return an id for each child: a digest of its content, and a number for each repetition within its parent.

    `keys`: so many columns are those of the parent's key.
    """
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for row in rows:
        names, values = list(row), list(row.values())
        parent = as_json(dict(zip(names[:keys], values, strict=False)))
        # by place: the id of a child stays when a column is renamed
        text = as_json({str(number): value for number, value in enumerate(values[keys:])})
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        repeats = seen[parent, digest]
        seen[parent, digest] += 1
        found.append(f"{digest}-{repeats}" if repeats else digest)
    return found
