"""What the tables of these tests begin with, and what they hold."""

from __future__ import annotations

import pyarrow as pa

ROWS = pa.table({"id": [1, 2, 3]})
FIELDS: list[tuple[str, pa.DataType]] = [("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())]
SCHEMA = pa.schema(FIELDS)


def names(rows: pa.Table) -> dict[object, object]:
    return dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))
