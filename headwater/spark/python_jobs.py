"""Jobs that are started from Python, because they carry a Python function: planned here, run on executors, one commit.

They work in every kind of session, also under Connect and without the jar. This process plans and commits, so it must
reach the catalog and the table's storage itself.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.names import parse_name
from headwater.spark.access_file import ACCESS_FILE, ENVIRONMENT, options_of, read_access
from headwater.spark.procedures import JarSession
from headwater.spark.protocol import TaskRun
from headwater.spark.python_functions import Function, filler, function_of
from headwater.types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Json = dict[str, Any]
REDACTED = "(redacted)"


def backfill(
    spark: SparkSession,
    table: str,
    column: str,
    value: Any,
    *,
    columns: Sequence[str] = (),
    type: Any = None,
    rows: int | None = None,
) -> Json:
    """Add a column to a table and fill it: `backfill(spark, "lake.a.t", "length", f, columns=["body"], type="int")`.

    `value` is a Python function of the columns named (see `headwater.spark.python_functions`) or an expression in
    Lance's SQL. `type` is a Spark type (`"array<float>"`) or an Arrow type (`pa.list_(pa.float32(), 384)` makes a
    vector); a function made by Spark's `udf` has one already. `rows` is how many rows a call gets at most. Rows written
    by others while it runs have NULL in the new column.
    """
    from headwater.spark.calls import ask

    name, *id = parse_name(table)
    call: Json = {"catalog": catalog_options(spark, name), "job": "backfill"}
    arguments: Json = {"column": column, "expression": value if isinstance(value, str) else None}
    field = None
    if not isinstance(value, str):
        field = pa.field(column, _type_of(value, type))
        arguments["arrow"] = pa.schema([field]).serialize().to_pybytes().hex()
    planned = ask("job_plan", **call, id=id, arguments=arguments, parallelism=1)
    function = function_of(value) if field is not None else None
    run = _runner(planned, function, _columns(function, columns), field, rows)
    results = distribute(spark, len(planned["tasks"]), run)
    done: Json = ask("job_commit", **call, table=planned["table"], arguments=arguments, results=results)
    return done


def _columns(function: Function | None, columns: Sequence[str]) -> list[str]:
    if function is not None and not columns:
        raise InvalidInputError("Name the columns the function takes: columns=[...].")
    return list(columns)


def _type_of(value: Any, given: Any) -> Any:
    """The Arrow type of the new column: told, or the one a function of Spark's declares."""
    from pyspark.sql.types import DataType

    kind = given if given is not None else getattr(value, "returnType", None)
    if kind is None:
        raise InvalidInputError("Give the type of the new column: type='double', or an Arrow type.")
    if isinstance(kind, pa.DataType):
        return kind
    found = DataType.fromDDL(kind) if isinstance(kind, str) else kind
    return arrow_type(json.loads(found.json()))


def catalog_options(spark: SparkSession, name: str) -> dict[str, str]:
    """How to reach a catalog of the session: as `configure` was told in this process, or as the session's settings say.

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


def _runner(
    planned: Json, function: Function | None, columns: list[str], field: Any, rows: int | None
) -> Callable[[int], Json]:
    """One task by its number, as an executor does it."""

    def run(number: int) -> Json:
        from headwater.spark.protocol import table_of
        from headwater.tables.columns.backfill import fill_fragment

        task, table = planned["tasks"][number], table_of(planned["table"])
        if function is None:
            return fill_fragment(table, task["fragment"], {task["column"]: task["expression"]})
        return fill_fragment(table, task["fragment"], filler(function, columns, field), columns, field, rows)

    return run


def distribute(
    spark: SparkSession | JarSession,
    tasks: int,
    run: Callable[[int], Json],
    told: Callable[[int], TaskRun] | None = None,
) -> list[Json]:
    """Run tasks on executors, one partition each; a task that is tried twice leaves a file that nothing refers to.

    The function travels to executors pickled, as every function of Spark's does; what comes back is JSON in Arrow. To
    those of a procedure no function travels, but what `told` says.
    """
    if not tasks:
        return []
    if isinstance(spark, JarSession):
        assert told is not None, "this job is no procedure's"
        return spark.distribute([told(number) for number in range(tasks)])

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_numpy().tolist():
                yield pa.RecordBatch.from_pydict({"result": [json.dumps(run(number))]})

    frame: Any = spark.range(0, tasks, 1, tasks)
    with warnings.catch_warnings():  # of PySpark's about the version of pandas, which no batch here goes through
        warnings.simplefilter("ignore", FutureWarning)
        answers = frame.mapInArrow(work, "result string")
    return [json.loads(row[0]) for row in answers.collect()]
