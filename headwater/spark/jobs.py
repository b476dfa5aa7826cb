"""Maintenance as procedures: the driver plans tasks, executors do them, the driver makes one commit.

Each job is a row of `JOBS`: `plan` (tasks as JSON; none when the driver does it all), `run` (one task, on an
executor), `commit` (the results to one row for the caller).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lance
from lance.file import LanceFileSession
from lance.optimize import Compaction, RewriteResult

from headwater.errors import InvalidInputError, TableColumnNotFoundError, TableIndexAlreadyExistsError
from headwater.spark.catalog import Connection, schema_from
from headwater.spark.stream import unread_from
from headwater.tables import compact
from headwater.tables.fields import dimension, require_field
from headwater.tables.fill import commit_column, fill_fragment
from headwater.tables.handle import TableHandle
from headwater.tables.index_options import completed
from headwater.tables.scan import Extent, whole_fragments
from headwater.tables.segments import segment_from_json, segment_to_json
from headwater.tables.translate import translating

Json = dict[str, Any]
SCALAR = ("BTREE", "BITMAP", "LABEL_LIST", "INVERTED", "NGRAM", "ZONEMAP", "BLOOMFILTER")
MERGED_ROWS = 20_000_000
VECTOR = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ", "IVF_HNSW_PQ", "IVF_HNSW_FLAT", "IVF_RQ")


@dataclass(frozen=True)
class Job:
    plan: Callable[[TableHandle, Json, int], list[Json]]
    run: Callable[[TableHandle, Json], Any]
    commit: Callable[[Connection, TableHandle, Json, list[Any]], Json]


def _nothing(table: TableHandle, task: Json) -> None:
    raise InvalidInputError("This job has no tasks for executors.")


# compact -------------------------------------------------------------------------------------------------------------


def _plan_compact(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    return compact.plan(table, arguments.get("target_rows") or 1 << 20)


def _commit_compact(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    dataset = connection.open(table)
    names = ("fragments_removed", "fragments_added", "files_removed", "files_added")
    if not results:
        return {**dict.fromkeys(names, 0), "version": dataset.version}
    metrics = Compaction.commit(dataset, [RewriteResult.from_json(text) for text in results])
    return {**{name: getattr(metrics, name) for name in names}, "version": connection.open(table).version}


# create_index --------------------------------------------------------------------------------------------------------


def _plan_index(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    dataset = table.open()
    _check_index(dataset, table, arguments)
    metadata = [fragment.metadata for fragment in dataset.get_fragments()]
    extents = [Extent(fragment.id, fragment.num_rows) for fragment in metadata if fragment.num_rows]
    parts = whole_fragments(extents, max(1, parallelism // 2))
    options = _index_options(dataset, arguments, sum(each.rows for each in extents) // max(1, len(parts)))
    return [{**arguments, "options": options, "fragments": list(part)} for part in parts]


def _index_options(dataset: lance.LanceDataset, arguments: Json, rows: int) -> Json:
    """What the caller gave, completed for pieces of so many rows each."""
    kind, column = arguments["type"].upper(), arguments["column"]
    try:
        given = json.loads(arguments.get("options") or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise InvalidInputError('The options of an index are JSON, such as {"num_partitions": 16}.')
    if kind not in VECTOR:
        return given
    _, field = require_field(dataset.schema, column)
    size = dimension(field.type)
    if size is None:
        raise InvalidInputError(f"A {kind} index needs vectors, and the column {column!r} is {field.type}.")
    return completed(kind, given, rows, size)


def _check_index(dataset: lance.LanceDataset, table: TableHandle, arguments: Json) -> None:
    kind, column = arguments["type"].upper(), arguments["column"]
    if kind not in SCALAR + VECTOR:
        raise InvalidInputError(f"The index type {kind!r} is not known. Use one of {', '.join(SCALAR + VECTOR)}.")
    if column.split(".")[0] not in dataset.schema.names:
        raise TableColumnNotFoundError(f"The table {table.name!r} has no column {column!r}.")
    name = index_name(arguments)
    if any(index["name"] == name for index in dataset.list_indices()):
        raise TableIndexAlreadyExistsError(f"The table {table.name!r} has an index {name!r} already; drop it first.")


def index_name(arguments: Json) -> str:
    return str(arguments.get("name") or f"{arguments['column']}_idx".replace(".", "_"))


def _run_index(table: TableHandle, task: Json) -> Json:
    kind = task["type"].upper()
    with translating(table, f"create a {kind} index on", otherwise=InvalidInputError):
        segment = table.open().create_index_uncommitted(
            task["column"], kind, name=index_name(task), fragment_ids=task["fragments"], **task["options"]
        )
    return segment_to_json(segment)


def _commit_index(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    built = [segment_from_json(value) for value in results]
    segments = _merged(table, built) if arguments["type"].upper() == "BTREE" else built
    dataset = connection.open(table)
    if segments:
        dataset.commit_existing_index_segments(index_name(arguments), arguments["column"], segments)
    if segments is not built:
        _remove_segments(table, built)
    return {"index_name": index_name(arguments), "segments": len(segments), "version": dataset.version}


def _merged(table: TableHandle, built: list[Any]) -> list[Any]:
    """One segment in place of several, because a lookup asks every segment.

    A large table keeps them: the driver would merge alone for longer than its executors built.
    """
    dataset = table.open()
    if len(built) < 2 or dataset.count_rows() > MERGED_ROWS:
        return built
    return [dataset.merge_existing_index_segments(built)]


def _remove_segments(table: TableHandle, built: list[Any]) -> None:
    """The merged segments' own files, which no version names."""
    session = LanceFileSession(table.uri, table.storage_options or None)
    for segment in built:
        for file in segment.files or []:
            session.delete_file(f"_indices/{segment.uuid}/{file.path}")


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
    return {"fragments": len(results), "version": commit_column(connection.committer, table, results)}


# cleanup, rollback, drop_index: the driver alone ---------------------------------------------------------------------


def _no_tasks(table: TableHandle, arguments: Json, parallelism: int) -> list[Json]:
    return []


def _cleanup(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
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
    limit = dt.datetime.now(dt.UTC) - age
    return [
        row["version"]
        for row in dataset.versions()
        if row["version"] < unread and row["timestamp"].astimezone(dt.UTC) < limit
    ]


def _rollback(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    dataset = connection.open(table).checkout_version(int(arguments["version"]))
    dataset.restore()
    return {"version": dataset.version}


def _drop_index(connection: Connection, table: TableHandle, arguments: Json, results: list[Any]) -> Json:
    dataset = connection.open(table)
    dataset.drop_index(arguments["name"])
    return {"version": dataset.version}


JOBS: dict[str, Job] = {
    "compact": Job(_plan_compact, compact.run, _commit_compact),
    "create_index": Job(_plan_index, _run_index, _commit_index),
    "backfill": Job(_plan_backfill, _run_backfill, _commit_backfill),
    "cleanup": Job(_no_tasks, _nothing, _cleanup),
    "rollback": Job(_no_tasks, _nothing, _rollback),
    "drop_index": Job(_no_tasks, _nothing, _drop_index),
}
