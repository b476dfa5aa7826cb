"""A verb asked through one door, and everything that can be seen afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.metastore.records.objects import LogEntry
from headwater.names import format_name

Ask = Callable[[Catalog, Mapping[str, str]], Any]
"""A call in Python: the catalog, and the facts of the preparation, `base` among them."""


@dataclass(frozen=True)
class Case:
    """One verb, in the words of each face that has it.

    `{base}` in a text stands for the namespace of the case. A face without the verb is None.

    `python`: the call; its answer is compared where other faces answer too.
    `prepare`: makes the objects that the verb is asked of; may return more facts to fill into texts.
    `cli`: words of the command line.
    `rest`: path and JSON body, or rows that are sent as Arrow.
    `page`: path of a form and its fields.
    `sql`: a statement of Spark SQL over the catalog `{lake}`.
    `tool`: a tool for agents and its arguments.
    `answer`: makes the answers of the faces comparable.
    `in_transaction`: False for a verb that a transaction refuses.
    `changes`: False for a verb that only reads.
    `code`: the error that the verb ends in, if it is refused.
    `role`: the role of who asks for it; only the doors of the server know roles.
    """

    name: str
    python: Ask
    prepare: Callable[[Catalog, str], Mapping[str, str] | None]
    cli: tuple[str, ...] | None = None
    rest: tuple[str, Mapping[str, Any] | pa.Table] | None = None
    page: tuple[str, Mapping[str, str]] | None = None
    sql: str | None = None
    tool: tuple[str, Mapping[str, Any]] | None = None
    answer: Callable[[Any], Any] | None = None
    in_transaction: bool = True
    changes: bool = True
    code: int | None = None
    role: str = "admin"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Outcome:
    """The observable effects of one call.

    `state`: the objects below the case's namespace.
    `log`: authors and changes of the transactions that the call made.
    `message`: the messages of those transactions; a transaction of the caller has its own.
    `audit`: changing operations that the server noted, with what was allowed; None without a server.
    """

    state: Any
    log: Any
    message: Sequence[str] | None
    audit: Any
    code: int | None
    error: str | None
    answer: Any = None


def state_of(catalog: Catalog, base: str) -> dict[str, Any]:
    """Every name below a namespace with properties, rows, columns, versions, tags and branches."""
    found: dict[str, Any] = {}
    for name in _namespaces(catalog, base):
        found[f"{name.removeprefix(base)}/"] = catalog.namespace_properties(name)
        for table in catalog.tables(name):
            full = f"{name}.{format_name((table,))}"
            found[full.removeprefix(base)] = _table(catalog, full)
    snapshots = [item.name.removeprefix(base) for item in catalog.snapshots() if item.name.startswith(base)]
    return {**found, "snapshots": snapshots}


def log_of(entries: Sequence[LogEntry], base: str) -> list[Any]:
    """The author and the changes of each transaction, without ids, times and numbers of commits."""
    return [
        [
            entry.author,
            sorted(
                [item.operation, item.kind, ".".join(item.path).removeprefix(base), item.position or 0]
                for item in entry.changes
            ),
        ]
        for entry in entries
    ]


def _namespaces(catalog: Catalog, parent: str) -> list[str]:
    found = [parent]
    for name in catalog.namespaces(parent):
        found += _namespaces(catalog, f"{parent}.{name}")
    return found


def _table(catalog: Catalog, name: str) -> dict[str, Any]:
    table = catalog[name]
    rows = [{key: value for key, value in row.items() if key != "time"} for row in table.to_arrow().to_pylist()]
    told: dict[str, Any] = {
        "columns": [str(field) for field in table.to_arrow().schema],
        "rows": sorted(json.dumps(row, default=str, sort_keys=True) for row in rows),
    }
    if table.is_stream:
        told |= {"position": table.position, "published": getattr(table.published, "position", None)}
    else:
        told |= {
            "versions": [version.version for version in table.versions()],
            "tags": sorted(table.tags),
            "branches": sorted(table.branches),
            "indices": sorted(table.indices),
            "properties": {key: value for key, value in table.properties.items() if "." not in key},
        }
    return told
