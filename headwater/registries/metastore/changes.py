"""The changes of one commit, made in one transaction of the metastore, each after its precondition was looked at there.

All that was looked at must still hold when the transaction commits, so nothing else guards the preconditions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from headwater.errors import ConcurrentModificationError
from headwater.metastore import Delta, Transaction
from headwater.metastore.serving_copy import KEEP_DATA, LANCE_FORMAT, LOCATION
from headwater.metastore.table_parts import DELTA_FORMAT
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
from headwater.names import ObjectId
from headwater.registries.metastore.mapping import (
    Reader,
    find,
    has_stream,
    newest_version,
    record_of,
    settled,
    table_of,
    texts,
    version_of,
)
from headwater.registries.metastore.refs import ref_record_of
from headwater.registries.refusals import fed_by_its_log
from headwater.streams.opening import drop_stream, followers, rename_stream


class TransactionChanges:
    """One commit on its way into a transaction.

    `seen` is the transaction as it is read, `finals`: by location, the versions known to have a final manifest.
    """

    def __init__(
        self,
        tx: Transaction,
        seen: Reader,
        is_own: Callable[[str], bool],
        finals: Mapping[str, set[int]],
        new_stream_id: Callable[[], str],
    ) -> None:
        self.tx = tx
        self.seen = seen
        self.is_own = is_own
        self.finals = finals
        self.new_stream_id = new_stream_id
        self._added: dict[ObjectId, list[Version]] = defaultdict(list)
        self._removed: dict[ObjectId, list[int]] = defaultdict(list)
        self._followed: set[ObjectId] = set()
        self._required: Table | None = None
        """The table that the last change required, as it is in the transaction."""

    def apply(self, change: Change) -> None:
        """Make one change, or raise ConcurrentModification (14)."""
        required, self._required = self._required, None
        match change:
            case Add(Version() as version):
                self._add_version(version, required)
            case Add(item):
                self._require(find(self.seen, item.id) is None, item.id, "it exists now")
                self._create(item)
            case Replace(Version(), Version()):
                return  # a delta holds both names of its manifest from the beginning
            case Replace(old, item):
                self._replace(old, item)
            case Remove(Version() as version):
                self._require(find(self.seen, version.id) is not None, version.id, "it is gone")
                self._removed[version.table].append(version.number)
            case Remove(item, keep_data):
                self._remove(item, keep_data)
            case Move(old, new):
                self._require(find(self.seen, old.id) == old, old.id, "it changed")
                self._require(find(self.seen, new.id) is None, new.id, "it exists now")
                if isinstance(old, Table) and self._has_stream(old.id, DELTA_FORMAT):
                    rename_stream(self.tx, old.id.names, new.id.names)
                else:
                    self.tx.rename(old.id.names, new.id.names)
            case RequireLocation(location, table):
                if not self.is_own(location):
                    holders = {ObjectId(path) for path in self.tx.tables_near(location)}
                    self._require(not holders - {table}, table, "its location is taken")
            case RequireTable(table, newest):
                self._require_table(table, newest)
            case RequireRefs(id, count):
                record = ref_record_of(self.seen, id)
                self._require((record.count if record else 0) == count, id, "its tags or branches changed")
                self._required = required

    def finish(self) -> None:
        """What is left to do when all changes are known."""
        for table in list(self._removed):
            self._forget_versions(table)

    # Namespaces and tables

    def _create(self, item: CatalogObject) -> None:
        if isinstance(item, Namespace):
            self.tx.create_namespace(item.id.names, item.properties)
        elif isinstance(item, Table):
            self.tx.create_table(item.id.names, item.properties, formats=(LANCE_FORMAT,))
            self.tx.update_stream(item.id.names, LANCE_FORMAT, {LOCATION: item.location})

    def _replace(self, old: CatalogObject, item: CatalogObject) -> None:
        if isinstance(old, Namespace) and isinstance(item, Namespace) and item.id.is_root:
            known = self.tx.root_properties()
            self._require(texts(known) == dict(old.properties), old.id, "its properties changed")
            self.tx.update_root({**{k: v for k, v in known.items() if k not in texts(known)}, **item.properties})
            return
        self._require(find(self.seen, old.id) == old, old.id, "it changed")
        if isinstance(old, Table) and isinstance(item, Table) and old.location != item.location:
            # Another dataset has versions of its own: another table takes the name. The old one's files are left.
            self._remove(old, keep_data=True)
            self._create(item)
        elif isinstance(item, (Namespace, Table)):
            others = {k: v for k, v in self.seen.get(old.id.names).properties.items() if not isinstance(v, str)}
            self.tx.update(old.id.names, {**others, **item.properties})

    def _remove(self, item: CatalogObject, keep_data: bool) -> None:
        if item.id in self._followed:
            return  # its stream table was dropped before it in this commit, and took it along
        self._require(find(self.seen, item.id) == item, item.id, "it changed")
        if isinstance(item, Table) and self._has_stream(item.id):
            stream = self.seen.get_stream(item.id.names, format=LANCE_FORMAT)
            if bool(stream.properties.get(KEEP_DATA)) != keep_data:
                self.tx.update_stream(item.id.names, stream.id, {**stream.properties, KEEP_DATA: keep_data})
        if isinstance(item, Table) and self._has_stream(item.id, DELTA_FORMAT):
            self._followed.update(ObjectId(path) for path in followers(self.tx, item.id.names))
            drop_stream(self.tx, item.id.names)
        else:
            self.tx.drop(item.id.names)

    # Versions

    def _require_table(self, table: Table, newest: int) -> None:
        found = find(self.seen, table.id)
        holds = isinstance(found, Table) and found.location == table.location
        self._require(holds, table.id, "it was dropped or made anew")
        self._required = found if isinstance(found, Table) else None
        current = self._newest(table.id)
        self._require(current == newest, table.id, f"its newest version is {current}")

    def _newest(self, table: ObjectId) -> int:
        return self._added[table][-1].number if self._added[table] else newest_version(self.seen, table)

    def _add_version(self, version: Version, required: Table | None) -> None:
        table = required if required is not None and required.id == version.table else find(self.seen, version.table)
        if not isinstance(table, Table):
            raise ConcurrentModificationError(f"{version.table} was dropped by another writer.")
        if self._has_stream(table.id, DELTA_FORMAT) and not self._newest(table.id):
            raise fed_by_its_log(
                table.id
            )  # a later one was judged by its manifest, and follows the one it was judged by
        if not self._has_stream(table.id):
            self.tx.create_stream(table.id.names, LANCE_FORMAT)
        if table.id in self._removed:
            self._forget_versions(table.id)
        self._append(table, version)
        self._added[table.id].append(version)

    def _append(self, table: Table, version: Version) -> None:
        file, properties = record_of(table.location, version, self._settled(table))
        self.tx.append_delta(
            table.id.names, [file], format=LANCE_FORMAT, properties=properties, position=version.number
        )

    def _settled(self, table: Table) -> int:
        newest, known = self.seen.newest_delta(table.id.names, format=LANCE_FORMAT), self.finals.get(table.location, ())
        number = settled(newest)
        while number + 1 in known:
            number += 1
        return number

    def _forget_versions(self, table: ObjectId) -> None:
        """Drop the deltas. If the newest goes, its number will be used again, and positions are not: what is left moves
        into a new stream."""
        removed = set(self._removed.pop(table))
        if newest_version(self.seen, table) not in removed:
            for number in removed:
                self.tx.drop_delta(table.names, number, format=LANCE_FORMAT)
            return
        if self._has_stream(table, DELTA_FORMAT):
            raise fed_by_its_log(table)
        old = self.seen.get_stream(table.names, format=LANCE_FORMAT)
        known = table_of(self.seen, self.seen.get(table.names))
        kept = [delta for delta in self._deltas(table) if delta.position not in removed]
        last = settled(self.seen.newest_delta(table.names, format=LANCE_FORMAT))
        self.tx.drop_stream(table.names, old.id)
        new = self.tx.create_stream(table.names, LANCE_FORMAT, id=self.new_stream_id())
        self.tx.update_stream(table.names, new.id, {**old.properties, LOCATION: known.location})
        for delta in kept:
            file, properties = record_of(known.location, version_of(known, delta, last), last)
            self.tx.append_delta(table.names, [file], stream=new.id, properties=properties, position=delta.position)

    def _deltas(self, table: ObjectId) -> Sequence[Delta]:
        return self.seen.deltas(table.names, format=LANCE_FORMAT)

    def _has_stream(self, table: ObjectId, format: str = LANCE_FORMAT) -> bool:
        return has_stream(self.seen, table, format)

    @staticmethod
    def _require(holds: bool, id: ObjectId, reason: str) -> None:
        if not holds:
            raise ConcurrentModificationError(f"{id} was changed by another writer ({reason}): look again and retry.")
