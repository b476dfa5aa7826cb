"""Backfill of a new column: executors write a data file for each fragment, and the driver commits all of them.

A backfill may take long, so its commit accepts newer versions. Rows deleted meanwhile stay deleted. Rows written
meanwhile (an append, the new state of an update) have NULL in the new column. A rewrite of fragments, columns or the
schema is a conflict: the backfill then changes nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError, LanceNamespaceError
from headwater.imports import lance
from headwater.retry import retry
from headwater.tables.commit.committer import TableCommitter, fragment_from
from headwater.tables.commit.history import committed
from headwater.tables.handle import TableHandle

if TYPE_CHECKING:
    from lance.schema import LanceSchema

Json = dict[str, Any]
ATTEMPTS = 10
HARMLESS = ("Append", "Delete", "Update", "CreateIndex", "ReserveFragments")


def fill_fragment(
    table: TableHandle,
    fragment: int,
    values: Mapping[str, str] | Callable[[pa.RecordBatch], pa.RecordBatch],
    columns: list[str] | None = None,
    field: Any = None,
    rows: int | None = None,
) -> Json:
    """Write the new column of one fragment: SQL expressions by name, or a function of its batches."""
    found = table.open().get_fragment(fragment)
    made = dict(values) if isinstance(values, Mapping) else lance.udf.BatchUDF(values, output_schema=pa.schema([field]))
    metadata, schema = found.merge_columns(made, columns=columns, batch_size=rows)
    return {"fragment": metadata.to_json(), "schema": schema_to_json(schema)}


def commit_column(committer: TableCommitter, table: TableHandle, results: list[Json], clock: Clock) -> int:
    """Commit the written column to the newest version of the table."""
    schema = schema_from_json(results[0]["schema"])

    def look() -> tuple[TableHandle, lance.LanceOperation.Merge]:
        newest = table.at(committer.open(table).version)
        fragments = with_files(table, newest, [result["fragment"] for result in results])
        return newest, lance.LanceOperation.Merge([fragment_from(value) for value in fragments], schema)

    return retry(clock, ATTEMPTS, look, lambda seen: committer.other(*seen))


def schema_to_json(schema: LanceSchema) -> Json:
    """Return a schema with its field ids as JSON, around pylance's protobuf messages."""
    _, (metadata, *fields) = schema.__reduce__()
    return {"metadata": metadata, "fields": [base64.b64encode(field).decode() for field in fields]}


def schema_from_json(value: Json) -> LanceSchema:
    return lance.schema.LanceSchema._from_protos(
        value["metadata"], *(base64.b64decode(field) for field in value["fields"])
    )


def with_files(table: TableHandle, newest: TableHandle, filled: list[Json]) -> list[Json]:
    """Return the fragments of the newest version, with the new data files of those that were filled."""
    for version in range((table.version or 0) + 1, (newest.version or 0) + 1):
        _require_harmless(table, version)
    before = _fragments(table)
    now = _fragments(newest)
    for fragment in filled:
        found = now.get(fragment["id"])
        if found is None:  # all its rows were deleted or updated
            continue
        old = {file["path"] for file in before[fragment["id"]]["files"]}
        if {file["path"] for file in found["files"]} != old:
            raise _conflict(table, "columns were rewritten")
        found["files"] = [*found["files"], *(file for file in fragment["files"] if file["path"] not in old)]
    return list(now.values())


def _require_harmless(table: TableHandle, version: int) -> None:
    try:
        name = committed(table.at(version).open(), version).operation
    except (LanceNamespaceError, OSError, ValueError):
        raise _conflict(table, f"version {version} was cleaned up") from None
    if name not in HARMLESS:
        raise _conflict(table, f"{name} in version {version}")


def _fragments(table: TableHandle) -> dict[int, Json]:
    return {fragment.fragment_id: fragment.metadata.to_json() for fragment in table.open().get_fragments()}


def _conflict(table: TableHandle, what: str) -> ConcurrentModificationError:
    return ConcurrentModificationError(
        f"The table {table.name!r} was rewritten by another writer ({what}) while the column was filled. Nothing was "
        "written; run it again."
    )
