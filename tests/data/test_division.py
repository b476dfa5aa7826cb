"""How a scan is divided into parts: all rows once, and no core idle while another reads the last part."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headwater.tables.scan.parts import Fragments, Slice
from headwater.tables.scan.table_scan import Extent, divide

MILLION = 1 << 20


def extents(rows: list[int]) -> list[Extent]:
    return [Extent(number, count) for number, count in enumerate(rows)]


def test_the_last_part_is_no_large_one_that_is_read_alone() -> None:
    """The lineitem of TPC-H, two cores: the two last fragments in one part kept one core idle for a third of q1."""
    parts = divide(extents([MILLION] * 5 + [758_335]), 2, splittable=False)
    assert parts == [Fragments((number,)) for number in range(6)]


def test_parts_that_fit_already_are_not_made_smaller() -> None:
    parts = divide(extents([MILLION, MILLION, MILLION, 854_272] * 2), 2, splittable=False)
    assert [part.fragments for part in parts] == [(0, 1), (2, 3), (4, 5), (6, 7)]


@given(st.lists(st.integers(1, 3 * MILLION), min_size=1, max_size=30), st.integers(1, 16), st.booleans())
def test_every_row_is_in_one_part(rows: list[int], cores: int, splittable: bool) -> None:
    ranges = []
    for part in divide(extents(rows), cores, splittable=splittable):
        if isinstance(part, Slice):
            ranges.append((part.fragments[0], part.offset, part.offset + part.limit))
        else:
            ranges += [(number, 0, rows[number]) for number in part.fragments]
    ranges.sort()
    assert ranges[0][:2] == (0, 0)
    assert ranges[-1][::2] == (len(rows) - 1, rows[-1])
    for one, other in itertools.pairwise(ranges):
        assert other[:2] == (one[0], one[2]) or (one[2] == rows[one[0]] and other[:2] == (one[0] + 1, 0))
