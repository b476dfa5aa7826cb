"""What the serving process itself does not do: import Lance, open a table, or run the code of a back end."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import lance_namespace as api
import pyarrow as pa
import pytest

from headwater import Catalog
from tests.rest.processes import ServeProcess

pytestmark = pytest.mark.xdist_group("serve")
PEOPLE = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
V1 = {"manifest_enabled": "false", "dir_listing_enabled": "true"}
V2 = {"manifest_enabled": "true", "dir_listing_enabled": "false", "table_version_management": "true"}


def serve(root: str, properties: dict[str, str]) -> ServeProcess:
    given = [part for name, text in properties.items() for part in ("--property", f"{name}={text}")]
    told = ("--port", "0", "--no-access-log", "--data-workers", "1")
    return ServeProcess(root, *told, *given, module="tests.rest.looked_at")


def seen(served: ServeProcess) -> Any:
    status, _, err = served.stop()
    assert status == 0, err
    return json.loads(err.splitlines()[-1])


def use_tables(catalog: Catalog, prefix: str, renames: bool) -> None:
    """Every verb on names, tables, rows, versions, columns, indices, tags and branches."""
    namespace: Any = catalog.namespace
    table = catalog.create_table(f"{prefix}people", PEOPLE)
    id = [*f"{prefix}people".split(".")]
    table.append(PEOPLE)
    table.upsert([{"id": 1, "name": "z"}], on="id")
    table.delete("id = 2")
    assert table.count() == 4
    assert table.to_arrow(filter="id = 1").num_rows == 2
    namespace.update_table(api.UpdateTableRequest(id=id, updates=[["name", "'y'"]], predicate="id = 3"))
    namespace.describe_table(api.DescribeTableRequest(id=id, load_detailed_metadata=True))
    namespace.describe_table(api.DescribeTableRequest(id=id, version=1))
    namespace.list_table_versions(api.ListTableVersionsRequest(id=id))
    namespace.describe_table_version(api.DescribeTableVersionRequest(id=id, version=1))
    namespace.get_table_stats(api.GetTableStatsRequest(id=id))
    namespace.create_table_scalar_index(api.CreateTableIndexRequest(id=id, column="id", index_type="BTREE"))
    namespace.list_table_indices(api.ListTableIndicesRequest(id=id))
    namespace.create_table_tag(api.CreateTableTagRequest(id=id, tag="t", version=1))
    namespace.list_table_tags(api.ListTableTagsRequest(id=id))
    namespace.alter_table_drop_columns(api.AlterTableDropColumnsRequest(id=id, columns=["name"]))
    namespace.update_table_schema_metadata(api.UpdateTableSchemaMetadataRequest(id=id, metadata={"a": "b"}))
    namespace.delete_table_tag(api.DeleteTableTagRequest(id=id, tag="t"))
    namespace.restore_table(api.RestoreTableRequest(id=id, version=1))
    if renames:
        catalog.rename_table(f"{prefix}people", f"{prefix}folk")
        catalog.drop_table(f"{prefix}folk")
    else:
        catalog.drop_table(f"{prefix}people")


def use_history(catalog: Catalog, url: str) -> None:
    """Every verb on stream tables, transactions and the past, and the page."""
    stream = catalog.create_stream_table("a.s", PEOPLE.schema, keys=["id"])
    stream.upsert(PEOPLE)
    stream.ingest([{"id": 4, "name": "d"}])
    stream.publish()
    stream.delete([{"id": 1}])
    stream.set_properties({"expect.small": "id < 100"})
    stream.publish()
    assert stream.count() == 3
    assert stream.changes().num_rows
    stream.undo(txn=stream.deltas()[-1].txn)
    slot = catalog.slot
    catalog.create_table("a.t", PEOPLE)
    with catalog.transaction() as tx:
        tx["a.t"].append(PEOPLE)
        tx["a.s"].upsert([{"id": 9, "name": "i"}])
        assert tx["a.t"].count() == 6
    assert catalog["a.t"].count() == 6
    assert catalog.at(slot)["a.s"].count() == 4
    catalog.snapshot("s")
    catalog.at("s")["a.t"].to_arrow()
    catalog.drop_table("a.t")
    catalog.undrop("a.t")
    catalog.history("a.t")
    catalog.diff(slot, catalog.slot)
    assert catalog.verify() == []
    catalog.collect(keep=timedelta(0), grace=timedelta(0))
    for page in ("/", "/t/a/t", "/t/a/t?view=rows", "/t/a/t?view=versions", "/t/a/t?view=files", "/t/a/s", "/log"):
        assert httpx.get(url + page, timeout=60).status_code == 200, page


def test_over_a_metastore_it_never_imports_lance(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    Catalog(root, impl="metastore").create_namespace("a")
    with serve(root, {}) as served:
        catalog = Catalog(served.url)
        use_tables(catalog, "a.", renames=True)
        use_history(catalog, served.url)
        assert seen(served)["modules"] == []


def test_over_a_v1_directory_it_never_imports_lance(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    Catalog(root, impl="dir", **V1).create_table("first", PEOPLE)
    with serve(root, V1) as served:
        use_tables(Catalog(served.url), "", renames=False)
        assert seen(served)["modules"] == []


def test_over_a_v2_directory_it_opens_the_manifest_table_alone(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    Catalog(root, impl="dir", **V2).create_namespace("a")
    with serve(root, V2) as served:
        use_tables(Catalog(served.url), "a.", renames=True)
        opened = seen(served)["opened"]
    assert opened
    assert {os.path.basename(uri.rstrip("/")) for uri in opened} == {"__manifest"}


def test_a_back_end_of_others_runs_in_a_worker_alone(tmp_path: Path) -> None:
    told = ("--impl", "tests.rest.in_which_process.Telling", "--port", "0", "--no-access-log", "--data-workers", "1")
    with ServeProcess(*told, module="tests.rest.looked_at") as served:
        answer = httpx.get(f"{served.url}/v1/namespace/$/list?delimiter=$", timeout=60).json()
        assert answer["namespaces"] != [str(served.process.pid)]
        assert httpx.get(f"{served.url}/health/ready", timeout=60).status_code == 200
        assert "operations" in httpx.get(f"{served.url}/headwater/v1/capabilities", timeout=60).json()
        assert httpx.post(f"{served.url}/v1/table/a/describe", json={}, timeout=60).json()["code"] == 4
