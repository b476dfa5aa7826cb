"""What a Lance dataset says of itself: versions with sizes, fragments and files. Manifests are read, never rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from lance_namespace import DescribeTableRequest

from headwater.imports import lance
from headwater.names import ObjectId
from headwater.tables.handle import TableHandle
from headwater.web.visit import Visit


@dataclass(frozen=True)
class VersionSize:
    """One version and how much it holds."""

    version: int
    time_ms: int | None
    rows: int
    bytes: int
    fragments: int
    added: int


@dataclass(frozen=True)
class Versions:
    """The newest versions of a table, and how many there are."""

    items: list[VersionSize]
    total: int


def opened(visit: Visit, id: ObjectId) -> lance.LanceDataset:
    """The table as it is now, for a visitor who may describe it."""
    visit.ask("DescribeTable", id)
    namespace = visit.served.namespace
    told = namespace.describe_table(DescribeTableRequest(id=list(id.names), with_table_uri=True))
    client = namespace if told.managed_versioning else None
    uri = str(told.table_uri or told.location)
    return TableHandle(id, uri, dict(told.storage_options or {}), client).open()


def schema_of(visit: Visit, id: ObjectId) -> pa.Schema:
    schema: pa.Schema = opened(visit, id).schema
    return schema


def versions_of(visit: Visit, id: ObjectId, most: int) -> Versions:
    """The newest versions that the catalog knows, oldest first."""
    listed = visit.ask("ListTableVersions", id, limit=most, descending=True).get("versions") or []
    times = {int(one["version"]): one.get("timestamp_millis") for one in listed}
    found: list[VersionSize] = []
    everything = opened(visit, id).versions()
    for one in sorted(everything, key=lambda item: int(item["version"])):
        told: dict[str, str] = one.get("metadata") or {}
        number, rows = int(one["version"]), int(told.get("total_rows") or 0)
        if number in times:
            before = found[-1].rows if found else 0
            size, fragments = int(told.get("total_files_size") or 0), int(told.get("total_fragments") or 0)
            found.append(VersionSize(number, times[number] or _ms(one), rows, size, fragments, rows - before))
    return Versions(found, len(everything))


def _ms(one: dict[str, Any]) -> int | None:
    time = one.get("timestamp")
    return int(time.astimezone(dt.UTC).timestamp() * 1000) if isinstance(time, dt.datetime) else None


def fragments_of(visit: Visit, id: ObjectId, most: int, keeps: Callable[..., bool]) -> dict[str, Any]:
    """The fragments of the newest version that are wanted, each with its rows, deletions and files."""
    dataset = opened(visit, id)
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    shown = [
        {
            "id": one.id,
            "rows": one.num_rows,
            "deleted": one.num_deletions or 0,
            "bytes": sum(file.file_size_bytes or 0 for file in one.files),
            "files": [(file.path, file.file_size_bytes) for file in one.files],
        }
        for one in fragments
        if keeps(one.id, *(file.path for file in one.files))
    ][:most]
    largest = max((one["rows"] for one in shown), default=0) or 1
    return {"fragments": shown, "total": len(fragments), "largest": largest, "version": dataset.version}
