"""Hashes go by the logical value, and digests of rows can be added and taken away."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.streams.rows.hashing import MODULUS, buckets_of, content_digest, digest_of, hash_array, hash_rows

SAME: list[tuple[Any, Any]] = [
    (pa.array([1, None, -5], pa.int8()), pa.array([1, None, -5], pa.int64())),
    (pa.array(["a", None, ""], pa.string()), pa.array(["a", None, ""], pa.large_string())),
    (pa.array([Decimal("1.10"), None], pa.decimal128(5, 2)), pa.array([Decimal("1.1"), None], pa.decimal128(9, 4))),
    (pa.array([1.5, float("nan"), -0.0], pa.float32()), pa.array([1.5, float("nan"), -0.0], pa.float64())),
    (pa.array([[1, 2], [], None]), pa.array([[1, 2], [], None], pa.large_list(pa.int32()))),
    (pa.array(["x", "y", "x"]).dictionary_encode(), pa.array(["x", "y", "x"])),
    (pa.chunked_array([[1], [2, 3]]), pa.array([1, 2, 3])),
    (pa.array([0, 1, 2, 3]).slice(1), pa.array([1, 2, 3])),
    (pa.array(["skip", "a", None]).slice(1), pa.array(["a", None])),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_a_value_hashes_alike_in_every_layout_and_width(first: Any, second: Any) -> None:
    assert hash_array(first).tolist() == hash_array(second).tolist()


def test_values_that_differ_hash_differently() -> None:
    texts = [f"{first}{second}" for first in range(30) for second in range(30, 60)]
    assert len(set(hash_array(pa.array(texts)).tolist())) == len(set(texts))
    pairs = hash_rows([pa.array(["a", "ab"]), pa.array(["bc", "c"])], 2)
    assert pairs[0] != pairs[1]
    nested = hash_array(pa.array([{"a": [1]}, {"a": [1, 1]}, {"a": None}, {"a": []}, None]))
    assert len(set(nested.tolist())) == 5


def test_digests_are_sums_that_do_not_depend_on_the_order() -> None:
    hashes = hash_array(pa.array(np.arange(1000)))
    parts = digest_of(hashes[:300]) + digest_of(hashes[300:])
    assert digest_of(hashes) == digest_of(hashes[::-1]) == parts % MODULUS
    assert (digest_of(hashes) - digest_of(hashes[:10])) % MODULUS == digest_of(hashes[10:])


def test_a_bucket_splits_into_two_neighbours() -> None:
    hashes = hash_array(pa.array(np.arange(10_000)))
    assert (buckets_of(hashes, 8) // 2 == buckets_of(hashes, 4)).all()
    assert np.bincount(buckets_of(hashes, 8)).min() > 1000


def test_the_content_of_a_batch_is_its_rows_in_order_by_name() -> None:
    one, two = pa.array([1, 2]), pa.array(["a", "b"])
    assert content_digest(["x", "y"], [one, two], 2) == content_digest(["y", "x"], [two, one], 2)
    assert content_digest(["x"], [one], 2) != content_digest(["x"], [one.take([1, 0])], 2)
    assert content_digest(["x"], [one], 2) != content_digest(["z"], [one], 2)
