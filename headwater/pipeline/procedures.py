"""CALL system.publish, ingest, undo and collect: jobs of the pipeline as procedures.

They run in the worker of the driver, with the runner of the jar that called. `headwater.spark.calls` names them.
"""

from __future__ import annotations

from headwater.catalog.transactions import metastore_of
from headwater.pipeline import children
from headwater.pipeline.jobs import ingest, publish, stream_of
from headwater.spark.catalog import Connection
from headwater.spark.stream_writes import catalog_at
from headwater.tables.handle import TableHandle
from headwater.work import Json, Runner

MORE = tuple(f"table{number}" for number in range(2, 9))
"""The further tables that one publish may name."""


def publish_tables(runner: Runner, connection: Connection, table: TableHandle, arguments: Json) -> Json:
    """Publish tables in one slot, and return the report of the first."""
    names = [table.name, *(arguments[name] for name in MORE if arguments.get(name))]
    done = publish(runner, catalog_at(connection.home), *names)
    first = done.parts[0] if done.parts else done
    return {"rows": done.rows, "late": done.late, "position": first.position, "version": first.version}


def ingest_files(runner: Runner, connection: Connection, table: TableHandle, arguments: Json) -> Json:
    format = arguments.get("format") or "rows"
    done = ingest(runner, catalog_at(connection.home), table.name, arguments["source"], format, arguments.get("name"))
    return {name: getattr(done, name) for name in ("rows", "files", "quarantined", "skipped", "position")}


def undo_source(runner: Runner, connection: Connection, table: TableHandle, arguments: Json) -> Json:
    done = children.undo_source(
        runner, catalog_at(connection.home), table.name, arguments.get("source"), arguments.get("file")
    )
    return {"position": done.position, "version": done.version}


def collect_log(runner: Runner, connection: Connection, table: TableHandle, arguments: Json) -> Json:
    """Deltas of a log that nothing needs any more (`log_retention`), then files of the catalog past its retention."""
    catalog = catalog_at(connection.home)
    stream = stream_of(catalog, table.name)
    dropped = stream.collect()
    removed = metastore_of(catalog.namespace).metastore.collect()
    return {"deltas": len(dropped), "files": removed.data + removed.published, "position": stream.position}
