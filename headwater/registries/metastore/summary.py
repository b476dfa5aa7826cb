"""What the log says of a commit, in one line for people: what was done, and to what. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.model import Add, CatalogObject, Change, Move, Namespace, Remove, Replace, Table, Version
from headwater.names import ObjectId, format_name

MOST = 3
"""So many changes are told one by one."""


def summary(changes: Sequence[Change]) -> str:
    """A new table's first versions are not told beside it: they came with it. Where a renamed object was is not told:
    who sees where it is may not see that."""
    new = {change.object.id for change in changes if isinstance(change, Add) and isinstance(change.object, Table)}
    told = list(dict.fromkeys(_told(changes, new)))
    rest = f" and {len(told) - MOST} more" if len(told) > MOST else ""
    return ", ".join(told[:MOST]) + rest


def _told(changes: Sequence[Change], new: set[ObjectId]) -> Iterator[str]:
    for change in changes:
        match change:
            case Add(Version() as version) if version.table in new:
                pass
            case Add(Version() as version):
                yield _named(version)
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
