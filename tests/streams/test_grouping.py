"""Keys among other rows: many are found by their hashes, with the same answer as one by one."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.streams.rows import row_keys
from headwater.streams.rows.row_keys import KeyIndex

KINDS: dict[str, Any] = {
    "sparse numbers": lambda n: n * 1_000_003,
    "texts": lambda n: f"key-{n}",
    "bytes": lambda n: b"%d" % n,
    "decimals": lambda n: Decimal(n) / 4,
    "times": lambda n: dt.datetime(2020, 1, 1) + dt.timedelta(seconds=n),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [0, 1])
def test_many_keys_are_found_as_few_are(kind: str, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_keys, "MANY", 50)
    draw = np.random.default_rng(7)
    held, asked = draw.choice(4000, 500).tolist(), draw.choice(4000, 900).tolist()
    make = KINDS[kind]
    index = KeyIndex([pa.array([make(n) for n in held]), *[pa.array([n % 3 for n in held])] * more])
    found = index.find([pa.array([make(n) for n in asked]), *[pa.array([n % 3 for n in asked])] * more])
    wanted = dict(zip(held, index.codes.tolist(), strict=True))
    assert found.tolist() == [wanted.get(n, -1) for n in asked]
    assert index.count == len(set(held))


def test_values_that_hash_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long texts can be made to hash alike; so can all, here."""
    monkeypatch.setattr(row_keys, "MANY", 2)
    monkeypatch.setattr(row_keys, "hash_array", lambda array: np.zeros(len(array), np.uint64))
    index = KeyIndex([pa.array(["a", "b", "c"])])
    assert index.find([pa.array(["c", "x", None, "a"])]).tolist() == [2, -1, -1, 0]


def test_a_value_that_hashes_as_a_key_is_not_that_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_keys, "MANY", 2)
    monkeypatch.setattr(row_keys, "hash_array", lambda array: np.array([len(v or "") for v in array.to_pylist()], "u8"))
    index = KeyIndex([pa.array(["a", "bb", "ccc"])])
    assert index.find([pa.array(["x", "bb", None, "ddd"])]).tolist() == [-1, 1, -1, -1]


def test_the_values_are_gathered_once_and_not_for_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_keys, "MANY", 2)
    index, made, kind = KeyIndex([pa.array(["a", "b", "c"])]), list[Any](), row_keys._Hashed

    def counted(values: Any) -> Any:
        made.append(values)
        return kind(values)

    monkeypatch.setattr(row_keys, "_Hashed", counted)
    for _ in range(3):
        assert index.find([pa.array(["b"])]).tolist() == [1]
    assert len(made) == 1
