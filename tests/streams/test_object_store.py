"""A stream table on an object store: the same calls, with the root's address for Lance."""

from __future__ import annotations

from headwater.metastore import Metastore
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
