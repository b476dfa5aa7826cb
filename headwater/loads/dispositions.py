"""Write dispositions of dlt as landings of stream tables. Pure.

    append                          a table without keys takes the rows
    merge, with a primary key       a table with these keys takes upserts, and deletes by the hint `hard_delete`
    replace, with a primary key     the rows are a snapshot: what differs from the table becomes events
    replace, without one            the table is made again in the commit of the rows; the catalog's past keeps the old

A merge key beside the primary key would replace rows that nobody names. It is refused by name, and so are the other
merge strategies of dlt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError

APPEND, MERGE, REPLACE = "append", "merge", "replace"
DELETED = "__headwater_op"
"""The column that says of each row of a merge whether it is a delete."""
LOADS, VERSIONS, STATES = "_dlt_loads", "_dlt_version", "_dlt_pipeline_state"
OWN_KEYS = {LOADS: ("load_id",), VERSIONS: ("version_hash",), STATES: ("pipeline_name",)}
"""The keys of dlt's own tables. Of a pipeline's state the newest row is all that a run needs."""


@dataclass(frozen=True)
class TableLoad:
    """The load of one table.

    `name`: its name in dlt. `keys`: the keys of its stream table; none: it is a log.
    `disposition`: how its rows land.
    `hard_delete`: the column that marks deletes. `dedup_sort`: the column that orders rows of one key, and its order.
    """

    name: str
    disposition: str
    keys: tuple[str, ...] = ()
    hard_delete: str | None = None
    dedup_sort: tuple[str, str] | None = None

    @property
    def is_snapshot(self) -> bool:
        """True if the rows of all its files together are the table."""
        return self.disposition == REPLACE and bool(self.keys)

    @property
    def is_made_again(self) -> bool:
        return self.disposition == REPLACE and not self.keys

    @property
    def is_whole(self) -> bool:
        """True if all its files must be taken at once."""
        return self.is_snapshot or self.dedup_sort is not None


def load_of(table: Mapping[str, Any]) -> TableLoad:
    """Return how a table of dlt's schema is loaded; raise InvalidInput (13) for what a stream table cannot do."""
    name, columns = str(table["name"]), table.get("columns", {})
    if name in OWN_KEYS:
        return TableLoad(name, MERGE, OWN_KEYS[name])
    disposition = str(table.get("write_disposition") or APPEND)
    keys = _having(columns, "primary_key")
    if table.get("parent") and disposition == MERGE:
        raise InvalidInputError(
            f"The nested table {name!r} of a merge is not taken: rows of it that its parent lost could not be told. "
            "Leave max_table_nesting at 0, so that nested values are JSON in the parent's row."
        )
    if disposition == MERGE:
        others = [column for column in _having(columns, "merge_key") if column not in keys]
        if others:
            raise InvalidInputError(
                f"{name!r} has the merge key {', '.join(others)}, by which a merge replaces rows that it does not "
                "name: give primary_key alone, or write_disposition='replace'."
            )
        if not keys:
            raise InvalidInputError(f"{name!r} is merged and has no primary_key: nothing tells its rows apart.")
    return TableLoad(
        name,
        disposition,
        keys if disposition != APPEND else (),
        next(iter(_having(columns, "hard_delete")), None) if disposition == MERGE else None,
        next(((column, columns[column]["dedup_sort"]) for column in _having(columns, "dedup_sort")), None)
        if disposition == MERGE
        else None,
    )


def _having(columns: Mapping[str, Mapping[str, object]], hint: str) -> tuple[str, ...]:
    return tuple(name for name, column in columns.items() if column.get(hint))


def check_fits(load: TableLoad, name: str, keys: Sequence[str]) -> None:
    """Raise InvalidInput (13) for a table that has other keys than a load of it."""
    if tuple(keys) == load.keys:
        return
    if load.disposition == APPEND:
        raise InvalidInputError(
            f"{name} has the keys {', '.join(keys)} and {load.name!r} is appended: use write_disposition='merge' with "
            "that primary_key."
        )
    told = ", ".join(keys) if keys else "no keys"
    raise InvalidInputError(
        f"{name} has {told} and {load.name!r} has the primary_key {', '.join(load.keys) or '(none)'}: load it into "
        "another table, or drop this one."
    )


def whole_rows(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return the rows with NULL in the columns of dlt's schema that a file lacks: a merge replaces whole rows."""
    for name, kind in columns.items():
        if name not in rows.schema.names:
            rows = rows.append_column(pa.field(name, kind), pa.nulls(rows.num_rows, kind))
    return rows


def in_order(load: TableLoad, rows: pa.Table) -> pa.Table:
    """Return the rows so that of those of one key the one that dlt would keep comes last."""
    if load.dedup_sort is None:
        return rows
    column, order = load.dedup_sort
    return rows.sort_by([(column, "descending" if order == "asc" else "ascending")])


def with_deletes(load: TableLoad, rows: pa.Table) -> pa.Table:
    """Return the rows with a column of the format `op`: a row is a delete if dlt's hint marks it."""
    assert load.hard_delete is not None
    marks: Any = rows.column(load.hard_delete)
    gone = marks.fill_null(False) if pa.types.is_boolean(marks.type) else marks.is_valid()
    ops = pa.array(["delete" if each else "upsert" for each in gone.to_pylist()], pa.string())
    return rows.append_column(DELETED, ops)
