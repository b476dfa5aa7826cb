"""A table from a path, a glob or a dataset: by the ending of the files, a batch at a time."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(str(tmp_path / "lake"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(ROWS, folder / "2.parquet")
    pq.write_table(ROWS.append_column("more", pa.array([7, 8, 9])), folder / "10.parquet")
    pyarrow.feather.write_feather(ROWS, folder / "rows.arrow")
    pyarrow.orc.write_table(ROWS, folder / "rows.orc")
    pyarrow.csv.write_csv(ROWS, folder / "rows.csv")
    lance.write_dataset(ROWS, folder / "rows.lance")
    (folder / "1.jsonl").write_text('{"id": 1, "v": [0.5, 0.25]}\n')
    (folder / "2.jsonl").write_text('{"id": 2, "v": [0.5, 0.75], "w": 1.5}\n')
    return folder


@pytest.mark.parametrize("name", ["2.parquet", "rows.arrow", "rows.orc", "rows.csv", "rows.lance"])
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_read_by_its_ending(catalog: Catalog, files: Path, name: str, kind: type) -> None:
    made = catalog.create_table("t", kind(files / name))
    assert made.to_arrow().to_pylist() == ROWS.to_pylist()


def test_files_of_a_glob_are_joined_by_the_names_of_their_columns_in_order(catalog: Catalog, files: Path) -> None:
    found = catalog.create_table("t", str(files / "*.parquet")).to_arrow().to_pylist()
    assert [row["more"] for row in found] == [None, None, None, 7, 8, 9]
    lines = catalog.create_table("lines", str(files / "*.jsonl"))
    assert lines.to_arrow().column("w").to_pylist() == [None, 1.5]
    assert pa.types.is_fixed_size_list(lines.schema.field("v").type)


def test_datasets_are_read_as_they_go(catalog: Catalog, files: Path) -> None:
    assert catalog.create_table("a", pyarrow.dataset.dataset(files / "2.parquet")).count() == 3
    made = catalog.create_table("b", lance.dataset(str(files / "rows.lance")))
    assert made.count() == 3
    made.append(pyarrow.dataset.dataset(files / "2.parquet"))
    assert made.count() == 6


def test_a_schema_gives_the_types(catalog: Catalog, files: Path) -> None:
    made = catalog.create_table("t", str(files / "rows.csv"), schema={"id": "int", "name": "string"})
    assert made.schema.field("id").type == pa.int32()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none.parquet", "no file"),
        ("*.nothing", "no file"),
        ("*.[pj]*", "one kind at a time"),
        ("", "a folder: give a glob"),
        ("bad.txt", "by its ending"),
    ],
)
def test_what_cannot_be_read_is_named_and_makes_no_table(catalog: Catalog, files: Path, name: str, told: str) -> None:
    (files / "bad.txt").write_text("?")
    with pytest.raises(InvalidInputError, match=told):
        catalog.create_table("t", str(files / name))
    assert not catalog.is_there
    with pytest.raises(InvalidInputError, match="not a local file"):
        catalog.create_table("t", "s3://bucket/rows.parquet")


def test_a_catalog_of_the_past_says_so(catalog: Catalog) -> None:
    catalog.create_table("t", ROWS)
    slot = catalog.slot
    assert f"at commit {slot}" in repr(catalog.at(slot))
    assert "at commit" not in repr(catalog)


def test_a_long_load_shows_its_progress_on_a_terminal_and_removes_it(
    catalog: Catalog, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(ROWS, files / "a.parquet")
    catalog.create_table("quiet", files / "a.parquet")
    assert "rows read" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("headwater.catalog.table_parts.QUIET_SECONDS", 0.0)
    monkeypatch.setattr("headwater.catalog.table_parts.EVERY_SECONDS", 0.0)
    assert catalog.create_table("shown", files / "a.parquet").count() == 3
    shown = capsys.readouterr().err
    assert "\rcreate_table shown: 3 rows read in 0 s" in shown
    assert shown.endswith(" \r")
