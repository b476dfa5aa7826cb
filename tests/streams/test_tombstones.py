"""Tombstone files: few keys are looked up in few row groups, whatever the type of the key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.errors import CorruptFileError
from headwater.metastore import Metastore
from headwater.store import WrappedStore, memory_store
from headwater.streams.fold.tombstones import read_remembered, row_groups
from headwater.streams.log.stored_events import narrowed
from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.table import StreamTable
from tests.streams.histories import KEY_TYPES


@pytest.mark.parametrize("kind", sorted(KEY_TYPES))
def test_a_tombstone_is_found_in_its_row_group_by_a_key_of_every_type(
    metastore: Metastore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.fold.tombstones.ROW_GROUP", 1)
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


def test_of_a_large_file_on_an_object_store_only_the_row_groups_of_the_keys_are_sent_for(
    metastore: Metastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.fold.tombstones.ROW_GROUP", 1 << 11)
    monkeypatch.setattr("headwater.streams.log.stored_events.LARGE", 1 << 10)
    table = StreamTable.create(metastore, ["t"], pa.schema([("k", pa.int64()), ("at", pa.int64())]), "k", "at")
    keys = np.unique(np.random.default_rng(0).integers(0, 1 << 60, 1 << 16))
    table.upsert(pa.table({"k": keys, "at": keys}))
    table.publish()
    table.delete(pa.table({"k": keys, "at": keys + 1}))
    (file,) = table.publish().tombstones
    far = memory_store()
    far.put(file.path, metastore.store.get(file.path))
    sent: list[int] = []

    class Counted(WrappedStore):
        def around(self, verb: str, key: str, action: Any) -> Any:
            answer = action()
            sent.append(len(answer))
            return answer

    definition = table.definition

    def read(store: Any, index: KeyIndex | None = None) -> pa.Table:
        return read_remembered(store, definition, narrowed(definition, None), [file], index).tombstones

    for chosen in (keys[:1], keys[-2:]):
        sent.clear()
        index = KeyIndex([pa.chunked_array([pa.array(chosen)])])
        found = read(Counted(far), index)
        assert found.equals(read(metastore.store, index))
        assert found.num_rows == len(chosen)
        assert sum(sent) < file.bytes / 4
    sent.clear()
    assert read(Counted(far)).num_rows == len(keys)
    assert sent == [file.bytes], "all of it is one request"
    far.delete(file.path)
    with pytest.raises(CorruptFileError):
        read(far, index)
