"""Tombstone files: few keys are looked up in few row groups, whatever the type of the key."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.metastore import Metastore
from headwater.streams.table import StreamTable
from headwater.streams.tombstones import row_groups
from tests.streams.histories import KEY_TYPES


@pytest.mark.parametrize("kind", sorted(KEY_TYPES))
def test_a_tombstone_is_found_in_its_row_group_by_a_key_of_every_type(
    metastore: Metastore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.tombstones.ROW_GROUP", 1)
    type, choices = KEY_TYPES[kind]
    table = StreamTable.create(metastore, ["t"], pa.schema([("k", type), ("at", pa.int64())]), "k", "at")
    rows = pa.table({"k": pa.array(choices, type), "at": [5] * len(choices)})
    table.upsert(rows)
    table.publish()
    table.delete(rows)
    published = table.publish()
    file = pq.ParquetFile(f"{table._lake().uri}/{published.tombstones[0].path}")
    assert file.num_row_groups == len(choices)
    for key in rows["k"].to_pylist():
        assert len(row_groups(file.metadata, "k", [key])) == 1
    table.upsert(rows.slice(0, 1).set_column(1, "at", pa.array([4])))
    assert (table.count(), table.publish().late) == (0, 1)
