"""A source of dlt for the tests: orders that come in three at a time, events, and rates that are replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"  # tests talk to nobody

import dlt

import headwater

BATCH = 3


@dlt.resource(primary_key="id", write_disposition="merge")
def orders(at: Any = dlt.sources.incremental("id", initial_value=0)) -> Iterator[Any]:  # noqa: B008
    """Orders after the last one that the state knows."""
    first = at.last_value + 1
    yield [{"id": id, "total": id * 1.5, "items": [{"sku": "P1"}]} for id in range(first, first + BATCH)]


@dlt.resource(write_disposition="append")
def events(at: Any = dlt.sources.incremental("n", initial_value=0)) -> Iterator[Any]:  # noqa: B008
    yield [{"n": n} for n in range(at.last_value + 1, at.last_value + 1 + BATCH)]


@dlt.source
def shop() -> Any:
    return orders, events


def pipeline(catalog: Any, folder: Path, name: str = "shop", **how: Any) -> Any:
    """A pipeline whose working folder is `folder`."""
    destination = headwater.dlt_destination(catalog, **how)
    return dlt.pipeline(name, destination=destination, dataset_name="raw", pipelines_dir=str(folder))


def forget(folder: Path) -> None:
    """Delete all that dlt keeps on this machine."""
    shutil.rmtree(folder, ignore_errors=True)
