"""The peer's side of `benchmarks/metastore.py`: DeltaCAT 2.0, run by its own interpreter.

Each line it reads names an operation and a count; it answers with the seconds that took.
"""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
import time
from typing import Any


def append_for(root: str, partition: Any, seconds: float) -> int:
    """Stage and commit deltas to one partition for so long; how many were acknowledged."""
    peer = Peer(root)
    done, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        try:
            peer.stage_and_commit(partition)
            done += 1
        except Exception:
            continue
    return done


class Peer:
    """The operations that are compared. The names are those of the rows in `benchmarks/metastore.py`."""

    def __init__(self, root: str) -> None:
        import pyarrow as pa
        from deltacat.catalog import CatalogProperties
        from deltacat.storage.main import impl
        from deltacat.storage.model.types import DeltaType

        self.root = root
        self.catalog = CatalogProperties(root=root)
        self.impl = impl
        self.append_type = DeltaType.APPEND
        self.data = pa.table({"a": [1]})
        self.made = 0

    def prepare(self) -> None:
        self.impl.create_namespace("n", catalog=self.catalog)
        self.impl.create_table_version("n", "t", "v.1", catalog=self.catalog)
        stream = self.impl.get_stream("n", "t", "v.1", catalog=self.catalog)
        staged = self.impl.stage_partition(stream, catalog=self.catalog)
        self.partition = self.impl.commit_partition(staged, catalog=self.catalog)

    def create_namespace(self, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            self.made += 1
            self.impl.create_namespace(f"n{self.made}", catalog=self.catalog)
        return time.perf_counter() - begin

    def create_table(self, count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            self.made += 1
            self.impl.create_table_version("n", f"t{self.made}", "v.1", catalog=self.catalog)
        return time.perf_counter() - begin

    def commit_delta(self, count: int) -> float:
        """Only the commits are timed: the peer stages a delta by writing its Parquet file."""
        spent = 0.0
        for _ in range(count):
            staged = self.impl.stage_delta(self.data, self.partition, self.append_type, catalog=self.catalog)
            begin = time.perf_counter()
            self.impl.commit_delta(staged, catalog=self.catalog)
            spent += time.perf_counter() - begin
        return spent

    def stage_and_commit(self, partition: Any) -> None:
        staged = self.impl.stage_delta(self.data, partition, self.append_type, catalog=self.catalog)
        self.impl.commit_delta(staged, catalog=self.catalog)

    def eight_processes(self, count: int) -> float:
        """The seconds that `count` appends would take eight processes."""
        with multiprocessing.get_context("spawn").Pool(8) as pool:
            done = pool.starmap(append_for, [(self.root, self.partition, 6.0)] * 8)
        return count * 6.0 / max(sum(done), 1)


def main() -> None:
    root = tempfile.mkdtemp(prefix="deltacat-bench-")
    try:
        peer = Peer(root)
        peer.prepare()
        print("ready", flush=True)
        for line in sys.stdin:
            name, count = line.split()
            print(getattr(peer, name)(int(count)), flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
