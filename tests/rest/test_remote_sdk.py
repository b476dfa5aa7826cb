"""LanceDB's remote client, `lancedb.connect("db://...", host_override=...)`: one row for each everyday call.

Every row runs as a user with an API key whose role is `writer`, within the namespace `prod` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lance_namespace import DeclareTableRequest, ListTablesRequest
from lancedb.index import FTS, Bitmap, BTree, IvfFlat, IvfPq
from lancedb.query import ColumnOrdering, MatchQuery, PhraseQuery
from lancedb.rerankers import RRFReranker

from headwater import MetastoreNamespace
from headwater.clock import SystemClock
from headwater.rest.auth.keys import create_key
from headwater.rest.server import start_in_thread

pytestmark = [
    pytest.mark.xdist_group("remote-sdk"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # the older calls are everyday calls too
]


def rows(first: int, end: int) -> list[dict[str, Any]]:
    return [{"id": n, "text": f"word{n} common", "vector": [float(n), 1.0], "score": n / 2} for n in range(first, end)]


Check = Callable[[Any, Any], None]
MATRIX: dict[str, Check] = {}
PATH = ["prod"]
IN: dict[str, Any] = {"namespace_path": PATH}


def call(check: Check) -> Check:
    MATRIX[check.__name__] = check
    return check


@pytest.fixture(scope="module")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Connect to one server as the holder of a new key."""
    catalog = MetastoreNamespace(root=str(tmp_path_factory.mktemp("sdk")))
    create_key(catalog.store, SystemClock(), "admin", [])
    server = start_in_thread(catalog)

    def connect(role: str, *scope: str) -> Any:
        key = create_key(catalog.store, SystemClock(), role, list(scope))[1]
        return lancedb.connect("db://lake", api_key=key, host_override=server.url)

    admin = connect("admin")
    admin.create_namespace(PATH)
    admin.create_table("secret", rows(0, 1))
    yield connect
    server.stop()


@pytest.fixture(scope="module")
def db(connect: Callable[..., Any]) -> Any:
    return connect("writer", *PATH)


@call
def create_empty(db: Any, table: Any) -> None:
    made = db.create_table("empty", schema=pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC")}), **IN)
    assert (made.count_rows(), made.schema.names) == (0, ["id", "at"])
    db.drop_table("empty", **IN)


@call
def create_modes(db: Any, table: Any) -> None:
    with pytest.raises(Exception, match="exists"):
        db.create_table(table.name, rows(0, 2), **IN)
    assert db.create_table(table.name, rows(0, 2), exist_ok=True, **IN).count_rows() == 300
    assert db.create_table(table.name, rows(0, 2), mode="overwrite", **IN).count_rows() == 2


@call
def open_and_drop(db: Any, table: Any) -> None:
    assert db.open_table(table.name, **IN).count_rows() == 300
    db.drop_table(table.name, **IN)
    with pytest.raises(Exception, match="not found"):
        db.open_table(table.name, **IN)
    db.create_table(table.name, rows(0, 2), **IN)


@call
def rename(db: Any, table: Any) -> None:
    db.rename_table(table.name, "renamed", cur_namespace_path=PATH)
    assert db.open_table("renamed", **IN).count_rows() == 300
    db.rename_table("renamed", table.name, cur_namespace_path=PATH, new_namespace_path=PATH)
    assert db.open_table(table.name, **IN).count_rows() == 300


@call
def table_names(db: Any, table: Any) -> None:
    for name in "xyz":
        db.create_table(f"page_{name}", rows(0, 1), **IN)
    assert {table.name, "page_x", "page_y", "page_z"} <= set(db.table_names(limit=1000, **IN))


@call
def list_tables(db: Any, table: Any) -> None:
    db.create_table("list_x", rows(0, 1), **IN)
    found, token = [], None
    while True:
        page = db.list_tables(limit=1, page_token=token, **IN)
        found += page.tables
        token = page.page_token
        if not token:
            break
    assert {table.name, "list_x"} <= set(found)
    assert db.list_tables().tables == []


def test_the_names_of_the_root_are_paged_by_name(connect: Callable[..., Any]) -> None:
    db = connect("admin")
    for name in ("aa", "bb", "cc"):
        db.create_table(name, rows(0, 1))
    assert list(db.table_names(limit=100)) == ["aa", "bb", "cc", "secret"]
    assert list(db.table_names(limit=2)) == ["aa", "bb"]
    assert list(db.table_names(page_token="bb", limit=1)) == ["cc"]
    assert db.open_table("cc").count_rows() == 1


def test_namespaces_are_made_listed_described_and_dropped(connect: Callable[..., Any]) -> None:
    db = connect("admin", *PATH)
    db.create_namespace(["prod", "eu"], properties={"owner": "ann"})
    assert db.list_namespaces().namespaces == ["prod"]
    assert db.list_namespaces(["prod"]).namespaces == ["eu"]
    assert db.describe_namespace(["prod", "eu"]).properties["owner"] == "ann"
    db.create_table("inner", rows(0, 3), namespace_path=["prod", "eu"])
    assert db.list_tables(namespace_path=["prod", "eu"]).tables == ["inner"]
    inner = db.open_table("inner", namespace_path=["prod", "eu"])
    assert (inner.count_rows(), inner.search([1.0, 1.0]).limit(1).to_list()[0]["id"]) == (3, 1)
    db.rename_table("inner", "moved", cur_namespace_path=["prod", "eu"], new_namespace_path=PATH)
    db.drop_table("moved", **IN)
    db.drop_namespace(["prod", "eu"])
    assert db.list_namespaces(["prod"]).namespaces == []


TYPES = pa.schema(
    [
        *(pa.field(str(kind), kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
        *(pa.field(str(kind), kind) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
        *(pa.field(str(kind), kind) for kind in (pa.float16(), pa.float32(), pa.float64(), pa.bool_())),
        *(pa.field(str(kind), kind) for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())),
        *(pa.field(str(kind), kind) for kind in (pa.date32(), pa.date64(), pa.binary(4))),
        pa.field("time", pa.time64("us")),
        pa.field("stamp", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("us", "UTC")),
        pa.field("took", pa.duration("ns")),
        pa.field("money", pa.decimal128(12, 2)),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("list", pa.list_(pa.int64())),
        pa.field("struct", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])),
        pa.field("must", pa.int64(), nullable=False),
    ]
)


@call
def schema(db: Any, table: Any) -> None:
    assert table.schema.names == ["id", "text", "vector", "score"]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 2)
    made = db.create_table("types", schema=TYPES, **IN)
    assert made.schema == TYPES
    db.drop_table("types", **IN)


@call
def count_rows(db: Any, table: Any) -> None:
    assert (table.count_rows(), table.count_rows("id < 10")) == (300, 10)


@call
def add(db: Any, table: Any) -> None:
    before = table.version
    assert table.add(rows(300, 310)).version == before + 1
    assert table.count_rows() == 310
    table.add(pa.Table.from_pylist(rows(0, 1), schema=table.schema), mode="overwrite")
    assert table.count_rows() == 1


@call
def search_vector(db: Any, table: Any) -> None:
    found = table.search([9.0, 1.0]).limit(2).to_list()
    assert (found[0]["id"], found[0]["_distance"], len(found)) == (9, 0.0, 2)
    found = table.search([9.0, 1.0]).where("id < 5").distance_type("cosine").select(["id"]).limit(1).to_arrow()
    assert found["id"].to_pylist() == [4]
    assert found.column_names == ["id", "_distance"]
    assert table.search([9.0, 1.0]).bypass_vector_index().limit(1).to_pandas()["id"].tolist() == [9]


@call
def search_many_vectors(db: Any, table: Any) -> None:
    found = table.search([[9.0, 1.0], [7.0, 1.0]]).limit(1).to_list()
    assert {(row["query_index"], row["id"]) for row in found} == {(0, 9), (1, 7)}


@call
def search_text(db: Any, table: Any) -> None:
    table.create_index("text", config=FTS(with_position=True))
    assert [row["id"] for row in table.search("word7", query_type="fts").limit(2).to_list()] == [7]
    assert len(table.search("common", query_type="fts").limit(5).to_list()) == 5
    assert [r["id"] for r in table.search(MatchQuery("word8", "text"), query_type="fts").limit(2).to_list()] == [8]
    phrase = table.search(PhraseQuery("word9 common", "text"), query_type="fts").limit(2)
    assert [row["id"] for row in phrase.to_list()] == [9]


@call
def search_hybrid(db: Any, table: Any) -> None:
    table.create_index("text", config=FTS())
    found = table.search(query_type="hybrid").vector([9.0, 1.0]).text("word7").rerank(RRFReranker()).limit(2).to_list()
    assert {row["id"] for row in found} <= {6, 7, 8, 9, 10}
    assert 7 in {row["id"] for row in found}


@call
def filters(db: Any, table: Any) -> None:
    found = table.search().where("id >= 10 AND text LIKE 'word1%'").select(["id"]).limit(2).offset(1).to_list()
    assert found == [{"id": 11}, {"id": 12}]
    assert table.search().where("id < 3").select({"twice": "id * 2"}).to_arrow()["twice"].to_pylist() == [0, 2, 4]
    assert table.search().where("id = 5").with_row_id(True).to_list()[0]["_rowid"] == 5
    assert table.search().where("id < 0").to_list() == []


@call
def plans(db: Any, table: Any) -> None:
    assert "Lance" in table.search([9.0, 1.0]).limit(1).explain_plan(verbose=True)
    assert "metrics" in table.search([9.0, 1.0]).limit(1).analyze_plan()


@call
def head_and_frames(db: Any, table: Any) -> None:
    assert table.head(3).num_rows == 3
    found = table.search().to_arrow()  # the client has no `table.to_arrow()` for remote tables
    assert (found.num_rows, found.schema) == (300, table.schema)
    assert len(table.search().to_pandas()) == 300


@call
def update(db: Any, table: Any) -> None:
    done = table.update(where="id < 3", values={"text": "changed"})
    assert (done.rows_updated, done.version) == (3, table.version)
    done = table.update(where="id = 5", values_sql={"score": "score + 1"})
    assert done.rows_updated == 1
    assert table.search().where("id = 5").to_list()[0]["score"] == 3.5
    assert table.update(values={"score": 0.0}).rows_updated == 300
    assert table.update(where="id < 0", values={"score": 1.0}).rows_updated == 0


@call
def delete(db: Any, table: Any) -> None:
    done = table.delete("id >= 290")
    assert (done.num_deleted_rows, done.version, table.count_rows()) == (10, table.version, 290)
    assert table.delete("id < 0").num_deleted_rows == 0


@call
def merge_insert(db: Any, table: Any) -> None:
    done = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(299, 302))
    assert (done.num_updated_rows, done.num_inserted_rows, done.num_deleted_rows) == (1, 2, 0)
    assert done.version == table.version
    merge = table.merge_insert("id").when_not_matched_insert_all().when_not_matched_by_source_delete("id < 100")
    assert merge.execute(rows(0, 50)).num_deleted_rows == 50
    merge = table.merge_insert("id").when_matched_update_all(where="target.id < 3")
    assert merge.execute(rows(0, 50)).num_updated_rows == 3


@call
def add_columns(db: Any, table: Any) -> None:
    assert table.add_columns({"double": "score * 2"}).version == table.version
    assert table.search().where("id = 4").to_list()[0]["double"] == 4.0


@call
def alter_columns(db: Any, table: Any) -> None:
    changed = table.alter_columns(
        {"path": "score", "rename": "points"},
        {"path": "id", "data_type": pa.int32()},
        {"path": "text", "nullable": True},
    )
    assert changed.version == table.version
    assert table.schema.field("id").type == pa.int32()
    assert "points" in table.schema.names


@call
def drop_columns(db: Any, table: Any) -> None:
    assert table.drop_columns(["score"]).version == table.version
    assert "score" not in table.schema.names


@call
def field_metadata(db: Any, table: Any) -> None:
    table.update_field_metadata({"path": "text", "metadata": {"unit": "words"}})
    assert table.schema.field("text").metadata == {b"unit": b"words"}


@call
def scalar_indices(db: Any, table: Any) -> None:
    table.create_scalar_index("id")
    table.create_index("score", config=Bitmap(), wait_timeout=timedelta(seconds=10))
    table.create_index("text", config=BTree(), name="by_text")
    kinds = {index.name: (index.index_type, index.columns) for index in table.list_indices()}
    assert kinds == {
        "id_idx": ("BTree", ["id"]),
        "score_idx": ("Bitmap", ["score"]),
        "by_text": ("BTree", ["text"]),
    }
    table.drop_index("by_text")
    assert len(list(table.list_indices())) == 2


@call
def vector_index(db: Any, table: Any) -> None:
    table.create_index("vector", config=IvfPq(num_partitions=1, num_sub_vectors=1, distance_type="l2"))
    table.wait_for_index(["vector_idx"], timedelta(seconds=20))
    stats = table.index_stats("vector_idx")
    assert (stats.index_type, stats.distance_type) == ("IVF_PQ", "l2")
    assert (stats.num_indexed_rows, stats.num_unindexed_rows) == (300, 0)
    found = table.search([9.0, 1.0]).nprobes(1).refine_factor(50).limit(1).to_list()
    assert found[0]["id"] == 9
    table.create_index("vector", config=IvfFlat(num_partitions=1, distance_type="cosine"), name="flat")
    flat = table.index_stats("flat")
    assert (flat.index_type, flat.distance_type) == ("IVF_FLAT", "cosine")


@call
def legacy_vector_index(db: Any, table: Any) -> None:
    table.create_index(metric="l2", vector_column_name="vector", num_partitions=1, num_sub_vectors=1)
    assert [index.name for index in table.list_indices()] == ["vector_idx"]


@call
def text_index(db: Any, table: Any) -> None:
    table.create_fts_index("text", wait_timeout=timedelta(seconds=10))
    assert table.index_stats("text_idx").index_type == "FTS"
    assert [(index.index_type, index.columns) for index in table.list_indices()] == [("FTS", ["text"])]
    assert table.index_stats("none") is None


@call
def versions(db: Any, table: Any) -> None:
    table.add(rows(300, 301))
    assert [each["version"] for each in table.list_versions()] == [1, 2]
    assert table.list_versions()[0]["timestamp"] is not None
    assert table.version == 2


@call
def checkout_and_restore(db: Any, table: Any) -> None:
    table.add(rows(300, 310))
    table.checkout(1)
    assert (table.count_rows(), table.version) == (300, 1)
    assert table.search([305.0, 1.0]).limit(1).to_list()[0]["id"] == 299
    with pytest.raises(Exception, match="version"):
        table.add(rows(0, 1))
    table.checkout_latest()
    assert (table.count_rows(), table.version) == (310, 2)
    with pytest.raises(Exception, match="version"):
        table.checkout(99)
    table.restore(1)
    assert (table.count_rows(), table.version) == (300, 3)


@call
def tags(db: Any, table: Any) -> None:
    table.add(rows(300, 301))
    table.tags.create("first", 1)
    table.tags.create("second", 1)
    table.tags.update("second", 2)
    assert {name: tag["version"] for name, tag in table.tags.list().items()} == {"first": 1, "second": 2}
    assert all(tag["manifest_size"] > 0 for tag in table.tags.list().values())
    assert table.tags.get_version("second") == 2
    table.checkout("first")
    assert table.count_rows() == 300
    table.checkout_latest()
    table.tags.delete("first")
    assert list(table.tags.list()) == ["second"]
    table.tags.delete("second")
    assert table.tags.list() == {}


@call
def branches(db: Any, table: Any) -> None:
    branch = table.branches.create("work")
    branch.add(rows(300, 305))
    assert (branch.count_rows(), table.count_rows()) == (305, 300)
    assert list(table.branches.list()) == ["work"]
    assert table.branches.checkout("work").count_rows() == 305
    table.branches.delete("work")
    assert table.branches.list() == {}


@call
def stats(db: Any, table: Any) -> None:
    found = table.stats()
    assert (found["num_rows"], found["num_indices"], found["fragment_stats"]["num_fragments"]) == (300, 0, 1)
    assert found["total_bytes"] > 0


@call
def take(db: Any, table: Any) -> None:
    assert table.take_offsets([5, 7]).to_arrow()["id"].to_pylist() == [5, 7]
    ids = [row["_rowid"] for row in table.search().where("id IN (3, 4)").with_row_id(True).to_list()]
    assert sorted(table.take_row_ids(ids).to_arrow()["id"].to_pylist()) == [3, 4]


@call
def location(db: Any, table: Any) -> None:
    assert table.uri.endswith(".lance") or "/" in table.uri


@call
def namespace_client(db: Any, table: Any) -> None:
    assert table.name in db.namespace_client().list_tables(ListTablesRequest(id=PATH)).tables


@pytest.mark.parametrize("name", MATRIX)
def test_an_everyday_call_of_the_remote_client_works(db: Any, name: str) -> None:
    MATRIX[name](db, db.create_table(f"t_{name}", rows(0, 300), **IN))


WRITES: dict[str, Check] = {
    "create": lambda db, table: db.create_table("new", rows(0, 1), **IN),
    "drop": lambda db, table: db.drop_table(table.name, **IN),
    "rename": lambda db, table: db.rename_table(table.name, "other", cur_namespace_path=PATH),
    "add": lambda db, table: table.add(rows(0, 1)),
    "update": lambda db, table: table.update(values={"text": "x"}),
    "delete": lambda db, table: table.delete("true"),
    "merge": lambda db, table: table.merge_insert("id").when_matched_update_all().execute(rows(0, 1)),
    "add column": lambda db, table: table.add_columns({"more": "id"}),
    "drop column": lambda db, table: table.drop_columns(["text"]),
    "index": lambda db, table: table.create_index("id", config=BTree()),
    "tag": lambda db, table: table.tags.create("mine", 1),
    "restore": lambda db, table: table.restore(1),
    "namespace": lambda db, table: db.create_namespace(["prod", "own"]),
}


def test_a_reader_reads_and_every_write_of_it_is_refused_by_name(connect: Callable[..., Any], db: Any) -> None:
    db.create_table("shared", rows(0, 10), **IN)
    reader = connect("reader", *PATH)
    table = reader.open_table("shared", **IN)
    assert (table.count_rows(), table.search([3.0, 1.0]).limit(1).to_list()[0]["id"]) == (10, 3)
    assert (table.version, table.schema.names[0], table.tags.list()) == (1, "id", {})
    for name, write in WRITES.items():
        with pytest.raises(Exception, match=r"403 Forbidden.*may not") as refused:
            write(reader, table)
        assert 'code":15' in str(refused.value), name
    for hidden in ("secret", "prod"):
        with pytest.raises(Exception, match=r"403 Forbidden|not found"):
            reader.open_table(hidden).schema  # noqa: B018
    assert (table.count_rows(), table.version) == (10, 1)


ELSEWHERE: dict[str, Check] = {
    "jobs": lambda db, table: db.list_jobs(),
    "cancel a job": lambda db, table: db.cancel_job("j"),
    "clone": lambda db, table: db.clone_table("copy", "memory://x"),
    "prewarm an index": lambda db, table: table.prewarm_index("id_idx"),
    "prewarm data": lambda db, table: table.prewarm_data(["id"]),
    "flush the LSM": lambda db, table: table.flush_lsm(),
    "the LSM's settings": lambda db, table: table.get_lsm_write_spec(),
    "turn off the LSM": lambda db, table: table.unset_lsm_write_spec(),
    "branches apart": lambda db, table: table.branches.diff("other"),
    "functions": lambda db, table: db.get_function("f", version="1"),
    "materialized views": lambda db, table: db.list_materialized_views(),
    "views": lambda db, table: db.list_views(),
    "secrets": lambda db, table: db.list_secrets(),
}


def test_what_only_the_cloud_has_is_refused_as_unsupported(db: Any) -> None:
    table = db.create_table("elsewhere", rows(0, 1), **IN)
    said = {}
    for name, ask in ELSEWHERE.items():
        try:
            said[name] = f"answered {ask(db, table)}"
        except Exception as error:
            said[name] = str(error)
    part = "operation of LanceDB's cloud"
    wrong = {name: text for name, text in said.items() if part not in text or '"code":0' not in text}
    assert wrong == {}


def test_an_option_that_the_server_does_not_have_is_refused_and_not_left_out(db: Any) -> None:
    table = db.create_table("options", rows(0, 1), **IN)
    with pytest.raises(Exception, match="order_by is not supported"):
        table.search().order_by([ColumnOrdering(column_name="id")]).to_list()
    with pytest.raises(Exception, match="min_ngram_length is not supported"):
        table.create_index("text", config=FTS(base_tokenizer="ngram", ngram_min_length=2))
    table.create_index("id", config=BTree())
    with pytest.raises(Exception, match="already"):
        table.create_index("id", config=BTree())


def test_a_table_that_is_only_declared_is_told_as_such(db: Any) -> None:
    db.namespace_client().declare_table(DeclareTableRequest(id=[*PATH, "declared"]))
    with pytest.raises(Exception, match="declared and has no version"):
        db.open_table("declared", **IN)
