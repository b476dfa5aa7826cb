"""What the JVM may ask of its Python worker: one row per operation, JSON in, JSON out."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from headwater.spark import scan as scans
from headwater.spark.catalog import Connection, connect
from headwater.spark.rowlevel import commit_delta, delete_where, overwrite
from headwater.spark.tables import TableRef

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


def _table(call: Json) -> TableRef:
    return TableRef.from_json(call["table"])


def _plan(call: Json) -> list[Json]:
    return scans.plan(scans.Scan.from_json(call["scan"]), call["parallelism"])


def _count(call: Json) -> int | None:
    """count(*) of a scan; None when its filter needs a scan that executors should share."""
    return scans.count(scans.Scan.from_json(call["scan"]))


def _count_part(call: Json) -> int:
    return scans.count_part(scans.Scan.from_json(call["scan"]), call["part"])


def _append(call: Json) -> int:
    return connection(call).committer.append(_table(call), call["fragments"], call.get("properties") or {})


def _commit_staged(call: Json) -> int:
    return connection(call).commit_staged(_table(call), call["arrow"], call["fragments"])


def _commit_delta(call: Json) -> int:
    return commit_delta(connection(call).committer, _table(call), call["deleted"], call["added"])


def _overwrite(call: Json) -> int:
    return overwrite(connection(call).committer, _table(call), call["filter"], call["fragments"])


def _delete_where(call: Json) -> int:
    return delete_where(connection(call), _table(call), call["filter"])


CALLS: dict[str, Callable[[Json], Any]] = {
    "list_namespaces": lambda call: connection(call).list_namespaces(call["id"]),
    "describe_namespace": lambda call: connection(call).describe_namespace(call["id"]),
    "create_namespace": lambda call: connection(call).create_namespace(call["id"], call["properties"]),
    "drop_namespace": lambda call: connection(call).drop_namespace(call["id"], call["cascade"]),
    "list_tables": lambda call: connection(call).list_tables(call["id"]),
    "load_table": lambda call: connection(call).load_table(call["id"], call.get("version"), call.get("micros")),
    "create_table": lambda call: connection(call).create_table(call["id"], call["schema"], call["properties"]),
    "stage_create": lambda call: connection(call).stage_create(call["id"], call["schema"], call["properties"]),
    "stage_replace": lambda call: connection(call).stage_replace(call["id"], call["schema"], call["properties"]),
    "commit_staged": _commit_staged,
    "drop_table": lambda call: connection(call).drop_table(call["id"]),
    "rename_table": lambda call: connection(call).rename_table(call["id"], call["new_id"]),
    "alter_table": lambda call: connection(call).alter_table(call["id"], call["changes"]),
    "plan": _plan,
    "count": _count,
    "count_part": _count_part,
    "append": _append,
    "commit_delta": _commit_delta,
    "overwrite": _overwrite,
    "delete_where": _delete_where,
}
