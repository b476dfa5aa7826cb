"""Views of many rows: Spark runs the SQL over rows that executors read, and executors write what differs.

The driver sees no row, but for up to `driver_rows` rows of small views and of changed keys (see views). A larger
result is compared with the view's present state by a join on the keys, and the differences land in one transaction.
By slices, the changes, their keys and the rows of those are frames: executors read the inputs as a whole, and only the
groups of changed keys are computed, compared and written. See docs/design/023-views-in-slices.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.clock import unique_hex
from headwater.errors import TableVersionNotFoundError
from headwater.imports import when_used
from headwater.pipeline.executors import ingest_frame
from headwater.pipeline.file_values import naming_section
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.view_tables import (
    BY_SPARK,
    VIEW_SOURCE,
    MadeView,
    check_distinct,
    check_named,
    land,
    view_table,
)
from headwater.pipeline.views import (
    COLLECTED,
    COMPUTED,
    ROW,
    WANTED,
    SlicePlan,
    changed_rows,
    check_same_columns,
    plan_slices,
)
from headwater.spark.failures import is_refused
from headwater.spark.table_frames import Readable, changes_frame, frame_of, readable
from headwater.sql.slicing import NotInSlicesError
from headwater.sql.spark_parser import SqlError, query_text, with_tables
from headwater.streams.layout import TRUNCATES
from headwater.streams.log.landing import LandingReport
from headwater.streams.serving.publish_tasks import task_count
from headwater.streams.sources.intake import Intake
from headwater.types import arrow_type, spark_schema
from headwater.work import Runner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pyspark = when_used("pyspark")
sql_types = when_used("pyspark.sql.types")
F = when_used("pyspark.sql.functions")
LASTING = ("UNRESOLVED_ROUTINE", "WRONG_NUM_ARGS", "PARSE_", "INVALID_SQL_SYNTAX", "UNSUPPORTED_FEATURE")
"""Conditions of Spark's errors that no column which a table gets later can mend, by how their names begin."""
OP = "__headwater_op"
OLD, NEW, THERE = "__headwater_old_", "__headwater_new", "__headwater_there"


def land_by_spark(
    runner: Runner, catalog: Catalog, view: ViewSpec, inputs: Mapping[str, Readable], anew: bool = False
) -> MadeView:
    """Make the view's table hold what its SQL gives now. SqlError: Spark does not take the SQL, or not compare it."""
    spark = runner.spark
    frames = {name: partial(frame_of, spark, found, runner.cores) for name, found in inputs.items()}
    with query_frame(spark, view.sql, frames) as frame, ExitStack() as until:
        check_named(view, frame.columns)
        few = _few_rows(runner, catalog, view, inputs, frame)
        if few is not None:
            return land(catalog, view, few, anew, BY_SPARK)
        stream = partial(view_table, catalog, view, schema_of_frame(frame), anew)
        return land_frame(runner, catalog, view, stream, frame, until)


def land_frame(
    runner: Runner,
    catalog: Catalog,
    view: ViewSpec,
    opened: Callable[[], CatalogStream],
    frame: DataFrame,
    until: ExitStack,
    within: object = None,
) -> MadeView:
    """Make the view's table hold the rows of a frame: executors write what differs.

    `opened`: opens the table when the keys of the rows are known to be distinct. `within`: a frame of keys; the rows of
    others stay as they are.
    """
    # It is looked at twice, and may be as large as its inputs. Connect resolves its tables again to let go of it.
    frame = frame.persist(pyspark.StorageLevel.DISK_ONLY)
    until.callback(frame.unpersist)
    total, distinct = _counted(frame, view)
    check_distinct(view, total, distinct)
    stream = opened()
    before = stream.position
    events = _differences(runner, stream, frame, catalog.slot, within)
    with naming_section(f"The view {view.name}"):
        landed = ingest_frame(events, stream, Intake((), "op", VIEW_SOURCE, True, (), {"op_column": OP}), runner)
    return MadeView(stream, landed, before, BY_SPARK)


def _few_rows(
    runner: Runner, catalog: Catalog, view: ViewSpec, inputs: Mapping[str, Readable], frame: DataFrame
) -> pa.Table | None:
    """Return the rows of a small view of small tables: Spark runs its SQL, and the driver compares and lands them.

    None if the inputs, the result or the view's present rows are more than `driver_rows`.
    """
    most = runner.driver_rows or 0
    held = readable(catalog[view.name], catalog.slot).rows if view.name in catalog else 0
    if max(held, sum(found.rows for found in inputs.values())) > most:
        return None
    with runner.counted():
        rows = frame.limit(most + 1).toArrow()
    return rows.cast(schema_of_frame(frame)) if rows.num_rows <= most else None


def schema_of_frame(frame: DataFrame) -> pa.Schema:
    return pa.schema([(field.name, arrow_type(json.loads(field.dataType.json()))) for field in frame.schema])


def check_sql(spark: SparkSession, sql: str, schemas: Mapping[str, pa.Schema]) -> None:
    """Raise SqlError for SQL that Spark refuses whatever columns its tables get, such as an unknown function."""
    kinds = {name: sql_types.StructType.fromJson(spark_schema(schema)) for name, schema in schemas.items()}
    try:
        with query_frame(spark, sql, {name: partial(spark.createDataFrame, [], kind) for name, kind in kinds.items()}):
            return
    except SqlError as error:
        condition = getattr(error.__cause__, "getCondition", lambda: None)()
        if (condition or "").startswith(LASTING):
            raise


def slice_by_spark(spark: SparkSession, query: Any, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return what Spark SQL, as text or as a tree, gives of a few rows."""

    def frame(table: pa.Table) -> DataFrame:
        # PySpark reads no rows of a table whose first chunk is empty.
        return spark.createDataFrame(table.combine_chunks(), sql_types.StructType.fromJson(spark_schema(table.schema)))

    with query_frame(
        spark, query_text(query), {name: partial(frame, table) for name, table in tables.items()}
    ) as found:
        rows: pa.Table = found.toArrow()
        return rows.cast(schema_of_frame(found))


@contextmanager
def query_frame(spark: SparkSession, sql: str, inputs: Mapping[str, Callable[[], Any]]) -> Any:
    """Yield what the SQL gives. Spark has no schemas for temporary views: each name becomes one without dots."""
    run = unique_hex(8)
    names = {name: f"__headwater_{run}_{place}" for place, name in enumerate(inputs)}
    try:
        for name, found in inputs.items():
            found().createOrReplaceTempView(names[name])
        try:
            frame = spark.sql(with_tables(sql, names))
            kinds = [field.dataType.simpleString() for field in frame.schema]
        except pyspark.errors.AnalysisException as error:
            raise SqlError(f"Spark does not take it: {str(error).splitlines()[0][:300]}") from error
        if any("map<" in kind for kind in kinds):
            raise SqlError("Spark does not compare maps.")
        yield frame
    finally:
        for name in names.values():
            spark.catalog.dropTempView(name)


def _counted(frame: DataFrame, view: ViewSpec) -> tuple[int, int]:
    """Return the number of rows, and of different keys."""
    each = frame.groupBy(*(F.col(quoted(name)) for name in view.keys)).agg(F.count(F.lit(1)).alias(NEW))
    total, distinct = each.agg(F.sum(NEW), F.count(F.lit(1))).collect()[0]
    return total or 0, distinct


def _differences(runner: Runner, stream: CatalogStream, frame: DataFrame, slot: int, within: Any = None) -> Any:
    """Upserts of rows that are new or different, deletes of those that are not there any more."""
    definition = stream.definition
    names = [name for name in frame.columns if name in definition.by_name]
    kinds = sql_types.StructType.fromJson(
        spark_schema(pa.schema([(name, definition.by_name[name].type) for name in names]))
    )
    new = frame.select(*(F.col(quoted(each.name)).cast(each.dataType).alias(each.name) for each in kinds))
    if not stream.position:
        return new.withColumn(OP, F.lit("u"))
    held = frame_of(runner.spark, readable(stream, slot), runner.cores)
    if within is not None:
        held = held.join(within, list(definition.keys), "left_semi")
    old = held.select(*(F.col(quoted(name)).alias(f"{OLD}{name}") for name in names)).withColumn(THERE, F.lit(True))
    new = new.withColumn(NEW, F.lit(True))

    def of(name: str) -> tuple[Any, Any]:
        return F.col(quoted(name)), F.col(quoted(f"{OLD}{name}"))

    on = reduce(lambda a, b: a & b, (of(name)[0] == of(name)[1] for name in definition.keys))
    same = reduce(lambda a, b: a & b, (of(name)[0].eqNullSafe(of(name)[1]) for name in names))
    gone = F.col(NEW).isNull()
    changed = new.join(old, on, "full_outer").where(gone | F.col(THERE).isNull() | ~same)
    columns = [F.coalesce(*of(name)).alias(name) if name in definition.keys else of(name)[0] for name in names]
    return changed.select(*columns, F.when(gone, "d").otherwise("u").alias(OP))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def land_slice_frames(
    runner: Runner, catalog: Catalog, at: Catalog, slot: int, view: ViewSpec, inputs: Sequence[str]
) -> MadeView:
    """Make the view's table follow the changes of its inputs by executors. NotInSlicesError: as a whole, instead."""
    plan = plan_slices(catalog, at, view, inputs)
    if not plan.since:
        before = plan.stream.position
        return MadeView(plan.stream, LandingReport(before, 0), before, BY_SPARK)
    with ExitStack() as until:
        frames = _Frames(runner, at, slot, plan, until)
        try:
            keys = frames.keys()
            keys.count()  # one that cannot be computed, of a row that WHERE leaves out, is known before rows land
            rows = until.enter_context(query_frame(runner.spark, view.sql, frames.tables(keys)))
        except (SqlError, pyspark.errors.PySparkException) as error:
            if not isinstance(error, SqlError) and not is_refused(error):
                raise  # of a lost executor or a file that cannot be read: to recompute the view would not mend it
            why = str(error).splitlines()[0][:300]
            raise NotInSlicesError(f"its keys cannot be told of all rows: {why}") from None
        check_same_columns(plan.stream, schema_of_frame(rows))
        return land_frame(runner, catalog, view, lambda: plan.stream, rows, until, keys.dropna())


class _Frames:
    """The inputs of a view at one moment as frames."""

    def __init__(self, runner: Runner, at: Catalog, slot: int, plan: SlicePlan, until: ExitStack) -> None:
        self._runner, self._at, self._slot, self._until = runner, at, slot, until
        self._slicing, self._since = plan.slicing, plan.since
        self._schemas = plan.schemas

    def keys(self) -> Any:
        """Return the keys of the view that changed rows have to do with. They are asked for again and again, so they
        stay."""
        changed = {name: self._changes(name, after) for name, after in self._since.items()}
        parts = [self._keys_of(name, changed) for name in changed]
        found = reduce(lambda one, other: one.unionByName(other), parts).distinct()
        found = found.persist(pyspark.StorageLevel.DISK_ONLY)
        self._until.callback(found.unpersist)
        return found

    def _keys_of(self, name: str, changed: Mapping[str, object]) -> Any:
        """Return the keys that the changes of one table tell; the other tables count as they were and as they are."""
        tables = {name: partial(self._some, changed[name], name)}
        for other in self._slicing.matched if name != self._slicing.anchor else ():
            if other != name:
                tables[other] = partial(self._both, other, changed)
        return self._until.enter_context(
            query_frame(self._runner.spark, query_text(self._slicing.keys_query(name)), tables)
        )

    def _both(self, name: str, changed: Mapping[str, object]) -> Any:
        rows = self._some(self._read(name), name)
        return rows.unionByName(self._some(changed[name], name)) if name in changed else rows

    def tables(self, keys: object) -> dict[str, Any]:
        """Return the rows that the view's SQL needs for some keys: the anchor's with them, all of other tables."""
        slicing, anchor = self._slicing, self._slicing.anchor
        columns = [F.col(quoted(name)) for name in slicing.columns[anchor] or self._schemas[anchor].names[:1]]
        rows = self._read(anchor).select(*columns, F.struct(*columns).alias(ROW))
        query, given = query_text(slicing.keyed_query(ROW, WANTED)), {anchor: lambda: rows, WANTED: lambda: keys}
        found = self._until.enter_context(query_frame(self._runner.spark, query, given))
        others = {name: partial(self._read, name) for name in slicing.columns if name != anchor}
        return {anchor: lambda: found.select(f"{ROW}.*"), **others}

    def _read(self, name: str) -> DataFrame:
        return frame_of(self._runner.spark, readable(self._at[name], self._slot), self._runner.cores)

    def _some(self, frame: Any, name: str) -> Any:
        """Return a frame of the columns that keys and joins need, with at least one column so that rows count."""
        names = list(self._slicing.matched[name]) or self._schemas[name].names[:1]
        return frame.select(*(F.col(quoted(each)) for each in names))

    def _changes(self, name: str, after: int) -> DataFrame:
        table = self._at[name]
        assert isinstance(table, CatalogStream)
        rows, definition = changed_rows(table, after, name), table.definition
        wanted = list(self._slicing.matched[name]) or self._schemas[name].names[:1]
        if not set(wanted) <= set(definition.schema.names):
            raise NotInSlicesError(COMPUTED.format(name=name))
        told = table.deltas(after)
        divides = definition.keys and not any(TRUNCATES in d.properties or "voids" in d.properties for d in told)
        shares = task_count(rows, self._runner.cores, False) if divides else 1
        try:
            return changes_frame(self._runner.spark, table, self._slot, after, wanted, shares)
        except TableVersionNotFoundError:
            raise NotInSlicesError(COLLECTED.format(name=name)) from None
