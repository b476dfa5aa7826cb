"""A table that is only declared: what it is told from, and that the first insert makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.errors import ConcurrentModificationError, InvalidTableStateError
from headwater.namespace.creation import Creation
from headwater.testing.namespace_suite import ROWS, ipc

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "early": {"layout": "early"},
    "managed": {"table_version_management": "true"},
}


@pytest.fixture(params=MODES)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(tmp_path), **MODES[request.param])


def insert(catalog: DirectoryNamespace, name: str, mode: str = "append") -> api.InsertIntoTableResponse:
    return catalog.insert_into_table(api.InsertIntoTableRequest(id=[name], mode=mode), ipc(ROWS))


def declared(catalog: DirectoryNamespace, name: str) -> bool | None:
    return catalog.describe_table(api.DescribeTableRequest(id=[name], check_declared=True)).is_only_declared


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_the_first_insert_into_a_declared_table_creates_it(catalog: DirectoryNamespace, mode: str) -> None:
    catalog.declare_table(api.DeclareTableRequest(id=["t"]))
    assert declared(catalog, "t")
    done = insert(catalog, "t", mode)
    assert (done.version, done.num_inserted_rows) == (1, ROWS.num_rows)
    assert not declared(catalog, "t")
    assert insert(catalog, "t").version == 2
    count: Any = catalog.count_table_rows(api.CountTableRowsRequest(id=["t"]))
    assert count.count == 2 * ROWS.num_rows
    assert catalog.list_tables(api.ListTablesRequest(include_declared=False)).tables == ["t"]


def test_two_first_inserts_at_once_make_one_table_and_one_conflict(
    catalog: DirectoryNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.declare_table(api.DeclareTableRequest(id=["t"]))
    fill = Creation.fill

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        insert(catalog, "t")
        return fill(*arguments)

    monkeypatch.setattr(Creation, "fill", overtaken)
    with pytest.raises(ConcurrentModificationError, match="insert again"):
        insert(catalog, "t")
    count: Any = catalog.count_table_rows(api.CountTableRowsRequest(id=["t"]))
    assert count.count == ROWS.num_rows


@pytest.mark.parametrize("mode", ["V1", "compat", "early"])
def test_a_folder_of_junk_is_there_and_not_declared(tmp_path: Path, mode: str) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), **MODES[mode])
    folder = tmp_path / ("x" if mode == "early" else "x.lance")
    folder.mkdir()
    (folder / "notes.txt").write_text("junk")
    assert declared(catalog, "x") is False
    assert catalog.list_tables(api.ListTablesRequest()).tables == ["x"]
    with pytest.raises(InvalidTableStateError, match="does not comply with the Lance table format"):
        catalog.describe_table(api.DescribeTableRequest(id=["x"], load_detailed_metadata=True))
    with pytest.raises(InvalidTableStateError):
        insert(catalog, "x")
    assert (folder / "notes.txt").read_text() == "junk"
    assert len(list(folder.iterdir())) == 1
