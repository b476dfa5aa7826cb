"""Views by slices on executors: the changes, their keys, the rows of those and what differs are frames of Spark.

The same as in slices, for rows that may not pass the driver. The inputs are read by executors as a whole; only the
groups of changed keys are computed, compared and written. See docs/design/023-views-in-slices.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial, reduce
from typing import Any

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import TableVersionNotFoundError
from headwater.imports import when_used
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.slices import (
    COLLECTED,
    COMPUTED,
    ROW,
    WANTED,
    SlicePlan,
    changed_rows,
    check_same_columns,
    plan_slices,
)
from headwater.pipeline.spark_views import asked, land_frame, quoted, schema_of_frame
from headwater.pipeline.view_tables import BY_SPARK, MadeView
from headwater.spark.failures import is_refused
from headwater.spark.table_frames import changes_frame, frame_of, readable
from headwater.sql.slicing import NotInSlicesError
from headwater.sql.spark_parser import SqlError, query_text
from headwater.streams.layout import TRUNCATES
from headwater.streams.log.landing import LandingReport
from headwater.streams.serving.publish_tasks import task_count
from headwater.work import Runner

pyspark = when_used("pyspark")
F = when_used("pyspark.sql.functions")


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
            rows = until.enter_context(asked(runner.spark, view.sql, frames.tables(keys)))
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
        """The keys of the view that changed rows have to do with. They are asked for again and again, so they stay."""
        changed = {name: self._changes(name, after) for name, after in self._since.items()}
        parts = [self._keys_of(name, changed) for name in changed]
        found = reduce(lambda one, other: one.unionByName(other), parts).distinct()
        found = found.persist(pyspark.StorageLevel.DISK_ONLY)
        self._until.callback(found.unpersist)
        return found

    def _keys_of(self, name: str, changed: Mapping[str, Any]) -> Any:
        """The keys that the changes of one table tell; the other tables count as they were and as they are."""
        tables = {name: partial(self._some, changed[name], name)}
        for other in self._slicing.matched if name != self._slicing.anchor else ():
            if other != name:
                tables[other] = partial(self._both, other, changed)
        return self._until.enter_context(asked(self._runner.spark, query_text(self._slicing.keys_query(name)), tables))

    def _both(self, name: str, changed: Mapping[str, Any]) -> Any:
        rows = self._some(self._read(name), name)
        return rows.unionByName(self._some(changed[name], name)) if name in changed else rows

    def tables(self, keys: Any) -> dict[str, Any]:
        """The rows that the view's SQL needs for some keys: those of the anchor that have them, and all others."""
        slicing, anchor = self._slicing, self._slicing.anchor
        columns = [F.col(quoted(name)) for name in slicing.columns[anchor] or self._schemas[anchor].names[:1]]
        rows = self._read(anchor).select(*columns, F.struct(*columns).alias(ROW))
        query, given = query_text(slicing.keyed_query(ROW, WANTED)), {anchor: lambda: rows, WANTED: lambda: keys}
        found = self._until.enter_context(asked(self._runner.spark, query, given))
        others = {name: partial(self._read, name) for name in slicing.columns if name != anchor}
        return {anchor: lambda: found.select(f"{ROW}.*"), **others}

    def _read(self, name: str) -> Any:
        return frame_of(self._runner.spark, readable(self._at[name], self._slot), self._runner.cores)

    def _some(self, frame: Any, name: str) -> Any:
        """The columns that tell keys and joins; one at least, for the rows to count."""
        names = list(self._slicing.matched[name]) or self._schemas[name].names[:1]
        return frame.select(*(F.col(quoted(each)) for each in names))

    def _changes(self, name: str, after: int) -> Any:
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
