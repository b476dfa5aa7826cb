"""The peer's side of `benchmarks/metastore.py`: DeltaCAT 2.0, run by its own interpreter, answers one line of JSON."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any


def rate(action: Callable[[int], Any], count: int) -> float:
    begin = time.perf_counter()
    for number in range(count):
        action(number)
    return count / (time.perf_counter() - begin)


def append(root: str, partition: Any, seconds: float) -> int:
    """Stage and commit deltas to one partition for so long; how many were acknowledged."""
    import pyarrow as pa
    from deltacat.catalog import CatalogProperties
    from deltacat.storage.main import impl
    from deltacat.storage.model.types import DeltaType

    catalog, data = CatalogProperties(root=root), pa.table({"a": [1]})
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        try:
            impl.commit_delta(impl.stage_delta(data, partition, DeltaType.APPEND, catalog=catalog), catalog=catalog)
            done += 1
        except Exception:
            continue
    return done


def main() -> None:
    import pyarrow as pa
    from deltacat.catalog import CatalogProperties
    from deltacat.storage.main import impl
    from deltacat.storage.model.types import DeltaType

    root = tempfile.mkdtemp(prefix="deltacat-bench-")
    catalog = CatalogProperties(root=root)
    try:
        figures: dict[str, float] = {}
        figures["create_namespace"] = rate(lambda n: impl.create_namespace(f"n{n}", catalog=catalog), 200)
        figures["create_table"] = rate(lambda n: impl.create_table_version("n0", f"t{n}", "v.1", catalog=catalog), 150)
        begin = time.perf_counter()
        impl.list_tables("n0", catalog=catalog).all_items()
        figures["list_ms_per_table"] = (time.perf_counter() - begin) * 1000 / 150
        stream = impl.get_stream("n0", "t0", "v.1", catalog=catalog)
        partition = impl.commit_partition(impl.stage_partition(stream, catalog=catalog), catalog=catalog)
        data = pa.table({"a": [1]})
        spent = 0.0
        for _ in range(60):
            staged = impl.stage_delta(data, partition, DeltaType.APPEND, catalog=catalog)
            begin = time.perf_counter()
            impl.commit_delta(staged, catalog=catalog)
            spent += time.perf_counter() - begin
        figures["commit_delta"] = 60 / spent
        with multiprocessing.get_context("spawn").Pool(8) as pool:
            done = pool.starmap(append, [(root, partition, 8.0)] * 8)
        figures["8 processes"] = sum(done) / 8.0
        print(json.dumps(figures))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
