"""What publishes write beside their changes: fragments anew, as much as the changes pay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from headwater.metastore import Metastore
from headwater.streams import StreamTable, tidying

WIDE, ROWS, PARTS = 256, 4_000, 4
CHANGED, PUBLISHES = 400, 10


def rows(ids: Any, turn: int) -> pa.Table:
    """Rows whose bytes are those of their text, which nothing compresses."""
    raw = np.random.default_rng(turn).bytes(len(ids) * WIDE)
    texts = [raw[at : at + WIDE].hex()[:WIDE] for at in range(0, len(raw), WIDE)]
    return pa.table({"id": np.asarray(ids), "v": texts})


def fragment(number: int, rows: int, deleted: int) -> Any:
    return SimpleNamespace(
        fragment_id=number, metadata=SimpleNamespace(id=number, physical_rows=rows, num_deletions=deleted)
    )


def dataset(*fragments: Any) -> Any:
    return SimpleNamespace(get_fragments=lambda: list(fragments))


def test_a_publish_writes_the_cheapest_fragments_anew_and_no_more_than_its_change_pays() -> None:
    million = 1_000_000
    found = dataset(
        fragment(0, million, 250_000),
        fragment(1, million, 300_000),
        fragment(2, million, 100_000),
        fragment(3, million, 210_000),
    )
    assert tidying.due(found) == [0, 1, 3]
    assert tidying.due(found, changed=10) == []
    assert tidying.due(found, changed=350_000) == [1]
    assert tidying.due(found, changed=725_000) == [0, 1]
    assert tidying.due(found, changed=5 * million) == [0, 1, 3]


def test_a_fragment_that_has_lost_half_waits_no_longer_and_one_is_written_at_a_time() -> None:
    million = 1_000_000
    found = dataset(fragment(0, million, 510_000), fragment(1, million, 600_000), fragment(2, million, 800_000))
    assert tidying.due(found, changed=10) == [1, 2]  # 200,000 rows are written in any case
    assert tidying.due(dataset(fragment(0, million, 510_000)), changed=10) == [0]


def test_small_fragments_are_joined_in_their_order_as_far_as_it_is_paid() -> None:
    small = [fragment(number, 60_000, 0) for number in range(tidying.MANY + 1)]
    assert tidying.due(dataset(*small[:-1]), changed=60_000) == []
    assert tidying.due(dataset(*small), changed=60_000) == [0, 1, 2, 3]


def test_a_run_of_publishes_writes_a_bounded_multiple_of_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidying, "SMALL_ROWS", 10)
    monkeypatch.setattr(tidying, "FREE", 0)
    with Metastore(tmp_path) as metastore:
        table = StreamTable.create(metastore, ["t"], {"id": "int64", "v": "string"}, keys="id")
        part = ROWS // PARTS
        for start in range(0, ROWS, part):
            table.upsert(rows(np.arange(start, start + part), 1000 + start))
            table.publish()
        folder = Path(f"{table._lake().uri}/{table.opened()[0].serving}")
        known = {file: file.stat().st_size for file in (folder / "data").iterdir()}
        row = sum(known.values()) / ROWS
        written = []
        for turn in range(PUBLISHES):
            table.upsert(rows(np.random.default_rng(turn).choice(ROWS, CHANGED, replace=False), turn))
            table.publish()
            now = {file: file.stat().st_size for file in (folder / "data").iterdir()}
            written.append(sum(size for file, size in now.items() if file not in known))
            known = {**known, **now}
        change, half = row * CHANGED, row * part / 2
        slack = 1.1  # heads and feet of files
        assert max(written) < ((1 + tidying.PAID) * change + half) * slack
        assert sum(written) < (1 + tidying.PAID) * change * PUBLISHES * slack
        assert any(size > 1.5 * change for size in written)  # fragments were written anew
        copy = lance.dataset(folder)
        assert sum(each.metadata.physical_rows for each in copy.get_fragments()) < 2 * copy.count_rows()
        assert table.verify() == []
