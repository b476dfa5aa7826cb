"""The record of a source stays in small pages however many files it gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError
from headwater.metastore import Metastore
from headwater.streams.log.source_ledger import files_taken, level_of
from headwater.streams.sources.source_files import digest_of_file
from headwater.streams.table import StreamTable


def test_each_level_takes_twice_as_many_files_as_the_one_before() -> None:
    first = 64 * 64
    assert [level_of(files) for files in (0, first - 1, first, 3 * first - 1, 3 * first)] == [0, 0, 1, 1, 2]


def test_of_a_transaction_that_took_several_batches_only_what_is_named_is_undone(
    tmp_path: Path,
) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    table = catalog.create_stream_table("t", {"id": "int64"}, keys=["id"])
    paths = [tmp_path / f"{number}.jsonl" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_text(f'{{"id": {number}}}\n')
    with catalog.transaction("several") as tx:
        for path in paths:
            tx["t"].ingest(str(path), source="s")
        tx["t"].upsert([{"id": 8}], token="a", source="s")
        tx["t"].upsert([{"id": 9}])
    table.undo(source="s", file=str(paths[0]))
    table.undo(digest=digest_of_file(str(paths[1])))
    assert sorted(table.to_arrow()["id"].to_pylist()) == [2, 8, 9]
    assert (list(table.files("s")), len(table.files("s", undone=True))) == ([str(paths[2])], 2)
    assert table.ingest(str(paths[2]), source="s").duplicate
    assert table.upsert([{"id": 8}], token="a", source="s").duplicate
    table.undo(source="s", token="a")
    assert not table.upsert([{"id": 8}], token="a", source="s").duplicate
    with pytest.raises(InvalidInputError, match="digest is empty"):
        table.undo(source="s", digest="")
    table.undo(source="s")
    assert (table.to_arrow()["id"].to_pylist(), table.changes(5).num_rows) == ([9], 6)
    table.publish()
    assert (table.serving.to_arrow()["id"].to_pylist(), table.verify()) == ([9], [])


def test_files_are_known_again_on_every_level_and_pages_stay_small(
    metastore: Metastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.streams.log.source_ledger.ROOM", 1)
    for module in ("layout", "log.source_ledger"):
        monkeypatch.setattr(f"headwater.streams.{module}.PAGES", 2)
    table = StreamTable.create(metastore, ["t"], {"id": "int64"})
    files = [tmp_path / f"{number}.jsonl" for number in range(16)]
    for number, file in enumerate(files):
        file.write_text(f'{{"id": {number}}}\n')
        assert not table.ingest(str(file), source="s").duplicate
    assert all(table.ingest(str(file), source="s").duplicate for file in files)
    files[0].write_text('{"id": 99}\n')  # the same name with other content, on a later level
    assert not table.ingest(str(files[0]), source="s").duplicate
    stream, snapshot = table.opened()
    pages = [each for each in snapshot.streams(stream.path, stream.version) if "-" in each.id.removeprefix("source-")]
    assert max(len(page.properties) for page in pages) <= 6
    found = files_taken(pages, "s")
    assert (len(found), len(found[str(files[0])])) == (16, 2)
    table.undo(source="s", file=str(files[3]))
    assert not table.ingest(str(files[3]), source="s").duplicate
    assert table.count() == 17
