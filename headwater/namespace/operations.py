"""The Lance semantics, once for every kind of catalog: gather facts, plan, commit; on a conflict look again.

Every operation goes down once and up once, in the one bounded retry loop (`headwater/retry.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from headwater.clock import Clock
from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableAlreadyExistsError,
    UnsupportedOperationError,
)
from headwater.model import Add, Change, Move, Namespace, Remove, Replace, Table
from headwater.names import DELIMITER, ObjectId, check_new_name
from headwater.namespace import plans
from headwater.namespace.name_lists import NameLists
from headwater.namespace.plans import CreateMode, DropBehavior, DropMode, Facts, Plan
from headwater.registries.folders import (
    check_location,
    check_place,
    is_folder_of,
    is_place,
    require_place,
    stored_metadata,
    table_uri,
)
from headwater.registry import Kind, Markers, Registry
from headwater.retry import ATTEMPTS, retry
from headwater.store import Store
from headwater.tables.layout import discard_folder, has_version, is_occupied

Answer = TypeVar("Answer")


class Operations(NameLists):
    """The operations on names. Those on data are in `headwater.namespace.data`."""

    def __init__(
        self,
        registry: Registry,
        store: Store,
        root_uri: str,
        clock: Clock,
        delimiter: str = DELIMITER,
        adopt: Callable[[Table], Sequence[Change]] = lambda table: (),
    ) -> None:
        """`adopt`: what else to commit with a table that is registered, such as records of its versions."""
        self.registry = registry
        self.store = store
        self.root_uri = root_uri
        self.clock = clock
        self.delimiter = delimiter
        self.retries = 0  # how often a commit came second and was planned anew, for the server's metrics
        self._adopt = adopt

    def create_namespace(self, id: ObjectId, mode: CreateMode, properties: Mapping[str, str]) -> Namespace:
        self._require_namespaces(id)

        def plan(facts: Facts) -> tuple[list[Change], Namespace]:
            empty = mode is not CreateMode.OVERWRITE or self._is_empty(id)  # a list is a dependency of a transaction
            return plans.plan_create_namespace(facts, empty, id, mode, properties)

        return self.run(_with_parent(id), plan)

    def describe_namespace(self, id: ObjectId) -> Namespace:
        self._require_namespaces(id)
        if id.is_root:
            return Namespace(id, self.registry.root_properties())
        return plans.namespace_of(self.registry.find([id]), id)

    def alter_namespace(self, id: ObjectId, properties: Mapping[str, str], removed: Collection[str]) -> Namespace:
        self._require_namespaces(id)
        if not id.is_root:
            return self.run([id], lambda facts: plans.plan_alter_namespace(facts, id, properties, removed))
        plans.altered(self.describe_namespace(id), properties, removed)
        self.registry.alter_root(properties, removed)
        return self.describe_namespace(id)

    def drop_namespace(self, id: ObjectId, mode: DropMode, behavior: DropBehavior) -> Namespace | None:
        self._require_namespaces(id)
        dropped: list[Table] = []

        def plan(facts: Facts) -> tuple[list[Change], Namespace | None]:
            below = [] if id.is_root else self.registry.descendants(id)
            dropped[:] = [item for item in below if isinstance(item, Table)]
            return plans.plan_drop_namespace(facts, below, id, mode, behavior)

        found = self.run([id], plan)
        for table in dropped if found else ():
            self.discard(table)
        return found

    def rename_namespace(self, id: ObjectId, new: ObjectId) -> Namespace:
        """RenameNamespace (ours), also into another namespace, with all below it: errors 0, 1, 2, 13. No data moves."""
        for part in (id, new):
            self._require_namespaces(part)
        if not self.registry.capabilities.rename_namespaces:
            raise UnsupportedOperationError(
                "This kind of catalog cannot rename a namespace: only a metastore catalog can. Rename its tables."
            )
        return self.run(
            [*_with_parent(id), *_with_parent(new)], lambda facts: plans.plan_rename_namespace(facts, id, new)
        )

    def find_table(self, id: ObjectId, newest: bool = False) -> Table:
        """Return a table, with `newest` also the newest version that the catalog records of it. Errors 0, 1, 4."""
        plans.require_table_id(id)
        self._require_namespaces(id.parent)
        return require_place(plans.table_of(self.registry.find(_with_parent(id), newest=newest), id))

    def declare_table(self, id: ObjectId, location: str | None, properties: Mapping[str, str]) -> Table:
        self._require_new(id)
        place = self.declared_place(id, location, properties)
        try:
            table = self.run(_with_parent(id), lambda facts: plans.plan_declare_table(facts, id, place, properties))
        except TableAlreadyExistsError:  # `_require_new` has just found the name free.
            raise ConcurrentModificationError(f"{id} was created by another writer at the same time.") from None
        if self.registry.capabilities.register_anywhere:
            self._mark_declared(table)
        return table

    def declared_place(self, id: ObjectId, location: str | None, properties: Mapping[str, str]) -> str:
        """Return the location of a table to declare: errors 0, 5 (deregistered there), 13."""
        self._require_properties(properties)
        place = self._choose_place(id, location)
        self._require_not_hidden(id, place)
        anywhere = self.registry.capabilities.register_anywhere
        if location is not None and anywhere and is_occupied(self.store, place):
            raise InvalidInputError(f"The location {place[:200]!r} cannot be declared: it is not empty. Register it.")
        return place

    def prepare_create(self, id: ObjectId) -> tuple[str, Table | None]:
        """Return the location for CreateTable, and the table that has the name: errors 0, 1, 5 (a namespace), 13."""
        self.registry.check_writable()
        place = self._choose_place(id, None)
        facts = self.registry.find(_with_parent(id))
        plans.namespace_of(facts, id.parent)
        found = facts.get(id)
        if found is None:
            self._require_not_hidden(id, place)
            return place, None
        if not isinstance(found, Table):
            raise plans.already_exists(found)
        return require_place(found).location, found

    def set_properties(self, id: ObjectId, properties: Mapping[str, str]) -> Table:
        def plan(facts: Facts) -> tuple[list[Change], Table]:
            found = plans.table_of(facts, id)
            table = Table(id, found.location, dict(properties))
            return ([] if table == found else [Replace(found, table)]), table

        return self.run(_with_parent(id), plan)

    def uri_of(self, table: Table) -> str:
        return table_uri(self.root_uri, table.location)

    def register_table(self, id: ObjectId, location: str, mode: CreateMode, properties: Mapping[str, str]) -> Table:
        self._require_properties(properties)
        if mode is CreateMode.EXIST_OK:
            raise InvalidInputError("RegisterTable has the modes Create and Overwrite.")
        shown = self.registry.find([id]).get(id)
        if isinstance(shown, Table) and is_folder_of(shown, location, self.root_uri) and self.has_data(shown):
            if not self.registry.capabilities.register_anywhere:
                return shown
            mode = CreateMode.OVERWRITE
        self._require_new(id, replaces=mode is CreateMode.OVERWRITE)
        place = self._choose_place(id, location)
        if not properties and self.registry.capabilities.properties:
            properties = plans.own_properties(stored_metadata(self.store, place))
        table = self.run(_with_parent(id), lambda facts: self._plan_register(facts, id, place, mode, properties))
        if self._markers is not None:
            self._markers.reveal(place)
        return table

    def deregister_table(self, id: ObjectId) -> Table:
        self._require_namespaces(id.parent if not id.is_root else id)
        return self.run(_with_parent(id), lambda facts: plans.plan_remove_table(facts, id, keep_data=True))

    def drop_table(self, id: ObjectId) -> Table:
        plans.require_table_id(id)
        self._require_namespaces(id.parent)
        table, folder_is_left = self.run(_with_parent(id), lambda facts: self._plan_drop(facts, id))
        if folder_is_left:
            self.discard(table)
        return table

    def rename_table(self, id: ObjectId, new: ObjectId) -> Table:
        plans.require_table_id(id)
        for part in (id.parent, new.parent):
            self._require_namespaces(part)
        if not self.registry.capabilities.rename:
            raise UnsupportedOperationError(
                "This catalog cannot rename: its storage has no atomic folder move. Set manifest_enabled=true."
            )
        return self.run([*_with_parent(id), *_with_parent(new)], lambda facts: self._plan_rename(facts, id, new))

    def has_data(self, table: Table) -> bool:
        """Return True if the table has a version: one that the catalog records, if it manages the table's versions."""
        if not table.known.managed:
            return has_version(self.store, table.location)
        found = self.registry.find([table.id], newest=True).get(table.id)
        return isinstance(found, Table) and found.known.newest > 0

    def is_only_declared(self, table: Table) -> bool:
        """Return True if the table is reserved or being created and has no version. A folder of other files does not
        count.
        """
        if self.has_data(table):
            return False
        return self._markers is None or self._markers.is_declared(table.location)

    def is_taken(self, table: Table) -> bool:
        """Return True if the bare folder is the table, as in the early document, and nobody declared it."""
        return self.registry.capabilities.folders_are_tables and not self.is_only_declared(table)

    def require_table(self, table: Table, only_declared: bool) -> None:
        """Error 19 for a folder without a version that nobody declared (early document, "Table Existence")."""
        if not only_declared and not self.has_data(table):
            raise InvalidTableStateError(
                f"The folder {table.location!r} does not comply with the Lance table format: create it, or drop it."
            )

    def run(self, ids: Iterable[ObjectId], plan: Plan[Answer], seen: bool = True, newest: bool = False) -> Answer:
        """Facts, plan, commit. A conflict means that the facts have changed: look again, a bounded number of times.

        `seen` and `newest` are what the plan needs of the facts (`Registry.find`).
        """
        asked = list(ids)

        def commit(planned: tuple[list[Change], Answer]) -> Answer:
            changes, answer = planned
            if changes:
                self.registry.check_writable()
                self._commit(changes)
            return answer

        recalled = self.registry.recall(asked, newest)
        if recalled is not None:
            try:
                planned = plan(recalled)
                if planned[0]:
                    return commit(planned)
            except CommitStateUnknownError:
                raise
            except LanceNamespaceError:
                pass  # the facts may be too old: look, and plan again
        return retry(self.clock, ATTEMPTS, lambda: plan(self.registry.find(asked, seen, newest)), commit)

    def _commit(self, changes: Sequence[Change]) -> None:
        """Commit all of the changes or none, and count a conflict."""
        for change in changes:
            if isinstance(change, Add) and isinstance(change.object, Table | Namespace):
                check_new_name(change.object.id.name)
            elif isinstance(change, Move) and change.new.id.name != change.old.id.name:
                check_new_name(change.new.id.name)
        try:
            self.registry.commit(changes)
        except ConcurrentModificationError:
            self.retries += 1
            raise

    def _require_new(self, id: ObjectId, replaces: bool = False) -> None:
        """Errors 1 and 5 come before anything is said about a location."""
        plans.require_table_id(id)
        self._require_namespaces(id.parent)
        facts = self.registry.find(_with_parent(id))
        plans.namespace_of(facts, id.parent)
        found = facts.get(id)
        if found is not None and not (replaces and isinstance(found, Table)):
            raise plans.already_exists(found)

    def _is_empty(self, id: ObjectId) -> bool:
        return not any(self.registry.children(id, kind, "", 1) for kind in Kind)

    def _plan_drop(self, facts: Facts, id: ObjectId) -> tuple[list[Change], tuple[Table, bool]]:
        """DropTable also works on a deregistered V1 table (directory document, "DeregisterTable").

        With the table comes whether its folder is left to be deleted. That of a table which is only a folder goes in
        the commit itself, and may be another table's right after it.
        """
        hidden = None if id in facts else self._hidden(id)
        if hidden is not None:
            return [], (hidden, True)
        changes, table = plans.plan_remove_table(facts, id, keep_data=False)
        return changes, (table, require_place(table).known.recorded)

    def _plan_rename(self, facts: Facts, id: ObjectId, new: ObjectId) -> tuple[list[Change], Table]:
        changes, table = plans.plan_rename_table(facts, id, new)
        if changes and not self.registry.capabilities.register_anywhere:  # The folder moves, maybe to a hidden one.
            self._require_not_hidden(new, self.registry.place(new, ""))
        return changes, table

    def _plan_register(
        self, facts: Facts, id: ObjectId, place: str, mode: CreateMode, properties: Mapping[str, str]
    ) -> tuple[list[Change], Table]:
        changes, table = plans.plan_register_table(facts, id, self._existing(place), mode, properties)
        return [*changes, *self._adopt(table)], table

    def discard(self, table: Table) -> None:
        """Delete the files of a table whose name is gone: what cannot be deleted now is only garbage.

        A row of another writer's may say that the table is at, inside or around another one, whose files stay. Where
        dropped tables can be brought back, their files are left to a collection.
        """
        if self.registry.capabilities.keeps_dropped or not is_place(table.location):
            return
        if self.registry.location_holders(table.location) - {table.id}:
            return
        try:
            discard_folder(self.store, table.location, self.clock)
        except LanceNamespaceError:
            if not self.registry.capabilities.namespaces:
                raise

    def _existing(self, place: str) -> str:
        if not has_version(self.store, place):
            raise InvalidInputError(f"The location {place[:200]!r} cannot be registered: no Lance table is there.")
        return place

    def _choose_place(self, id: ObjectId, location: str | None) -> str:
        plans.require_table_id(id)
        self._require_namespaces(id.parent)
        own = self.registry.place(id, self.clock.hex(8))
        if location is None:
            return own
        place = check_location(location, self.root_uri)
        if not self.registry.capabilities.register_anywhere and place != own:
            raise InvalidInputError(f"Without a manifest {id} can only be at {own!r}, not at {place[:200]!r}.")
        check_place(self.store, place)
        others = self.registry.location_holders(place) - {id}
        if others:
            raise InvalidInputError(
                f"The location {place[:200]!r} cannot be used: it is that of the table {min(others)}."
            )
        return place

    def _require_not_hidden(self, id: ObjectId, place: str) -> None:
        hidden = self._hidden(id)
        if hidden is not None and hidden.location == place:
            raise TableAlreadyExistsError(
                f"The folder of {id} holds a deregistered table: register it again, or drop it, first."
            )

    @property
    def _markers(self) -> Markers | None:
        return self.registry.capabilities.markers

    def _hidden(self, id: ObjectId) -> Table | None:
        return None if self._markers is None else self._markers.hidden(id)

    def _mark_declared(self, table: Table) -> None:
        """The marker that tells other readers, where there are any; without it the declaration is taken back."""
        if self._markers is None:
            return
        try:
            self._markers.declare(table)
        except LanceNamespaceError:
            try:
                self.registry.commit([Remove(table)])
            except ConcurrentModificationError:
                pass  # It was made, and another writer has dropped it since, its folder in the middle of this.
            else:
                raise
        if not self.registry.location_holders(table.location):  # It was dropped before the marker was written.
            self._markers.withdraw(table)

    def _require_properties(self, properties: Mapping[str, str]) -> None:
        if properties and not self.registry.capabilities.properties:
            raise UnsupportedOperationError(
                "Without a manifest only the Lance table itself keeps properties, when it is created: "
                "set manifest_enabled=true."
            )


def _with_parent(id: ObjectId) -> list[ObjectId]:
    return [id] if id.is_root else [id, id.parent]
