"""A stream table on an object store: the same calls, with the root's address for Lance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headwater.metastore import Metastore
from headwater.store import Entry, WrappedStore, memory_store
from headwater.streams.sources import source_files
from headwater.streams.table import StreamTable


def test_a_stream_table_lands_publishes_and_reads_on_s3(s3_root: str, s3_options: dict[str, str]) -> None:
    with Metastore(s3_root, s3_options) as metastore:
        schema = {"id": "int64", "at": "int64", "note": "string"}
        late = {"late": "quarantine"}
        table = StreamTable.create(metastore, ["t"], schema, "id", "at", (), late, s3_root, s3_options)
        table.upsert([{"id": 1, "at": 1, "note": "a"}, {"id": 2, "at": 1}], token="x")
        assert table.upsert([{"id": 1, "at": 1, "note": "a"}, {"id": 2, "at": 1}], token="x").duplicate
        table.publish()
        table.upsert([{"id": 1, "at": 2, "note": "b"}, {"id": 1, "at": 0}])
        table.delete([2])
        expected = [{"id": 1, "at": 2, "note": "b"}]
        assert table.to_arrow().to_pylist() == expected
        table.evolve(rename={"note": "text"})
        assert table.publish().late == 1
        assert table.to_arrow().to_pylist() == [{"id": 1, "at": 2, "text": "b"}]
        assert (table.quarantine().num_rows, table.verify(), metastore.verify()) == (1, [], [])
    with Metastore(s3_root, s3_options) as again:
        assert StreamTable(again, ["t"], s3_root, s3_options).count() == 1


def test_a_file_of_a_store_without_etags_is_known_again_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of one name, size and second are two files, also inside of a dataset's folder."""

    class Untagged(WrappedStore):
        def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
            return (replace(entry, etag=None, modified_ms=0) for entry in super().list(prefix, after))

    store = Untagged(memory_store())
    monkeypatch.setattr(source_files, "open_store", lambda *_: store)
    known = []
    for content in (b"one", b"two", b"one"):
        store.put("in/day.json", content)
        store.put("in/set.lance/data/a.lance", content)
        known.append([file.digest for file in source_files.find_remote("s3://bucket/in/*", {})])
    assert known[0] == known[2]
    assert not set(known[0]) & set(known[1])
