"""Views by slices: what the inputs' change feeds tell of is computed and compared, and nothing else is looked at.

First the keys of the view that changed rows have to do with, as they were and as they are. Then the rows of those keys
in the table that has them, the rows of the others that are joined to these, the view's own SQL over both, and what
differs from the rows that the view has for those keys. See docs/design/023-views-in-slices.md.

Views: SQL over tables of the catalog at one slot, and the result as a stream table that only gets what changed.

Where its SQL allows, a view follows the changes of its inputs, by slices. Else all of it is computed and compared.
The SQL is Spark SQL. With a session Spark runs it (see spark_views), without one the embedded engine does. Neither sees
anything but the tables that the SQL names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError, TableVersionNotFoundError, UnsupportedOperationError
from headwater.imports import exp, lance, pc, when_used
from headwater.pipeline.facts import moment_of, record_of, schema_of
from headwater.pipeline.file_values import naming_section
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.planning import why_whole
from headwater.pipeline.view_tables import BY_SPARK, EMBEDDED, VIEW_SOURCE, MadeView, check_keys, land
from headwater.sql.embedded import EmbeddedEngine, opened
from headwater.sql.slicing import Equal, NotInSlicesError, Slicing, slicing_of
from headwater.sql.spark_parser import SqlError, UnsupportedSqlError, check_quotes
from headwater.streams.definition import CHANGE_COLUMNS
from headwater.streams.log.landing import BatchOrigin, LandingReport
from headwater.streams.serving.copy_rows import in_list
from headwater.streams.sources.formats import SNAPSHOT
from headwater.work import Runner, runner_of

MAX_PUSHED = 4096
"""The most values that are looked up in a table. For more of them the table is read."""
FEW, PART = 10_000, 4
"""With more changed rows than this part of a table the view is computed as a whole; a few are always in slices."""
COLLECTED = "the changes of {name} are collected"
COMPUTED = "a computed column of {name} tells which rows it joins"
ROW, WANTED = "__headwater_row", "__headwater_wanted"
Run = Callable[[Any, Mapping[str, pa.Table]], pa.Table]
"""Runs Spark SQL, as text or as a tree, over tables that stand in for those it names."""


def land_slices(
    catalog: Catalog, at: Catalog, view: ViewSpec, inputs: Sequence[str], run: Run, engine: str, most: int | None
) -> MadeView:
    """Make the view's table follow the changes of its inputs since it was made. NotInSlicesError: as a whole, instead.

    `run`: the engine of this pipeline, `engine` its name. `most`: rows of the changed keys that may be read here; None:
    any number. TooManyHereError: there are more.
    """
    plan = plan_slices(catalog, at, view, inputs)
    if most == 0:
        raise TooManyHereError("driver_rows is 0, and the rows of changed keys would pass the driver")
    work = _Slices(at, plan.slicing, plan.schemas, most, run)
    try:
        changed = {name: work.changes(name, after) for name, after in plan.since.items()}
        keys = work.keys(changed)
        tables = work.tables(keys) if keys.num_rows else {}
    except (SqlError, UnsupportedSqlError) as error:  # of rows that its WHERE leaves out, say
        raise NotInSlicesError(f"its keys cannot be told of all rows: {error}") from None
    return _landed(plan.stream, view, keys, tables, partial(run, view.sql), engine)


class TooManyHereError(NotInSlicesError):
    """The rows of the changed keys are more than this process may read. Executors may."""


@dataclass(frozen=True)
class SlicePlan:
    """A view that follows its inputs: its table, its slices, the columns of the inputs, and for each input that
    changed the position that the view was made at."""

    stream: CatalogStream
    slicing: Slicing
    schemas: Mapping[str, pa.Schema]
    since: Mapping[str, int]


def plan_slices(catalog: Catalog, at: Catalog, view: ViewSpec, inputs: Sequence[str]) -> SlicePlan:
    """Return how a view follows the changes of its inputs. NotInSlicesError: it cannot."""
    stream = catalog[view.name]
    if not isinstance(stream, CatalogStream):
        raise NotInSlicesError("it is a plain table")
    record = record_of(stream)
    moments = {name: moment_of(at, name) for name in inputs}
    streams = {name for name in inputs if isinstance(at[name], CatalogStream)}
    why = why_whole(view, record, stream.position, moments, streams)
    if why:
        raise NotInSlicesError(why)
    schemas = {name: schema_of(at[name]) for name in inputs}
    slicing = slicing_of(view.sql, view.keys, {name: schema.names for name, schema in schemas.items()})
    since = {name: record["tables"][name] for name in slicing.columns}
    return SlicePlan(stream, slicing, schemas, {name: was[1] for name, was in since.items() if was != moments[name]})


def changed_rows(table: CatalogStream, after: int, name: str) -> int:
    """Return how many rows of a table changed at most. NotInSlicesError: so many that the view is computed anew."""
    limit = max(FEW, (table.published.rows if table.published is not None else 0) // PART)
    meant = table.deltas(after)
    voided = {place for delta in meant for place in delta.properties.get("voids", ()) if place <= after}
    meant += [delta for delta in table.deltas() if delta.position in voided] if voided else []
    changed = sum(file.rows or 0 for delta in meant for file in delta.files)
    if changed > limit:
        raise NotInSlicesError(f"more than a quarter of {name} changed")
    return changed


def check_same_columns(stream: CatalogStream, found: pa.Schema) -> None:
    """NotInSlicesError: the SQL gives other columns than the view has."""
    known = stream.definition.by_name
    if {field.name: field.type for field in found} != {name: each.type for name, each in known.items()}:
        raise NotInSlicesError("its columns are others")


def _landed(
    stream: CatalogStream,
    view: ViewSpec,
    keys: pa.Table,
    tables: Mapping[str, pa.Table],
    run: Callable[[Mapping[str, pa.Table]], pa.Table],
    engine: str,
) -> MadeView:
    before = stream.position
    if not keys.num_rows:
        return MadeView(stream, LandingReport(before, 0), before, engine)
    rows = run(tables)
    check_same_columns(stream, rows.schema)
    known = stream.definition.by_name
    check_keys(view, rows)
    found = keys.drop_null()  # no row of a view has a key without a value
    within = found.cast(pa.schema([known[name].field for name in view.keys]))
    options = {"allow_empty": True, "within": within}
    with naming_section(f"The view {view.name}"):
        landed = stream.take(rows, SNAPSHOT, BatchOrigin(VIEW_SOURCE), True, options)
    return MadeView(stream, landed, before, engine)


@dataclass(frozen=True)
class _Slices:
    """The inputs of a view at one moment, read as far as some keys need it."""

    at: Catalog
    slicing: Slicing
    schemas: Mapping[str, pa.Schema]
    most: int | None
    run: Run

    def changes(self, name: str, after: int) -> pa.Table:
        """Return the changed rows of a table, as they were and as they are."""
        table = self.at[name]
        changed = changed_rows(table, after, name)
        if self.most is not None and changed > self.most:
            raise TooManyHereError(f"more than {self.most} rows of {name} changed (driver_rows)")
        wanted = self.slicing.matched[name]
        try:
            found = table.changes(after)
        except TableVersionNotFoundError:
            raise NotInSlicesError(COLLECTED.format(name=name)) from None
        if not set(wanted) <= set(found.schema.names):
            raise NotInSlicesError(COMPUTED.format(name=name))
        rows: pa.Table = found.drop_columns(CHANGE_COLUMNS)
        return rows

    def keys(self, changed: Mapping[str, pa.Table]) -> pa.Table:
        """Return the keys of the view that changed rows have to do with."""
        parts = []
        for name, rows in changed.items():
            tables = {name: rows.select(self._some(name, self.slicing.matched))}
            if name != self.slicing.anchor:
                equals = [replace(each, both=True) if each.second[0] == name else each for each in self.slicing.equals]
                self._join(tables, self.slicing.matched, equals, changed)
            parts.append(self.run(self.slicing.keys_query(name), tables))
        if not parts:
            return pa.table({})
        together = pa.concat_tables(parts, promote_options="permissive")
        return together.group_by(together.schema.names).aggregate([])

    def tables(self, keys: pa.Table) -> dict[str, pa.Table]:
        """Return the rows that the view's SQL needs for some keys: theirs, and those joined to them."""
        anchor = self.slicing.anchor
        told = {place: keys.column(name) for place, name in zip(self.slicing.plain, keys.schema.names, strict=True)}
        rows = self._read(anchor, self.slicing.columns, {name: values for name, values in told.items() if name})
        numbered = rows.append_column(ROW, pa.array(np.arange(rows.num_rows)))
        places = self.run(self.slicing.keyed_query(ROW, WANTED), {anchor: numbered, WANTED: keys})
        tables = {anchor: rows.take(places.column(ROW))}
        self._join(tables, self.slicing.columns, self.slicing.equals, {})
        return tables

    def _join(
        self,
        tables: dict[str, pa.Table],
        columns: Mapping[str, Sequence[str]],
        equals: Sequence[Equal],
        changed: Mapping[str, pa.Table],
    ) -> None:
        """Read the other tables, each only where it may match one that is there; of one that changed, both states."""
        missing = [name for name in columns if name not in tables]
        while missing:
            links = {name: link for name in missing if (link := _link(name, tables, equals)) is not None}
            name = next(iter(links), missing[0])
            found = self._read(name, columns, dict([links[name]]) if name in links else {})
            if name in changed:
                extra = changed[name].select(found.schema.names).cast(found.schema)
                found = pa.concat_tables([found, extra])
            tables[name] = found
            missing.remove(name)

    def _some(self, name: str, columns: Mapping[str, Sequence[str]]) -> list[str]:
        """Return the columns of a table that are needed: one at least, for its rows to count."""
        return list(columns[name]) or self.schemas[name].names[:1]

    def _read(self, name: str, columns: Mapping[str, Sequence[str]], wanted: Mapping[str, object]) -> pa.Table:
        """Return the rows of a table that have wanted values (and perhaps others)."""
        table, conditions = self.at[name], []
        for column, values in wanted.items():
            distinct = pc.unique(values)
            is_same = distinct.type == self.schemas[name].field(column).type
            if distinct.null_count or len(distinct) > MAX_PUSHED or not is_same:
                continue
            text = in_list(pa.table({column: distinct})) if len(distinct) else "false"
            if text is not None:
                conditions.append(text)
        limit = self.most + 1 if self.most is not None else None
        found: pa.Table = table.to_arrow(self._some(name, columns), " AND ".join(conditions) or None, limit)
        if limit is not None and found.num_rows == limit:
            raise TooManyHereError(f"the changed keys have more than {self.most} rows of {name} (driver_rows)")
        return found


def _link(name: str, tables: Mapping[str, pa.Table], equals: Sequence[Equal]) -> tuple[str, object] | None:
    """Return a column of a table, and the values that it must have one of, by a join with a table that is there."""
    for each in equals:
        sides = [(each.first, each.second), (each.second, each.first)] if each.both else [(each.first, each.second)]
        for (known, column), (own, wanted) in sides:
            if own == name and known in tables:
                values = pc.drop_null(tables[known].column(column))
                return wanted, values
    return None


spark_views = when_used("headwater.pipeline.spark_views")
table_frames = when_used("headwater.spark.table_frames")
Say = Callable[[str], None]


def _nobody(text: str) -> None:
    """Ignore a message."""


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
