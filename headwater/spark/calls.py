"""What the JVM may ask of its Python worker: one row per operation, JSON in, JSON out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from headwater.errors import TableVersionNotFoundError
from headwater.spark import stream
from headwater.spark.catalog import Connection, connect
from headwater.spark.jobs import JOBS
from headwater.spark.sink import commit_batch
from headwater.tables import changes
from headwater.tables import scan as scans
from headwater.tables.handle import TableHandle
from headwater.tables.partition_list import list_partitions
from headwater.tables.prune import may_match
from headwater.tables.rowlevel import commit_delta, delete_where, overwrite, overwrite_partitions
from headwater.tables.translate import NoDataError, translating

Json = dict[str, Any]

_connections: dict[str, Connection] = {}
_lock = threading.Lock()


def connection(call: Json) -> Connection:
    """The connection of a catalog's options, made once per process."""
    key = json.dumps(call["catalog"], sort_keys=True)
    with _lock:
        if key not in _connections:
            _connections[key] = connect(call["catalog"])
        return _connections[key]


def _table(call: Json) -> TableHandle:
    return TableHandle.from_json(call["table"])


def _newest(call: Json) -> TableHandle:
    """The call's table at its newest version; the location is the one the query started with."""
    table = _table(call)
    return table.at(connection(call).open(table).version)


def _definition(call: Json) -> tuple[list[str], Json, dict[str, str], list[Json]]:
    return call["id"], call["schema"], call["properties"], call.get("partitioning") or []


def _plan(call: Json) -> list[Json]:
    return scans.plan(scans.Scan.from_json(call["scan"]), call["parallelism"])


def _matching_rows(call: Json) -> int:
    """At most so many rows a scan can find, as far as partitions tell."""
    scan = scans.Scan.from_json(call["scan"])
    return sum(fragment.num_rows for fragment in may_match(scan.table.open(), scan.prune))


def _count(call: Json) -> int:
    return scans.count(scans.Scan.from_json(call["scan"]))


def _append(call: Json) -> int:
    return connection(call).committer.append(_table(call), call["fragments"], {})


def _commit_staged(call: Json) -> int:
    return connection(call).commit_staged(_table(call), call["arrow"], call["fragments"])


def _commit_delta(call: Json) -> int:
    return commit_delta(connection(call).committer, _table(call), call["deleted"], call["added"])


def _commit_batch(call: Json) -> int:
    return commit_batch(
        connection(call), _table(call), call["stream"], call["batch"], call["fragments"], call["truncate"]
    )


def _overwrite(call: Json) -> int:
    return overwrite(
        connection(call).committer, _table(call), call["filter"], call["fragments"], prune=call.get("prune")
    )


def _overwrite_partitions(call: Json) -> int:
    return overwrite_partitions(connection(call).committer, _table(call), call["fragments"])


def _delete_where(call: Json) -> int:
    return delete_where(connection(call).committer, _table(call), call["filter"], call.get("prune"))


# Streams -------------------------------------------------------------------------------------------------------------


def _stream_initial(call: Json) -> stream.Offset:
    table = _newest(call)
    start = stream.initial(table.open(), call["options"])
    _protect(call, start)
    return start


def _stream_newest(call: Json) -> int:
    return int(connection(call).open(_table(call)).version)


def _stream_latest(call: Json) -> stream.Offset:
    newest = call.get("last") or _stream_newest(call)
    limits = (call.get("max_versions"), call.get("max_rows"))
    return stream.latest(
        _table(call), newest, call["start"], call["options"], *limits, changes=bool(call.get("changes"))
    )


def _stream_plan(call: Json) -> list[Json]:
    start, end = call["start"], call["end"]
    if call["scan"].get("changes"):
        table = _table(call).at(end["version"])
        return changes.plan(table, start["version"] + 1, end["version"], call["parallelism"])
    skip = stream.option(call["options"], "skipChangeCommits") == "true"
    return stream.plan(_table(call), start, end, call["parallelism"], skip, call["scan"].get("prune"))


def _stream_done(call: Json) -> None:
    _protect(call, call["end"])


def _protect(call: Json, offset: stream.Offset) -> None:
    """The query has read up to here: keep this version and all after it.

    A version that another client cleaned up meanwhile cannot be tagged: the tag stays where it is, and keeps more.
    """
    if offset["version"] < 1 or stream.option(call["options"], "protect") == "false":
        return
    try:
        _table(call).at(offset["version"]).open()
    except (TableVersionNotFoundError, NoDataError):
        return
    stream.move_tag(
        connection(call).open(_table(call)), stream.tag_of(stream.CONSUMER, call["checkpoint"]), offset["version"]
    )


# Changes and jobs ----------------------------------------------------------------------------------------------------


def _changes_plan(call: Json) -> list[Json]:
    table = _table(call)
    first, last = changes.bounds(table, call["range"])
    return changes.plan(table, first, last, call["parallelism"])


def _job_plan(call: Json) -> Json:
    table = _newest({**call, "table": connection(call).find(call["id"]).to_json()})
    with translating(table, f"plan to {call['job']}"):
        tasks = JOBS[call["job"]].plan(table, call["arguments"], call["parallelism"])
    return {"table": table.to_json(), "tasks": tasks}


def _job_run(call: Json) -> Any:
    with translating(_table(call), f"run {call['job']} on"):
        return JOBS[call["job"]].run(_table(call), call["task"])


def _job_commit(call: Json) -> Json:
    with translating(_table(call), f"commit {call['job']} to"):
        return JOBS[call["job"]].commit(connection(call), _table(call), call["arguments"], call["results"])


CALLS: dict[str, Callable[[Json], Any]] = {
    "list_namespaces": lambda call: connection(call).list_namespaces(call["id"]),
    "describe_namespace": lambda call: connection(call).describe_namespace(call["id"]),
    "create_namespace": lambda call: connection(call).create_namespace(call["id"], call["properties"]),
    "alter_namespace": lambda call: connection(call).alter_namespace(call["id"], call["properties"], call["removed"]),
    "drop_namespace": lambda call: connection(call).drop_namespace(call["id"], call["cascade"]),
    "list_tables": lambda call: connection(call).list_tables(call["id"]),
    "load_table": lambda call: connection(call).load_table(call["id"], call.get("version"), call.get("micros")),
    "create_table": lambda call: connection(call).create_table(*_definition(call)),
    "stage_create": lambda call: connection(call).stage_create(*_definition(call)),
    "stage_replace": lambda call: connection(call).stage_replace(*_definition(call)),
    "commit_staged": _commit_staged,
    "drop_table": lambda call: connection(call).drop_table(call["id"]),
    "rename_table": lambda call: connection(call).rename_table(call["id"], call["new_id"]),
    "alter_table": lambda call: connection(call).alter_table(call["id"], call["changes"]),
    "plan": _plan,
    "matching_rows": _matching_rows,
    "partitions": lambda call: list_partitions(_table(call)),
    "count": _count,
    "check_search": lambda call: scans.check_search(_table(call), call["search"]),
    "append": _append,
    "overwrite": _overwrite,
    "overwrite_partitions": _overwrite_partitions,
    "delete_where": _delete_where,
    "commit_delta": _commit_delta,
    "commit_batch": _commit_batch,
    "stream_initial": _stream_initial,
    "stream_newest": _stream_newest,
    "stream_latest": _stream_latest,
    "stream_plan": _stream_plan,
    "stream_done": _stream_done,
    "changes_plan": _changes_plan,
    "job_plan": _job_plan,
    "job_run": _job_run,
    "job_commit": _job_commit,
}
