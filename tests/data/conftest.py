"""A real table, and the released implementation looking at the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import pytest
from lance.namespace import DirectoryNamespace

from headwater.names import ObjectId
from headwater.tables.handle import TableHandle
from tests.data.samples import rows


@pytest.fixture
def table(tmp_path: Path) -> TableHandle:
    """The sample table, freshly written by pylance."""
    uri = str(tmp_path / "t.lance")
    lance.write_dataset(rows(), uri)
    return TableHandle(ObjectId(("t",)), uri)


@pytest.fixture
def twin(tmp_path: Path, table: TableHandle) -> DirectoryNamespace:
    """pylance's own namespace over a copy of the sample table, to compare answers with."""
    root = tmp_path / "twin"
    # Copied, not written again: the size of a manifest depends on the moment in it.
    shutil.copytree(table.uri, root / "t.lance")
    return DirectoryNamespace(root=str(root))
