"""Stream tables, embedded: land, publish and fresh read beside raw `merge_insert`, in one run.

python -m benchmarks.streams [rows]
python -m benchmarks.streams flat [rows ...]     what 10 rows cost in bytes, at each size of the table
python -m benchmarks.streams --partial [rows]    what a publish of partial rows costs beside one of whole rows
python -m benchmarks.streams --key [rows]        one key by a filter, with a tail and without
python -m benchmarks.streams --positions [rows]  a publish with history over 2,000 positions, and over 10
"""

from __future__ import annotations

import importlib
import importlib.util
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


def delta_merge(path: Path, base: pa.Table) -> Callable[[pa.Table], Any] | None:
    """The same by deltalake, where that can be imported: it is not among what this project needs."""
    if importlib.util.find_spec("deltalake") is None:
        return None
    deltalake = importlib.import_module("deltalake")
    deltalake.write_deltalake(str(path), base)

    def merge(source: pa.Table) -> Any:
        merging = deltalake.DeltaTable(str(path)).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        return merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return merge


def run(root: Path, count: int) -> None:
    with Metastore(root / "lake") as metastore:
        schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        base = rows(np.arange(count), 1)
        raw = lance.write_dataset(base, root / "raw.lance", enable_stable_row_ids=True)
        delta = delta_merge(root / "delta", base)
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
            if delta is not None:
                print(f"  deltalake's merge {seconds(lambda source=source: delta(source)):.4f} s")  # type: ignore[misc]


def transferred() -> tuple[int, int]:
    """The bytes that this process has read and written so far, whether or not they reached the disk."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["rchar"]), int(told["wchar"])


def flat(root: Path, count: int) -> None:
    """Land and publish 10 random rows of a table of this size, the second time; deleted keys are looked up too."""
    with Metastore(root / str(count)) as metastore:
        schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        for start in range(0, count, 1_000_000):
            table.upsert(rows(np.arange(start, min(start + 1_000_000, count)), 1))
            table.publish()
        table.delete(RANDOM.choice(count, count // 20, replace=False).tolist())
        table.publish()
        for at in (10, 11):
            before = transferred()
            table.upsert(rows(RANDOM.choice(count, 10, replace=False), at))
            table.publish()
            read, written = (now - then for now, then in zip(transferred(), before, strict=True))
        print(f"10 rows into {count}: {read / 1e6:.2f} MB read, {written / 1e6:.2f} MB written")


def partial(root: Path, count: int) -> None:
    """Publish a tenth of a table as whole rows and as rows that lack the text, in turn; the CPU seconds of each."""
    schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
    spent: dict[str, list[float]] = {"whole": [], "partial": []}
    with Metastore(root / "lake") as metastore:
        tables = {kind: StreamTable.create(metastore, [kind], schema, keys="id", sequence="at") for kind in spent}
        for table in tables.values():
            table.upsert(rows(np.arange(count), 1))
            table.publish()
        for at in range(2, 9):
            source = rows(RANDOM.choice(count, count // 10, replace=False), at)
            for kind, table in tables.items():
                table.upsert(source if kind == "whole" else source.drop_columns(["s"]))
                start = time.process_time()
                table.publish()
                spent[kind].append(time.process_time() - start)
    whole, less = (float(np.median(spent[kind][1:])) for kind in ("whole", "partial"))
    print(f"publish of {count // 10} of {count}: whole {whole:.3f} s CPU, partial {less:.3f} s, {less / whole:.2f}x")


def one_key(root: Path, count: int) -> None:
    """Read single keys by a filter: of the base alone, with a tail of ten rows, and with one of a tenth."""
    schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
    with Metastore(root / "lake") as metastore:
        table = StreamTable.create(metastore, ["t"], schema, keys="id", sequence="at")
        table.upsert(rows(np.arange(count), 1))
        table.publish()
        floor = 0.0
        for name, tail in (("without a tail", 0), ("with a tail of 10", 10), (f"of {count // 10}", count // 10)):
            if tail:
                table.upsert(rows(np.arange(0, count, count // tail), 2))
            spent = []
            for key in RANDOM.choice(count, 20, replace=False).tolist():
                start = time.process_time()
                assert table.to_arrow(filter=f"id = {key}").num_rows == 1
                spent.append(time.process_time() - start)
            middle = float(np.median(spent))
            floor = floor or middle
            print(f"one key of {count} {name}: {middle * 1000:.2f} ms CPU, {middle / floor:.1f}x")


def positions(root: Path, count: int) -> None:
    """Publish as many rows with their history from few transactions and from many; the CPU seconds of each."""
    schema = {"id": "int64", "at": "int64", "v": "double", "s": "string"}
    spent: dict[int, float] = {}
    with Metastore(root / "lake") as metastore:
        for number in (10, 2_000):
            path, history = [f"t{number}"], {"history": "scd2"}
            table = StreamTable.create(metastore, path, schema, keys="id", sequence="at", properties=history)
            for at in range(number):
                table.upsert(rows(RANDOM.choice(count // 5, count // number, replace=False), at))
            start = time.process_time()
            table.publish()
            spent[number] = time.process_time() - start
    few, many = spent.values()
    print(f"history of {count} rows: 10 positions {few:.2f} s CPU, 2,000 positions {many:.2f} s, {many / few:.1f}x")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1:2] == ["--partial"]:
            partial(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
        elif sys.argv[1:2] == ["--key"]:
            one_key(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
        elif sys.argv[1:2] == ["--positions"]:
            positions(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
        elif sys.argv[1:2] == ["flat"]:
            for size in sys.argv[2:] or ["250000", "1000000"]:
                flat(Path(folder), int(size))
        else:
            run(Path(folder), int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
