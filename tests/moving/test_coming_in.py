"""Parquet folders and Lance datasets become tables of a metastore catalog."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.errors import InvalidInputError
from headwater.moving import import_parquet

ROWS = pa.table({"n": [1, 2, 3]})


def test_a_folder_of_parquet_files_becomes_a_table_in_one_commit(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    for day in ("day=1", "day=2", "_temporary"):
        (folder / day).mkdir(parents=True)
        pq.write_table(ROWS, folder / day / "a.parquet")
    pq.write_table(pa.table({"n": [9], "later": ["x"]}), folder / "day=2" / "b.parquet")
    (folder / "_SUCCESS").write_text("")
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_namespace("raw")
    before = catalog.slot
    table = import_parquet(catalog, "raw.files", folder)
    assert (table.count(), table.count("later = 'x' AND day = 2"), table.count("day = 1")) == (7, 1, 3)
    assert (len(table.versions()), catalog.slot - before) == (1, 1)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_namespace("raw")
    folder, secret = tmp_path / "files", tmp_path / "files-of-others"
    for each in (folder / "day=1", secret):
        each.mkdir(parents=True)
        pq.write_table(ROWS, each / "a.parquet")
    (folder / "inside.parquet").symlink_to("day=1/a.parquet")
    (folder / "others").symlink_to(secret)
    (tmp_path / "linked").symlink_to(folder)
    assert import_parquet(catalog, "raw.t", tmp_path / "linked", hive=False).count() == 6
    for target in (secret / "a.parquet", Path("..") / "files-of-others" / "a.parquet"):
        (folder / "out.parquet").symlink_to(target)
        with pytest.raises(InvalidInputError, match=r"'out.parquet' is a link"):
            import_parquet(catalog, "raw.u", folder, hive=False)
        (folder / "out.parquet").unlink()
    assert catalog.tables("raw") == ["t"]


def test_files_that_cannot_be_one_table_are_refused_and_make_none(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_namespace("raw")
    folder = tmp_path / "files"
    with pytest.raises(InvalidInputError, match="no file or folder"):
        import_parquet(catalog, "raw.t", folder)
    folder.mkdir()
    with pytest.raises(InvalidInputError, match="no Parquet file"):
        import_parquet(catalog, "raw.t", folder)
    (folder / "a.parquet").write_bytes(b"PAR1junkPAR1")
    with pytest.raises(InvalidInputError, match="cannot be read as Parquet"):
        import_parquet(catalog, "raw.t", folder)
    pq.write_table(ROWS, folder / "a.parquet")
    pq.write_table(pa.table({"n": [[1]]}), folder / "b.parquet")
    with pytest.raises(InvalidInputError, match="n"):
        import_parquet(catalog, "raw.t", folder)
    assert catalog.tables("raw") == []


def test_the_versions_of_a_registered_dataset_become_deltas(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path))
    catalog.create_namespace("raw")
    for _ in range(3):
        lance.write_dataset(ROWS, str(tmp_path / "found.lance"), mode="append")
    table = catalog.register_table("raw.found", "found.lance")
    assert isinstance(catalog.namespace, MetastoreNamespace)
    assert [delta.position for delta in catalog.namespace.metastore.deltas(["raw", "found"], format="lance")] == [
        1,
        2,
        3,
    ]
    table.append(ROWS)
    assert (table.count(), table.at(2).count()) == (12, 6)
    assert catalog.namespace.verify() == []
