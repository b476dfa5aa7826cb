"""The friendly face raises errors of the table only: named, without paths, source lines or other libraries' stacks."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Catalog, DirectoryNamespace
from headwater.catalog import CatalogTable
from headwater.errors import LanceNamespaceError
from headwater.names import ObjectId
from headwater.rest.server import start_in_thread

ROWS = pa.table({"id": [1, 2], "s": ["a", "b"]})
ODD: dict[str, tuple[int, Callable[[Catalog, CatalogTable], object]]] = {
    "an unknown column in a filter": (12, lambda catalog, table: table.to_arrow(filter="nonsense")),
    "a filter that is no SQL": (13, lambda catalog, table: table.to_arrow(filter="(((")),
    "a column that is not there": (12, lambda catalog, table: table.to_arrow(columns=["zz"])),
    "a version that is not there": (11, lambda catalog, table: table.to_arrow(version=99)),
    "a dataset of no version": (11, lambda catalog, table: table.dataset(99)),
    "a limit below zero": (13, lambda catalog, table: table.to_arrow(limit=-1)),
    "a version that is not a number": (13, lambda catalog, table: table.to_arrow(version="x")),  # type: ignore[arg-type]
    "a count of nonsense": (12, lambda catalog, table: table.count("zz = 1")),
    "a deletion of nonsense": (13, lambda catalog, table: table.delete("zz =")),
    "a key that is not there": (12, lambda catalog, table: table.upsert(ROWS, on="zz")),
    "rows that are none": (13, lambda catalog, table: table.append(5)),
    "rows of another type": (20, lambda catalog, table: table.append([{"id": "x"}])),
    "the dataset of no table": (4, lambda catalog, table: CatalogTable(table.namespace, ObjectId(("zz",))).dataset()),
    "a table that exists": (5, lambda catalog, table: catalog.create_table("t", ROWS)),
}


@pytest.fixture(scope="module", params=["directory", "REST"])
def catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    root = str(tmp_path_factory.mktemp("errors") / "lake")
    Catalog(root, impl="dir").create_table("t", ROWS)
    if request.param == "directory":
        yield Catalog(root)
        return
    with start_in_thread(DirectoryNamespace(root=root)) as server:
        yield Catalog(server.url)


def require_clean(text: str) -> None:
    assert not re.search(r"\.rs:\d|/tmp/|Traceback|\.py\b|site-packages", text), text


@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_done_is_a_named_error(catalog: Catalog, name: str) -> None:
    code, attempt = ODD[name]
    with pytest.raises(LanceNamespaceError) as raised:
        attempt(catalog, catalog["t"])
    assert int(raised.value.code) == code
    require_clean(str(raised.value))


def test_what_an_applications_own_rows_raise_comes_back_as_it_was(catalog: Catalog) -> None:
    class OwnError(Exception):
        pass

    def rows() -> Iterator[pa.RecordBatch]:
        yield ROWS.to_batches()[0]
        raise OwnError("out of rows")

    def reader() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(ROWS.schema, rows())

    before = catalog["t"].count()
    attempts: list[Callable[[], Any]] = [
        lambda: catalog["t"].append(reader()),
        lambda: catalog["t"].upsert(reader(), on="id"),
        lambda: catalog.create_table("fresh", reader()),
    ]
    for attempt in attempts:
        with pytest.raises(OwnError, match="out of rows"):
            attempt()
    assert catalog["t"].count() == before
    assert "fresh" not in catalog.tables()


def test_a_damaged_table_is_a_named_error(tmp_path: Path) -> None:
    table = Catalog(str(tmp_path / "lake"), impl="dir").create_table("t", ROWS)
    for file in glob.glob(f"{tmp_path}/lake/**/data/*", recursive=True):
        if "__manifest" not in file:
            os.remove(file)
    with pytest.raises(LanceNamespaceError) as raised:
        table.to_arrow()
    require_clean(str(raised.value))
    for file in glob.glob(f"{tmp_path}/lake/**/t.lance/_versions/*", recursive=True):
        Path(file).write_bytes(b"junk")
    for attempt in (table.to_arrow, lambda: table.schema, table.dataset):
        with pytest.raises(LanceNamespaceError) as raised:
            attempt()
        require_clean(str(raised.value))
