"""Files of partitioned tables on a disk and on S3, without a Spark session: what a worker does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction, RewriteResult

from headwater.names import ObjectId
from headwater.tables.commit import committer as compact
from headwater.tables.commit.committer import fragment_from
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import partitioned, parts_of
from headwater.tables.scan.prune import may_match
from headwater.tables.scan.table_scan import Scan, count, plan, read
from headwater.tables.write.data_files import write

KINDS: dict[str, Any] = {"k": pa.string(), "id": pa.int64(), "price": pa.decimal128(9, 2)}
SCHEMA = partitioned(pa.schema(KINDS), [{"column": "k", "transform": "identity"}])


@pytest.fixture(params=["disk", "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> TableHandle:
    if request.param == "disk":
        return TableHandle(ObjectId(("t",)), f"file://{tmp_path}/a%24b%2524%20%C3%BC/t")
    root, options = request.getfixturevalue("s3_root"), request.getfixturevalue("s3_options")
    return TableHandle(ObjectId(("t",)), f"{root}/t", storage_options=options)


def batch(start: int) -> list[pa.RecordBatch]:
    rows = {"k": [f"k/{n % 3}" for n in range(30)], "id": range(start, start + 30), "price": [None] * 30}
    return pa.table(rows).cast(SCHEMA).to_batches()


def commit(table: TableHandle, operation: Any) -> TableHandle:
    options: dict[str, Any] = {"read_version": table.version, "storage_options": table.storage_options or None}
    done = lance.LanceDataset.commit(table.uri, operation, enable_stable_row_ids=True, **options)
    return table.at(done.version)


def test_files_are_named_read_skipped_counted_and_compacted_by_partition(table: TableHandle) -> None:
    written = write(table, batch(0), SCHEMA.serialize().to_pybytes().hex())
    table = commit(table, lance.LanceOperation.Overwrite(SCHEMA, [fragment_from(each) for each in written]))
    table = commit(table, lance.LanceOperation.Append([fragment_from(each) for each in write(table, batch(30))]))
    results = [RewriteResult.from_json(compact.run(table, task)) for task in compact.plan(table, 1000)]
    assert Compaction.commit(table.open(), results).fragments_added == 3
    table = table.at(None)
    fragments = [fragment.metadata for fragment in table.open().get_fragments()]
    assert {part.value for each in fragments for part in parts_of(each)} == {"k/0", "k/1", "k/2"}
    prune = {"op": "=", "args": [{"column": "k"}, {"literal": "k/1"}]}
    scan = Scan(table, ("id",), "k = 'k/1'", prune=prune)
    assert len(may_match(table.open(), prune)) == 1
    found: list[Any] = [
        id for part in plan(scan, 2) for rows in read(scan, part) for id in rows.column("id").to_pylist()
    ]
    assert sorted(found) == list(range(1, 60, 3))
    assert count(scan) == 20


def test_a_task_without_rows_and_batches_without_rows_make_no_file(table: TableHandle) -> None:
    empty = batch(0)[0].slice(0, 0)
    assert write(table, [], SCHEMA.serialize().to_pybytes().hex()) == []
    assert write(table, [empty, empty], SCHEMA.serialize().to_pybytes().hex()) == []
