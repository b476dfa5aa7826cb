"""Jobs that are started from Python, because they carry a Python function: planned here, run on executors, one commit.

They work in every kind of session, also under Connect and without the jar. This process plans and commits, so it must
reach the catalog and the table's storage itself.

A plain function is called with one Arrow array per column and returns the values: an Arrow array, a pandas series, a
numpy array (two-dimensional for vectors) or a list. A function made by Spark's `udf`, `pandas_udf` or `arrow_udf` is
called as Spark calls it: with single values, with pandas series, with Arrow arrays, or with an iterator of those.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.imports import when_used
from headwater.names import parse_name
from headwater.spark.access_file import ACCESS_FILE, ENVIRONMENT, options_of, read_access
from headwater.spark.wire_values import Json, table_of
from headwater.streams.serving.derived_columns import Iterating
from headwater.tables.columns.alter import fill_fragment
from headwater.types import arrow_type, convert
from headwater.work import Task, runner_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

calls = when_used("headwater.spark.calls")
sql_types = when_used("pyspark.sql.types")
REDACTED = "(redacted)"


def backfill(
    spark: SparkSession,
    table: str,
    column: str,
    value: object,
    *,
    columns: Sequence[str] = (),
    type: object = None,
    rows: int | None = None,
) -> Json:
    """Add a column to a table and fill it: `backfill(spark, "lake.a.t", "length", f, columns=["body"], type="int")`.

    `value` is a Python function of the columns named (see the module) or an expression in
    Lance's SQL. `type` is a Spark type (`"array<float>"`) or an Arrow type (`pa.list_(pa.float32(), 384)` makes a
    vector); a function made by Spark's `udf` has one already. `rows` is how many rows a call gets at most. Rows written
    by others while it runs have NULL in the new column.
    """
    name, *id = parse_name(table)
    call: Json = {"catalog": catalog_options(spark, name), "job": "backfill"}
    arguments: Json = {"column": column, "expression": value if isinstance(value, str) else None}
    field = None
    if not isinstance(value, str):
        field = pa.field(column, _type_of(value, type))
        arguments["arrow"] = pa.schema([field]).serialize().to_pybytes().hex()
    planned = calls.ask("job_plan", **call, id=id, arguments=arguments, parallelism=1)
    function = function_of(value) if field is not None else None
    how = function, _columns(function, columns), field, rows
    tasks = [Task("headwater.spark.python_jobs:fill", (planned, at, *how)) for at in range(len(planned["tasks"]))]
    results = runner_of(spark).run(tasks)
    done: Json = calls.ask("job_commit", **call, table=planned["table"], arguments=arguments, results=results)
    return done


def _columns(function: Function | None, columns: Sequence[str]) -> list[str]:
    if function is not None and not columns:
        raise InvalidInputError("Name the columns the function takes: columns=[...].")
    return list(columns)


def _type_of(value: Any, given: Any) -> Any:
    """Return the Arrow type of the new column: told, or the one a function of Spark's declares."""
    kind = given if given is not None else getattr(value, "returnType", None)
    if kind is None:
        raise InvalidInputError("Give the type of the new column: type='double', or an Arrow type.")
    if isinstance(kind, pa.DataType):
        return kind
    found = sql_types.DataType.fromDDL(kind) if isinstance(kind, str) else kind
    return arrow_type(json.loads(found.json()))


def catalog_options(spark: SparkSession, name: str) -> dict[str, str]:
    """Return the options of a catalog of the session, from `configure` in this process or from its settings.

    A Connect server keeps tokens to itself and may be on another machine, so there this process must have been given
    its own.
    """
    prefix = f"spark.sql.catalog.{name}."
    settings = {key: str(value) for key, value in spark.conf.getAll.items() if key.startswith(prefix)}
    options = {key.removeprefix(prefix): value for key, value in settings.items()}
    if ACCESS_FILE in options and os.path.exists(options[ACCESS_FILE]):
        options = {"uri": options_of(options)["uri"], ACCESS_FILE: options[ACCESS_FILE]}
    told = os.environ.get(ENVIRONMENT + name)
    if told is not None and options.get("uri", own := read_access(told)["uri"]) == own:
        return {ACCESS_FILE: told}
    if not options.keys() & {"uri", ACCESS_FILE}:
        raise InvalidInputError(f"The session has no Headwater catalog {name!r}: give the table as catalog.name.")
    if "uri" not in options or any(REDACTED in value for value in options.values()):
        raise InvalidInputError(
            f"The session does not hand out the token of the catalog {name!r}. Call headwater.spark.configure() in "
            "this process, with a token of its own."
        )
    return options


def fill(planned: Json, number: int, function: Function | None, columns: list[str], field: Any, rows: Any) -> Json:
    """Fill the new column of one fragment on an executor."""
    task, table = planned["tasks"][number], table_of(planned["table"])
    if function is None:
        return fill_fragment(table, task["fragment"], {task["column"]: task["expression"]})
    return fill_fragment(table, task["fragment"], filler(function, columns, field), columns, field, rows)


ROW, PANDAS, PANDAS_ITERATOR, ARROW, ARROW_ITERATOR = "row", "pandas", "pandas iterator", "arrow", "arrow iterator"
_SPARK_KINDS = {100: ROW, 101: ROW, 200: PANDAS, 204: PANDAS_ITERATOR, 250: ARROW, 251: ARROW_ITERATOR}


@dataclass(frozen=True)
class Function:
    """A function and how it wants to be called. It travels to executors."""

    call: Callable[..., Any]
    kind: str = ARROW


def function_of(value: Any) -> Function:
    """Return the caller's function: a Spark function, recognized by its `evalType`, or a plain one."""
    if not callable(value):
        raise InvalidInputError("Give a function, a function made by Spark's udf or pandas_udf, or an SQL expression.")
    kind = getattr(value, "evalType", None)
    if kind is None:
        return Function(value)
    if kind not in _SPARK_KINDS:
        raise InvalidInputError("A column is filled row by row: give a scalar function, not one of groups or tables.")
    return Function(value.func, _SPARK_KINDS[kind])


def filler(
    function: Function, columns: list[str], field: pa.Field[pa.DataType]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return the function over the batches of one fragment, in order; an iterator of Spark's lives that long."""
    answers = _answers(function)

    def fill(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = _array(answers([batch.column(name) for name in columns]), field.type)
        if len(values) != batch.num_rows:
            raise InvalidInputError(f"The function answered {len(values)} values for {batch.num_rows} rows.")
        return pa.RecordBatch.from_arrays([values], schema=pa.schema([field]))

    return fill


def _answers(function: Function) -> Callable[[list[Any]], Any]:
    call = function.call
    if function.kind == ROW:
        return lambda arrays: [call(*row) for row in zip(*(array.to_pylist() for array in arrays), strict=True)]
    if function.kind == PANDAS:
        return lambda arrays: call(*(array.to_pandas() for array in arrays))
    if function.kind == ARROW:
        return lambda arrays: call(*arrays)
    iterating = Iterating(call)
    if function.kind == PANDAS_ITERATOR:
        return lambda arrays: iterating(*(array.to_pandas() for array in arrays))
    return lambda arrays: iterating(*arrays)


def _array(values: Any, target: object) -> Any:
    """Return the answer of a function as an Arrow array of the column's type; InvalidInput if a value does not fit."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if getattr(values, "ndim", 1) == 2:
        values = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    if isinstance(values, pa.Array):
        return convert(values, target)
    try:
        return pa.array(values, target, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidInputError(f"What the function answered does not fit the type {target}: {error}") from None
