"""The order of rows in a file of the log, and how its columns are laid out."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.streams.log.stored_events import by_dictionary, encode
from headwater.streams.rows.row_keys import order_of

COUNT = 3000
NUMBERS = np.random.default_rng(5)
START = datetime(2026, 1, 1)


def some(values: list[Any], kind: Any = None) -> Any:
    return pa.array([values[int(n)] for n in NUMBERS.integers(0, len(values), COUNT)], kind)


COLUMNS: dict[str, Any] = {
    "small numbers": lambda: some(list(range(-50, 50))),
    "all numbers": lambda: some([-(2**63), -1, 0, 1, 2**63 - 1, *range(2**40, 2**40 + 90)]),
    "numbers above those of 64 bits with a sign": lambda: some([0, 2**64 - 1, 2**63, 5], pa.uint64()),
    "times": lambda: some([START + timedelta(seconds=n * 7919) for n in range(200)], pa.timestamp("us", "UTC")),
    "dates": lambda: some([START.date() + timedelta(n) for n in range(60)]),
    "short texts": lambda: some(["", "a", "a\0", "aa", "b", "ä", "\0", "zz"]),
    "texts that begin alike": lambda: some([f"customer-{n:04d}" for n in range(150)] + ["customer-"]),
    "texts that differ late": lambda: some(["a" * 12 + text for text in ("", "a", "b", "a\0", "ba")] + ["b"]),
    "long texts of large type": lambda: some([f"{n * 7919 % 1009:032x}" for n in range(300)], pa.large_string()),
    "truth values": lambda: some([True, False]),
    "bytes": lambda: some([b"", b"\xff", b"a", b"\x00"]),
}


def plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        *((name,) for name in COLUMNS),
        ("small numbers", "times"),
        ("times", "all numbers"),
        ("short texts", "small numbers"),
        ("all numbers", "long texts of large type"),
    ],
)
def test_order_is_that_of_python(names: tuple[str, ...], grouped: bool) -> None:
    columns = [COLUMNS[name]() for name in names]
    groups = NUMBERS.integers(0, 4, COUNT) if grouped else None
    values = [[plain(value) for value in column.to_pylist()] for column in columns]
    keys = [(0 if groups is None else groups[row], *(each[row] for each in values), row) for row in range(COUNT)]
    expected = sorted(range(COUNT), key=lambda row: keys[row])
    sliced = [pa.chunked_array([column.slice(0, 1000), column.slice(1000)]) for column in columns]
    assert order_of(sliced, groups).tolist() == expected


@pytest.mark.parametrize("count", [0, 1])
def test_order_of_hardly_any(count: int) -> None:
    assert order_of([pa.array([7] * count, pa.int64())]).tolist() == list(range(count))
    assert order_of([pa.array(["x"] * count, pa.string())], np.zeros(count, np.int64)).tolist() == list(range(count))


def test_columns_are_read_as_they_were() -> None:
    count = 40_000
    table = pa.table(
        {
            "id": pa.array(range(count)),
            "kind": pa.array([n % 3 for n in range(count)], pa.int8()),
            "large": pa.array([2**64 - 1 - n for n in range(count)], pa.uint64()),
            "x": pa.array([None if n % 7 == 0 else n / 3 for n in range(count)]),
            "few": by_dictionary(pa.array([None if n % 11 == 0 else f"few {n % 9}" for n in range(count)])),
            "many": by_dictionary(pa.array([f"many {n}" for n in range(count)])),
            "at": pa.array([START + timedelta(seconds=n) for n in range(count)], pa.timestamp("us", "UTC")),
            "parts": pa.array([[n, n + 1] for n in range(count)]),
            "half": pa.array(np.arange(count).astype(np.float16)),
        }
    )
    assert [name for name in table.schema.names if pa.types.is_dictionary(table.schema.field(name).type)] == ["few"]
    data = encode(table, [15_000, 25_000], 10_000)
    file = pq.ParquetFile(io.BytesIO(data))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [
        10_000,
        5_000,
        10_000,
        10_000,
        5_000,
    ]
    read = file.read()
    assert read.schema.equals(table.schema)
    assert read.to_pylist() == table.to_pylist()
    assert file.metadata.row_group(0).column(0).encodings[-1] == "DELTA_BINARY_PACKED"


def test_texts_that_only_begin_with_few_values_stay_texts() -> None:
    texts = pa.array([f"{n}" if n % 2 else "same" for n in range(1 << 15)])
    assert by_dictionary(texts).type == pa.string()
