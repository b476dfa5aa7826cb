"""Stream tables, embedded: land, publish and fresh read beside raw `merge_insert`, in one run.

python -m benchmarks.streams [rows]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from headwater.metastore import Metastore
from headwater.streams import StreamTable

RANDOM = np.random.default_rng(1)


def rows(ids: Any, at: int) -> pa.Table:
    texts = [f"name-{id}-{at}" for id in ids.tolist()]
    sequence = pa.array(np.full(len(ids), at))
    return pa.table({"id": pa.array(ids), "at": sequence, "v": pa.array(RANDOM.random(len(ids))), "s": texts})


def seconds(work: Callable[[], Any], times: int = 1) -> float:
    """The best of some runs."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def merge(dataset: Any, source: pa.Table) -> None:
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)


def run(root: Path, count: int) -> None:
    with Metastore(root / "lake") as metastore:
        schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        base = rows(np.arange(count), 1)
        raw = lance.write_dataset(base, root / "raw.lance", enable_stable_row_ids=True)
        print(f"first load of {count}: land {seconds(lambda: table.upsert(base)):.3f} s", end=", ")
        print(f"publish {seconds(lambda: table.publish()):.3f} s")
        for size, at in ((count // 10, 10), (count // 10, 11), (10, 20), (10, 21)):
            source = rows(RANDOM.choice(count, size, replace=False), at)
            if at == 20:
                raw.create_scalar_index("id", "BTREE")
            landed = seconds(lambda source=source: table.upsert(source))  # type: ignore[misc]
            if at == 10:
                published = table.published
                position = published.position if published is not None else 0
                alone = seconds(lambda at=position: table.to_arrow(position=at), 5)  # type: ignore[misc]
                print(f"read of the base {alone:.3f} s, fresh {seconds(lambda: table.to_arrow(), 5):.3f} s")
            made = seconds(lambda: table.publish())
            peer = seconds(lambda source=source: merge(raw, source))  # type: ignore[misc]
            print(f"{size}: land {landed:.4f} s, publish {made:.4f} s, merge_insert {peer:.4f} s", end=", ")
            print(f"land + publish {(landed + made) / peer:.2f}x")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
