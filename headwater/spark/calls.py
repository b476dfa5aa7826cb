"""Handlers of the worker's protocol: one row per call, a struct in, a JSON value out.

A statement that reads tables and writes one is a serializable transaction, where the catalog has transactions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import msgspec
import pyarrow as pa

from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError, TableVersionNotFoundError
from headwater.names import format_name
from headwater.namespace.transactions.open_transactions import session_of
from headwater.spark import following, fresh, protocol, stream
from headwater.spark.catalog import Connection, connect, schema_from
from headwater.spark.fresh import opened
from headwater.spark.jobs import JOBS
from headwater.spark.protocol import Append, Commit
from headwater.spark.stream import commit_batch
from headwater.spark.stream_writes import catalog_at, check_reads, commit_created, commit_events, land_batch
from headwater.spark.wire_values import Json, Range, WireScan, WireTable, table_of
from headwater.tables.commit.committer import (
    TableCommitter,
    commit_delta,
    delete_where,
    overwrite,
    overwrite_partitions,
)
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import list_partitions
from headwater.tables.scan import changes as feed
from headwater.tables.scan import table_scan as scans
from headwater.tables.scan.parts import AnyPart, Appended, InitialScan, Positions, Rewritten, Tail
from headwater.tables.scan.table_scan import rows_left
from headwater.tables.translate import NoDataError, translating
from headwater.tables.write.data_files import write
from headwater.work import HERE, Runner
from headwater.work.tasks import named

STREAM_JOBS = {
    "publish": "headwater.pipeline.procedures:publish_tables",
    "ingest": "headwater.pipeline.procedures:ingest_files",
    "undo": "headwater.pipeline.procedures:undo_source",
    "collect": "headwater.pipeline.procedures:collect_log",
}
"""Jobs of stream tables by the name of their function: the pipeline is built on this package."""
_connections: dict[str, Connection] = {}
_lock = threading.Lock()


def answer(call: protocol.WorkerCall) -> Any:
    """Return the value that a call asks for."""
    return CALLS[type(call)](call)


def ask(operation: str, **arguments: object) -> Any:
    """Return a call from Python, checked as one of the jar's is; the answer as the jar gets it."""
    call: protocol.WorkerCall = msgspec.convert({"op": operation, **arguments}, protocol.AnyCall)
    return msgspec.to_builtins(answer(call))


NO_ROWS: Json = {"kind": "fragments", "fragments": []}
"""A part of no fragment: Spark's Python data source wants at least one."""


def read_part(scan: Json, part: Json, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows of a part that `ask` planned, on an executor."""
    if part == NO_ROWS:
        return iter(())
    return read_rows(msgspec.convert(scan, WireScan), msgspec.convert(part, AnyPart), schema)


def read_rows(scan: WireScan, part: AnyPart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows of a part in `schema`: of the log, of a fold, of the change feed, or of the Lance table."""
    if isinstance(part, InitialScan | Positions):
        return following.read_rows(scan, part, schema)
    if scan.is_folded or isinstance(part, Tail):
        return fresh.read_rows(scan, part, schema)
    if isinstance(part, Appended | Rewritten):
        return feed.read(scan.engine(), part, schema)
    return scans.read(scan.engine(), part, schema)


def write_rows(table: Json, rows: Iterable[pa.RecordBatch]) -> list[Json]:
    """Write data files of a table that `ask` loaded, on an executor."""
    return write(table_of(table), rows)


def connection(call: protocol.CatalogCall) -> Connection:
    """Return the connection of a catalog's options, made once per process."""
    key = json.dumps(call.catalog, sort_keys=True)
    with _lock:
        if key not in _connections:
            _connections[key] = connect(call.catalog)
        return _connections[key]


def _newest(call: protocol.CatalogCall, table: TableHandle) -> TableHandle:
    """Return a table at its newest version; the location is the one the query started with."""
    return table.at(connection(call).open(table).version)


def _definition(call: protocol.NewTable) -> tuple[list[str], Json, dict[str, str], list[Json]]:
    return call.id, call.schema, call.properties, msgspec.to_builtins(call.partitioning)


def _plan(call: protocol.PlanScan) -> Sequence[AnyPart]:
    if call.scan.is_folded:
        return fresh.plan(call.scan, call.parallelism, call.by_partition)
    return scans.plan(call.scan.engine(), call.parallelism, call.by_partition)


def _count(call: protocol.Count) -> int:
    return fresh.count_rows(call.scan) if call.scan.table.is_folded else scans.count(call.scan.engine())


def _partitions(call: protocol.Partitions) -> list[list[str | None]]:
    """Return the values of each partition, sorted, NULL first: of a stream table, those of its change log now."""
    table = call.table
    if not table.is_stream:
        return list_partitions(table.handle())
    objects, own = catalog_at(table.log.lake).objects(table.id), f"{table.log.id}/"
    found = [list(each.values.values()) for each in objects if each.values and each.key.startswith(own)]
    return sorted(found, key=lambda values: [(value is not None, value or "") for value in values])


def _check_search(call: protocol.CheckSearch) -> None:
    scans.check_search(call.table.handle(), msgspec.to_builtins(call.search))


# Commits -------------------------------------------------------------------------------------------------------------


def _append(call: protocol.Append) -> int:
    table = call.table.writable()
    return committed(connection(call), call, lambda committer: committer.append(table, call.fragments, {}))


def _commit_staged(call: protocol.CommitStaged) -> int:
    if call.table.is_new_stream:
        return commit_created(call)
    table, schema = call.table.writable(), schema_from(call.arrow)
    if table.version is None:
        return committed(connection(call), call, lambda committer: committer.create(table, schema, call.fragments))
    return committed(connection(call), call, lambda committer: committer.replace(table, schema, call.fragments))


def _commit_delta(call: protocol.CommitDelta) -> int:
    table = call.table.writable()
    return committed(connection(call), call, lambda found: commit_delta(found, table, call.deleted, call.added))


def _commit_batch(call: protocol.CommitBatch) -> int:
    if call.table.is_stream:
        return land_batch(call.table, call.stream, call.batch, call.fragments, call.truncate)
    table = call.table.writable()
    return commit_batch(connection(call), table, call.stream, call.batch, call.fragments, call.truncate)


def _overwrite(call: protocol.Overwrite) -> int:
    table, rows, prune = call.table.writable(), call.fragments, call.prune
    return committed(connection(call), call, lambda found: overwrite(found, table, call.filter, rows, prune=prune))


def _overwrite_partitions(call: protocol.OverwritePartitions) -> int:
    table = call.table.writable()
    return committed(connection(call), call, lambda found: overwrite_partitions(found, table, call.fragments))


def _delete_where(call: protocol.DeleteWhere) -> int:
    return delete_where(connection(call).committer, call.table.writable(), call.filter, call.prune)


# Streams and changes: a source is the versions of a Lance table, or the log of a stream table -------------------------


class ChangeSource(Protocol):
    """A table whose changes a query follows, or reads between two moments."""

    def initial(self, call: protocol.StreamInitial) -> stream.Offset: ...

    def newest(self, call: protocol.StreamCall) -> int: ...

    def latest(self, call: protocol.StreamLatest) -> stream.Offset: ...

    def plan(self, call: protocol.StreamPlan) -> Sequence[AnyPart]: ...

    def protect(self, call: protocol.StreamCall, offset: stream.Offset) -> None:
        """The query has read up to here: keep this version and all after it."""

    def plan_changes(self, call: protocol.ChangesPlan) -> Sequence[AnyPart]: ...


class LanceVersions:
    """The versions of a Lance table."""

    def initial(self, call: protocol.StreamInitial) -> stream.Offset:
        table = _newest(call, call.table.handle())
        return stream.marked(table, stream.initial(table.open(), call.options))

    def newest(self, call: protocol.StreamCall) -> int:
        return int(connection(call).open(call.table.handle()).version)

    def latest(self, call: protocol.StreamLatest) -> stream.Offset:
        newest, table = call.last or self.newest(call), call.table.handle()
        stream.check_same(table, newest, call.start)
        limits = (call.max_versions, call.max_rows)
        end = stream.latest(table, newest, call.start, call.options, *limits, changes=call.changes)
        return stream.marked(table, end, call.start)

    def plan(self, call: protocol.StreamPlan) -> Sequence[AnyPart]:
        start, end, table = call.start, call.end, call.table.handle()
        stream.check_same(table, end["version"], start, end)
        if call.scan.changes:
            return feed.plan(table.at(end["version"]), start["version"] + 1, end["version"], call.parallelism)
        skip = stream.option(call.options, "skipChangeCommits") == "true"
        return stream.plan(table, start, end, call.parallelism, skip, call.scan.prune)

    def protect(self, call: protocol.StreamCall, offset: stream.Offset) -> None:
        """A version that another client cleaned up meanwhile cannot be tagged: the tag stays, and keeps more."""
        if offset["version"] < 1 or stream.option(call.options, "protect") == "false":
            return
        table = call.table.handle()
        try:
            table.at(offset["version"]).open()
        except (TableVersionNotFoundError, NoDataError):
            return
        tag = stream.tag_of(stream.CONSUMER, call.checkpoint)
        stream.move_tag(connection(call).open(table), tag, offset["version"])

    def plan_changes(self, call: protocol.ChangesPlan) -> Sequence[AnyPart]:
        table = call.table.handle()
        first, last = feed.bounds(table, msgspec.to_builtins(call.range))
        return feed.plan(table, first, last, call.parallelism)


class LogPositions:
    """The positions of a stream table's log, in this process or behind a server."""

    def initial(self, call: protocol.StreamInitial) -> stream.Offset:
        return following.initial(call.table, call.options, call.changes)

    def newest(self, call: protocol.StreamCall) -> int:
        return following.newest(call.table)

    def latest(self, call: protocol.StreamLatest) -> stream.Offset:
        limits = (call.max_versions, call.max_rows)
        return following.latest(call.table, call.start, call.options, call.changes, call.last, *limits)

    def plan(self, call: protocol.StreamPlan) -> Sequence[AnyPart]:
        return following.plan(call.table, call.start, call.end, call.options, call.changes, call.parallelism)

    def protect(self, call: protocol.StreamCall, offset: stream.Offset) -> None:
        following.protect(call.table, call.checkpoint, call.options, offset)

    def plan_changes(self, call: protocol.ChangesPlan) -> Sequence[AnyPart]:
        return following.plan_changes(call.table, call.range, call.parallelism)


def _source(table: WireTable) -> ChangeSource:
    return LogPositions() if table.is_stream else LanceVersions()


def _stream_initial(call: protocol.StreamInitial) -> stream.Offset:
    source = _source(call.table)
    start = source.initial(call)
    source.protect(call, start)
    return start


def _changes_plan(call: protocol.ChangesPlan) -> Sequence[AnyPart]:
    _check_order(call.range)
    return _source(call.table).plan_changes(call)


def _check_order(asked: Range) -> None:
    """Error 13 for a range that ends before it begins."""
    if asked.start_micros is not None:
        is_turned = asked.end_micros is not None and asked.end_micros < asked.start_micros
        told = "this time to that one"
    else:
        start, end = asked.start or "", asked.end or ""
        is_turned = start.isdigit() and end.isdigit() and int(end) < int(start)
        told = f"version {start} to version {end}"
    if is_turned:
        raise InvalidInputError(f"There are no changes from {told}: the range ends before it begins. Turn it around.")


# Jobs ----------------------------------------------------------------------------------------------------------------


def _job_plan(call: protocol.JobPlan) -> Json:
    found = connection(call).find(call.id)
    if call.job in STREAM_JOBS:  # which need no published version, and ask for tasks when they know them
        return {"table": found.to_json(), "tasks": []}
    if call.job == "rollback":
        connection(call).refuse_rollback(call.id)
    table = _newest(call, found)
    with translating(table, f"plan to {call.job}"):
        tasks = JOBS[call.job].plan(table, call.arguments, call.parallelism)
    return {"table": table.to_json(), "tasks": tasks}


def _job_run(call: protocol.JobRun) -> object:
    table = call.table.handle()
    with translating(table, f"run {call.job} on"):
        return JOBS[call.job].run(table, call.task)


def commit_job(call: protocol.JobCommit, runner: Runner = HERE) -> Json:
    """Commit a job; the runner runs the tasks of one of stream tables."""
    table = call.table.handle()
    if call.job in STREAM_JOBS:
        with translating(table, f"{call.job} of"):
            done: Json = named(STREAM_JOBS[call.job])(runner, connection(call), table, call.arguments)
            return done
    with translating(table, f"commit {call.job} to"):
        return JOBS[call.job].commit(connection(call), table, call.arguments, call.results)


CALLS: dict[type[protocol.WorkerCall], Callable[[Any], Any]] = {
    protocol.ListNamespaces: lambda call: connection(call).list_namespaces(call.id),
    protocol.DescribeNamespace: lambda call: connection(call).describe_namespace(call.id),
    protocol.CreateNamespace: lambda call: connection(call).create_namespace(call.id, call.properties),
    protocol.AlterNamespace: lambda call: connection(call).alter_namespace(call.id, call.properties, call.removed),
    protocol.DropNamespace: lambda call: connection(call).drop_namespace(call.id, call.cascade),
    protocol.ListTables: lambda call: connection(call).list_tables(call.id),
    protocol.LoadTable: lambda call: connection(call).load_table(call.id, call.version, call.micros),
    protocol.CreateTable: lambda call: connection(call).create_table(*_definition(call)),
    protocol.StageCreate: lambda call: connection(call).stage_create(*_definition(call)),
    protocol.StageReplace: lambda call: connection(call).stage_replace(*_definition(call)),
    protocol.CommitStaged: _commit_staged,
    protocol.DropTable: lambda call: connection(call).drop_table(call.id),
    protocol.RenameTable: lambda call: connection(call).rename_table(call.id, call.new_id),
    protocol.AlterTable: lambda call: connection(call).alter_table(call.id, call.changes),
    protocol.PlanScan: _plan,
    protocol.MatchingRows: lambda call: rows_left(call.scan.engine(), call.used),
    protocol.Count: _count,
    protocol.Partitions: _partitions,
    protocol.CheckSearch: _check_search,
    protocol.Append: _append,
    protocol.Overwrite: _overwrite,
    protocol.OverwritePartitions: _overwrite_partitions,
    protocol.DeleteWhere: _delete_where,
    protocol.CommitDelta: _commit_delta,
    protocol.CommitEvents: commit_events,
    protocol.CommitBatch: _commit_batch,
    protocol.StreamInitial: _stream_initial,
    protocol.StreamNewest: lambda call: _source(call.table).newest(call),
    protocol.StreamLatest: lambda call: _source(call.table).latest(call),
    protocol.StreamPlan: lambda call: _source(call.table).plan(call),
    protocol.StreamDone: lambda call: _source(call.table).protect(call, call.end),
    protocol.ChangesPlan: _changes_plan,
    protocol.JobPlan: _job_plan,
    protocol.JobRun: _job_run,
    protocol.JobCommit: commit_job,
}


Answer = TypeVar("Answer")


def committed(connection: Connection, call: Commit, act: Callable[[TableCommitter], Answer]) -> Answer:
    """Commit to a Lance table. If others were read, all of it is one transaction: they are as they were, or it is 14.

    A statement that has read its own table alone needs none: its commit is pinned to the version that was read.
    """
    target, is_append = call.table.id, isinstance(call, Append)
    others = [each for each in call.reads if is_append or each.id != target]
    if not others or connection.lake is None:
        return act(connection.committer)
    with catalog_at(connection.lake).transaction(f"write {format_name(target)}") as inside:
        namespace = metastore_of(inside.namespace)
        session = session_of(namespace)
        check_reads(session.tx, opened(connection.lake).uri, others)
        is_blind = is_append and all(each.id != target for each in others)
        with session.appending() if is_blind else nullcontext():
            return act(TableCommitter(namespace))
