"""Plans of operations, pure: facts and a request in, changes or an error out.

Each function is the rule of one operation (directory document, "Basic Operations"; OpenAPI for the modes). Those of
versions are for catalogs that manage versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from headwater.model import (
    Add,
    CatalogObject,
    Change,
    Move,
    Namespace,
    Remove,
    Replace,
    RequireLocation,
    RequireTable,
    Table,
    Version,
)
from headwater.names import ObjectId

Facts = Mapping[ObjectId, CatalogObject]
Choice = TypeVar("Choice", bound=Enum)
Answer = TypeVar("Answer")
Plan = Callable[[Facts], tuple[list[Change], Answer]]
"""What an operation wants, given the facts: the changes to commit, and the answer once they are."""
MAX_PROPERTIES = 1000
MAX_PROPERTY_CHARS = 64 * 1024


class CreateMode(Enum):
    """Mode of a create when the object exists."""

    CREATE = "create"
    EXIST_OK = "existok"
    OVERWRITE = "overwrite"


class DropMode(Enum):
    """Mode of a drop when the namespace does not exist."""

    FAIL = "fail"
    SKIP = "skip"


class DropBehavior(Enum):
    """Behavior of a drop when the namespace is not empty."""

    RESTRICT = "restrict"
    CASCADE = "cascade"


def choose(kind: type[Choice], text: str | None, default: Choice) -> Choice:
    """Return a mode by its name: any case, PascalCase or snake_case."""
    if text is None:
        return default
    wanted = text.replace("_", "").lower()
    for choice in kind:
        if choice.value == wanted:
            return choice
    allowed = ", ".join(choice.name.title().replace("_", "") for choice in kind)
    raise InvalidInputError(f"{text[:80]!r} is not one of {allowed}.")


def namespace_of(facts: Facts, id: ObjectId) -> Namespace:
    """Return the namespace, or raise NamespaceNotFound (1). The root always exists."""
    found = facts.get(id, Namespace(id)) if id.is_root else facts.get(id)
    if not isinstance(found, Namespace):
        raise NamespaceNotFoundError(f"Namespace {id} does not exist.")
    return found


def table_of(facts: Facts, id: ObjectId) -> Table:
    """Return the table, or TableNotFound (4), or NamespaceNotFound (1) when its parent is missing."""
    require_table_id(id)
    found = facts.get(id)
    if isinstance(found, Table):
        return found
    namespace_of(facts, id.parent)
    hint = " (it is a namespace)" if found is not None else ""
    raise TableNotFoundError(f"Table {id} does not exist{hint}.")


def require_table_id(id: ObjectId) -> None:
    if id.is_root:
        raise InvalidInputError("A table identifier has at least one name; the root namespace is no table.")


def plan_create_namespace(
    facts: Facts, empty: bool, id: ObjectId, mode: CreateMode, properties: Mapping[str, str]
) -> tuple[list[Change], Namespace]:
    """CreateNamespace: errors 1, 2; with Overwrite 3, as dropping a namespace that is not empty is refused."""
    if id.is_root:
        if mode is not CreateMode.EXIST_OK:
            raise NamespaceAlreadyExistsError("The root namespace always exists and cannot be created.")
        return [], namespace_of(facts, id)
    namespace_of(facts, id.parent)
    found, new = facts.get(id), Namespace(id, dict(properties))
    if found is None:
        return [Add(new)], new
    if not isinstance(found, Namespace) or mode is CreateMode.CREATE:
        kind = "a namespace" if isinstance(found, Namespace) else "a table"
        raise NamespaceAlreadyExistsError(f"{id} already exists, as {kind}.")
    if mode is CreateMode.EXIST_OK:
        return [], found
    if not empty:
        raise not_empty(id)
    return [Replace(found, new)], new


def plan_alter_namespace(
    facts: Facts, id: ObjectId, properties: Mapping[str, str], removed: Collection[str]
) -> tuple[list[Change], Namespace]:
    """AlterNamespaceProperties (ours): some properties are set, some go, the others stay. Errors 1, 13.

    The change names the whole namespace as it was found, so of two alterations at once one looks again.
    """
    found = namespace_of(facts, id)
    new = altered(found, properties, removed)
    return ([] if new == found else [Replace(found, new)]), new


def altered(found: Namespace, properties: Mapping[str, str], removed: Collection[str]) -> Namespace:
    """Return the namespace with some properties set and some removed: error 13."""
    both = sorted(properties.keys() & set(removed))
    if both:
        raise InvalidInputError(f"The properties {', '.join(both)} cannot be set and removed at once.")
    kept = {key: value for key, value in found.properties.items() if key not in removed}
    return Namespace(found.id, check_properties({**kept, **properties}))


def plan_drop_namespace(
    facts: Facts, below: Sequence[CatalogObject], id: ObjectId, mode: DropMode, behavior: DropBehavior
) -> tuple[list[Change], Namespace | None]:
    """DropNamespace: errors 1 (unless Skip), 3 (unless Cascade), 13 for the root. `below` is deepest first."""
    if id.is_root:
        raise InvalidInputError("The root namespace cannot be dropped.")
    found = facts.get(id)
    if not isinstance(found, Namespace):
        if mode is DropMode.SKIP:
            return [], None
        raise NamespaceNotFoundError(f"Namespace {id} does not exist.")
    if below and behavior is DropBehavior.RESTRICT:
        raise not_empty(id)
    return [*(Remove(item) for item in below), Remove(found)], found


def plan_declare_table(
    facts: Facts, id: ObjectId, location: str, properties: Mapping[str, str]
) -> tuple[list[Change], Table]:
    """DeclareTable, and CreateTable of a new name: errors 1 NamespaceNotFound, 5 TableAlreadyExists."""
    require_table_id(id)
    namespace_of(facts, id.parent)
    if id in facts:
        raise already_exists(facts[id])
    table = Table(id, location, dict(properties))
    return [RequireLocation(location, id), Add(table)], table


@dataclass(frozen=True)
class Ownership:
    """Owner of a name after CreateTable, and the table it replaces, whose folder is then free."""

    table: Table
    replaced: Table | None = None


def own_name(
    found: CatalogObject | None, table: Table, mode: CreateMode, created: bool
) -> tuple[list[Change], Ownership]:
    """CreateTable: who owns the name, the table to create or what was found under it. Error 5.

    A table that is only declared (`created` is false) at the very place is filled, whatever the mode. One that is
    created stays (ExistOk), is replaced (Overwrite), or is in the way (Create).
    """
    if found is None:
        return [RequireLocation(table.location, table.id), Add(table)], Ownership(table)
    if not isinstance(found, Table):
        raise already_exists(found)
    if not created and found.location == table.location:
        return ([] if found == table else [Replace(found, table)]), Ownership(table)
    match mode:
        case CreateMode.CREATE:
            raise already_exists(found)
        case CreateMode.EXIST_OK:
            return [], Ownership(found)
        case CreateMode.OVERWRITE:
            return [Replace(found, table)], Ownership(table, found)


def plan_register_table(
    facts: Facts, id: ObjectId, location: str, mode: CreateMode, properties: Mapping[str, str]
) -> tuple[list[Change], Table]:
    """RegisterTable: errors 1, 5 (unless Overwrite, which replaces the registration and leaves the data)."""
    found = facts.get(id)
    if not isinstance(found, Table) or mode is not CreateMode.OVERWRITE:
        return plan_declare_table(facts, id, location, properties)
    table = Table(id, location, dict(properties))
    return [RequireLocation(location, id), Replace(found, table)], table


def plan_remove_table(facts: Facts, id: ObjectId, keep_data: bool) -> tuple[list[Change], Table]:
    """DropTable and DeregisterTable: errors 1, 4."""
    table = table_of(facts, id)
    return [Remove(table, keep_data)], table


def plan_rename_table(facts: Facts, id: ObjectId, new: ObjectId) -> tuple[list[Change], Table]:
    """RenameTable, also into another namespace: errors 1, 4, 5. The data stays where it is."""
    table = table_of(facts, id)
    renamed = Table(new, table.location, table.properties)
    if new == id:
        return [], renamed
    namespace_of(facts, new.parent)
    if new in facts:
        raise already_exists(facts[new])
    return [Move(table, renamed)], renamed


def plan_rename_namespace(facts: Facts, id: ObjectId, new: ObjectId) -> tuple[list[Change], Namespace]:
    """RenameNamespace (ours), also into another namespace: errors 1, 2, 13. All below it comes along."""
    if id.is_root or new.is_root:
        raise InvalidInputError("The root namespace cannot be renamed, and nothing can take its place.")
    found = namespace_of(facts, id)
    renamed = Namespace(new, found.properties)
    if new == found.id:
        return [], renamed
    if new.is_below(found.id) or new.is_below(id):
        raise InvalidInputError(f"{id} cannot be moved to {new}: that is inside itself.")
    namespace_of(facts, new.parent)
    if new in facts:
        kind = "a namespace" if isinstance(facts[new], Namespace) else "a table"
        raise NamespaceAlreadyExistsError(f"{new} already exists, as {kind}.")
    return [Move(found, renamed)], renamed


def not_empty(id: ObjectId) -> NamespaceNotEmptyError:
    return NamespaceNotEmptyError(
        f"Namespace {id} has tables or namespaces below it: drop them first, or drop it with Cascade."
    )


def already_exists(found: CatalogObject) -> TableAlreadyExistsError:
    kind = "a table" if isinstance(found, Table) else "a namespace"
    return TableAlreadyExistsError(f"{found.id} already exists, as {kind}.")


def check_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    """Properties are strings, bounded in number and size."""
    values = dict(properties or {})
    if len(values) > MAX_PROPERTIES:
        raise InvalidInputError(f"An object has at most {MAX_PROPERTIES} properties.")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInputError(f"The property {str(key)[:80]!r} is not a string with a string value.")
        if not key or len(key) + len(value) > MAX_PROPERTY_CHARS:
            raise InvalidInputError(f"A property has a name and at most {MAX_PROPERTY_CHARS} characters.")
        try:
            (key + value).encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"The property {str(key)[:80]!r} is not valid Unicode text.") from None
    return values


NOT_PROPERTIES = ("ARROW:", "headwater.", "huggingface", "lance", "org.apache.", "pandas")
"""Beginnings of the keys that libraries write into the metadata of a table for themselves."""


def own_properties(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table among the metadata of its Lance table (directory document, "Table")."""
    found = {key: value for key, value in metadata.items() if key and not key.startswith(NOT_PROPERTIES)}
    fitting = [(key, value) for key, value in found.items() if len(key) + len(value) <= MAX_PROPERTY_CHARS]
    return dict(fitting[:MAX_PROPERTIES])


class NameLostError(ConcurrentModificationError):
    """Another creator made a table of this name first, and it stays: `table`."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"{table.id} was created by another writer first.")
        self.table = table


def plan_first_version(table: Table, version: Version, mode: CreateMode, declared: bool = False) -> Plan[Ownership]:
    """Return the changes that add a table and its version 1 in one commit. Errors 1, 5. Pure.

    `declared`: the table is there, and filled; error 14 if another writer has dropped or moved it meanwhile.
    """

    def plan(facts: Facts) -> tuple[list[Change], Ownership]:
        namespace_of(facts, table.id.parent)
        found = same_table(facts, table) if declared else facts.get(table.id)
        created = isinstance(found, Table) and found.known.newest > 0
        changes, owned = own_name(found, table, mode, created)
        if owned.table is not table or (owned.replaced is not None and owned.replaced.location == table.location):
            raise NameLostError(owned.replaced or owned.table)
        still_empty = [RequireTable(found, 0)] if isinstance(found, Table) and owned.replaced is None else []
        return [*still_empty, *changes, Add(version)], owned

    return plan


def same_table(facts: Facts, table: Table) -> Table:
    """Return the table as it is now, or ConcurrentModification (14) when it is not the one that was found."""
    found = facts.get(table.id)
    if not isinstance(found, Table) or found.location != table.location:
        raise ConcurrentModificationError(f"{table.id} was dropped or created again by another writer: read it again.")
    return found


def plan_next_version(table: Table, version: Version, newest: int) -> list[Change]:
    """CreateTableVersion: a version follows the newest one of its table: error 14."""
    if newest and version.number != newest + 1:
        raise taken(table.id, version.number, newest)
    return [RequireTable(table, newest), Add(version)]


def plan_forget_versions(versions: Sequence[Version]) -> list[Change]:
    """BatchDeleteTableVersions: the records go, each as it was found."""
    return [Remove(item) for item in versions]


def taken(table: ObjectId, number: int, newest: int) -> ConcurrentModificationError:
    """Return error 14 for a version that exists or skips one; released clients read code 12 as a missing column."""
    what = "already exists" if number <= newest else f"does not follow the newest one, {newest}"
    return ConcurrentModificationError(
        f"Version {number} of table {table} {what}: read version {newest} and commit on top of it."
    )
