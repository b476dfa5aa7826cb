"""The serving copy follows its table's schema: columns are dropped, renamed, widened and added by staged versions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headwater.imports import lance
from headwater.streams.definition import Definition
from headwater.streams.reading.position_views import Published
from headwater.streams.serving.serving_copy import Lake, Staging
from headwater.streams.stream_lookup import Stream

PASSING = "__hw_passing_"


def published_columns(definition: Definition) -> tuple[tuple[int, str], ...]:
    """Field ids and names, as a publish remembers them."""
    return tuple((column.id, column.name) for column in definition.columns)


def is_widened(stream: Stream, dataset: lance.LanceDataset, before: Published) -> bool:
    """Return True if Lance casts the values of a column, which reads every row."""
    known, there = dict(before.columns), dataset.schema
    columns = [column for column in stream.definition.columns if known.get(column.id) in there.names]
    return any(there.field(known[column.id]).type != column.type for column in columns)


def evolve_copy(lake: Lake, stream: Stream, staging: Staging, dataset: lance.LanceDataset, before: Published) -> None:
    """Give the dataset the present columns. Each step is a staged version on top of the one before."""
    definition, known = stream.definition, dict(before.columns)
    present = {column.id for column in definition.columns}
    dropped = [name for id, name in before.columns if id not in present]
    dropped += _other_derived(dataset, definition, before)
    if dropped:
        dataset.drop_columns(dropped)
    _rename(dataset, {known[c.id]: c.name for c in definition.columns if known.get(c.id, c.name) != c.name})
    for column in definition.columns:
        if column.id in known and dataset.schema.field(column.name).type != column.type:
            _widen(dataset, column.name, column.type)
    added = [column.field for column in definition.columns if column.id not in known]
    computed = {each.name for each in before.derived}
    new = [field.name for field in added] + [each.name for each in definition.derived if each.name not in computed]
    _rename(dataset, _set_aside(dataset.schema.names, new))
    added += [definition.shown[each.name] for each in definition.derived if each.name not in dataset.schema.names]
    if added:
        dataset.add_columns(pa.schema(added))


def _other_derived(dataset: lance.LanceDataset, definition: Definition, before: Published) -> list[str]:
    """Derived columns that are no more, or are of another type."""
    wanted = {each.name: each.type for each in definition.derived}
    return [each.name for each in before.derived if wanted.get(each.name) != dataset.schema.field(each.name).type]


def _set_aside(there: Sequence[str], wanted: Sequence[str]) -> dict[str, str]:
    """New names of columns that clients added under names that the table has now: theirs have a number."""
    taken, names = {*there, *wanted}, dict[str, str]()
    for name in wanted:
        if name in there:
            names[name] = next(new for number in itertools.count(1) if (new := f"{name}_{number}") not in taken)
            taken.add(names[name])
    return names


def _rename(dataset: Any, names: dict[str, str]) -> None:
    """Rename columns, by way of other names where one takes a name that another has."""
    if set(names) & set(names.values()):
        passing = {old: f"{PASSING}{place}" for place, old in enumerate(names)}
        dataset.alter_columns(*({"path": old, "name": new} for old, new in passing.items()))
        names = {passing[old]: new for old, new in names.items()}
    if names:
        dataset.alter_columns(*({"path": old, "name": new} for old, new in names.items()))


def _widen(dataset: Any, name: str, kind: pa.DataType) -> None:
    """Widen a column and drop its indices: Lance casts no indexed column. The publish rebuilds a key index."""
    for index in dataset.describe_indices():
        if name in index.field_names:
            dataset.drop_index(index.name)
    wider = _wider(name, dataset.schema.field(name).type, kind)
    dataset.alter_columns(*({"path": path, "data_type": each} for path, each in wider))


def _wider(path: str, old: Any, new: Any) -> Iterator[tuple[str, object]]:
    """Return the fields to cast, by path: Lance casts no struct, but its fields."""
    if not pa.types.is_struct(new):
        yield path, new
        return
    for field in new:
        if old.field(field.name).type != field.type:
            yield from _wider(f"{path}.`{field.name}`", old.field(field.name).type, field.type)
