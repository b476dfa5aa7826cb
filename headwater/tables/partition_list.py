"""SHOW PARTITIONS: the partitions that have rows, as text.

Names of data files tell them; only fragments of unknown partition, and values a name holds no more than the digest of,
are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.imports import lance
from headwater.tables.handle import TableHandle
from headwater.tables.partition_write import parted
from headwater.tables.partitions import PartitionField, field_ids, partitioning, parts_of, transformed

UNITS = {"years": "Y", "months": "M", "days": "D", "hours": "h"}
Wanted = Sequence[tuple[int, PartitionField]]
Values = tuple[str | None, ...]


def list_partitions(table: TableHandle) -> list[list[str | None]]:
    """The values of each partition, in the order of the partition fields; sorted, null first."""
    dataset = table.open()
    ids = field_ids(dataset)
    wanted = [(ids[field.column], field) for field in partitioning(dataset.schema)]
    found: set[Values] = set()
    for fragment in dataset.get_fragments():
        if fragment.metadata.num_rows:
            found.update(_of_fragment(dataset, fragment, wanted))
    return [
        list(values) for values in sorted(found, key=lambda each: [(value is not None, value or "") for value in each])
    ]


def _of_fragment(dataset: lance.LanceDataset, fragment: Any, wanted: Wanted) -> Iterator[Values]:
    kinds = [dataset.schema.field(field.column).type for _, field in wanted]
    known = {(part.field, part.transform, part.width): part for part in parts_of(fragment.metadata)}
    parts = [known.get((id, field.transform, field.width)) for id, field in wanted]
    told = [part.value for part in parts if part is not None and part.digest is None]
    if len(told) == len(wanted):
        yield _texts(told, wanted, kinds)
        return
    rows = fragment.to_table(columns=list({field.column for _, field in wanted}))
    for _, group in parted(rows, wanted):
        first = [group.column(field.column).slice(0, 1).combine_chunks() for _, field in wanted]
        columns = zip(first, wanted, strict=True)
        read = [transformed(array, field.transform, field.width)[0].as_py() for array, (_, field) in columns]
        yield _texts(read, wanted, kinds)


def _texts(values: Sequence[Any], wanted: Wanted, kinds: Sequence[Any]) -> Values:
    return tuple(_text(value, field, kind) for value, (_, field), kind in zip(values, wanted, kinds, strict=True))


def _text(value: Any, field: PartitionField, kind: Any) -> str | None:
    """A partition value as people write it: 2020-01 for a month, 2020-01-31 for a day."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool):
        return str(value).lower()
    unit = UNITS.get(field.transform)
    if field.transform == "identity":
        unit = "D" if kind == pa.date32() else "us" if pa.types.is_timestamp(kind) else None
    if unit is not None:
        return str(np.array(value).astype(f"datetime64[{unit}]"))
    return str(value * field.width if field.transform == "truncate" else value)
