"""Random rows of the tables `t` and `u`, and Spark SQL over them: expressions of `t`, and views of both."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

TYPES: dict[str, Any] = {
    "id": pa.int64(),
    "b": pa.int8(),
    "h": pa.int16(),
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
    "m": pa.decimal128(12, 2),
    "w": pa.decimal128(38, 6),
    "s": pa.string(),
    "n": pa.string(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "xs": pa.list_(pa.int32()),
    "names": pa.list_(pa.string()),
    "place": pa.struct([("city", pa.string()), ("zip", pa.int32())]),
    "props": pa.map_(pa.string(), pa.int32()),
}
SCHEMA = pa.schema(TYPES)
EXTREME: dict[str, list[Any]] = {
    "b": [-128, 127], "h": [-32768, 32767], "i": [-(2**31), 2**31 - 1, 0], "l": [-(2**63), 2**63 - 1, 0],
    "f": [float("nan"), float("inf"), -0.0], "d": [float("nan"), float("-inf"), -0.0, 1e300, 2.0**63, 0.1],
    "m": [Decimal("9999999999.99"), Decimal("-9999999999.99"), Decimal("0.00"), Decimal("-0.01")],
    "w": [Decimal("9" * 32 + ".999999"), Decimal("-0.000001")],
    "s": ["", " padded ", "Straße", "ÀÉî", "a%b_c\\d", "日本語", "e\u0301", "tab\tx", "a\n", "b1\r\n2"],
    "n": ["", "abc", " 12 ", "-7", "1.5", "1e3", "NaN", "99999999999", "+3", "true", "2024-02-30", "2024-1-5"],
    "day": [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(2024, 2, 29)],
    "at": [datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)],
    "local": [datetime(1583, 1, 1, 0, 0, 0, 1)],
    "xs": [[], [None], [1, None, 2]], "names": [[], [None], ["", None, "z"]],
    "place": [{"city": None, "zip": None}], "props": [[], [("a", None)]],
}  # fmt: skip


def rows(count: int, seed: int, wild: bool = False) -> list[dict[str, Any]]:
    """Return rows of `t`: of small values and NULLs, or with the extremes of each type too."""
    drawn = random.Random(seed)
    return [{"id": place, **{name: _value(drawn, name, wild) for name in SCHEMA.names[1:]}} for place in range(count)]


def _value(drawn: random.Random, name: str, wild: bool) -> Any:
    if drawn.random() < 0.15:
        return None
    if wild and name in EXTREME and drawn.random() < 0.5:
        return drawn.choice(EXTREME[name])
    number = drawn.choice([-5, -3, -2, -1, 1, 2, 3, 4, 7])
    moment = datetime(2024, 1, 31, 12, 30, 15, 250000) + timedelta(days=number * 29, seconds=number * 4001)
    return {
        "b": number, "h": number * 11, "i": number * 101, "l": number * 100_003, "f": number / 4, "d": number / 8,
        "m": Decimal(number * 125) / 100, "w": Decimal(number * 1234567) / 1_000_000,
        "s": drawn.choice(["apple", "Banana", "cherry pie", "x", "a,b,c"]), "n": str(number),
        "flag": number > 0, "day": moment.date(), "at": moment.replace(tzinfo=UTC), "local": moment,
        "xs": [number, number + 1, 3], "names": ["b", drawn.choice("ab"), "c"],
        "place": {"city": drawn.choice(["Rome", "Bern"]), "zip": number}, "props": [("a", number), ("b", 2)],
    }[name]  # fmt: skip


def table(count: int, seed: int, wild: bool = False) -> pa.Table:
    return pa.Table.from_pylist(rows(count, seed, wild), SCHEMA)


def expressions() -> list[str]:
    return _lines("dialect_expressions.sql")


def views() -> list[str]:
    return _lines("dialect_views.sql")


def _lines(name: str) -> list[str]:
    return (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()


def other(count: int, seed: int) -> pa.Table:
    """Return rows of `u`."""
    drawn = random.Random(seed)
    found: Iterator[dict[str, Any]] = (
        {
            "b": drawn.choice([None, -3, 1, 2, 3, 4]),
            "label": drawn.choice(["red", "blue", None]),
            "w": drawn.choice([None, Decimal("1.50"), Decimal("0.25"), Decimal("7.00")]),
        }
        for _ in range(count)
    )
    types: dict[str, Any] = {"b": pa.int32(), "label": pa.string(), "w": pa.decimal128(14, 2)}
    return pa.Table.from_pylist(list(found), pa.schema(types))
