"""Catalogs of every kind, tables in them, and staged manifests as a client would write them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import LanceNamespace

from headwater.namespace.directory import DirectoryNamespace
from headwater.tables.layout import manifest_name

KINDS: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "V2-managed": {"dir_listing_enabled": "false", "table_version_management": "true"},
    "compat-managed": {"table_version_management": "true"},
}
MANAGED = ("V2-managed", "compat-managed")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values or (1, 2, 3), pa.int64())})


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def open_kind(kind: str, root: Path) -> DirectoryNamespace:
    return DirectoryNamespace(root=str(root), **KINDS[kind])


def make(catalog: DirectoryNamespace, name: str = "t", versions: int = 1) -> str:
    """A table with so many versions; its folder."""
    catalog.create_table({"id": [name]}, stream(rows()))  # type: ignore[arg-type]
    for value in range(1, versions):
        append(catalog, name, value)
    return folder_of(catalog, name)


def folder_of(catalog: DirectoryNamespace, name: str = "t") -> str:
    return str(catalog.describe_table({"id": [name]}).location)  # type: ignore[arg-type]


def append(catalog: DirectoryNamespace, name: str = "t", value: int = 0) -> lance.LanceDataset:
    return lance.write_dataset(rows(value), namespace_client=catalog, table_id=[name], mode="append")


def opened(catalog: DirectoryNamespace, name: str = "t", version: int | None = None) -> lance.LanceDataset:
    return lance.dataset(namespace_client=catalog, table_id=[name], version=version)


def numbers(catalog: DirectoryNamespace, name: str = "t", **request: Any) -> list[int]:
    answer = catalog.list_table_versions({"id": [name], **request})  # type: ignore[arg-type]
    return [item.version for item in answer.versions]


def stage(
    catalog: DirectoryNamespace,
    name: str,
    version: int,
    scheme: str = "V2",
    data: bytes | None = None,
    source: int | None = None,
) -> dict[str, Any]:
    """Write a manifest as a client does before it creates a version, and the request that does."""
    folder = os.path.join(folder_of(catalog, name), "_versions")
    body = data if data is not None else manifest_bytes(catalog, name, source or max(numbers(catalog, name)))
    path = os.path.join(folder, f"{manifest_name(version, scheme)}-{uuid.uuid4()}")
    Path(path).write_bytes(body)
    status = os.stat(path)
    return {
        "id": [name],
        "version": version,
        "manifest_path": path.lstrip("/"),
        "manifest_size": len(body),
        "e_tag": f'"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{status.st_size:x}"',
        "naming_scheme": scheme,
    }


def manifest_bytes(catalog: DirectoryNamespace, name: str, version: int) -> bytes:
    """The manifest of a version. It is looked for in the list, which moves nothing."""
    found = catalog.list_table_versions({"id": [name]}).versions  # type: ignore[arg-type]
    return Path("/" + next(each.manifest_path for each in found if each.version == version)).read_bytes()


def files(folder: str | Path) -> dict[str, bytes]:
    """Every file below a folder, to see that nothing moved."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def call(catalog: LanceNamespace, operation: str, **request: Any) -> Any:
    """One operation, its request as a dictionary."""
    return getattr(catalog, operation)(request)
