"""Lance's MemWAL: rows that a client has written durably and that are in no version. They are refused or told of."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import lance
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest

from headwater import Catalog, DirectoryNamespace, MetastoreNamespace
from headwater.cli.main import main
from headwater.errors import InvalidInputError
from headwater.rest.server import RunningServer, bind, create_app
from headwater.rest.work import HOST, InWorkers
from headwater.tables.handle import UnreadRowsWarning
from headwater.web import page
from headwater.workers import Host, Pool, WorkerLimits

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.int64())])
ID = ["a", "t"]
OPENER = "headwater.cli.serving:open_served"


def rows(*ids: int, v: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.int64())}, SCHEMA)


def opened(namespace: Any, id: list[str] = ID) -> Any:
    return lance.dataset(namespace_client=namespace, table_id=id)


def log_files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("_mem_wal/**/*") if path.is_file()}


def test_a_stream_table_takes_no_write_ahead_log(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    stream = catalog.create_stream_table("a.s", rows(1).schema, keys=["id"])
    stream.upsert(rows(1, 2))
    stream.publish()
    dataset = opened(catalog.namespace, ["a", "s"])
    with pytest.raises((OSError, RuntimeError)):
        dataset.initialize_mem_wal(unsharded=True)
    with pytest.raises((OSError, RuntimeError), match="MemWAL"):
        opened(catalog.namespace, ["a", "s"]).mem_wal_writer(str(uuid.uuid4()))
    assert stream.publish().version == dataset.version
    assert [problem.kind for problem in catalog.verify() if not problem.note] == []
    opened(catalog.namespace, ["a", "s"]).create_scalar_index("v", "BTREE")  # other indices are taken as before


def test_the_refusal_says_what_to_do(tmp_path: Path) -> None:
    """Judged by the staged manifest, whatever the transaction says of itself: error 13."""
    catalog = Catalog(str(tmp_path / "lake"))
    stream = catalog.create_stream_table("a.s", rows(1).schema, keys=["id"])
    stream.upsert(rows(1, 2))
    stream.publish()
    refused: list[Exception] = []

    class Asked:
        def __getattr__(self, name: str) -> Any:
            return getattr(catalog.namespace, name)

        def create_table_version(self, request: Any) -> Any:
            try:
                return catalog.namespace.create_table_version(request)
            except Exception as error:
                refused.append(error)
                raise

    with pytest.raises((OSError, RuntimeError)):
        opened(Asked(), ["a", "s"]).initialize_mem_wal(unsharded=True)
    assert isinstance(refused[0], InvalidInputError)
    assert "MemWAL" in str(refused[0])
    assert "upsert" in str(refused[0])


@pytest.mark.parametrize("kind", ["metastore", "directory"])
def test_the_rows_of_a_write_ahead_log_are_told_of_and_left_alone(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "lake"
    namespace: Any = MetastoreNamespace(root=str(root)) if kind == "metastore" else DirectoryNamespace(root=str(root))
    catalog = Catalog(namespace)
    catalog.create_namespace("a")
    catalog.create_table("a.t", rows(1, 2))
    told = catalog["a.t"].describe(load_detailed_metadata=True)
    assert not any("unread" in key for key in told.metadata or {})
    uri = str(told.location)
    dataset = opened(namespace) if kind == "metastore" else lance.dataset(uri)
    dataset.initialize_mem_wal(unsharded=True)
    dataset = opened(namespace) if kind == "metastore" else lance.dataset(uri)
    with dataset.mem_wal_writer(str(uuid.uuid4())) as writer:
        writer.put(rows(7))
    with pytest.warns(UnreadRowsWarning, match="write-ahead log"):
        assert len(catalog["a.t"]) == 2
    with pytest.warns(UnreadRowsWarning):
        assert catalog["a.t"].to_arrow().num_rows == 2
    with pytest.warns(UnreadRowsWarning):
        told = catalog["a.t"].describe(load_detailed_metadata=True)
    assert "not shown" in (told.metadata or {})["headwater.unread_rows"]
    found = catalog.verify()
    assert [(problem.kind, problem.note) for problem in found] == [("unread_rows", True)]
    if kind == "metastore":
        with pytest.warns(UnreadRowsWarning):
            assert main(["--catalog", str(root), "show", "a.t"]) == 0
        assert "write-ahead log" in capsys.readouterr().out
    before = log_files(root)
    assert before
    catalog.collect(grace=timedelta(0))
    catalog["a.t"].clean_up(keep_versions=1)
    assert log_files(root) == before


def check_told_over_rest(url: str) -> None:
    """Every read of the table over REST warns its caller, with `at` and in a transaction too. Others do not."""
    catalog = Catalog(url)
    catalog.create_table("a.other", rows(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(catalog["a.other"]) == catalog["a.other"].to_arrow().num_rows == 1
    query = api.QueryTableRequest.model_validate({"id": ID, "k": 1, "vector": {"single_vector": []}})
    plan = api.ExplainTableQueryPlanRequest(id=ID, query=query)
    analyzed = api.AnalyzeTableQueryPlanRequest(**query.model_dump())
    with catalog.transaction() as tx:
        for place in (catalog, catalog.at(catalog.slot), tx):
            reads: list[Callable[[Any], Any]] = [
                lambda there: len(there["a.t"]),
                lambda there: there["a.t"].to_arrow(),
                lambda there: there.namespace.explain_table_query_plan(plan),
                lambda there: there.namespace.analyze_table_query_plan(analyzed),
            ]
            for read in reads:
                with pytest.warns(UnreadRowsWarning, match=r"a\.t has a write-ahead log"):
                    read(place)
    answer = httpx.post(f"{url}/v1/table/a$t/count_rows", json={}, timeout=60)
    assert answer.headers["x-headwater-unread-rows"] == "true"


@pytest.mark.parametrize("workers", [False, True])
def test_lancedbs_merge_insert_into_a_write_ahead_log_is_told_of(tmp_path: Path, workers: bool) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("a.t", rows(1, 2))
    pool = Pool(Host(HOST, [OPENER, str(tmp_path / "lake"), {}]), WorkerLimits(most=2))
    work = InWorkers(pool, catalog.namespace) if workers else None
    server = RunningServer(create_app(catalog.namespace, work=work, face=page), bind("127.0.0.1", 0))
    try:
        table: Any = lancedb.connect_namespace("rest", {"uri": server.url}).open_table("t", namespace_path=["a"])
        table.set_lsm_write_spec(lancedb.LsmWriteSpec.bucket("id", 1))
        merging = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merging.execute(rows(2, 3, v=9))
        table.close_lsm_writers()
        assert Catalog(server.url).verify()[0].kind == "unread_rows"
        shown = httpx.get(f"{server.url}/t/a/t", headers={"accept": "text/html"}, timeout=60).text
        assert "has a write-ahead log (MemWAL)" in shown
        with pytest.warns(UnreadRowsWarning):
            assert catalog["a.t"].to_arrow().num_rows == 2
        check_told_over_rest(server.url)
    finally:
        server.stop()
        pool.close()
    assert log_files(tmp_path)
