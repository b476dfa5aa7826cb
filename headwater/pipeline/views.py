"""Views: SQL over tables of the catalog at one slot, and the result as a stream table that only gets what changed.

Where its SQL allows, a view follows the changes of its inputs: see slices. Else all of it is computed and compared.
DuckDB runs the SQL in this process where it is installed. With a session Spark runs it over large inputs, and where
there is no DuckDB: see spark_views. Neither sees anything but the tables that the SQL names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.duck import MAX_LEVEL, installed, opened
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import parse_name
from headwater.pipeline.facts import schema_of
from headwater.pipeline.grammar import ViewSpec, naming_section
from headwater.pipeline.slices import Run, by_duckdb, land_slices
from headwater.pipeline.slicing import NotInSlicesError, slicing_of
from headwater.pipeline.view_tables import (
    DUCKDB,
    SPARK,
    VIEW_SOURCE,
    MadeView,
    check_keys,
    check_named,
    fitted,
    view_table,
)

Say = Callable[[str], None]
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
    for name in (*moment.inputs, view.name):
        if len(parse_name(name)) > MAX_LEVEL:
            raise InvalidInputError(f"{name!r} has more than {MAX_LEVEL} names: SQL of a view has no way to say it.")
    if view.name in catalog and not anew:
        try:
            return _in_slices(catalog, view, moment, spark)
        except (NotInSlicesError, UnsupportedOperationError) as why:
            say(f"view {view.name}: recomputed, {why}")
    return as_a_whole(catalog, view, moment, spark, say, anew)


def _in_slices(catalog: Catalog, view: ViewSpec, moment: ViewMoment, spark: Any) -> MadeView:
    engines: dict[str, Run] = {}
    most = None
    if spark is not None:
        from headwater.pipeline import spark_views

        engines[SPARK] = partial(spark_views.slice_by_spark, spark, view)
        most = spark_views.LARGE_VIEW_ROWS
    return land_slices(catalog, moment.catalog, view, moment.inputs, engines, most)


def as_a_whole(catalog: Catalog, view: ViewSpec, moment: ViewMoment, spark: Any, say: Say, anew: bool) -> MadeView:
    """Compute all of a view, and write what differs."""
    at, inputs, duckdb = moment.catalog, moment.inputs, installed()
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
    columns = _named(view, at, inputs)
    return land(catalog, view, _by_duckdb(view, {name: at[name].to_arrow(columns.get(name)) for name in inputs}), anew)


def _named(view: ViewSpec, at: Catalog, inputs: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Of each table the columns that the SQL names, where that is told by it."""
    try:
        found = slicing_of(view.sql, view.keys, {name: schema_of(at[name]).names for name in inputs})
    except NotInSlicesError:
        return {}
    return {name: columns for name, columns in found.columns.items() if columns}


def _by_duckdb(view: ViewSpec, tables: Mapping[str, pa.Table]) -> pa.Table:
    with opened() as duck:
        return by_duckdb(duck, view, tables)


def land(catalog: Catalog, view: ViewSpec, rows: pa.Table, anew: bool = False) -> MadeView:
    """Make the view's table hold these rows: only what differs becomes changes. It is created when it is not there."""
    check_named(view, rows.schema.names)
    check_keys(view, rows)
    rows = fitted(view, rows)
    stream = view_table(catalog, view, rows.schema, anew)
    before = stream.position
    with naming_section(f"The view {view.name}"):
        landed = stream.ingest(rows, "snapshot", VIEW_SOURCE, strict=True, allow_empty=True)
    return MadeView(stream, landed, before, DUCKDB)
