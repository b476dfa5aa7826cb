"""Bad input is an error that names it, and changes nothing: near the catalog and through a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headwater import Catalog, open_catalog
from headwater.errors import InvalidInputError, LanceNamespaceError

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})
NO_TYPE = pa.table({"id": ["one"], "v": ["c"]})


def twice_in_a_batch(catalog: Catalog) -> None:
    with catalog.batch() as batch:
        batch.declare_table("a.fresh")
        batch.declare_table("a.fresh")


def dropped_twice(catalog: Catalog) -> None:
    with catalog.batch() as batch:
        batch.deregister_table("a.t")
        batch.deregister_table("a.t")


def two_of_one_name(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx.create_table("a.fresh", ROWS)
        tx.create_stream_table("a.fresh", ROWS.schema, keys="id")


def table_and_namespace_of_one_name(catalog: Catalog) -> None:
    with catalog.transaction() as tx:
        tx.create_namespace("a.fresh")
        tx.create_table("a.fresh", ROWS)


BAD: dict[str, tuple[Callable[[Catalog], object], str]] = {
    "append: unknown column": (lambda it: it["a.t"].append([{"id": 3, "nope": 1}]), "nope"),
    "append: wrong type": (lambda it: it["a.t"].append(NO_TYPE), "id"),
    "merge: unknown key": (lambda it: it["a.t"].upsert([{"id": 3, "v": "c"}], on="nope"), "nope"),
    "delete: unknown column": (lambda it: it["a.t"].delete("nope = 1"), "nope"),
    "update: unknown column": (lambda it: it["a.t"].update({"nope": 1}), "nope"),
    "read: unknown column": (lambda it: it["a.t"].to_arrow(columns=["nope"]), "nope"),
    "drop columns: unknown column": (lambda it: it["a.t"].drop_columns("nope"), "nope"),
    "index: unknown column": (lambda it: it["a.t"].create_index("nope"), "nope"),
    "stream: unknown column": (lambda it: it["a.log"].upsert([{"id": 3, "nope": 1}]), "nope"),
    "stream: wrong type": (lambda it: it["a.log"].upsert(NO_TYPE), "id"),
    "stream: missing key": (lambda it: it["a.log"].upsert([{"v": "c"}]), "id"),
    "stream: null key": (lambda it: it["a.log"].upsert([{"id": None, "v": "c"}]), "id"),
    "stream: delete without the key": (lambda it: it["a.log"].delete([{"v": "c"}]), "id"),
    "stream: read unknown column": (lambda it: it["a.log"].to_arrow(columns=["nope"]), "nope"),
    "stream: read less than nothing": (lambda it: it["a.log"].to_arrow(limit=-1), "-1"),
    "stream: no partition": (
        lambda it: it.create_stream_table("a.fresh", ROWS.schema, keys="id", partition_by=[{"nope": 1}]),
        "nope",
    ),
    "stream: evolve unknown column": (lambda it: it["a.log"].evolve(drop=["nope"]), "nope"),
    "stream: dropped and renamed": (lambda it: it["a.log"].evolve(drop=["v"], rename={"v": "w"}), "v"),
    "stream: a field for a type": (lambda it: it["a.log"].evolve(add={"w": pa.field("w", pa.int32())}), "w"),
    "stream: a token that is no text": (lambda it: it["a.log"].upsert([{"id": 3}], token=5), "token"),
    "stream: a source that is no text": (lambda it: it["a.log"].delete([1], source=5), "source"),
    "stream: changes backwards": (lambda it: it["a.log"].changes(1, 0), "1"),
    "stream: unknown key column": (lambda it: it.create_stream_table("a.fresh", ROWS.schema, keys="nope"), "nope"),
    "batch: declared twice": (twice_in_a_batch, "fresh"),
    "batch: deregistered twice": (dropped_twice, "t"),
    "publish: one table twice": (lambda it: it.publish(["a.log", "a.log"]), "log"),
    "two new objects of one name": (two_of_one_name, "fresh"),
    "a namespace and a table of one name": (table_and_namespace_of_one_name, "fresh"),
    "create: the name is taken": (lambda it: it.create_table("a.t", ROWS), "t"),
    "rename: the name is taken": (lambda it: it.rename_table("a.t", "a.u"), "u"),
    "no such table": (lambda it: it["a.nope"].append(ROWS), "nope"),
}


def contents(catalog: Catalog) -> dict[str, object]:
    return {name: catalog[name].to_arrow().to_pydict() for name in catalog}


def test_bad_input_is_an_error_that_names_it_and_changes_nothing(either: Catalog) -> None:
    either.create_table("a.t", ROWS)
    either.create_table("a.u", ROWS)
    either.create_stream_table("a.log", ROWS.schema, keys="id").upsert(ROWS)
    before, slot = contents(either), either.slot
    for what, (ask, named) in BAD.items():
        with pytest.raises(LanceNamespaceError) as raised:
            ask(either)
        assert int(raised.value.code) not in (14, 17, 18), what
        assert named in str(raised.value), f"{what}: {raised.value}"
        assert either.slot == slot, what
    assert contents(either) == before


def test_a_catalog_opens_by_a_path_object_and_by_nothing_that_names_none(tmp_path: Path) -> None:
    Catalog(tmp_path / "lake").create_namespace("prod")
    assert Catalog(str(tmp_path / "lake")).namespaces() == ["prod"]
    assert Catalog(open_catalog(tmp_path / "lake")).namespaces() == ["prod"]
    with pytest.raises(InvalidInputError, match="a path, a URI or a profile, not by int"):
        Catalog(7)  # type: ignore[arg-type]
