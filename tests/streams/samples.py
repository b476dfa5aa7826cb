"""Stream tables as tests make them, and what they hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headwater.metastore import Metastore
from headwater.streams.table import StreamTable


def orders(metastore: Metastore, **changed: Any) -> StreamTable:
    options: dict[str, Any] = {"keys": "id", "sequence": "at", **changed}
    return StreamTable.create(metastore, ["orders"], {"id": "int64", "at": "int64", "note": "string"}, **options)


def values(table: pa.Table, name: str) -> list[Any]:
    found: list[Any] = table[name].to_pylist()
    return sorted(found)


def rows_of(table: StreamTable) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=lambda row: int(row["id"]))
