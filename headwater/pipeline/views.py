"""Views: SQL over tables of the catalog at one slot, and the result as a stream table that only gets what changed.

Where its SQL allows, a view follows the changes of its inputs: see slices. Else all of it is computed and compared.
The SQL is Spark SQL. With a session Spark runs it (see spark_views), without one the embedded engine does. Neither sees
anything but the tables that the SQL names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.imports import exp, lance, when_used
from headwater.pipeline.facts import schema_of
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.slices import Run, TooManyHereError, land_slices
from headwater.pipeline.view_tables import BY_SPARK, EMBEDDED, MadeView, land
from headwater.sql.embedded import EmbeddedEngine, opened
from headwater.sql.slicing import NotInSlicesError, slicing_of
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError, check_quotes
from headwater.work import Runner, runner_of

spark_views = when_used("headwater.pipeline.spark_views")
table_frames = when_used("headwater.spark.table_frames")
Say = Callable[[str], None]


def _nobody(text: str) -> None:
    """Nobody is told."""


@dataclass(frozen=True)
class ViewMoment:
    """The catalog at one slot, and the tables of it that a view is made of."""

    catalog: Catalog
    slot: int
    inputs: Sequence[str]


def make_view(
    catalog: Catalog, view: ViewSpec, moment: ViewMoment, spark: object = None, say: Say = _nobody, anew: bool = False
) -> MadeView:
    """Make the view's table hold what its SQL gives of its inputs at one moment. `anew`: whatever it was before.

    `spark`: a session, a runner of one with its own `driver_rows`, or None, which computes in this process.
    """
    runner = runner_of(spark)
    with naming_view(view):
        if view.name in catalog and not anew:
            try:
                return _in_slices(catalog, view, moment, runner)
            except (NotInSlicesError, UnsupportedOperationError) as why:
                say(f"view {view.name}: recomputed, {why}")
        return as_a_whole(catalog, view, moment, runner, anew)


def check_view(view: ViewSpec, schemas: Mapping[str, pa.Schema], runner: Runner) -> None:
    """Raise an error for SQL that the engine refuses whatever becomes of its tables, before a run writes anything.

    `schemas`: the columns of its tables so far. A run may add columns and widen them, so what these tell is no error.
    """
    with naming_view(view):
        if runner.spark is not None:
            spark_views.check_sql(runner.spark, view.sql, schemas)
            return
        with opened() as engine, suppress(SqlError):
            run_sql(engine, view.sql, {name: schema.empty_table() for name, schema in schemas.items()})


@contextmanager
def naming_view(view: ViewSpec, refuses: bool = True) -> Iterator[None]:
    """Name the view in errors of its SQL; without `refuses` what only Spark can run stays an error of the parser."""
    try:
        yield
    except SqlError as error:
        raise InvalidInputError(f"The SQL of the view {view.name} cannot be run: {error}") from None
    except UnsupportedSqlError as error:
        if not refuses:
            raise
        told = f"The SQL of the view {view.name} cannot be run. {error}: use --engine spark."
        raise UnsupportedOperationError(told) from None


def _in_slices(catalog: Catalog, view: ViewSpec, moment: ViewMoment, runner: Runner) -> MadeView:
    if runner.spark is not None:
        run: Run = partial(spark_views.slice_by_spark, runner.spark)
        at, inputs = moment.catalog, moment.inputs
        try:
            return land_slices(catalog, at, view, inputs, run, BY_SPARK, runner.driver_rows)
        except TooManyHereError:
            made: MadeView = spark_views.land_slice_frames(runner, catalog, at, moment.slot, view, inputs)
            return made
    with opened() as engine:
        return land_slices(catalog, moment.catalog, view, moment.inputs, partial(run_sql, engine), EMBEDDED, None)


def run_sql(
    engine: EmbeddedEngine, query: str | exp.Expr, tables: Mapping[str, lance.LanceDataset | pa.Table]
) -> pa.Table:
    for name, table in tables.items():
        engine.add(name, table)
    return engine.query(query)


def as_a_whole(catalog: Catalog, view: ViewSpec, moment: ViewMoment, runner: Runner, anew: bool) -> MadeView:
    """Compute all of a view, and write what differs."""
    at, inputs = moment.catalog, moment.inputs
    schemas = {name: schema_of(at[name]) for name in inputs}
    check_quotes(view.sql, (column for schema in schemas.values() for column in schema.names))
    if runner.spark is not None:
        held = {name: table_frames.readable(at[name], moment.slot) for name in inputs}
        made: MadeView = spark_views.land_by_spark(runner, catalog, view, held, anew)
        return made
    columns = _named(view, schemas)
    tables = {name: at[name].to_arrow(columns.get(name)) for name in inputs}
    with opened() as engine:
        rows = run_sql(engine, view.sql, tables)
    return land(catalog, view, rows, anew)


def _named(view: ViewSpec, schemas: Mapping[str, pa.Schema]) -> Mapping[str, Sequence[str]]:
    """Return of each table the columns that the SQL names, where it says that."""
    try:
        found = slicing_of(view.sql, view.keys, {name: schema.names for name, schema in schemas.items()})
    except NotInSlicesError:
        return {}
    return {name: columns for name, columns in found.columns.items() if columns}
