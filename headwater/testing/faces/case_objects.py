"""Objects that the cases are asked of, and the paths of their routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog

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


def a_dropped_stream(catalog: Catalog, base: str) -> None:
    a_published_stream(catalog, base)
    catalog.drop_table(f"{base}.s")


def a_changed_table(catalog: Catalog, base: str) -> Facts:
    """A table and a transaction that changed its rows, to be undone."""
    a_table(catalog, base)
    catalog[f"{base}.t"].append([{"id": 4, "name": "d"}])
    return {"txn": list(catalog.log(catalog.slot - 1))[-1].txn}


def an_alias(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog.alias(f"{base}.t", "other")


def a_snapshot(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog.snapshot(f"{base}-end", [f"{base}.t"])


def a_branch(catalog: Catalog, base: str) -> None:
    a_table(catalog, base)
    catalog[f"{base}.t"].branches.create("trial")


def route(kind: str, name: str, tail: str) -> str:
    """A route of the Lance document about an object below the namespace of the case."""
    return f"/v1/{kind}/{{base}}{'$' if name else ''}{name}/{tail}"


def own_route(kind: str, name: str, tail: str) -> str:
    """A route of ours about such an object."""
    return f"/headwater{route(kind, name, tail)}"


def picked(field: str) -> Callable[[Any], list[Any]]:
    """One field of every record of an answer: objects, dictionaries, or a dictionary around a list of them."""

    def pick(answer: Any) -> list[Any]:
        if isinstance(answer, Mapping) and field not in answer:
            answer = next(value for value in answer.values() if isinstance(value, list))
        records = [answer] if isinstance(answer, Mapping) else answer
        return [record[field] if isinstance(record, Mapping) else getattr(record, field) for record in records]

    return pick
