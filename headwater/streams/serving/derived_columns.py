"""Derived columns: values that a publish computes from other columns of a row, for rows whose inputs changed only.

When a function changes (see user_functions), rows keep the old function's value and are stale
until they are written again; which they are is told by their fragments, since a publish writes rows into new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import InvalidInputError
from headwater.streams.definition import Definition, Derived
from headwater.streams.reading.fresh_reads import same_rows
from headwater.streams.reading.position_views import Computed, Published
from headwater.streams.serving.staged_rows import Changes, stale_rows
from headwater.streams.serving.user_functions import called, identity, load
from headwater.types import convert

BATCH = 1 << 14
Identify = Callable[[Derived], str]


def compute(derived: Derived, rows: pa.Table) -> Any:
    """Return the values for some rows. The function gets one Arrow array for each input, a batch at a time."""
    function, own = load(derived), identity(derived) if rows.num_rows else ""
    what = f"The function {derived.function!r} of {derived.of}"
    parts: list[Any] = [pa.nulls(0, derived.type)]
    for start in range(0, rows.num_rows, BATCH):
        batch = rows.slice(start, BATCH)
        inputs = [_array(batch.column(name)) for name in derived.inputs]
        parts.append(_values(derived, called(function, own, inputs, what), batch.num_rows))
    return pa.concat_arrays(parts)


def _array(column: object) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _values(derived: Derived, answer: Any, rows: int) -> Any:
    try:
        if isinstance(answer, np.ndarray):
            answer = list(answer)
        array = _array(answer) if isinstance(answer, (pa.Array, pa.ChunkedArray)) else pa.array(answer, derived.type)
        array = convert(array, derived.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"The function of the derived column {derived.name!r} answered values that are not {derived.type}: {error}"
        ) from None
    if len(array) != rows:
        raise InvalidInputError(
            f"The function of the derived column {derived.name!r} answered {len(array)} values for {rows} rows."
        )
    return array


def with_derived(definition: Definition, dataset: object, changes: Changes, known: Sequence[Computed]) -> pa.Table:
    """Return changed rows with derived columns, computed where an input or the function changed, else as before."""
    rows = changes.rows
    before = {each.name: each for each in known}
    for derived in definition.derived:
        same = before.get(derived.name)
        needed = np.ones(rows.num_rows, bool)
        fresh = same is not None and same.stale_to < 0 and same.identity == identity(derived)
        if dataset is not None and fresh:  # while there are stale rows, every row that is written is computed
            needed = _needed(derived, changes)
        values = compute(derived, changes.rows.take(np.flatnonzero(needed)))
        if not needed.all():
            values = _filled(dataset, derived, changes, needed, values)
        rows = rows.append_column(pa.field(derived.name, derived.type), values)
    return rows


def _needed(derived: Derived, changes: Changes) -> npt.NDArray[np.bool_]:
    needed = np.ones(changes.rows.num_rows, bool)
    kept = np.flatnonzero(changes.ids >= 0)
    inputs = list(derived.inputs)
    needed[kept] = ~same_rows(changes.rows.take(kept).select(inputs), changes.before.select(inputs))
    return needed


def _filled(dataset: Any, derived: Derived, changes: Changes, needed: Any, values: Any) -> Any:
    """Return the computed values and the old ones of other rows, in the order of the rows."""
    ids = changes.ids[~needed].tolist()
    old = dataset._take_rows(ids, columns=[derived.name]).column(derived.name)
    order = np.empty(len(needed), np.int64)
    order[np.flatnonzero(needed)] = np.arange(len(values))
    order[np.flatnonzero(~needed)] = len(values) + np.arange(len(ids))
    return pa.concat_arrays([values, _array(old)]).take(pa.array(order))


def computed(
    definition: Definition, before: Published | None, dataset: Any, identify: Identify = identity
) -> tuple[Computed, ...]:
    """Return the derived columns as a publish on top of `dataset` records them; a new function makes all rows stale."""
    known = {each.name: each for each in (before.derived if before is not None else ())}
    last = (
        max((fragment.fragment_id for fragment in dataset.get_fragments()), default=-1) if dataset is not None else -1
    )
    made = []
    for derived in definition.derived:
        own, old = identify(derived), known.get(derived.name)
        if old is None or old.identity != own:
            old = Computed(derived.name, own, last)
        elif old.stale_to >= 0 and not stale_rows(dataset, old):
            old = Computed(derived.name, own)
        made.append(old)
    return tuple(made)


def renewed(definition: Definition, before: Published, dataset: object, identify: Identify = identity) -> Published:
    """Return the published state by the present functions: values of an older function are stale."""
    now = {each.name: each for each in computed(definition, before, dataset, identify)}
    known = {each.name: each for each in before.derived}
    return replace(before, derived=tuple({**known, **now}.values()))
