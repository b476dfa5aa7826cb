"""The changes of one commit, made in one transaction of the metastore, each after its precondition was looked at there.

All that was looked at must still hold when the transaction commits, so nothing else guards the preconditions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from headwater import streams
from headwater.errors import ConcurrentModificationError
from headwater.metastore import Delta, Transaction
from headwater.metastore.commit.table_parts import DELTA_FORMAT
from headwater.metastore.records.serving_copy import KEEP_DATA, LANCE_FORMAT, LOCATION
from headwater.model import (
    Add,
    CatalogObject,
    Change,
    Move,
    Namespace,
    Remove,
    Replace,
    RequireLocation,
    RequireRefs,
    RequireTable,
    Table,
    Version,
)
from headwater.names import ObjectId, format_name
from headwater.registries.layout import fed_by_its_log
from headwater.registries.metastore.mapping import (
    find,
    has_stream,
    last_final_version,
    newest_version,
    record_of,
    ref_record_of,
    table_of,
    texts,
    version_of,
)


class TransactionChanges:
    """The changes of one commit, made in a transaction.

    `finals`: by location, the versions known to have a final manifest.
    """

    def __init__(
        self,
        tx: Transaction,
        is_own: Callable[[str], bool],
        finals: Mapping[str, set[int]],
        new_stream_id: Callable[[], str],
    ) -> None:
        self.tx = tx
        self.is_own = is_own
        self.finals = finals
        self.new_stream_id = new_stream_id
        self._added: dict[ObjectId, list[Version]] = defaultdict(list)
        self._removed: dict[ObjectId, list[int]] = defaultdict(list)
        self._followed: set[ObjectId] = set()
        self._created: dict[ObjectId, Table] = {}
        """Tables that this commit makes and has not changed since: nothing more is to be looked up for a version."""
        self._required: Table | None = None
        """The table that the last change required, as it is in the transaction."""

    def apply(self, change: Change) -> None:
        """Make one change, or raise ConcurrentModification (14)."""
        required, self._required = self._required, None
        match change:
            case Add(Version() as version):
                self._add_version(version, required)
            case Add(item):
                self._require(find(self.tx, item.id) is None, item.id, "it exists now")
                self._create(item)
            case Replace(Version(), Version()):
                return  # a delta holds both names of its manifest from the beginning
            case Replace(old, item):
                self._replace(old, item)
            case Remove(Version() as version):
                found = find(self.tx, version.id)
                is_there = isinstance(found, Version) and found.is_same_commit(version)
                self._require(is_there, version.id, "it is gone, or another one has its number")
                self._removed[version.table].append(version.number)
            case Remove(item, keep_data):
                self._remove(item, keep_data)
            case Move(old, new):
                self._require(find(self.tx, old.id) == old, old.id, "it changed")
                self._require(find(self.tx, new.id) is None, new.id, "it exists now")
                self._created.clear()
                if isinstance(old, Table) and self._has_stream(old.id, DELTA_FORMAT):
                    streams.rename_stream(self.tx, old.id.names, new.id.names)
                else:
                    self.tx.rename(old.id, new.id)
            case RequireLocation(location, table):
                if not self.is_own(location):
                    holders = {ObjectId(path) for path in self.tx.tables_near(location)}
                    self._require(not holders - {table}, table, "its location is taken")
            case RequireTable(table, newest):
                self._require_table(table, newest)
            case RequireRefs(id, count):
                record = ref_record_of(self.tx, id)
                self._require((record.count if record else 0) == count, id, "its tags or branches changed")
                self._required = required

    def finish(self) -> None:
        """Apply what is left to do when all changes are known."""
        for table in list(self._removed):
            self._forget_versions(table)

    # Namespaces and tables

    def _create(self, item: CatalogObject) -> None:
        if isinstance(item, Namespace):
            self.tx.create_namespace(item.id, item.properties)
        elif isinstance(item, Table):
            place = {LOCATION: item.location}
            self.tx.create_table(item.id, item.properties, formats=(LANCE_FORMAT,), stream_properties=place)
            self._created[item.id] = item

    def _replace(self, old: CatalogObject, item: CatalogObject) -> None:
        if isinstance(old, Namespace) and isinstance(item, Namespace) and item.id.is_root:
            known = self.tx.root_properties()
            self._require(texts(known) == dict(old.properties), old.id, "its properties changed")
            self.tx.update_root({**{k: v for k, v in known.items() if k not in texts(known)}, **item.properties})
            return
        self._require(find(self.tx, old.id) == old, old.id, "it changed")
        if isinstance(old, Table) and isinstance(item, Table) and old.location != item.location:
            # Another dataset has versions of its own: another table takes the name. The old one's files are left.
            self._remove(old, keep_data=True)
            self._create(item)
        elif isinstance(item, (Namespace, Table)):
            others = {k: v for k, v in self.tx.get(old.id).properties.items() if not isinstance(v, str)}
            self.tx.update(old.id, {**others, **item.properties})

    def _remove(self, item: CatalogObject, keep_data: bool) -> None:
        if item.id in self._followed:
            return  # its stream table was dropped before it in this commit, and took it along
        self._created.clear()
        self._require(find(self.tx, item.id) == item, item.id, "it changed")
        for version in self.tx.versions(item.id) if isinstance(item, Table) else ():
            self._keep_data(item.id, version.id, keep_data)
        if isinstance(item, Table) and self._has_stream(item.id, DELTA_FORMAT):
            self._followed.update(ObjectId(path) for path in streams.followers(self.tx, item.id.names))
            streams.drop_stream(self.tx, item.id.names)
        else:
            self.tx.drop(item.id)

    def _keep_data(self, table: ObjectId, version: str, keep_data: bool) -> None:
        for stream in self.tx.streams(table, version):
            if stream.parts[1] == LANCE_FORMAT and bool(stream.properties.get(KEEP_DATA)) != keep_data:
                known = {**stream.properties, KEEP_DATA: keep_data}
                self.tx.update_stream(table, stream.id, known, version=version)

    # Versions

    def _require_table(self, table: Table, newest: int) -> None:
        found = find(self.tx, table.id)
        holds = isinstance(found, Table) and found.location == table.location
        self._require(holds, table.id, "it was dropped or made anew")
        self._required = found if isinstance(found, Table) else None
        current = self._newest(table.id)
        self._require(current == newest, table.id, f"its newest version is {current}")

    def _newest(self, table: ObjectId) -> int:
        return self._added[table][-1].number if self._added[table] else newest_version(self.tx, table)

    def _add_version(self, version: Version, required: Table | None) -> None:
        if version.table in self._created and not self._added[version.table]:
            self._append(self._created[version.table], version, 0)
            return
        table = required if required is not None and required.id == version.table else find(self.tx, version.table)
        if not isinstance(table, Table):
            raise ConcurrentModificationError(f"{version.table} was dropped by another writer.")
        if self._has_stream(table.id, DELTA_FORMAT) and not self._newest(table.id):
            raise fed_by_its_log(
                table.id
            )  # a later one was judged by its manifest, and follows the one it was judged by
        if not self._has_stream(table.id):
            self.tx.create_stream(table.id, LANCE_FORMAT)
        if table.id in self._removed:
            self._forget_versions(table.id)
        self._append(table, version, self._settled(table))

    def _append(self, table: Table, version: Version, settled: int) -> None:
        file, properties = record_of(table.location, version, settled)
        self.tx.append_delta(
            table.id,
            [file],
            format=LANCE_FORMAT,
            properties=properties,
            position=version.number,
            unsynced_files=version.unsynced_files,
        )
        self._added[table.id].append(version)

    def _settled(self, table: Table) -> int:
        newest = self.tx.newest_delta(table.id, format=LANCE_FORMAT, named=False)
        number, known = last_final_version(newest), self.finals.get(table.location, ())
        while number + 1 in known:
            number += 1
        return number

    def _forget_versions(self, table: ObjectId) -> None:
        """Drop the deltas. If the newest goes, its number will be used again, and positions are not: what is left moves
        into a new stream."""
        removed = set(self._removed.pop(table))
        if newest_version(self.tx, table) not in removed:
            for number in removed:
                self.tx.drop_delta(table, number, format=LANCE_FORMAT)
            return
        if self._has_stream(table, DELTA_FORMAT):
            raise fed_by_its_log(table)
        old = self.tx.get_stream(table, format=LANCE_FORMAT)
        known = table_of(self.tx, self.tx.get(table))
        kept = [delta for delta in self._deltas(table) if delta.position not in removed]
        last = last_final_version(self.tx.newest_delta(table, format=LANCE_FORMAT, named=False))
        self.tx.drop_stream(table, old.id)
        new = self.tx.create_stream(table, LANCE_FORMAT, id=self.new_stream_id())
        self.tx.update_stream(table, new.id, {**old.properties, LOCATION: known.location})
        for delta in kept:
            file, properties = record_of(known.location, version_of(known, delta, last), last)
            self.tx.append_delta(table, [file], stream=new.id, properties=properties, position=delta.position)

    def _deltas(self, table: ObjectId) -> Sequence[Delta]:
        return self.tx.deltas(table, format=LANCE_FORMAT)

    def _has_stream(self, table: ObjectId, format: str = LANCE_FORMAT) -> bool:
        return has_stream(self.tx, table, format)

    @staticmethod
    def _require(holds: bool, id: ObjectId, reason: str) -> None:
        if not holds:
            raise ConcurrentModificationError(f"{id} was changed by another writer ({reason}): look again and retry.")


MOST = 3
"""The number of changes that a summary names one by one."""


def summary(changes: Sequence[Change]) -> str:
    """Return the message of a commit for the log, in one line: what was done, and to what. Pure.

    The first versions of a new table are left out, as they came with it. The old path of a renamed object is left out,
    as a caller who may see the new one may not see that.
    """
    new = {change.object.id for change in changes if isinstance(change, Add) and isinstance(change.object, Table)}
    told = list(dict.fromkeys(_lines(changes, new)))
    rest = f" and {len(told) - MOST} more" if len(told) > MOST else ""
    return ", ".join(told[:MOST]) + rest


def _lines(changes: Sequence[Change], new: set[ObjectId]) -> Iterator[str]:
    for change in changes:
        match change:
            case Add(Version() as version) if version.table in new:
                pass
            case Add(Version() as version):
                yield _named(version) if version.message is None else f"{version.message} (version {version.number})"
            case Add(made):
                yield f"create {_named(made)}"
            case Replace(Version(), after):
                yield f"replace {_named(after)}"
            case Replace(before, after):
                moved = isinstance(before, Table) and isinstance(after, Table) and before.location != after.location
                yield f"{'replace' if moved else 'alter'} {_named(after)}"
            case Remove(Table() as gone, True):
                yield f"deregister {_named(gone)}"
            case Remove(Version() as gone):
                yield f"delete {_named(gone)}"
            case Remove(gone):
                yield f"drop {_named(gone)}"
            case Move(before, after):
                kind = "namespace" if isinstance(before, Namespace) else "table"
                yield f"rename {kind} {format_name((before.id.name,))} to {format_name(after.id.names)}"
            case _:
                pass  # a condition, no change


def _named(item: CatalogObject) -> str:
    if isinstance(item, Version):
        return f"version {item.number} of {format_name(item.table.names)}"
    if item.id.is_root:
        return str(item.id)
    kind = "namespace" if isinstance(item, Namespace) else "table"
    return f"{kind} {format_name(item.id.names)}"
