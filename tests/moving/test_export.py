"""Export: a plain directory catalog elsewhere, of one moment; with all versions the very same history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace as PylanceNamespace

from headwater import Catalog, DirectoryNamespace
from headwater.errors import InvalidInputError
from headwater.moving import export
from headwater.rest.server import start_in_thread
from tests.interop.roots import count, create, namespaces, tables

ROWS = pa.table({"n": [1, 2, 3], "t": pa.array(["a", None, "c"])})


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A plain table of three versions, a published and an unpublished stream table, a declared one."""
    made = Catalog(str(tmp_path / "lake"))
    made.create_namespace("deep", {"owner": "me"})
    made.create_table("deep.t", ROWS, properties={"kind": "plain"})
    made["deep.t"].append(ROWS)
    with made.transaction() as tx:
        tx["deep.t"].append(ROWS)
    made["deep.t"].tags["second"] = 2
    for name in ("events", "silent"):
        stream = made.create_stream_table(name, pa.schema([("id", pa.int64())]), keys="id")
        stream.upsert(pa.table({"id": [1, 2]}))
    made["events"].publish()
    made["events"].upsert(pa.table({"id": [3]}))
    made.declare_table("promised")
    return made


@pytest.mark.parametrize("all_versions", [False, True], ids=["current", "all"])
def test_every_lance_client_reads_and_writes_what_was_exported(
    tmp_path: Path, catalog: Catalog, all_versions: bool
) -> None:
    done = export(catalog, str(tmp_path / "out"), all_versions)
    assert (done.namespaces, done.tables, done.declared, done.slot) == (1, 2, 2, catalog.slot)
    other = PylanceNamespace(root=str(tmp_path / "out"), dir_listing_enabled="false")
    assert (namespaces(other), tables(other)) == (["deep"], ["events", "promised", "silent"])
    assert other.describe_namespace(api.DescribeNamespaceRequest(id=["deep"])).properties == {"owner": "me"}
    assert (count(other, "deep", "t"), count(other, "events")) == (9, 2)
    create(other, "mine")
    made = Catalog(str(tmp_path / "out"))
    assert isinstance(made.namespace, DirectoryNamespace)
    assert made["deep.t"].to_arrow().slice(0, 3) == ROWS
    assert made["deep.t"].properties["kind"] == "plain"
    assert [item.version for item in made["deep.t"].versions()] == ([1, 2, 3] if all_versions else [1])
    assert list(made["deep.t"].tags) == (["second"] if all_versions else [])
    made["deep.t"].append(ROWS)
    assert made.namespace.verify() == []


def test_a_version_that_the_catalog_does_not_know_is_not_exported(tmp_path: Path, catalog: Catalog) -> None:
    lance.write_dataset(ROWS, catalog["deep.t"].describe().location, mode="append")
    export(catalog, str(tmp_path / "out"), all_versions=True)
    assert Catalog(str(tmp_path / "out"))["deep.t"].count() == 9


def test_nothing_is_exported_over_something(tmp_path: Path, catalog: Catalog) -> None:
    (tmp_path / "out").mkdir()
    export(catalog, str(tmp_path / "out"))
    with pytest.raises(InvalidInputError, match="new folder"):
        export(catalog, str(tmp_path / "out"))
    with pytest.raises(InvalidInputError, match="new folder"):
        export(catalog, str(tmp_path / "lake"))


def test_of_a_metastore_behind_a_server_one_moment_is_exported_too(tmp_path: Path, catalog: Catalog) -> None:
    def late(namespace: Any, request: Any) -> Any:
        if catalog["deep.t"].count() < 12:
            catalog["deep.t"].append(ROWS)  # while the export is under way
        return walked(namespace, request)

    with start_in_thread(catalog.namespace) as server:
        far = Catalog(server.url)
        walked = type(far.namespace).list_namespaces
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(far.namespace), "list_namespaces", late)
            done = export(far, str(tmp_path / "copy"))
    assert (done.slot, catalog["deep.t"].count()) == (catalog.slot - 1, 12)
    assert Catalog(str(tmp_path / "copy"))["deep.t"].count() == 9


def test_an_export_into_the_catalog_itself_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path / "lake")
    for inside in ("lake/out", "lake/deep/er", "other/out"):
        with pytest.raises(InvalidInputError, match="inside the catalog"):
            export(catalog, str(tmp_path / inside))
        assert not (tmp_path / inside).exists()
    assert export(catalog, str(tmp_path / "lake2")).tables == 2
