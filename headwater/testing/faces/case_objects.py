"""Objects that the cases are asked of, their routes, and the outcome of a verb: all that can be seen after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.metastore.records.objects import LogEntry
from headwater.names import format_name

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
MORE_ROWS = pa.table({"id": [4], "name": ["d"]})
EVENTS: dict[str, str] = {"id": "bigint", "name": "string", "at": "bigint"}
MORE_EVENTS = pa.table({"id": [1, 3], "name": ["z", "c"], "at": [2, 2]})
Facts = Mapping[str, str]


def nothing(catalog: Catalog, base: str) -> None:
    """The namespace of the case alone."""


def a_table(catalog: Catalog, base: str) -> None:
    catalog.create_table(f"{base}.t", ROWS)


def two_versions(catalog: Catalog, base: str) -> None:
    """A table of two versions, the first of which has a tag."""
    table = catalog.create_table(f"{base}.t", ROWS)
    table.append([{"id": 4, "name": "d"}])
    table.tags["old"] = 1


def a_namespace(catalog: Catalog, base: str) -> None:
    catalog.create_namespace(f"{base}.a", {"team": "ann"})
    catalog.create_table(f"{base}.a.t", ROWS)


def a_dropped_table(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog.drop_table(f"{base}.t")


def a_dropped_namespace(catalog: Catalog, base: str) -> None:
    a_namespace(catalog, base)
    catalog.drop_namespace(f"{base}.a", cascade=True)


def a_stream(catalog: Catalog, base: str) -> None:
    """A stream table with events of one source that are not published, a history and a quarantined row."""
    table = catalog.create_stream_table(f"{base}.s", EVENTS, keys="id", sequence="at", properties={"history": "scd2"})
    rows = [{"id": 1, "name": "a", "at": 1}, {"id": 2, "name": "b", "at": 1}, {"id": None, "name": "c", "at": 1}]
    table.ingest(rows, source="feed")


def a_published_stream(catalog: Catalog, base: str) -> None:
    a_stream(catalog, base)
    catalog[f"{base}.s"].publish()


def a_second_version(catalog: Catalog, base: str) -> None:
    """A stream table with a table version beside its active one."""
    a_published_stream(catalog, base)
    catalog[f"{base}.s"].table_versions.create("2", schema={"id": "text"}, keys="id")


def a_dropped_stream(catalog: Catalog, base: str) -> None:
    a_published_stream(catalog, base)
    catalog.drop_table(f"{base}.s")


def a_changed_table(catalog: Catalog, base: str) -> Facts:
    """Return a table and a transaction that changed its rows, to be undone."""
    a_table(catalog, base)
    catalog[f"{base}.t"].append([{"id": 4, "name": "d"}])
    return {"txn": list(catalog.log(catalog.slot - 1))[-1].txn}


def an_alias(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog.alias(f"{base}.t", "other")


def an_identified_part(catalog: Catalog, base: str) -> Facts:
    """Return a stream table, and the key of its first partition."""
    a_published_stream(catalog, base)
    return {"key": next(each.key for each in catalog.objects(f"{base}.s") if each.kind == "partition")}


def a_snapshot(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog.snapshot(f"{base}-end", [f"{base}.t"])


def a_branch(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog[f"{base}.t"].branches.create("trial")


def route(kind: str, name: str, tail: str) -> str:
    """Return a route of the Lance document about an object below the namespace of the case."""
    return f"/v1/{kind}/{{base}}{'$' if name else ''}{name}/{tail}"


def own_route(kind: str, name: str, tail: str) -> str:
    """Return a route of ours about such an object."""
    return f"/headwater{route(kind, name, tail)}"


def picked(field: str) -> Callable[[Any], list[Any]]:
    """Return one field of every record of an answer: objects, dictionaries, or a dictionary around a list of them."""

    def pick(answer: Any) -> list[object]:
        if isinstance(answer, Mapping) and field not in answer:
            answer = next(value for value in answer.values() if isinstance(value, list))
        records = [answer] if isinstance(answer, Mapping) else answer
        return [record[field] if isinstance(record, Mapping) else getattr(record, field) for record in records]

    return pick


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
    tool: tuple[str, Mapping[str, object]] | None = None
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
    audit: object
    code: int | None
    error: str | None
    answer: Any = None


def state_of(catalog: Catalog, base: str) -> dict[str, object]:
    """Return every name below a namespace with properties, rows, columns, versions, tags and branches."""
    found: dict[str, object] = {}
    for name in _namespaces(catalog, base):
        found[f"{name.removeprefix(base)}/"] = catalog.namespace_properties(name)
        for table in catalog.tables(name):
            full = f"{name}.{format_name((table,))}"
            found[full.removeprefix(base)] = _table(catalog, full)
    snapshots = [item.name.removeprefix(base) for item in catalog.snapshots() if item.name.startswith(base)]
    return {**found, "snapshots": snapshots}


def log_of(entries: Sequence[LogEntry], base: str) -> list[object]:
    """Return the author and the changes of each transaction, without ids, times and numbers of commits."""
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
    told: dict[str, object] = {
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
