"""Views: SQL over tables of the catalog at one slot, and the result as a stream table that only gets what changed.

DuckDB runs the SQL in this process where it is installed; else a Spark session does, over the same rows. Neither sees
anything but the tables that the SQL names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import parse_name
from headwater.pipeline.facts import INPUTS
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.planning import sql_digest
from headwater.streams.landing import LandingReport

MAX_LEVEL = 3
NO_ENGINE = (
    "The view {name} needs an engine for its SQL: pip install 'headwater[pipeline]' (DuckDB), or run it with a Spark "
    "session."
)


def rows_of(catalog: Catalog, view: ViewSpec, inputs: Sequence[str], spark: Any = None) -> pa.Table:
    """The rows of a view; `catalog` stands at one slot, so that its inputs are of one moment."""
    for name in (*inputs, view.name):
        if len(parse_name(name)) > MAX_LEVEL:
            raise InvalidInputError(f"{name!r} has more than {MAX_LEVEL} names: SQL of a view has no way to say it.")
    tables = {name: catalog[name].to_arrow() for name in inputs}
    try:
        import duckdb
    except ModuleNotFoundError:
        if spark is None:
            raise UnsupportedOperationError(NO_ENGINE.format(name=view.name)) from None
        return _by_spark(spark, view, tables)
    return _by_duckdb(duckdb, view, tables)


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


def _by_spark(spark: Any, view: ViewSpec, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Spark has no schemas for temporary views, so each name in the SQL is replaced by one without dots."""
    from headwater.pipeline.sql_names import replaced

    names = {name: f"__headwater_{place}" for place, name in enumerate(tables)}
    try:
        for name, table in tables.items():
            spark.createDataFrame(table).createOrReplaceTempView(names[name])
        found: pa.Table = spark.sql(replaced(view.sql, names)).toArrow()
        return found
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)


def land(catalog: Catalog, view: ViewSpec, rows: pa.Table) -> tuple[CatalogStream, LandingReport]:
    """Make the view's table hold these rows: only what differs becomes changes. It is created when it is not there."""
    for name in view.keys:
        if name not in rows.schema.names:
            raise InvalidInputError(
                f"The view {view.name} has no column {name!r} that its keys name: {', '.join(rows.schema.names)}."
            )
    _check_keys(view, rows)
    if view.name in catalog:
        stream = catalog[view.name]
        if not isinstance(stream, CatalogStream):
            raise InvalidInputError(f"{view.name} is a plain table that no pipeline made: give the view another name.")
    else:
        schema = pa.schema([pa.field(field.name, _kept(field.type)) for field in rows.schema])
        stream = catalog.create_stream_table(view.name, schema, keys=list(view.keys))
    fitted = pa.table({field.name: rows.column(field.name).cast(_kept(field.type)) for field in rows.schema})
    return stream, stream.ingest(fitted, "snapshot", "view", strict=True, allow_empty=True)


def remember(stream: CatalogStream, view: ViewSpec, inputs: Mapping[str, int]) -> None:
    """What the view was made of, so that the next run knows whether anything is new."""
    text = json.dumps({"sql": sql_digest(view), "tables": dict(inputs)}, sort_keys=True)
    stream.set_properties({INPUTS: text})


def _check_keys(view: ViewSpec, rows: pa.Table) -> None:
    """One row for each key: a snapshot with two would keep either."""
    distinct = rows.select(list(view.keys)).group_by(list(view.keys)).aggregate([]).num_rows
    if distinct != rows.num_rows:
        raise InvalidInputError(
            f"The view {view.name} has {rows.num_rows} rows and {distinct} different keys ({', '.join(view.keys)}): "
            "its keys must tell its rows apart."
        )


def _kept(kind: Any) -> Any:
    """A type that Lance keeps: DuckDB's sums of whole numbers are decimals without a fraction."""
    if pa.types.is_decimal(kind) and kind.precision == 38 and kind.scale == 0:
        return pa.int64()
    return kind
