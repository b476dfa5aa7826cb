"""A Python function as the values of a column: what it is called with, and what may come back. No Spark, no Lance.

A plain function is called with one Arrow array per column and answers the values: an Arrow array, a pandas series, a
numpy array (two-dimensional for vectors) or a list. A function made by Spark's `udf`, `pandas_udf` or `arrow_udf` is
called as Spark calls it: with single values, with pandas series, with Arrow arrays, or with an iterator of those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.serving.user_functions import Iterating
from headwater.types import convert

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


def filler(function: Function, columns: list[str], field: Any) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The function over the batches of one fragment, in order; an iterator of Spark's lives that long."""
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


def _array(values: Any, target: Any) -> Any:
    """The answer of a function as an Arrow array of the column's type; InvalidInput if a value does not fit."""
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
