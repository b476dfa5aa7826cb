"""Arguments of the public API: an unknown option is refused, a wrong type is an error of the table, by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import headwater
from headwater import pipeline
from headwater.arguments import _tests
from headwater.catalog import Catalog, CatalogTable
from headwater.catalog.streams import CatalogStream
from headwater.catalog.table_parts import Indices
from headwater.catalog.transactions import Batch
from headwater.errors import InvalidInputError, LanceNamespaceError
from headwater.rest.remote_streams import RemoteStream
from headwater.rest.server import start_in_thread
from headwater.spark.session import configure, settings
from headwater.streams.table import StreamTable

PUBLIC: tuple[type, ...] = (Catalog, CatalogTable, Indices, StreamTable, RemoteStream)
PASSED_ON = {"to_batches", "to_pandas", "to_polars", "to_duckdb"}
"""Methods of every table that hand their options to `to_arrow`."""


def methods(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, each) for name, each in vars(kind).items() if inspect.isfunction(each) and not name.startswith("_"))


@pytest.mark.parametrize("kind", PUBLIC)
def test_a_wrong_type_is_refused_by_the_name_of_its_argument(kind: type) -> None:
    class Odd:
        pass

    seen = 0
    for name, method in methods(kind):
        plain = inspect.unwrap(method)
        for each in _tests(plain, list(inspect.signature(plain).parameters)[1:]):
            if "bool" in plain.__annotations__[each]:
                continue
            for odd in (Odd(), "\ud800"):
                with pytest.raises(InvalidInputError, match=f"{name}: {each} must be "):
                    method(None, **{each: odd})
            seen += 1
    assert seen > (0 if kind is Indices else 5)


def test_every_public_method_that_takes_options_refuses_one_that_it_does_not_know(tmp_path: Path) -> None:
    near = Catalog(str(tmp_path / "lake"))
    near.create_table("t", pa.table({"id": [1], "v": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}))
    log = near.create_stream_table("s", pa.schema({"id": pa.int64()}), keys="id")
    log.upsert([{"id": 1}])
    log.publish()
    bogus: dict[str, Any] = {"bogus": 1}
    server = start_in_thread(near.namespace)
    far, rows = Catalog(server.url), [{"id": 2}]
    calls: dict[Any, list[Callable[[], Any]]] = {
        Catalog.__init__: [
            lambda: list(Catalog(str(tmp_path / "lake"), **bogus)),
            lambda: list(Catalog(server.url, **bogus)),
            lambda: Catalog(near.namespace, **bogus),
            lambda: headwater.connect("rest", {"uri": server.url, **bogus}),
            lambda: headwater.connect("dir", {"root": str(tmp_path / "d"), **bogus}),
        ],
        Batch.create_version: [lambda: near.batch().create_version("t", 2, "x", **bogus)],
        Indices.create: [lambda: near["t"].indices.create("id", "BTREE", near["t"].schema, **bogus)],
        settings: [
            lambda: settings("x", root=str(tmp_path / "lake"), **bogus),
            lambda: settings("x", uri=server.url, **bogus),
        ],
        pipeline.ingest: [lambda: pipeline.ingest(None, near, "s", rows, **bogus)],
        pipeline.index: [lambda: pipeline.index(None, near, "s", "id", "BTREE", **bogus)],
        pipeline.export: [lambda: pipeline.export(None, near, tmp_path / "out", **bogus)],
        pipeline.watch: [lambda: next(pipeline.watch(None, near, "s", str(tmp_path / "*.json"), **bogus))],
        StreamTable.ingest_file: [],  # as ingest, for files that were found
        StreamTable.ingest_files: [],
        RemoteStream.ingest_files: [],
        configure: [],  # as settings
    }
    for each in (near["t"], far["t"]):
        calls.setdefault(CatalogTable.describe, []).append(partial(each.describe, **bogus))
        calls.setdefault(CatalogTable.search, []).append(partial(each.search, [1.0, 2.0], **bogus))
        calls.setdefault(CatalogTable.update, []).append(partial(each.update, {"id": 2}, **bogus))
        calls.setdefault(CatalogTable.create_index, []).append(partial(each.create_index, "id", **bogus))
    for stream, kind in ((near["s"], StreamTable), (far["s"], RemoteStream)):
        calls[kind.ingest] = [partial(stream.ingest, rows, **bogus)]
        searching: Any = CatalogStream.search if kind is StreamTable else RemoteStream.search
        calls[searching] = [partial(stream.search, [1.0], **bogus)]
    calls[StreamTable.create_index] = [lambda: near["s"].create_index("id", "BTREE", **bogus)]
    kinds = (*PUBLIC, Batch, CatalogStream)
    found = [each for kind in kinds for name, each in methods(kind) if name not in PASSED_ON]
    found += [each for name in pipeline.__all__ if inspect.isfunction(each := getattr(pipeline, name))]
    found += [Catalog.__init__, settings, configure]
    taking = {
        each for each in found if "VAR_KEYWORD" in {p.kind.name for p in inspect.signature(each).parameters.values()}
    }
    try:
        assert {each.__qualname__ for each in taking} <= {each.__qualname__ for each in calls}
        for each in calls:
            for call in calls[each]:
                with pytest.raises((LanceNamespaceError, TypeError), match="bogus"):
                    call()
        for table in (near["t"], near["s"], far["t"], far["s"]):
            for name in PASSED_ON:
                with pytest.raises(TypeError, match="bogus"):
                    getattr(table, name)(**bogus)
    finally:
        server.stop()
    assert near["s"].count() == near["t"].count() == 1


def test_what_people_write_works_or_is_named(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    vectors = pa.array([[float(n), 0.0] for n in range(20)], pa.list_(pa.float32(), 2))
    table = catalog.create_table("t", pa.table({"id": list(range(20)), "v": vectors}))
    asked: list[dict[str, Any]] = [{}, {"limit": 3}, {"k": 4}, {"k": 5, "limit": 5}]
    assert [table.search([1.0, 0.0], **how).num_rows for how in asked] == [10, 3, 4, 5]
    with pytest.raises(InvalidInputError, match="k and limit"):
        table.search([1.0, 0.0], k=3, limit=4)
    with pytest.raises(InvalidInputError, match="did you mean 'nprobes'"):
        table.search([1.0, 0.0], nprobe=3)
    with pytest.raises(InvalidInputError, match="list of numbers"):
        table.search(vector=["one", "two"])  # type: ignore[list-item]
    assert catalog.create_table("d", schema={"id": "int64", "at": "timestamp"}).schema.names == ["id", "at"]
    with pytest.raises(InvalidInputError, match=r"schema (is|must be)"):
        catalog.create_table("x", schema=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"schema (is|must be)"):
        catalog.create_stream_table("x", 5)
    with pytest.raises(InvalidInputError, match="is not a column"):
        catalog.create_stream_table("x", "id")
    with pytest.raises(InvalidInputError, match="a text or a list of texts"):
        catalog.describe(cast(Any, np.zeros((2, 2))))
    wrong_columns: Any = True
    with pytest.raises(InvalidInputError, match="New columns are"):
        table.add_columns(wrong_columns)
    log, wrong_file = catalog.create_stream_table("log", {"id": "int64"}), cast(Any, "1.json")
    with pytest.raises(InvalidInputError, match="SourceFile"):
        log.ingest_file(wrong_file)
    with pytest.raises(InvalidInputError, match="SourceFile"):
        log.ingest_files([wrong_file])
    with pytest.raises(InvalidInputError, match="checks must be"):
        log.ingest([{"id": 1}], checks=[cast(Any, "id > 0")])
    now = datetime.now(UTC).isoformat()
    assert table.at(time=now).version == 1
    for wrong in ("yesterday", "2026-01-01T00:00:00"):
        with pytest.raises(InvalidInputError, match="time"):
            table.at(time=wrong)
    with pytest.raises(InvalidInputError, match="SQL expression or a type"):
        table.add_columns({"f": lambda row: 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidInputError, match="column"):
        table.update(id=1)  # type: ignore[arg-type]
    table.cast_columns({"id": "double"})
    assert table.schema.field("id").type == pa.float64()
    for name in (1, object(), ["t", 1]):
        with pytest.raises(InvalidInputError):
            catalog[name]  # type: ignore[index]
