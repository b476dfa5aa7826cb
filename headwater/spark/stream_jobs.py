"""CALL system.publish, system.ingest, system.undo: the jobs of the pipeline as procedures, done by the driver."""

from __future__ import annotations

import json
from typing import Any

from headwater.catalog import Catalog
from headwater.errors import UnsupportedOperationError
from headwater.pipeline.jobs import ingest, publish, undo
from headwater.spark.catalog import Connection
from headwater.tables.handle import TableHandle

Json = dict[str, Any]
MORE = tuple(f"table{number}" for number in range(2, 9))
"""The further tables that one publish may name."""


def _lake(connection: Connection) -> Catalog:
    if connection.lake is None:
        raise UnsupportedOperationError(
            "This session reaches its catalog through a server: publish and ingest where the catalog's storage is "
            "reached, with a session configured by root=, or the command line."
        )
    known = json.loads(connection.lake)
    storage = {f"storage.{key}": value for key, value in known["storage"].items()}
    return Catalog(known["root"], impl="metastore", **storage)


def publish_tables(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    """All at one slot; what the call answers is of the first."""
    names = [table.name, *(arguments[name] for name in MORE if arguments.get(name))]
    done = publish(None, _lake(connection), *names)
    first = done.parts[0] if done.parts else done
    return {"rows": done.rows, "late": done.late, "position": first.position, "version": first.version}


def ingest_files(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    format = arguments.get("format") or "rows"
    done = ingest(None, _lake(connection), table.name, arguments["source"], format, arguments.get("name"))
    return {name: getattr(done, name) for name in ("rows", "files", "quarantined", "skipped", "position")}


def undo_source(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    done = undo(None, _lake(connection), table.name, arguments.get("source"), arguments.get("file"))
    return {"position": done.position, "version": done.version}
