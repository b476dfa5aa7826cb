"""Views: SQL over tables of the catalog at one slot, and the result as a stream table that only gets what changed.

DuckDB runs the SQL in this process where it is installed. With a session Spark runs it over large inputs, and where
there is no DuckDB: see spark_views. Neither sees anything but the tables that the SQL names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import parse_name
from headwater.pipeline.grammar import ViewSpec, naming_section
from headwater.pipeline.view_tables import VIEW_SOURCE, MadeView, check_distinct, check_named, fitted, view_table

Say = Callable[[str], None]
MAX_LEVEL = 3
NO_ENGINE = (
    "The view {name} needs an engine for its SQL: pip install 'headwater[pipeline]' (DuckDB), or run it with a Spark "
    "session."
)


def _nobody(text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class ViewMoment:
    """The catalog at one slot, and the tables of it that a view is made of."""

    catalog: Catalog
    slot: int
    inputs: Sequence[str]


def make_view(
    catalog: Catalog, view: ViewSpec, moment: ViewMoment, spark: Any = None, say: Say = _nobody, anew: bool = False
) -> MadeView:
    """Make the view's table hold what its SQL gives of its inputs at one moment. `anew`: whatever it was before."""
    at, inputs = moment.catalog, moment.inputs
    for name in (*inputs, view.name):
        if len(parse_name(name)) > MAX_LEVEL:
            raise InvalidInputError(f"{name!r} has more than {MAX_LEVEL} names: SQL of a view has no way to say it.")
    duckdb = _duckdb()
    if spark is not None:
        from headwater.pipeline.spark_views import LARGE_VIEW_ROWS, land_by_spark
        from headwater.spark.table_frames import readable

        found = {name: readable(at[name], moment.slot) for name in inputs}
        if duckdb is None or sum(each.rows for each in found.values()) >= LARGE_VIEW_ROWS:
            try:
                return land_by_spark(spark, catalog, view, found, anew)
            except UnsupportedOperationError as error:
                if duckdb is None:
                    raise InvalidInputError(f"The SQL of the view {view.name} cannot be run. {error}") from None
                say(f"view {view.name}: computed in this process, by DuckDB. {error}")
    if duckdb is None:
        raise UnsupportedOperationError(NO_ENGINE.format(name=view.name))
    return land(catalog, view, _by_duckdb(duckdb, view, {name: at[name].to_arrow() for name in inputs}), anew)


def _duckdb() -> Any:
    try:
        import duckdb
    except ModuleNotFoundError:
        return None
    return duckdb


def _by_duckdb(duckdb: Any, view: ViewSpec, tables: Mapping[str, pa.Table]) -> pa.Table:
    connection = duckdb.connect(":memory:", config={"enable_external_access": "false"})
    try:
        connection.execute("SET python_enable_replacements = false; SET TimeZone = 'UTC'")
        for place, (name, table) in enumerate(tables.items()):
            connection.register(f"__input_{place}", table)
            names = parse_name(name)
            _make_name(connection, names)
            connection.execute(f"CREATE VIEW {_quoted(names)} AS SELECT * FROM memory.main.__input_{place}")
        relation = connection.sql(view.sql)
        if relation is None:
            raise InvalidInputError(f"The SQL of the view {view.name} is no query: {view.sql[:200]}")
        found: pa.Table = relation.to_arrow_table()
        return found
    except duckdb.Error as error:
        raise InvalidInputError(f"The SQL of the view {view.name} cannot be run: {str(error)[:500]}") from None
    finally:
        connection.close()


def _make_name(connection: Any, names: Sequence[str]) -> None:
    """What stands before a table's name."""
    if len(names) == MAX_LEVEL:
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_quoted(names[:1])}")
    if len(names) > 1:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(names[:-1])}")


def _quoted(names: Sequence[str]) -> str:
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def land(catalog: Catalog, view: ViewSpec, rows: pa.Table, anew: bool = False) -> MadeView:
    """Make the view's table hold these rows: only what differs becomes changes. It is created when it is not there."""
    check_named(view, rows.schema.names)
    distinct = rows.select(list(view.keys)).group_by(list(view.keys)).aggregate([]).num_rows
    check_distinct(view, rows.num_rows, distinct)
    rows = fitted(view, rows)
    stream = view_table(catalog, view, rows.schema, anew)
    before = stream.position
    with naming_section(f"The view {view.name}"):
        landed = stream.ingest(rows, "snapshot", VIEW_SOURCE, strict=True, allow_empty=True)
    return MadeView(stream, landed, before)
