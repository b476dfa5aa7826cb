"""Maintenance as procedures: the driver plans tasks, executors do them, the driver makes one commit.

Each job is a row of `JOBS`: `plan` (tasks as JSON; none when the driver does it all), `run` (one task, on an
executor), `commit` (the results to one row for the caller).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lance
from lance.optimize import Compaction, RewriteResult

from headwater.clock import SystemClock
from headwater.errors import InvalidInputError
from headwater.spark.catalog import Connection, schema_from
from headwater.spark.stream import unread_from
from headwater.spark.wire_values import Json
from headwater.tables import indices
from headwater.tables.columns.alter import commit_column, fill_fragment
from headwater.tables.commit import committer as compact
from headwater.tables.commit.history import timestamps
from headwater.tables.handle import TableHandle


@dataclass(frozen=True)
class Job:
    """Work on executors: its tasks by the driver, one of them on an executor, what comes of all in one commit."""

    plan: Callable[[TableHandle, Json, int], list[Json]]
    run: Callable[[TableHandle, Json], Any]
    commit: Callable[[Connection, TableHandle, Json, list[Any]], Json]


def _nothing(table: TableHandle, task: Json) -> None:
    raise InvalidInputError("This job has no tasks for executors.")


# compact -------------------------------------------------------------------------------------------------------------


def _plan_compact(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    return compact.plan(table, arguments.get("target_rows") or 1 << 20)


def _commit_compact(connection: Connection, table: TableHandle, arguments: Json, results: list[object]) -> Json:
    dataset = connection.open(table)
    names = ("fragments_removed", "fragments_added", "files_removed", "files_added")
    if not results:
        return {**dict.fromkeys(names, 0), "version": dataset.version}
    metrics = Compaction.commit(dataset, [RewriteResult.from_json(text) for text in results])
    return {**{name: getattr(metrics, name) for name in names}, "version": connection.open(table).version}


# create_index --------------------------------------------------------------------------------------------------------


def _plan_index(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    dataset = table.open()
    parts = indices.divided(dataset, max(1, parallelism // 2))
    rows = dataset.count_rows() // max(1, len(parts))
    index = _index(table, dataset, arguments, rows)
    return [{"index": dataclasses.asdict(index), "fragments": part} for part in parts]


def _index(table: TableHandle, dataset: lance.LanceDataset, arguments: Json, rows: int) -> indices.NewIndex:
    name = arguments.get("name") or indices.default_name(arguments["column"])
    kind = indices.index_type(arguments["type"])
    return indices.new_index(table, dataset, arguments["column"], kind, name, _options(arguments), rows)


def _options(arguments: Json) -> Json:
    try:
        given = json.loads(arguments.get("options") or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidInputError('The options of an index are JSON, such as {"num_partitions": 16}.')
    return given


def _run_index(table: TableHandle, task: Json) -> Json:
    return indices.build_piece(table, indices.NewIndex(**task["index"]), task["fragments"])


def _commit_index(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    dataset = connection.open(table)
    index = _index(table, table.open(), arguments, 0)
    segments = indices.commit_pieces(table, dataset, index, results)
    return {"index_name": index.name, "segments": segments, "version": dataset.version}


# backfill ------------------------------------------------------------------------------------------------------------


def _plan_backfill(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    dataset = table.open()
    if arguments["column"] in dataset.schema.names:
        raise InvalidInputError(f"The table {table.name!r} has a column {arguments['column']!r} already.")
    return [{**arguments, "fragment": fragment.fragment_id} for fragment in dataset.get_fragments()]


def _run_backfill(table: TableHandle, task: Json) -> Json:
    return fill_fragment(table, task["fragment"], {task["column"]: task["expression"]})


def _commit_backfill(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    if not results:
        dataset = connection.open(table)
        empty = arguments.get("arrow")
        dataset.add_columns(schema_from(empty) if empty else {arguments["column"]: arguments["expression"]})
        return {"fragments": 0, "version": dataset.version}
    return {"fragments": len(results), "version": commit_column(connection.committer, table, results, SystemClock())}


# cleanup, rollback, drop_index: the driver alone ---------------------------------------------------------------------


def _no_tasks(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    return []


def _cleanup(connection: Connection, table: TableHandle, arguments: Json, results: list[object]) -> Json:
    """Versions older than so many hours go, except tagged ones and those a stream has not read.

    `leftovers` also removes files of jobs that never committed, whatever their age: only when no job is running.
    """
    dataset = connection.open(table)
    hours = arguments.get("older_than_hours")
    age = dt.timedelta(hours=14 * 24 if hours is None else hours)
    unread = unread_from(dataset)
    options: Json = {"older_than": age}
    if unread is not None:
        options = {"versions": _older(dataset, age, unread)}
    stats = dataset.cleanup_old_versions(
        **options, delete_unverified=bool(arguments.get("leftovers")), error_if_tagged_old_versions=False
    )
    return {
        "bytes_removed": stats.bytes_removed,
        "old_versions": stats.old_versions,
        "kept_from_version": unread if unread is not None else -1,
    }


def _older(dataset: lance.LanceDataset, age: dt.timedelta, unread: int) -> list[int]:
    limit = dt.datetime.fromtimestamp(SystemClock().now_ms() / 1000, dt.UTC) - age
    return [version for version, time in timestamps(dataset).items() if version < unread and time < limit]


def _rollback(connection: Connection, table: TableHandle, arguments: Json, results: list[object]) -> Json:
    dataset = connection.open(table).checkout_version(int(arguments["version"]))
    dataset.restore()
    return {"version": dataset.version}


def _drop_index(connection: Connection, table: TableHandle, arguments: Json, results: list[object]) -> Json:
    dataset = connection.open(table)
    indices.drop(table, dataset, arguments["name"])
    return {"version": dataset.version}


JOBS: dict[str, Job] = {
    "compact": Job(_plan_compact, compact.run, _commit_compact),
    "create_index": Job(_plan_index, _run_index, _commit_index),
    "backfill": Job(_plan_backfill, _run_backfill, _commit_backfill),
    "cleanup": Job(_no_tasks, _nothing, _cleanup),
    "rollback": Job(_no_tasks, _nothing, _rollback),
    "drop_index": Job(_no_tasks, _nothing, _drop_index),
}
