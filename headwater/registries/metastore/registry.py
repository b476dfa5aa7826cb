"""The registry over a metastore: look-ups are answered from its index after one check that it is the newest.

A commit is one transaction. It reads the state that this process knows, without asking for a newer one: if that was too
old, the metastore notices when the slot is taken.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from headwater.clock import Clock
from headwater.errors import (
    ConcurrentModificationError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore import Metastore, Reading, Transaction
from headwater.metastore.records.objects import ACTIVE, lifecycle_of
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.metastore.sessions import PresentSession, Session
from headwater.model import Add, CatalogObject, Change, Namespace, Replace, RequireRefs, Table
from headwater.names import ROOT, ObjectId
from headwater.registries.layout import fed_by_its_log
from headwater.registries.metastore.changes import TransactionChanges, summary
from headwater.registries.metastore.mapping import (
    NOT_FOUND,
    catalog_object,
    find_all,
    find_named,
    is_fed,
    is_number,
    kept_columns,
    newest_version,
    ref_record_of,
    texts,
    with_newest,
)
from headwater.registry import Capabilities, Kind, Registry
from headwater.retry import ATTEMPTS, retry

CHANGED = (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
"""What a change is refused with that was planned from facts which do not hold any more."""
REMEMBERED = 10_000
EVERY = 1 << 62


FoundObjects = dict[ObjectId, CatalogObject]


class Remembered:
    """Cache of one catalog's registries in a process: facts found at a slot, places of new tables, and versions whose
    manifests have their final names. `lock` is held to change it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slot = 0
        self.found: tuple[FoundObjects, FoundObjects] = {}, {}
        """Namespaces and tables, without and with their newest versions."""
        self.names: dict[str, ObjectId] = {}
        """The ids of what was found, by their keys."""
        self.aliases: dict[str, set[ObjectId]] = {}
        """Other ids that these were asked for by."""
        self.places: OrderedDict[str, None] = OrderedDict()
        self.finals: OrderedDict[str, set[int]] = OrderedDict()

    def recall(self, now: Reading, ids: Sequence[ObjectId], newest: bool) -> FoundObjects:
        """Return the facts that hold in a state: those of objects that nobody changed since they were looked up.

        Of a state that is older than the last one, nothing is remembered.
        """
        with self.lock:
            if now.slot > self.slot:
                self._forget(now.changed_since(self.slot))
                self.slot = now.slot
            elif now.slot < self.slot:
                return {}
            known, found = self.found[newest], FoundObjects()
            for id in ids:
                item = known.get(id)
                if item is not None:
                    found[id] = item
            return found

    def _forget(self, changed: Collection[str] | None) -> None:
        if changed is None or len(self.found[0]) + len(self.found[1]) > REMEMBERED:
            self.found, self.names, self.aliases = ({}, {}), {}, {}
            return
        for key in changed:
            id = self.names.pop(key, None)
            for gone in () if id is None else (id, *self.aliases.pop(key, ())):
                for facts in self.found:
                    facts.pop(gone, None)

    def learn(self, slot: int, newest: bool, key: str, item: Namespace | Table, id: ObjectId) -> None:
        """Keep a fact that was looked up at a slot, unless a newer one was asked for since."""
        with self.lock:
            if slot == self.slot:
                self.found[newest][id] = item
                self.names[key] = item.id
                if id != item.id:
                    self.aliases.setdefault(key, set()).add(id)


class MetastoreRegistry(Registry):
    """Names, properties and Lance versions in a metastore. Every table's versions are records of the catalog.

    `like` is a registry of the same catalog, in another's name: what one of them knows both know.
    """

    def __init__(
        self, metastore: Metastore, clock: Clock, session: Session | None = None, like: MetastoreRegistry | None = None
    ) -> None:
        self.metastore = metastore
        self.clock = clock
        self.session: Session = session or PresentSession(metastore)
        self._known: Remembered = like._known if like is not None else Remembered()
        fast = metastore.store.abilities.path is not None and self.is_newest
        self._capabilities = Capabilities(
            namespaces=True,
            properties=True,
            rename=True,
            register_anywhere=True,
            keeps_dropped=True,
            rename_namespaces=True,
            syncs_files=metastore.store.abilities.create_after is not None,
            current_state=(lambda id: metastore.slot) if fast else None,
            pinned=metastore.pinned_versions,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    # Names

    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]:
        now = self.session.state()
        if self.session.transaction_id is not None:
            inside = find_all(now, ids)
            return {id: with_newest(now, item) for id, item in inside.items()} if newest else inside
        return self._facts(now, ids if isinstance(ids, list) else list(ids), newest)

    def recall(self, ids: Sequence[ObjectId], newest: bool = False) -> Mapping[ObjectId, CatalogObject] | None:
        if not (self.is_newest and self.metastore.is_likely_newest):
            return None
        return self._facts(self.session.state(refresh=False), ids, newest)

    def _facts(self, now: Reading, ids: Sequence[ObjectId], newest: bool) -> FoundObjects:
        found = self._known.recall(now, ids, newest)
        if len(found) < len(ids):
            self._look_up(now, ids, newest, found)
        return found

    def _look_up(self, now: Reading, ids: Sequence[ObjectId], newest: bool, found: FoundObjects) -> None:
        """Add those that are not remembered."""
        numbered: list[ObjectId] = []
        for id in ids:
            if id in found or not id.names:
                continue
            if is_number(id.name):
                numbered.append(id)
                continue
            named = find_named(now, id, newest)
            if named is not None:
                found[id] = named[1]
                self._known.learn(now.slot, newest, *named, id)
        if numbered:
            items = find_all(now, numbered)
            found.update({id: with_newest(now, item) for id, item in items.items()} if newest else items)

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        try:
            names = self.session.state().names(parent, kind.value)
        except NOT_FOUND:
            return []
        start = bisect_right(names, after) if after else 0
        return names[start:] if limit is None else names[start : start + limit]

    def descendants(self, parent: ObjectId) -> Sequence[CatalogObject]:
        return list(below(self.session.state(), parent))

    def tables(self) -> Sequence[Table]:
        return [item for item in self.descendants(ROOT) if isinstance(item, Table)]

    def other_versions(self) -> Iterator[tuple[ObjectId, str]]:
        """Yield every table version that is not the active one: its table, and its id."""
        state = self.session.state()
        for table in self.tables():
            found = {each.id: lifecycle_of(each.properties) for each in state.versions(table.id)}
            active = next((id for id in reversed(found) if found[id] == ACTIVE), None)
            yield from ((table.id, id) for id in found if id != active)

    def dropped_locations(self) -> set[str]:
        """Return the folders of dropped tables that can still be brought back."""
        return set(self.session.state().dropped_locations())

    def location_holders(self, location: str) -> set[ObjectId]:
        return {ObjectId(path) for path in self.session.state().tables_near(location)}

    def place(self, id: ObjectId, hash: str) -> str:
        """Return a folder that no table had before, in the root: what was dropped under the name keeps its own."""
        place = super().place(id, hash)
        known = self._known
        with known.lock:
            known.places[place] = None
            if len(known.places) > REMEMBERED:
                known.places.popitem(last=False)
        return place

    def check_rows(self, id: ObjectId) -> None:
        """Error 13 for a stream table: its rows come from its change log alone."""
        if is_fed(self.session.state(), id):
            raise fed_by_its_log(id)

    def check_columns(self, id: ObjectId, names: Collection[str]) -> None:
        """Error 13 for columns of a stream table that its log fills."""
        filled = set(names) & set(self.kept_columns(id) or ())
        if filled:
            raise fed_by_its_log(id, f"the log fills {', '.join(sorted(filled))}: change it with evolve")

    def check_writable(self) -> None:
        """Raise InvalidInput (13) in the past."""
        self.session.check_writable()

    # Versions

    @property
    def manages_versions(self) -> bool:
        return True

    def manage_versions(self) -> None:
        """Nothing to do: a metastore keeps the versions of all of its tables from the beginning."""

    @property
    def manages_new(self) -> bool:
        return True

    def versions(self, table: ObjectId) -> Sequence[int]:
        try:
            return self.session.state().positions(table, format=LANCE_FORMAT)
        except NOT_FOUND:
            return []

    def version_page(self, table: ObjectId, after: int | None, limit: int | None, descending: bool) -> Sequence[int]:
        if descending:
            count = EVERY if limit is None else limit
            try:
                return self.session.state().last_positions(table, count, after, format=LANCE_FORMAT)
            except NOT_FOUND:
                return []
        numbers = self.versions(table)
        return numbers[bisect_right(numbers, after) if after is not None else 0 :][:limit]

    def newest_version(self, table: ObjectId) -> int:
        return newest_version(self.session.state(), table)

    @property
    def replaces_records(self) -> bool:
        return False

    @property
    def transaction_id(self) -> str | None:
        return self.session.transaction_id

    @property
    def is_newest(self) -> bool:
        return self.session.transaction_id is None and self.session.moment is None

    def kept_columns(self, table: ObjectId) -> Collection[str] | None:
        """Return the columns of a stream table, as it was published last and as it is defined now."""
        now = self.session.state()
        return kept_columns(now, table) if is_fed(now, table) else None

    def finalized(self, table: Table, number: int) -> None:
        known = self._known
        with known.lock:
            known.finals.setdefault(table.location, set()).add(number)
            if len(known.finals) > REMEMBERED:
                known.finals.popitem(last=False)

    def keep_manifests(self, table: ObjectId, numbers: Sequence[int], staged: Sequence[str]) -> bool:
        """Return True if a transaction is open, which deletes the manifests when it is committed."""
        return self.session.postpone(table, numbers=tuple(numbers), staged=tuple(staged))

    # Writing

    def commit(self, changes: Sequence[Change]) -> None:
        def work(tx: Transaction) -> None:
            applied = TransactionChanges(tx, self._is_own, self._known.finals, self._new_stream_id)
            for change in changes:
                applied.apply(change)
            applied.finish()

        try:
            self.session.commit(summary(changes), work, changes)
        except CHANGED as changed:
            self.session.state()
            raise ConcurrentModificationError(f"Another writer was first: {changed}") from None
        if self.session.transaction_id is None:
            self._give_away(changes)

    def _give_away(self, changes: Sequence[Change]) -> None:
        """Places that have their table now, which others may rename: they are looked at like any other's."""
        with self._known.lock:
            for change in changes:
                if isinstance(change, Add) and isinstance(change.object, Table):
                    self._known.places.pop(change.object.location, None)

    def require_refs(self, table: ObjectId) -> list[Change]:
        record = ref_record_of(self.session.state(), table)
        return [RequireRefs(table, record.count if record is not None else 0)]

    def root_properties(self) -> Mapping[str, str]:
        return texts(self.session.state().root_properties())

    def alter_root(self, properties: Mapping[str, str], removed: Collection[str]) -> None:
        """Set and remove properties of the root; changes of two callers at the same time both stay."""
        self.check_writable()

        def look() -> list[Change]:
            before = self.root_properties()
            after = {**{name: value for name, value in before.items() if name not in removed}, **properties}
            return [Replace(Namespace(ROOT, before), Namespace(ROOT, after))] if after != before else []

        retry(self.clock, ATTEMPTS, look, lambda changes: self.commit(changes) if changes else None)

    def _new_stream_id(self) -> str:
        return f"{LANCE_FORMAT}-{self.clock.hex(8)}"

    def _is_own(self, location: str) -> bool:
        """Return True if this process chose the location, so that nobody else has it."""
        with self._known.lock:
            return location in self._known.places


def below(now: Reading, parent: ObjectId) -> Iterator[CatalogObject]:
    """Yield every namespace and table below `parent`, deepest first."""
    try:
        children = now.list(parent)
    except NOT_FOUND:
        return
    for child in children:
        if child.kind == "namespace":
            yield from below(now, ObjectId(child.path))
        yield catalog_object(now, child)
