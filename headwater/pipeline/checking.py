"""Checks of a pipeline file that touch no data: its views, functions and expectations, and its own tests of views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.pipeline.facts import infer_columns
from headwater.pipeline.file_values import naming_section
from headwater.pipeline.grammar import Pipeline, TableSpec, ViewSpec, ViewTest, in_order
from headwater.pipeline.planning import inputs_of
from headwater.pipeline.running import identified
from headwater.pipeline.view_tables import check_named
from headwater.pipeline.views import Run as RunSql
from headwater.pipeline.views import Say, naming_view, run_sql
from headwater.sql.embedded import opened
from headwater.sql.spark_parser import UnsupportedSqlError, table_names
from headwater.streams.definition import define
from headwater.streams.rows.column_casts import cast_values

spark_views = when_used("headwater.pipeline.spark_views")
SHOWN = 5
"""So many rows of a difference are shown."""


@dataclass(frozen=True)
class ViewTestResult:
    """Result of a test of a view: rows that it lacks, and rows that it has and should not; `error` if it failed."""

    name: str
    view: str
    lacks: tuple[Mapping[str, Any], ...] = ()
    extra: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None

    @property
    def passed(self) -> bool:
        return not (self.lacks or self.extra or self.error)


def check_pipeline(pipeline: Pipeline, say: Say = lambda text: None) -> None:
    """Raise InvalidInput (13) for a file that no run could carry out, without its catalog and its sources.

    `say` names the views that cannot be judged by the file alone: the columns of an input are not in it, or only Spark
    can run the SQL.
    """
    identified(pipeline, say)
    known = {spec.name: columns for spec in pipeline.tables if (columns := _columns(spec)) is not None}
    with naming_section(pipeline.file):
        for view in in_order(pipeline.views):
            inputs = table_names(view.sql)
            unknown = sorted(inputs - set(known))
            if unknown:
                say(f"{view.name} is not checked: the file does not tell the columns of {', '.join(unknown)}")
                continue
            try:
                with opened() as engine, naming_view(view, refuses=not pipeline.engine.is_spark):
                    rows = run_sql(engine, view.sql, {name: known[name].empty_table() for name in inputs})
            except UnsupportedSqlError as error:
                say(f"{view.name} is not checked: {error}")
                continue
            check_named(view, rows.schema.names)
            known[view.name] = rows.schema


def _columns(spec: TableSpec) -> pa.Schema | None:
    if spec.schema is None:
        return None
    return pa.schema(list(define(spec.schema, spec.keys, spec.sequence, (), spec.properties).shown.values()))


def try_views(pipeline: Pipeline, spark: object = None) -> list[ViewTestResult]:
    """Run the tests of a file, in a session of Spark or, without one, in this process."""
    if spark is not None:
        return [_tested(pipeline, test, partial(spark_views.slice_by_spark, spark)) for test in pipeline.tests]
    results = []
    for test in pipeline.tests:
        with opened() as engine:  # one each: an engine keeps the tables of a test
            results.append(_tested(pipeline, test, partial(run_sql, engine)))
    return results


def _tested(pipeline: Pipeline, test: ViewTest, run: RunSql) -> ViewTestResult:
    try:
        with naming_section(f"The test {test.name!r}"):
            rows = _result(pipeline, test, run)
            wanted = _typed(test.expect, {field.name: field.type for field in rows.schema}, test.view)
    except InvalidInputError as error:
        return ViewTestResult(test.name, test.view, error=str(error))
    names = list(dict.fromkeys(name for row in test.expect for name in row)) or rows.schema.names
    expected = wanted.select(names) if test.expect else rows.schema.empty_table()
    has, should = _counted(rows.select(names)), _counted(expected)
    lacks, extra = ([dict(row) for row in (a - b).elements()] for a, b in ((should, has), (has, should)))
    return ViewTestResult(test.name, test.view, tuple(lacks[:SHOWN]), tuple(extra[:SHOWN]))


def _counted(table: pa.Table) -> Counter[Any]:
    return Counter(tuple((name, _hashable(value)) for name, value in row.items()) for row in table.to_pylist())


def _hashable(value: object) -> Any:
    return repr(value) if isinstance(value, (list, dict)) else value


def _result(pipeline: Pipeline, test: ViewTest, run: RunSql) -> pa.Table:
    """Return the rows of the view, and before it of the views that it reads and that the test gives no rows of."""
    specs = {spec.name: spec for spec in pipeline.tables}
    tables = {name: _typed_rows(specs.get(name), name, rows) for name, rows in test.given.items()}
    names = {*specs, *tables, *(view.name for view in pipeline.views)}
    order = in_order(pipeline.views)
    view = next(each for each in order if each.name == test.view)
    for each in order[: order.index(view) + 1]:
        if each.name in tables and each is not view:
            continue
        inputs = inputs_of(each, names)
        if each is view or all(name in tables for name in inputs):
            tables[each.name] = _run(each, inputs, tables, specs, run)
    return tables[test.view]


def _run(
    view: ViewSpec, inputs: Sequence[str], tables: dict[str, pa.Table], specs: Mapping[str, TableSpec], run: RunSql
) -> pa.Table:
    for name in inputs:
        columns = _columns(specs[name]) if name in specs else None
        if name not in tables and columns is None:
            raise InvalidInputError(f"{view.name} reads {name}: give rows of it, or its schema.")
        if name not in tables and columns is not None:
            tables[name] = columns.empty_table()
    with naming_view(view):
        return run(view.sql, {name: tables[name] for name in inputs})


def _typed_rows(spec: TableSpec | None, name: str, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    columns = _columns(spec) if spec is not None else None
    if columns is None:
        columns = infer_columns(rows, (), ())
    return _typed(rows, {field.name: field.type for field in columns}, name)


def _typed(rows: Sequence[Mapping[str, Any]], types: Mapping[str, Any], where: str) -> pa.Table:
    """Return rows of a file as a table; a column that a row lacks is NULL in it."""
    arrays = []
    for row in rows:
        for name in row:
            if name not in types:
                raise InvalidInputError(f"{where} has no column {name!r}: {', '.join(types)}.")
    for name, kind in types.items():
        values, bad = cast_values([row.get(name) for row in rows], kind)
        if bad.any():
            raise InvalidInputError(f"{where}: {rows[int(bad.argmax())][name]!r} does not fit {name}, which is {kind}.")
        arrays.append(values)
    return pa.table(arrays, schema=pa.schema(list(types.items())))
