"""A table described exactly, as Spark needs it: Lance's JSON schema loses timestamp units, zones and decimals.

Served as an extension at POST /headwater/v1/table/{id}/describe.
"""

from __future__ import annotations

from typing import Any

from lance_namespace import DescribeTableRequest, LanceNamespace

from headwater.errors import InvalidTableStateError
from headwater.names import ObjectId, format_name
from headwater.tables.handle import TableHandle, unread_rows
from headwater.types import spark_schema


def describe_exact(namespace: LanceNamespace, id: list[str]) -> dict[str, Any]:
    """The table's location, newest version, Spark schema (JSON form), Arrow schema (IPC, hex), rows and bytes."""
    answer = namespace.describe_table(DescribeTableRequest(id=id, with_table_uri=True))
    uri = answer.table_uri or answer.location
    if not uri:
        raise InvalidTableStateError(f"The catalog gives no location for the table {format_name(id)!r}.")
    client = namespace if answer.managed_versioning else None
    dataset = TableHandle(ObjectId(tuple(id)), uri, dict(answer.storage_options or {}), client).open()
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    return {
        "id": id,
        "location": uri,
        "version": dataset.version,
        "spark_schema": spark_schema(dataset.schema),
        "arrow_schema": dataset.schema.serialize().to_pybytes().hex(),
        "rows": sum(fragment.num_rows for fragment in fragments),
        "bytes": sum(file.file_size_bytes or 0 for fragment in fragments for file in fragment.files),
        "managed_versioning": bool(answer.managed_versioning),
        "unread_rows": unread_rows(format_name(id)) if dataset.mem_wal_index_details() is not None else None,
    }
