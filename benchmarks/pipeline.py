"""The pipeline against merges of others: land + publish into a table that is there, wall seconds and bytes written.

`python -m benchmarks.pipeline [rows]` (1,000,000): 10 and rows/10 changed rows into so many; beside it `merge_insert`
of pylance, deltalake where it is installed, and a Debezium file taken in. One run, both sides in turn.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

from benchmarks.measure import RESULTS
from headwater.catalog import Catalog
from headwater.pipeline import ingest, publish

ROUNDS = 3


def rows(ids: Any, at: int) -> pa.Table:
    count = len(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array(np.full(count, at), pa.int64()),
            "amount": pa.array(np.random.default_rng(at).random(count)),
            "note": pa.array([f"note {n % 1000}" for n in range(count)]),
        }
    )


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Ours:
    name = "headwater: ingest + publish"

    def __init__(self, folder: Path, base: pa.Table) -> None:
        self.folder = folder / "ours"
        self.catalog = Catalog(str(self.folder), impl="metastore")
        schema = {name: str(base.schema.field(name).type) for name in base.schema.names}
        self.catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["at"])
        self.merge(base)

    def merge(self, changed: pa.Table) -> None:
        ingest(None, self.catalog, "raw.t", changed)
        publish(None, self.catalog, "raw.t")


class Raw:
    name = "pylance: merge_insert"

    def __init__(self, folder: Path, base: pa.Table) -> None:
        self.folder = folder / "raw.lance"
        lance.write_dataset(base, self.folder).create_scalar_index("id", "BTREE")

    def merge(self, changed: pa.Table) -> None:
        merging = lance.dataset(self.folder).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merging.execute(changed)


class Delta:
    name = "deltalake: merge"

    def __init__(self, folder: Path, base: pa.Table) -> None:
        import deltalake  # type: ignore[import-not-found]

        self.folder = folder / "delta"
        self._open: Any = lambda: deltalake.DeltaTable(str(self.folder))
        deltalake.write_deltalake(str(self.folder), base)

    def merge(self, changed: pa.Table) -> None:
        merging = self._open().merge(changed, "t.id = s.id", source_alias="s", target_alias="t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()


def debezium(folder: Path, count: int) -> tuple[float, int]:
    """Seconds to take a Debezium file of so many events, and its bytes."""
    file = folder / "events.json"
    with file.open("w") as out:
        for n in range(count):
            row = {"id": n, "at": n, "amount": n / 7, "note": f"note {n % 1000}"}
            out.write(json.dumps({"op": "c", "before": None, "after": row, "source": {"lsn": n}}) + "\n")
    catalog = Catalog(str(folder / "cdc"), impl="metastore")
    schema = {"id": "bigint", "at": "bigint", "amount": "double", "note": "string"}
    catalog.create_stream_table("raw.t", schema, keys=["id"], sequence=["at"])
    return timed(lambda: ingest(None, catalog, "raw.t", file, format="debezium")), file.stat().st_size


def main(total: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    lines = [f"`python -m benchmarks.pipeline {total}`: median of {ROUNDS}, seconds; bytes written in all rounds", ""]
    lines += ["| changed rows | " + " | ".join(("side", "wall s", "bytes")) + " |", "|---|---|---|---|"]
    try:
        base = rows(np.arange(total), 0)
        kinds: list[Any] = [Ours, Raw, *([Delta] if importlib.util.find_spec("deltalake") else [])]
        sides = [kind(folder, base) for kind in kinds]
        at = 0
        for count in (10, total // 10):
            walls: dict[str, list[float]] = {side.name: [] for side in sides}
            before = {side.name: size_of(side.folder) for side in sides}
            for _ in range(ROUNDS):
                at += 1
                changed = rows(np.random.default_rng(at).choice(total, count, replace=False), at)
                for side in sides:
                    walls[side.name].append(timed(lambda side=side, changed=changed: side.merge(changed)))  # type: ignore[misc]
            for side in sides:
                wall, grown = float(np.median(walls[side.name])), size_of(side.folder) - before[side.name]
                lines.append(f"| {count:,} into {total:,} | {side.name} | {wall:.3f} | {grown:,} |")
                print(lines[-1], flush=True)
        events = total // 10
        seconds, size = debezium(folder, events)
        lines.append(f"| {events:,} Debezium events | headwater: ingest | {seconds:.3f} | {size:,} read |")
        print(lines[-1], flush=True)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "pipeline.md").write_text("# Pipeline\n\n" + "\n".join(lines) + "\n")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
