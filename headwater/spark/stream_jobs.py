"""CALL system.publish, ingest, undo and collect: jobs of the pipeline as procedures, done by the driver."""

from __future__ import annotations

from typing import Any

from headwater.catalog.streams import CatalogStream
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError
from headwater.pipeline.jobs import ingest, publish, undo
from headwater.spark.catalog import Connection
from headwater.spark.stream_ddl import catalog_at
from headwater.tables.handle import TableHandle

Json = dict[str, Any]
MORE = tuple(f"table{number}" for number in range(2, 9))
"""The further tables that one publish may name."""


def publish_tables(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    """All at one slot; what the call answers is of the first."""
    names = [table.name, *(arguments[name] for name in MORE if arguments.get(name))]
    done = publish(None, catalog_at(connection.lake), *names)
    first = done.parts[0] if done.parts else done
    return {"rows": done.rows, "late": done.late, "position": first.position, "version": first.version}


def ingest_files(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    format = arguments.get("format") or "rows"
    done = ingest(None, catalog_at(connection.lake), table.name, arguments["source"], format, arguments.get("name"))
    return {name: getattr(done, name) for name in ("rows", "files", "quarantined", "skipped", "position")}


def undo_source(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    done = undo(None, catalog_at(connection.lake), table.name, arguments.get("source"), arguments.get("file"))
    return {"position": done.position, "version": done.version}


def collect_log(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    """Deltas of a log that nothing needs any more (`log_retention`), then files of the catalog past its retention."""
    catalog = catalog_at(connection.lake)
    stream = catalog[table.name]
    if not isinstance(stream, CatalogStream):
        raise InvalidInputError(f"{table.name} is not a stream table: it has no log. Use system.cleanup.")
    dropped = stream.collect()
    removed = metastore_of(catalog.namespace).metastore.collect()
    return {"deltas": len(dropped), "files": removed.data + removed.published, "position": stream.position}
