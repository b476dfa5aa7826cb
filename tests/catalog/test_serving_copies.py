"""What a Lance client may do to the serving copy of a stream table, judged by the manifest that it stages."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import RowIdSequence, write_fragments
from lance_namespace import BatchDeleteTableVersionsRequest, CreateTableVersionRequest
from lance_namespace_urllib3_client.models.version_range import VersionRange

from headwater import Catalog, MetastoreNamespace
from headwater.errors import ConcurrentModificationError, InvalidInputError
from headwater.streams.serving.serving_copy import lake, set_aside
from headwater.streams.stream_lookup import open_stream
from tests.catalog.samples import SCHEMA

ID = ["raw", "orders"]


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """Of 600 rows, in two fragments, a sixth was deleted and another changed after the first publish."""
    catalog = Catalog(MetastoreNamespace(root=str(tmp_path / "lake")))
    orders = catalog.create_stream_table("raw.orders", SCHEMA, keys=["id"], sequence=["at"])
    orders.upsert([{"id": n, "name": f"n{n}", "at": 1} for n in range(600)])
    orders.publish()
    orders.delete([{"id": n} for n in range(0, 600, 6)])
    orders.upsert([{"id": n, "name": f"m{n}", "at": 2} for n in range(1, 600, 6)])
    orders.publish()
    return catalog


def opened(catalog: Catalog) -> Any:
    return lance.dataset(namespace_client=catalog.namespace, table_id=ID)


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(table.column(name).to_pylist() for name in SCHEMA.names), strict=True))


def commit(dataset: Any, operation: Any, catalog: Catalog, **options: Any) -> Any:
    return lance.LanceDataset.commit(
        dataset.uri,
        operation,
        read_version=dataset.version,
        namespace_client=catalog.namespace,
        table_id=ID,
        namespace_client_managed_versioning=True,
        **options,
    )


def test_a_client_adds_indices_settings_and_columns_and_rewrites_and_rows_land_and_publish_as_before(
    catalog: Catalog,
) -> None:
    before = rows(catalog["raw.orders"].to_arrow())
    opened(catalog).create_scalar_index("at", "BTREE")
    opened(catalog).update_config({"a": "b"})
    opened(catalog).update_field_metadata({"name": {"comment": "of the customer"}})
    opened(catalog).add_columns({"twice": "id * 2"})
    assert opened(catalog).optimize.compact_files().fragments_removed > 0
    opened(catalog).optimize.optimize_indices()
    assert rows(opened(catalog).to_table()) == rows(catalog["raw.orders"].to_arrow()) == before
    assert opened(catalog).to_table().schema.names == [*SCHEMA.names, "twice"]
    catalog["raw.orders"].upsert([{"id": 1, "name": "late", "at": 9}, {"id": 900, "name": "new", "at": 1}])
    catalog["raw.orders"].publish()
    found = opened(catalog).to_table(filter="id IN (1, 2, 900)").sort_by("id").to_pydict()
    assert found["name"] == ["late", "n2", "new"]
    assert found["twice"] == [None, 4, None], "a column of the client's is NULL in rows published later"
    catalog["raw.orders"].serving.drop_columns("twice")
    assert opened(catalog).to_table().schema.names == SCHEMA.names
    assert catalog["raw.orders"].verify() == []
    assert catalog.namespace.verify() == []  # type: ignore[attr-defined]


REFUSED: dict[str, Callable[[Any], object]] = {
    "append": lambda it: lance.write_dataset(it.to_table().slice(0, 1), it, mode="append"),
    "overwrite": lambda it: lance.write_dataset(it.to_table().slice(0, 1), it, mode="overwrite"),
    "delete": lambda it: it.delete("id = 2"),
    "update": lambda it: it.update({"name": "'x'"}),
    "merge": lambda it: it.merge_insert("id").when_matched_update_all().execute(it.to_table().slice(0, 2)),
    "rename": lambda it: it.alter_columns({"path": "name", "name": "other"}),
    "cast": lambda it: it.alter_columns({"path": "at", "data_type": pa.int32()}),
    "drop": lambda it: it.drop_columns(["name"]),
    "restore": lambda it: it.checkout_version(1).restore(),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_changes_rows_or_columns_of_the_log_is_refused(catalog: Catalog, change: str) -> None:
    """The catalog says 13; pylance makes "unknown" of every refused commit, looks, and finds that it did not happen."""
    before, version = rows(catalog["raw.orders"].to_arrow()), opened(catalog).version
    with pytest.raises((OSError, ValueError, RuntimeError)):
        REFUSED[change](opened(catalog))
    assert opened(catalog).version == version
    assert rows(opened(catalog).to_table()) == before
    catalog["raw.orders"].upsert([{"id": 1, "name": "after", "at": 9}])
    catalog["raw.orders"].publish()
    assert opened(catalog).to_table(filter="id = 1").column("name").to_pylist() == ["after"]


def _rewrites(dataset: Any) -> dict[str, Any]:
    """Transactions that say they only rewrite fragments: an honest one, and some that lie."""
    live, ids = dataset.to_table(), dataset.to_table(columns=[], with_row_id=True).column("_rowid").to_pylist()
    updated = dataset.to_table(columns=["_row_last_updated_at_version"]).column(0).to_pylist()
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    shouted = live.set_column(1, "name", pa.array([str(name).upper() for name in live.column("name").to_pylist()]))

    def group(rows: pa.Table, row_ids: list[int]) -> Any:
        made = write_fragments(rows, dataset, mode="append")
        made[0].row_id_meta = RowIdSequence(row_ids).to_inline_metadata()
        return lance.LanceOperation.Rewrite([lance.LanceOperation.RewriteGroup(fragments, made)], [])

    assert len(set(updated)) == 2
    return {
        "lost": group(live.slice(1), ids[1:]),
        "other ids": group(live, [id + 1 for id in ids]),
        "values": group(shouted, ids),
        "resurrected": group(live, [0, *ids[1:]]),
    }


def test_a_transaction_that_lies_about_itself_is_refused(catalog: Catalog) -> None:
    dataset = opened(catalog)
    before = rows(dataset.to_table())
    for lie in _rewrites(dataset).values():
        with pytest.raises((OSError, ValueError, RuntimeError)):
            commit(dataset, lie, catalog)
        assert opened(catalog).version == dataset.version
    assert rows(opened(catalog).to_table()) == before


def test_operations_of_the_namespace_say_what_to_do_instead(catalog: Catalog) -> None:
    serving = catalog["raw.orders"].serving
    serving.add_columns({"twice": "id * 2"})
    serving.drop_columns("twice")
    serving.create_index("at")
    changes: tuple[Callable[[], object], ...] = (
        lambda: serving.append([{"id": 9, "name": "x", "at": 1}]),
        lambda: serving.delete("id = 1"),
        lambda: serving.update({"name": "x"}),
        lambda: serving.drop_columns("name"),
        lambda: serving.rename_columns({"name": "other"}),
        lambda: serving.restore(1),
    )
    for change in changes:
        with pytest.raises(InvalidInputError, match=r"stream table.*publish"):
            change()


def test_the_manifest_of_a_version_is_judged_whatever_way_it_comes(catalog: Catalog, tmp_path: Path) -> None:
    """A manifest made by hand, staged in the table and committed as the next version, alone or in a batch."""
    dataset = opened(catalog)
    copy = tmp_path / "copy"
    shutil.copytree(dataset.uri, copy)
    lance.dataset(str(copy)).delete("id = 2")
    made = max(copy.glob("_versions/*.manifest"), key=lambda path: -int(path.stem))
    staged = f"{dataset.uri}/_versions/{made.name}-{uuid.uuid4()}"
    shutil.copy(made, staged)
    request = {"id": ID, "version": dataset.version + 1, "manifest_path": staged.lstrip("/")}
    with pytest.raises(InvalidInputError, match="it changes the rows of fragment"):
        catalog.namespace.create_table_version(CreateTableVersionRequest(**request))
    with pytest.raises(InvalidInputError, match="it changes the rows of fragment"), catalog.batch() as batch:
        batch.create_version("raw.orders", dataset.version + 1, staged.lstrip("/"))
    with pytest.raises(InvalidInputError, match="stream table"):
        catalog.namespace.batch_delete_table_versions(
            BatchDeleteTableVersionsRequest(id=ID, ranges=[VersionRange(start_version=dataset.version, end_version=-1)])
        )
    assert opened(catalog).version == dataset.version


def test_a_catalog_proves_its_serving_copies_by_the_version_that_clients_read(catalog: Catalog, tmp_path: Path) -> None:
    """A rewrite that keeps ids and ages of rows, and changes values: the manifests do not tell, `verify` does."""
    orders = catalog.create_stream_table("raw.lied", SCHEMA, keys=["id"])
    orders.upsert([{"id": n, "name": f"n{n}", "at": 1} for n in range(9)])
    orders.publish()
    assert catalog.verify() == []
    dataset = lance.dataset(namespace_client=catalog.namespace, table_id=["raw", "lied"])
    old = dataset.get_fragments()[0].metadata
    live = dataset.to_table()
    made = write_fragments(live.set_column(1, "name", pa.array(["x"] * 9)), dataset, mode="append")
    made[0].row_id_meta = old.row_id_meta
    made[0].last_updated_at_version_meta = old.last_updated_at_version_meta
    rewrite = lance.LanceOperation.Rewrite([lance.LanceOperation.RewriteGroup([old], made)], [])
    lance.LanceDataset.commit(
        dataset.uri,
        rewrite,
        read_version=dataset.version,
        namespace_client=catalog.namespace,
        table_id=["raw", "lied"],
        namespace_client_managed_versioning=True,
    )
    assert [(item.kind, str(item.id)) for item in catalog.verify()] == [("serving_copy", "raw.lied")]
    orders.evolve(add={"more": "int64"})
    assert len(orders.verify()) == 1, "also while a change of columns is not published"


def test_a_serving_copy_that_cannot_be_read_is_a_finding(catalog: Catalog, tmp_path: Path) -> None:
    dataset = opened(catalog)
    data = Path(dataset.uri.removeprefix("file://")) / "data" / dataset.get_fragments()[0].metadata.files[0].path
    data.write_bytes(data.read_bytes()[:40])
    lance.dataset(dataset.uri)
    assert [item.kind for item in catalog.verify()] == ["damaged_file", "serving_copy"]


def test_a_table_takes_a_name_that_a_client_gave_to_a_column_of_its_own(catalog: Catalog) -> None:
    opened(catalog).add_columns({"note": "id * 2"})
    orders = catalog["raw.orders"]
    orders.evolve(add={"note": "string"})
    orders.upsert([{"id": 1, "name": "one", "at": 9, "note": "mine"}])
    orders.publish()
    found = opened(catalog).to_table(filter="id IN (1, 2)", columns=["id", "note", "note_1"]).sort_by("id")
    assert found.to_pydict() == {"id": [1, 2], "note": ["mine", None], "note_1": [None, 4]}
    assert orders.verify() == []


def test_the_history_of_a_table_is_written_by_publishes_alone(catalog: Catalog) -> None:
    orders = catalog.create_stream_table("raw.kept", SCHEMA, keys=["id"], properties={"history": "scd2"})
    orders.upsert([{"id": 1, "name": "a", "at": 1}])
    orders.publish()
    history = catalog["raw.kept__history"]
    with pytest.raises(InvalidInputError, match="stream table"):
        history.delete("id = 1")
    dataset = lance.dataset(namespace_client=catalog.namespace, table_id=["raw", "kept__history"])
    with pytest.raises((OSError, ValueError, RuntimeError)):
        dataset.delete("id = 1")
    history.create_index("name", "BTREE")
    orders.upsert([{"id": 1, "name": "b", "at": 2}])
    orders.publish()
    assert sorted(history.to_arrow()["name"].to_pylist()) == ["a", "b"]
    plain = catalog.create_table("raw.my__history", pa.table({"a": [1, 2]}))
    plain.delete("a = 1")
    assert plain.count() == 1


def test_a_publish_that_knew_a_table_by_its_old_name_moves_nothing_of_it(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    catalog = Catalog(namespace)

    def published(name: str) -> None:
        catalog[name].upsert([{"id": 1, "name": "x", "at": 1}])
        catalog[name].publish()

    for name in ("raw.orders", "raw.others"):
        catalog.create_stream_table(name, SCHEMA, keys=["id"])
        published(name)
    now = namespace.metastore.now()
    before, newest = open_stream(now, ID), now.last_position(ID, format="lance")
    catalog.rename_table("raw.orders", "raw.moved")
    catalog.rename_table("raw.others", "raw.orders")
    published("raw.moved")
    with pytest.raises(ConcurrentModificationError):
        set_aside(lake(namespace.metastore), before, newest)
    assert (catalog["raw.moved"].serving.count(), catalog.verify()) == (1, [])
