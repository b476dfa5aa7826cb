"""`import_deltacat`: replays each transaction of a DeltaCAT 2.x root as one transaction of a metastore catalog.

    plan      the whole log is read first: what cannot be read or named is refused before anything changes
    replay    namespaces, names, rows: after each of our transactions the catalog is as DeltaCAT's was after its own
    publish   stream tables, so that every Lance client sees them

A table without merge keys becomes a plain Lance table: a DeltaCAT delta is an append, a replacement an overwrite. One
with merge keys becomes a stream table: the changes of a transaction are a delta of its log. After a crash, the next
run continues: the messages of our transactions name those that were replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.transport import Name
from headwater.errors import InvalidInputError
from headwater.moving.deltacat.files import (
    DeltacatStep,
    FoundTable,
    Ids,
    RowFile,
    batches,
    merge_keys,
    parse_schema,
    plain,
    problem,
    read_steps,
    schema_of,
)
from headwater.names import format_name, object_id, parse_name
from headwater.store import Store, is_there, open_store
from headwater.streams.definition import define

SHOWN = 10
"""The number of problems in one message."""

MESSAGE = "import of deltacat"


@dataclass(frozen=True)
class ImportedRoot:
    """The summary of an import. `unreadable` names the objects that were left out."""

    transactions: int
    """The number of DeltaCAT transactions that this run replayed."""
    namespaces: int
    tables: int
    stream_tables: int
    unreadable: tuple[str, ...]
    slot: int


def import_deltacat(
    catalog: Catalog,
    source: str,
    into: Name = "",
    skip_unreadable: bool = False,
    keyed: bool = True,
    storage: Mapping[str, str] | None = None,
) -> ImportedRoot:
    """Import a DeltaCAT 2.x root into a metastore catalog, below the namespace `into`.

    Run it again after an interruption, or when DeltaCAT has written more. `skip_unreadable` leaves out, and names,
    what cannot be read; `keyed=False` makes plain tables of those with merge keys too. Errors 13: there is no such
    root, a part of it cannot be read, a path leads out of it, a name cannot be or is taken; 0: not a metastore.
    """
    if not is_there(source, storage):
        raise InvalidInputError(f"There is no folder or store {source!r}.")
    store = open_store(source, storage)
    steps = list(read_steps(store))
    looked: dict[RowFile, str | None] = {}
    problems = list(dict.fromkeys(each for step in steps for each in _problems(store, step, looked)))
    if problems and not skip_unreadable:
        more = f" And {len(problems) - SHOWN} more." if len(problems) > SHOWN else ""
        raise InvalidInputError(
            f"Parts of {source!r} cannot be read: {'; '.join(problems[:SHOWN])}.{more} "
            "skip_unreadable imports the rest; a table keeps the last state that can be read."
        )
    prefix = parse_name(into) if isinstance(into, str) else tuple(into)
    return _Replay(catalog, store, prefix, keyed, problems, frozenset(_unreadable(looked))).run(steps)


def _problems(store: Store, step: DeltacatStep, looked: dict[RowFile, str | None]) -> Iterator[str]:
    """Return the files that cannot be read after a transaction; each file is checked once."""
    yield from step.problems
    for table in step.tables.values():
        if table is None:
            continue
        yield from table.problems
        for file in table.files:
            if file not in looked:
                looked[file] = problem(store, file)
            text = looked[file]
            if text is not None:
                yield text


def _unreadable(looked: Mapping[RowFile, str | None]) -> Iterator[RowFile]:
    return (file for file, text in looked.items() if text is not None)


@dataclass
class _Made:
    """A table as it is in our catalog."""

    names: tuple[str, ...]
    version: str
    keys: tuple[str, ...]
    schema: pa.Schema | None = None
    files: tuple[RowFile, ...] = ()


class _Known(NamedTuple):
    """The state of our catalog before a transaction."""

    spaces: dict[Ids, tuple[str, ...]]
    tables: dict[Ids, _Made]
    older: list[_Made]

    def copy(self) -> _Known:
        tables = {ids: replace(made) for ids, made in self.tables.items()}
        return _Known(dict(self.spaces), tables, list(self.older))


@dataclass
class _Replay:
    catalog: Catalog
    store: Store
    prefix: tuple[str, ...]
    keyed: bool
    problems: list[str]
    unreadable: frozenset[RowFile]
    spaces: dict[Ids, tuple[str, ...]] = field(default_factory=dict)
    tables: dict[Ids, _Made] = field(default_factory=dict)
    older: list[_Made] = field(default_factory=list)
    """Tables of versions that are not the active one any more."""

    def run(self, steps: Sequence[DeltacatStep]) -> ImportedRoot:
        done = self._done()
        self._check_names(steps, fresh=not done)
        self._check_keys(steps, done)
        made = 0
        for step in steps:
            if self._message(step) in done:
                self._replay(_Nothing(), step)
            elif step.namespaces or step.tables:
                before = _Known(self.spaces, self.tables, self.older)
                self.catalog.run(partial(self._once, step, before), self._full_message(step))
                made += 1
        every = [*self.tables.values(), *self.older]
        streams = [table.names for table in every if table.keys]
        if streams:
            self.catalog.publish(streams)
        slot = self.catalog.slot
        plain_tables = len(every) - len(streams)
        return ImportedRoot(made, len(self.spaces), plain_tables, len(streams), tuple(self.problems), slot)

    def _done(self) -> set[str]:
        """Return the DeltaCAT transactions that an earlier run has replayed, by the messages of ours."""
        if not self.catalog.is_there:
            return set()
        return {entry.message.partition(" at ")[0] for entry in self.catalog.log() if entry.message.startswith(MESSAGE)}

    def _message(self, step: DeltacatStep) -> str:
        into = f" into {format_name(self.prefix)}" if self.prefix else ""
        return f"{MESSAGE} {step.txn.id}{into}"

    def _full_message(self, step: DeltacatStep) -> str:
        return f"{self._message(step)} at {step.txn.time.isoformat()}{f': {step.message}' if step.message else ''}"

    def _check_names(self, steps: Sequence[DeltacatStep], fresh: bool) -> None:
        """Raise for a name that cannot be given, and at the first run for one that a table has."""
        for step in steps:
            for space in step.namespaces.values():
                if space is not None:
                    object_id((*self.prefix, space.name))
            for table in step.tables.values():
                if table is None:
                    continue
                id = object_id((*self.prefix, table.namespace, table.name))
                if fresh and self.catalog.is_there and id.names in self.catalog:
                    raise InvalidInputError(
                        f"There is a table {id.format('.')} already: import into a namespace of its own."
                    )

    def _check_keys(self, steps: Sequence[DeltacatStep], done: set[str]) -> None:
        """Raise if a state of a future stream table holds a merge key twice. A state that the next one extends is
        checked there."""
        keys: dict[Ids, tuple[str, tuple[str, ...]]] = {}
        last: dict[Ids, FoundTable] = {}
        for step in steps:
            for ids, found in step.tables.items():
                if found is not None and not self._is_readable(found):
                    continue
                before = last.pop(ids, None)
                if before is not None and not _goes_on(before, found):
                    self._check_distinct(before, keys[ids][1])
                if found is None:
                    keys.pop(ids, None)
                    continue
                if ids not in keys or keys[ids][0] != found.version:
                    keys[ids] = found.version, self._keys(found)
                if self._message(step) not in done:
                    last[ids] = found
        for ids, found in last.items():
            self._check_distinct(found, keys[ids][1])

    def _check_distinct(self, found: FoundTable, keys: tuple[str, ...]) -> None:
        schema = self._schema(found) if keys else None
        if schema is None:
            return
        chosen = pa.schema([schema.field(name) for name in keys])
        rows = pa.Table.from_batches(batches(self.store, found.files, chosen), plain(chosen))
        if rows.group_by(list(keys)).aggregate([]).num_rows != rows.num_rows:
            raise InvalidInputError(
                f"{format_name((*self.prefix, found.namespace, found.name))} has rows with one merge key more than "
                "once: import it with keyed=False. Nothing was changed."
            )

    def _once(self, step: DeltacatStep, before: _Known, tx: object) -> None:
        """Restore the state before a transaction, for its retry after a conflict."""
        self.spaces, self.tables, self.older = before.copy()
        self._replay(tx, step)

    def _replay(self, tx: Any, step: DeltacatStep) -> None:
        for ids, space in step.namespaces.items():
            if space is not None:
                self._namespace(tx, ids, (*self.prefix, space.name), space.properties)
        for ids, table in step.tables.items():
            if table is None and ids in self.tables:
                tx.drop_table(self.tables.pop(ids).names)
        for ids, table in step.tables.items():
            if table is not None:
                self._table(tx, ids, table, step)
        for ids, space in step.namespaces.items():
            if space is None and ids in self.spaces:
                for below in [each for each in self.tables if each[:1] == ids]:
                    self.tables.pop(below)
                tx.drop_namespace(self.spaces.pop(ids), cascade=True)

    def _namespace(self, tx: Any, ids: Ids, names: tuple[str, ...], properties: Mapping[str, str]) -> None:
        old = self.spaces.get(ids)
        self.spaces[ids] = names
        if old is None:
            tx.create_namespace(names, properties, exist_ok=True)
            return
        if old != names:
            tx.rename_namespace(old, names)
            for below, made in self.tables.items():
                if below[:1] == ids:
                    made.names = (*names, made.names[-1])
        if properties:
            tx.alter_namespace(names, properties)

    def _table(self, tx: Any, ids: Ids, found: FoundTable, step: DeltacatStep) -> None:
        names = (*self.prefix, found.namespace, found.name)
        made = self.tables.get(ids)
        if made is not None and made.version != found.version:
            older = (*made.names[:-1], f"{made.names[-1]}__v{made.version}")
            tx.rename_table(made.names, older)
            self.older.append(_Made(older, made.version, made.keys, made.schema, made.files))
            del self.tables[ids]
            made = None
        if made is not None and made.names != names:
            tx.rename_table(made.names, names)
            made.names = names
        if made is None:
            made = self.tables[ids] = _Made(names, found.version, self._keys(found))
            self._create(tx, made, found)
        self._rows(tx, made, found)

    def _keys(self, found: FoundTable) -> tuple[str, ...]:
        """Return the merge keys that a stream table can have: those of other types make a plain table, and so do
        properties that it cannot have."""
        if found.schema is None or not self.keyed:
            return ()
        schema = parse_schema(found.schema, found.name)
        keys = merge_keys(schema)
        try:
            define(plain(schema), keys, properties=found.properties)
        except InvalidInputError:
            return ()
        return keys

    def _schema(self, found: FoundTable) -> pa.Schema | None:
        if found.schema is not None:
            return parse_schema(found.schema, found.name)
        return schema_of(self.store, found.files) if found.files else None

    def _create(self, tx: Any, made: _Made, found: FoundTable) -> None:
        if made.keys and found.schema is not None:
            made.schema = parse_schema(found.schema, found.name)
            tx.create_stream_table(made.names, plain(made.schema), made.keys, properties=found.properties)
        elif not self._is_readable(found) or self._schema(found) is None:
            tx.declare_table(made.names, properties=found.properties)

    def _is_readable(self, found: FoundTable) -> bool:
        return not found.problems and self.unreadable.isdisjoint(found.files)

    def _rows(self, tx: object, made: _Made, found: FoundTable) -> None:
        """The rows of this moment; a state that cannot be read is passed over, and the next one catches up."""
        schema = self._schema(found) if self._is_readable(found) else None
        if schema is None or (made.files == found.files and made.schema == schema):
            return
        if made.keys:
            self._changes(tx, made, found, schema)
        else:
            self._versions(tx, made, found, schema)
        made.schema, made.files = schema, found.files

    def _changes(self, tx: Any, made: _Made, found: FoundTable, schema: pa.Schema) -> None:
        rows = pa.Table.from_batches(batches(self.store, found.files, schema), plain(schema))
        if rows.num_rows or made.files:
            tx[made.names].ingest(rows, format="snapshot", source="deltacat", strict=True, allow_empty=True)

    def _versions(self, tx: Any, made: _Made, found: FoundTable, schema: pa.Schema) -> None:
        known = len(made.files)
        grown = made.schema is not None and made.schema == schema and found.files[:known] == made.files
        new = found.files[known:] if grown else found.files
        reader = pa.RecordBatchReader.from_batches(plain(schema), batches(self.store, new, schema))
        if grown:
            tx[made.names].append(reader)
        else:
            tx.create_table(made.names, reader, mode="overwrite", properties=dict(found.properties))


def _goes_on(before: FoundTable, found: FoundTable | None) -> bool:
    """Return True if a later state has all rows of the state before it."""
    if found is None or (before.version, before.schema) != (found.version, found.schema):
        return False
    return found.files[: len(before.files)] == before.files


class _Nothing:
    """A catalog on which a transaction of an earlier run is made once more: only what is known of it is wanted."""

    def __getitem__(self, name: Name) -> _Nothing:
        return self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **options: None
