"""A catalog's `__manifest` that others have written too: their columns stay, and nobody writes past the records."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace as PylanceNamespace

from headwater import DirectoryNamespace
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.registries.manifest.rows import SCHEMA
from headwater.registries.manifest.table import ManifestTable
from headwater.tables.commit.exact import commit_exactly
from headwater.testing.namespace_suite import ROWS, ipc

PLAIN = pa.schema([field for field in SCHEMA if field.name != "created_at"])
NOW = dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
COLUMNS: dict[str, tuple[str, Any]] = {
    "a time in another unit": ("created_at", pa.array([NOW], pa.timestamp("ms"))),
    "a time in nanoseconds": ("created_at", pa.array([1704164645123456789], pa.timestamp("ns", "UTC"))),
    "a time as a number": ("created_at", pa.array([5], pa.int64())),
    "a time as text": ("created_at", pa.array(["yesterday"])),
    "a text": ("owner", pa.array(["ann"])),
    "a decimal": ("cost", pa.array([Decimal("1.25")], pa.decimal128(10, 2))),
    "a struct": ("more", pa.array([{"a": 1, "b": ["x"]}])),
    "a vector": ("v", pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))),
    "bytes": ("b", pa.array([b"\xff"], pa.binary())),
}


def write_manifest(root: Path, field: Any, values: Any) -> None:
    """As another writer would: one namespace `a` with a property, and a column of its own."""
    row: list[Any] = [["a"], ["namespace"], [None], ['{"p": "1"}'], [None]]
    arrays = [pa.array(value, kept.type) for value, kept in zip(row, PLAIN, strict=True)]
    table = pa.Table.from_arrays([*arrays, values], schema=PLAIN.append(field))
    lance.write_dataset(table, root / "__manifest", data_storage_version="2.2")


def column(root: Path, name: str) -> dict[str, Any]:
    table = lance.dataset(root / "__manifest").to_table()
    return dict(zip(map(str, table["object_id"].to_pylist()), table[name], strict=True))


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_of_others_are_kept_when_rows_are_added_altered_and_rewritten(tmp_path: Path, kind: str) -> None:
    name, values = COLUMNS[kind]
    write_manifest(tmp_path, pa.field(name, values.type), values)
    first, second = DirectoryNamespace(root=str(tmp_path)), DirectoryNamespace(root=str(tmp_path))
    assert second.list_namespaces(api.ListNamespacesRequest()).namespaces == ["a"]
    first.create_namespace(api.CreateNamespaceRequest(id=["b"]))
    first.alter_namespace_properties({"id": ["a"], "properties": {"q": "2"}})  # type: ignore[arg-type]
    second.create_namespace(api.CreateNamespaceRequest(id=["c"]))  # it followed the other by its notes
    first.create_namespace(api.CreateNamespaceRequest(id=["d"]))
    assert column(tmp_path, name)["a"] == values[0]
    found = second.describe_namespace(api.DescribeNamespaceRequest(id=["a"])).properties
    assert found == {"p": "1", "q": "2"}
    assert second.list_namespaces(api.ListNamespacesRequest()).namespaces == ["a", "b", "c", "d"]


def test_a_column_of_others_that_wants_a_value_is_a_named_refusal_and_reads_go_on(tmp_path: Path) -> None:
    write_manifest(tmp_path, pa.field("n", pa.int64(), nullable=False), pa.array([5]))
    catalog = DirectoryNamespace(root=str(tmp_path))
    with pytest.raises(UnsupportedOperationError, match="'n'"):
        catalog.create_namespace(api.CreateNamespaceRequest(id=["b"]))
    assert catalog.list_namespaces(api.ListNamespacesRequest()).namespaces == ["a"]


def test_an_object_keeps_its_time_of_creation_when_it_is_altered_or_moved_and_not_when_made_anew(
    tmp_path: Path,
) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), dir_listing_enabled="false")
    catalog.create_namespace(api.CreateNamespaceRequest(id=["a"]))
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    before = column(tmp_path, "created_at")
    catalog.alter_namespace_properties({"id": ["a"], "properties": {"q": "2"}})  # type: ignore[arg-type]
    catalog.rename_table(api.RenameTableRequest(id=["t"], new_table_name="u", new_namespace_id=["a"]))
    after = column(tmp_path, "created_at")
    assert (after["a"], after["a$u"]) == (before["a"], before["t"])
    catalog.drop_table(api.DropTableRequest(id=["a", "u"]))
    catalog.create_table(api.CreateTableRequest(id=["a", "u"]), ipc(ROWS))
    assert column(tmp_path, "created_at")["a$u"] != before["t"]


def test_a_first_write_that_races_with_pylances_goes_on_top_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pylance's table appears when ours is written and not yet committed: the worst moment."""
    others = PylanceNamespace(root=str(tmp_path))

    def overtaken(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        others.create_namespace(api.CreateNamespaceRequest(id=["theirs"]))
        return commit_exactly(*arguments, **options)

    monkeypatch.setattr("headwater.registries.manifest.table.commit_exactly", overtaken)
    ours = DirectoryNamespace(root=str(tmp_path))
    ours.create_namespace(api.CreateNamespaceRequest(id=["ours"]))
    assert ours.list_namespaces(api.ListNamespacesRequest()).namespaces == ["ours", "theirs"]
    assert "created_at" not in lance.dataset(tmp_path / "__manifest").schema.names
    assert sorted(others.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces) == ["ours", "theirs"]


WRITES: dict[str, tuple[dict[str, Any], tuple[bytes, ...]]] = {
    "insert_into_table": ({}, (ipc(ROWS),)),
    "merge_insert_into_table": ({"on": ["id"], "when_not_matched_insert_all": True}, (ipc(ROWS),)),
    "update_table": ({"updates": [["name", "'x'"]]}, ()),
    "delete_from_table": ({"predicate": "true"}, ()),
    "create_table": ({"mode": "overwrite"}, (ipc(ROWS),)),
    "alter_table_drop_columns": ({"columns": ["name"]}, ()),
    "create_table_index": ({"column": "id", "index_type": "BTREE"}, ()),
    "update_table_schema_metadata": ({"metadata": {"k": "v"}}, ()),
    "restore_table": ({"version": 1}, ()),
    "batch_delete_table_versions": ({"ranges": [{"start_version": 1, "end_version": 2}]}, ()),
    "drop_table": ({}, ()),
    "rename_table": ({"new_table_name": "u"}, ()),
    "deregister_table": ({}, ()),
    "declare_table": ({"id": ["new"]}, ()),
}


def test_a_handle_without_the_manifest_does_not_write_into_a_managed_catalog(tmp_path: Path) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path), table_version_management="true")
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    catalog.insert_into_table(api.InsertIntoTableRequest(id=["t"]), ipc(ROWS))
    blind = DirectoryNamespace(root=str(tmp_path), manifest_enabled="false")
    for operation, (request, body) in WRITES.items():
        with pytest.raises(InvalidInputError, match="manifest_enabled"):
            getattr(blind, operation)({"id": ["t"], **request}, *body)
    with pytest.raises(InvalidInputError, match="manifest_enabled"):
        blind.optimize_table(["t"])
    assert blind.list_tables(api.ListTablesRequest()).tables == ["t"]
    assert catalog.count_table_rows(api.CountTableRowsRequest(id=["t"])).count == 2 * ROWS.num_rows
    assert catalog.verify() == []


def test_a_handle_without_the_manifest_writes_where_nobody_manages_versions(tmp_path: Path) -> None:
    catalog = DirectoryNamespace(root=str(tmp_path))
    catalog.create_table(api.CreateTableRequest(id=["t"]), ipc(ROWS))
    blind = DirectoryNamespace(root=str(tmp_path), manifest_enabled="false")
    blind.insert_into_table(api.InsertIntoTableRequest(id=["t"]), ipc(ROWS))
    assert catalog.count_table_rows(api.CountTableRowsRequest(id=["t"])).count == 2 * ROWS.num_rows


def test_a_creation_beside_pylance_that_rewrites_the_table_of_names_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pylance rewrites `__manifest` with its own columns between our look and our commit: that is no broken storage."""
    properties = {"root": str(tmp_path), "dir_listing_enabled": "false"}
    ours, theirs = DirectoryNamespace(**properties), PylanceNamespace(**properties)
    write, begun = ManifestTable._write_fragment, list[str]()

    def late(self: ManifestTable, base: Any, rows: Any) -> Any:
        if not begun:
            begun.append("p")
            theirs.create_table(api.CreateTableRequest(id=["p"]), ipc(ROWS))
        return write(self, base, rows)

    monkeypatch.setattr(ManifestTable, "_write_fragment", late)
    ours.create_table(api.CreateTableRequest(id=["h"]), ipc(ROWS))
    assert begun
    assert set(ours.list_tables(api.ListTablesRequest(id=[])).tables) == {"h", "p"}
    assert set(theirs.list_tables(api.ListTablesRequest(id=[])).tables) == {"h", "p"}
