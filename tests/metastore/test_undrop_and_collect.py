"""What is brought back while a collection forgets it: one of the two, and never a table without its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater import Catalog, MetastoreNamespace
from headwater.errors import ConcurrentModificationError, TableNotFoundError


def test_a_drop_that_a_collection_passes_does_not_come_back_by_a_transaction_that_began_before(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"), impl="metastore")
    catalog.create_table("a.t", [{"id": 1}])
    catalog.drop_table("a.t")
    catalog.create_namespace("b")
    near = catalog.namespace
    assert isinstance(near, MetastoreNamespace)
    tx = near.metastore.transaction()
    tx.undrop(["a", "t"])
    assert near.metastore.collect(keep=0).boundary == tx.draft.base.at
    with pytest.raises(ConcurrentModificationError, match="a collection has forgotten"):
        tx.commit()
    with pytest.raises(TableNotFoundError):
        catalog.undrop("a.t")
    assert near.verify() == []
