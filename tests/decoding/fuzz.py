"""A fuzzer of `headwater.decoding` and of SQL in requests: damaged data of every format, in disposable processes.

    python -m tests.decoding.fuzz --inputs 100000

An input is fine if it is read, or refused with an error of the error table. A crash, another error, and more
memory than `MAX_GROWTH` are failures; each is printed with the seed and the number that make it again (`--only`).
`tests/decoding/fuzz_server.py` sends the same inputs to a running server.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.decoding.arrow import read_arrow, read_file, read_schema, read_stream
from headwater.decoding.bounds import Bounds
from headwater.decoding.files import OrcRows, read_bytes, read_csv, read_json_lines
from headwater.decoding.parquet import ParquetRows
from headwater.errors import LanceNamespaceError
from headwater.schema_text import parse_type
from headwater.streams.definition import define
from headwater.streams.rows.input_rows import as_input_rows
from headwater.streams.sources.files import json_rows
from tests.decoding.fuzz_sql import accepted, sql
from tests.decoding.seeds import ROWS, arrays, seeds, stream

MAX_GROWTH = 200 * 1024 * 1024
"""Bytes by which the memory of a process that reads damaged data may grow."""
SMALL = Bounds(8 * 1024 * 1024)
CHILD = 4000
"""Inputs that one process reads."""
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 63, 64, 127, 128, 255, 256, 1023, 65535, 65536, 2**24, 2**31 - 1, 2**31,
           2**32 - 1, 2**40, 2**62, 2**63 - 1)  # fmt: skip
BENT = (-1, 1, 9, 100, 4096, 2**20, 2**31 - 1, -(2**31))


def _definition() -> Any:
    fields: list[Any] = [("id", pa.int64()), ("d", pa.decimal128(10, 2)), ("s", pa.string())]
    return define(pa.schema(fields), ["id"])


def _touch(found: Any) -> None:
    """Read every byte of the rows."""
    rows = found.read_all() if isinstance(found, pa.RecordBatchReader) else found
    stream(rows)
    with contextlib.suppress(ArithmeticError):  # Arrow has dates and decimals that Python has not
        rows.slice(0, 50).to_pylist()


def _json(data: bytes) -> None:
    rows, _ = json_rows(data.decode(errors="replace"), _definition())
    as_input_rows(rows)


def _packed(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        read_bytes(file.name, SMALL)


READERS: dict[str, Callable[[bytes], Any]] = {
    "stream": lambda data: _touch(read_stream(data, bounds=SMALL)),
    "file": lambda data: _touch(read_file(data, SMALL)),
    "arrow": lambda data: _touch(read_arrow(data, SMALL)),
    "schema": lambda data: [parse_type(field.type) for field in read_schema(data)] and None,
    "parquet": lambda data: _touch(ParquetRows(data, SMALL).table()),
    "csv": lambda data: _touch(read_csv(data, {"int64": pa.int64()})),
    "json": _json,
    "lines": lambda data: _touch(read_json_lines(data)),
    "orc": lambda data: _touch(pa.Table.from_batches(OrcRows(data).batches())),
    "packed": _packed,
}
SEEDS_OF = {"arrow": "file", "lines": "json"}
WEIGHTS = {"stream": 5, "parquet": 5, "file": 2, "arrow": 1, "schema": 1, "csv": 1, "json": 2, "lines": 1, "packed": 1}


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The data with one to four places changed."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not made:
            return b""
        at = chance.randrange(len(made)) if chance.random() < 0.7 else max(0, len(made) - chance.randrange(1, 400))
        at = min(at, len(made) - 1)
        match chance.randrange(8):
            case 0:
                made[at] ^= 1 << chance.randrange(8)
            case 1:
                made[at] = chance.randrange(256)
            case 2:
                at &= ~3
                made[at : at + 4] = struct.pack("<I", chance.choice(NUMBERS) & 0xFFFFFFFF)
            case 3:
                at &= ~7
                number = chance.choice(NUMBERS) * chance.choice((1, 1, -1))
                made[at : at + 8] = struct.pack("<q", max(-(2**63), min(2**63 - 1, number)))
            case 4:
                del made[at : at + chance.choice((1, 8, 64, len(made)))]
            case 5:
                begin = chance.randrange(len(made))
                made[at:at] = made[begin : begin + chance.choice((1, 8, 64, 512))]
            case 6:
                begin, size = chance.randrange(len(made)), chance.choice((4, 8, 16, 64))
                made[at : at + size] = made[begin : begin + size]
            case _:
                made[at : at + chance.choice((4, 16))] = bytes([chance.choice((0, 255))]) * 8
    return bytes(made)


def crooked(chance: random.Random) -> bytes:
    """A sound stream of an array whose buffers, length or offset are not: pyarrow's writer copies what it is given."""
    name = chance.choice(list(arrays()))
    column = arrays()[name]
    try:
        made = _crooked(chance, column)
        return stream(pa.table({name: made}))
    except (pa.ArrowException, ValueError, TypeError, IndexError, OverflowError):
        return stream(pa.table({name: column}))


def _crooked(chance: random.Random, column: Any) -> Any:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _crooked(chance, column.storage))
    if pa.types.is_dictionary(kind):
        indices = pa.Array.from_buffers(kind.index_type, len(column), _bent(chance, column.indices.buffers()))
        return pa.DictionaryArray.from_arrays(indices, column.dictionary, safe=False)
    if pa.types.is_struct(kind) or pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return column
    if kind.num_fields:
        own = column.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 3 if "view" in str(kind) else 2]
        inner = (
            column.values
            if not pa.types.is_map(kind)
            else pa.StructArray.from_arrays([column.keys, column.items], fields=list(kind.field(0).type))
        )
        child = _crooked(chance, inner) if chance.random() < 0.4 else inner
        return pa.Array.from_buffers(kind, len(column), _bent(chance, own), children=[child])
    return pa.Array.from_buffers(kind, len(column), _bent(chance, column.buffers()))


def _entries(column: Any) -> Any:
    return pa.StructArray.from_arrays([column.keys, column.items], fields=list(column.type.field(0).type))


def _bent(chance: random.Random, buffers: list[Any]) -> list[Any]:
    at = chance.randrange(len(buffers))
    if buffers[at] is not None:
        data = bytearray(buffers[at].to_pybytes())
        for _ in range(chance.choice((1, 2))):
            place = 4 * chance.randrange(max(1, min(len(data), 16 * ROWS) // 4))
            data[place : place + 4] = struct.pack(
                "<i", chance.choice((-1, 1, 9, 100, 4096, 2**20, 2**31 - 1, -(2**31)))
            )
        buffers[at] = pa.py_buffer(bytes(data))
    return buffers


@dataclass
class Fuzzed:
    """One input: which reader it is for, and the data or text."""

    kind: str
    data: bytes | str


def make(seed: int, number: int, with_sql: bool) -> Fuzzed:
    chance = random.Random(seed * 1_000_003 + number)
    if with_sql and number % 10 == 0:
        return Fuzzed("sql", sql(chance) if number % 20 else accepted(chance))
    if number % 10 in (1, 2):
        return Fuzzed("stream", crooked(chance))
    kind = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return Fuzzed(kind, damaged(chance, chance.choice(seeds()[SEEDS_OF.get(kind, kind)])))


class Sql:
    """A small table that filters run on."""

    def __init__(self, folder: str) -> None:
        import lance
        from lance_namespace import CountTableRowsRequest

        from headwater.names import ObjectId
        from headwater.namespace import data
        from headwater.tables.handle import TableHandle

        rows = pa.table({"id": [1, 2, 3], "s": ["a", None, "c"], "tags": [["x"], [], None], "v": [0.5, 1.5, None]})
        lance.write_dataset(rows, f"{folder}/t.lance")
        self._table = TableHandle(ObjectId(("t",)), f"{folder}/t.lance")
        self._run: Callable[[str], Any] = lambda text: data.count_table_rows(
            self._table, CountTableRowsRequest(id=["t"], predicate=text)
        )

    def __call__(self, text: str) -> None:
        self._run(text)


def child(seed: int, begin: int, end: int, marks: str, with_sql: bool) -> None:
    """Read inputs one after the other; the number of each is in the file `marks` while it is read."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(marks, "r+b") as file, tempfile.TemporaryDirectory() as folder:
        mark = mmap.mmap(file.fileno(), 16)
        run = Sql(folder) if with_sql else None
        for kind, reader in READERS.items():  # what is loaded and cached at first use is no growth
            reader(seeds()[SEEDS_OF.get(kind, kind)][0])
        start = peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for number in range(begin, end):
            made = make(seed, number, with_sql)
            mark[:16] = struct.pack("<qq", number, peak - start)
            try:
                run(str(made.data)) if run is not None and made.kind == "sql" else READERS[made.kind](made.data)  # type: ignore[arg-type]
            except LanceNamespaceError:
                pass
            except BaseException:
                print(f"input {number} ({made.kind}):\n{traceback.format_exc(limit=-4)}", flush=True)
            now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            if now - start > MAX_GROWTH >= peak - start:
                print(f"input {number} ({made.kind}): memory grew by {(now - start) >> 20} MiB", flush=True)
            peak = max(peak, now)


def run(inputs: int, seed: int, with_sql: bool = True, first: int = 0) -> list[str]:
    """Read so many inputs; the failures."""
    failures: list[str] = []
    at = first
    with tempfile.NamedTemporaryFile() as marks:
        while at < first + inputs:
            end = min(at + CHILD, first + inputs)
            marks.seek(0)
            marks.write(struct.pack("<qq", -1, 0))
            marks.flush()
            words = [str(seed), str(at), str(end), marks.name, str(int(with_sql))]
            done = subprocess.run(
                [sys.executable, "-m", "tests.decoding.fuzz", "--child", *words],
                capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
                env={**os.environ, "MALLOC_PERTURB_": "165"},
            )  # fmt: skip
            if done.stdout.strip():
                failures.append(done.stdout.strip())
                print(failures[-1], flush=True)
            at = end
            if done.returncode:
                marks.seek(0)
                (number, _) = struct.unpack("<qq", marks.read(16))
                if number < 0:
                    raise RuntimeError(f"The fuzzer itself fails: {done.stderr[-1500:]}")
                failures.append(f"input {number}: the process ended with {done.returncode}\n{done.stderr[-1500:]}")
                print(failures[-1], flush=True)
                at = number + 1
    return failures


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--inputs", type=int, default=10_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--only", type=int, help="make and read this one input, in this process")
    words.add_argument("--no-sql", action="store_true")
    words.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.child:
        seed, begin, end, marks, with_sql = asked.child
        child(int(seed), int(begin), int(end), marks, with_sql == "1")
        return 0
    if asked.only is not None:
        made = make(asked.seed, asked.only, not asked.no_sql)
        print(made.kind, len(made.data), made.data if made.kind == "sql" else "")
        READERS[made.kind](made.data)  # type: ignore[arg-type]
        return 0
    failures = run(asked.inputs, asked.seed, not asked.no_sql)
    print(f"{asked.inputs} inputs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
