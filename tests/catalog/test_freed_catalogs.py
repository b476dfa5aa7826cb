"""A catalog that nobody uses any more is freed at once: its memory and files do not wait for Python's collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import ref

import pyarrow as pa
import pytest

from headwater.catalog import Catalog

ROWS = pa.table({"id": [1, 2], "text": ["a", "b"]})


def append_in_transaction(catalog: Catalog) -> None:
    with catalog.transaction("two tables") as tx:
        tx["prod.plain"].append(ROWS)
        tx["prod.orders"].upsert(ROWS)


def publish(catalog: Catalog) -> None:
    catalog["prod.orders"].upsert(ROWS)
    catalog["prod.orders"].publish()


USES: dict[str, Callable[[Catalog], object]] = {
    "a look": lambda catalog: "prod.plain" in catalog,
    "rows": lambda catalog: catalog["prod.plain"].to_arrow(),
    "rows of a stream table": lambda catalog: catalog["prod.orders"].to_arrow(),
    "published rows": lambda catalog: catalog["prod.orders"].serving.to_arrow(),
    "the past": lambda catalog: catalog.at(catalog.slot)["prod.orders"].to_arrow(),
    "the log": lambda catalog: list(catalog.log()),
    "SQL": lambda catalog: catalog.query("SELECT count(*) FROM prod.plain"),
    "an append": lambda catalog: catalog["prod.plain"].append(ROWS),
    "a publish": publish,
    "a transaction": append_in_transaction,
    "a collection": lambda catalog: catalog.collect(),
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_namespace("prod")
    catalog.create_table("prod.plain", ROWS)
    catalog.create_stream_table("prod.orders", schema=ROWS.schema, keys=["id"])
    publish(catalog)
    yield str(tmp_path / "lake")
    gc.enable()


@pytest.mark.parametrize("use", USES)
def test_a_catalog_that_was_dropped_is_freed_without_the_collector(root: str, use: str) -> None:
    def once() -> ref[object]:
        catalog = Catalog(root)
        USES[use](catalog)
        return ref(catalog.namespace)

    once()
    gc.collect()
    gc.disable()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert [once()() for _ in range(3)] == [None] * 3
    assert not files or len(os.listdir("/proc/self/fd")) <= files + 1


@pytest.mark.parametrize("rows", ["plain", "served", "fresh"])
def test_a_moment_of_the_past_is_freed_with_the_tables_that_it_kept_open(root: str, rows: str) -> None:
    """A dataset holds the catalog that it calls in Lance's own memory, where Python finds no cycle."""

    def once() -> ref[object]:
        catalog = Catalog(root)
        past = catalog.at(catalog.slot)
        for _ in range(2):
            if rows == "plain":
                past["prod.plain"].to_arrow()
            else:
                table = past["prod.orders"]
                (table if rows == "fresh" else table.serving).to_arrow()
        return ref(past.namespace)

    once()
    gc.collect()
    gc.disable()
    assert [once()() for _ in range(3)] == [None] * 3
