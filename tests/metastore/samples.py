"""Lance tables in a metastore catalog, as tests make and count them."""

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance_namespace import CountTableRowsRequest

from headwater import MetastoreNamespace
from headwater.errors import (
    LanceNamespaceError,
)
from tests.versions.samples import rows, stream


def make(catalog: Any, *id: str, versions: int = 1) -> str:
    catalog.create_table({"id": list(id)}, stream(rows()))
    for value in range(1, versions):
        lance.write_dataset(rows(value), namespace_client=catalog, table_id=list(id), mode="append")
    return str(catalog.describe_table({"id": list(id)}).location)


def count(catalog: Any, *id: str) -> int:
    answer = catalog.count_table_rows(CountTableRowsRequest(id=list(id)))
    return int(getattr(answer, "count", answer))


def code_of(action: Any) -> int:
    with pytest.raises(LanceNamespaceError) as caught:
        action()
    return int(caught.value.code)


def reopened(catalog: MetastoreNamespace) -> Any:
    return MetastoreNamespace(root=catalog.properties.root)
