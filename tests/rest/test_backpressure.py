"""Answers are made as fast as they are read, and no longer than somebody reads them: memory stays flat, work stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import lance
import lance_namespace as api
import numpy as np
import pyarrow as pa
import pytest

from headwater import DirectoryNamespace
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.namespace.abilities import CatalogAbilities
from headwater.rest.connections import MAX_JOINED, AnswerWriter
from headwater.rest.reply import SlowReaders
from headwater.rest.settings import Limits, Settings
from headwater.tables.scan.prune import FIRST_ROWS, MAX_ROWS, WINDOW_BYTES, next_size, row_windows
from tests.rest.processes import ServeProcess
from tests.rest.samples import Serve, make

QUERY: dict[str, Any] = {"k": 0, "vector": {}}
BATCH = pa.record_batch({"b": pa.array([bytes(1024 * 1024)])})
MANY = 2000


class Endless(api.LanceNamespace):
    """A catalog whose one table has two thousand batches of a MiB, and which counts those that are read."""

    def __init__(self) -> None:
        self.read = 0
        self.ended = threading.Event()

    def namespace_id(self) -> str:
        return "endless"

    def abilities(self) -> CatalogAbilities:
        return CatalogAbilities(
            query_rows=lambda request: pa.RecordBatchReader.from_batches(BATCH.schema, self._batches())
        )

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for _ in range(MANY):
                self.read += 1
                yield BATCH
        finally:
            self.ended.set()


def test_a_query_stops_when_its_client_goes_away(serve: Serve) -> None:
    catalog = Endless()
    url = serve(namespace=catalog).url
    with httpx.stream("POST", f"{url}/v1/table/t/query", json=QUERY) as answer:
        assert len(next(answer.iter_raw())) > 0
    assert catalog.ended.wait(30)
    assert catalog.read < MANY / 10


def test_a_slow_reader_makes_the_server_read_no_further_than_it_does(serve: Serve) -> None:
    catalog = Endless()
    url = serve(namespace=catalog).url
    with httpx.Client(base_url=url) as http, http.stream("POST", "/v1/table/t/query", json=QUERY) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        for _ in range(100):  # the server is not busy, it waits
            assert http.get("/health/live").status_code == 200
        assert catalog.read < 40
        assert not catalog.ended.is_set()
        taken = sum(len(next(pieces)) for _ in range(500))
        assert taken / len(BATCH["b"][0].as_py()) <= catalog.read < 40 + taken / 1024**2


def test_a_reader_that_stops_reading_is_cut_off(serve: Serve) -> None:
    catalog = Endless()
    url = serve(Settings(limits=Limits(write_idle_seconds=0.3)), namespace=catalog).url
    with httpx.stream("POST", f"{url}/v1/table/t/query", json=QUERY) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        assert catalog.ended.wait(30)
        with pytest.raises(httpx.TransportError):
            list(pieces)


def test_an_answer_that_fails_halfway_is_cut_off_and_not_ended(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Endless):
        def _batches(self) -> Iterator[pa.RecordBatch]:
            yield from [BATCH] * 3
            raise RuntimeError("password=hunter2")

    url = serve(namespace=Failing()).url
    with pytest.raises(httpx.TransportError):
        httpx.post(f"{url}/v1/table/t/query", json=QUERY)
    assert "hunter2" not in caplog.text
    assert "Traceback" not in caplog.text


def test_a_query_whose_client_left_while_it_waited_is_never_begun(serve: Serve) -> None:
    release, entered, begun = threading.Event(), threading.Semaphore(0), []

    class Busy(Endless):
        def count_table_rows(self, request: Any) -> Any:
            entered.release()
            assert release.wait(60)
            return api.CountTableRowsResponse(count=1)

        def abilities(self) -> CatalogAbilities:
            return CatalogAbilities(query_rows=lambda request: begun.append(request))  # type: ignore[arg-type, return-value]

    url = serve(Settings(limits=Limits(threads=1)), namespace=Busy()).url
    counting = threading.Thread(target=lambda: httpx.post(f"{url}/v1/table/t/count_rows", json={}, timeout=60))
    counting.start()
    assert entered.acquire(timeout=30)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/table/t/query", json=QUERY, timeout=0.5)
    while "QueryTable" not in httpx.get(f"{url}/metrics").text:  # until the server saw that it is gone
        pass
    release.set()
    counting.join()
    assert httpx.post(f"{url}/v1/table/t/count_rows", json={}, timeout=60).text == "1"
    assert begun == []


def answer_of(*chunks: bytes, problem: Exception | None = None) -> Iterator[bytes]:
    yield from chunks
    if problem is not None:
        raise problem


def test_a_spooled_answer_is_the_answer_and_what_does_not_fit_is_bounded() -> None:
    slow = SlowReaders(disk=20, workers=1)
    kept = slow.spool(answer_of(b"cd"), "ada", b"ab")
    kept.fill()
    assert list(kept) == [b"abcd"]
    failed = slow.spool(answer_of(b"cd", problem=InvalidInputError("gone")), "ada", b"ab")
    failed.fill()
    assert next(failed) == b"abcd"
    with pytest.raises(InvalidInputError, match="gone"):
        next(failed)
    held = slow.spool(answer_of(b"e" * 9, b"f"), "ada", b"ab")  # beside what is kept, more than half of the disk
    held.fill()
    assert [next(held), next(held)] == [b"ab", b"e" * 9]
    cut = slow.spool(answer_of(b"e" * 9), "ada", b"ab")
    with pytest.raises(ServiceUnavailableError, match="too slowly"):
        cut.fill()
    for answer in (kept, failed, held, cut):
        answer.close()
    late = slow.spool(answer_of(b"e" * 9), "ada", b"g" * 10)
    late.fill()
    assert list(late) == [b"g" * 10, b"e" * 9]
    late.close()


@pytest.fixture
def holes(tmp_path: Path) -> lance.LanceDataset:
    """A table of several fragments, with deleted rows."""
    table = pa.table({"id": range(10_000), "text": [f"row {n}" for n in range(10_000)]})
    dataset = lance.write_dataset(table, tmp_path / "t.lance", max_rows_per_file=3000)
    dataset.delete("id % 7 = 3")
    return dataset


@pytest.mark.parametrize(("start", "stop"), [(0, 8571), (0, 1), (1023, 5000), (8570, 8571), (5, 5)])
def test_windows_give_the_rows_of_one_scan_in_its_order(holes: lance.LanceDataset, start: int, stop: int) -> None:
    batches = list(row_windows(lambda offset, limit: holes.scanner(offset=offset, limit=limit), start, stop))
    found = pa.Table.from_batches(batches, holes.schema)
    assert found.equals(holes.to_table().slice(start, stop - start))


def test_a_window_has_as_many_rows_as_fit() -> None:
    assert next_size(0, 0) == FIRST_ROWS
    assert next_size(1000, 1000 * 1024 * 1024) == WINDOW_BYTES // 1024**2
    assert next_size(1, 10 * WINDOW_BYTES) == 1
    assert next_size(1000, 0) == MAX_ROWS


def test_a_query_skips_and_limits_and_adds_row_ids_as_one_scan_does(tmp_path: Path) -> None:
    catalog: Any = DirectoryNamespace(root=str(tmp_path))
    rows = pa.table({"id": range(5000), "name": [f"n{n}" for n in range(5000)]})
    catalog.create_table_reader(api.CreateTableRequest(id=["t"]), rows.to_reader(700))
    dataset = lance.dataset(str(tmp_path / "t.lance"))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"k": 0}, {}),
        ({"k": 2500, "offset": 1500}, {"limit": 2500, "offset": 1500}),
        ({"k": 10, "offset": 4995}, {"limit": 10, "offset": 4995}),
        ({"k": 10, "offset": 9999}, {"limit": 10, "offset": 9999}),
        ({"k": 3000, "with_row_id": True}, {"limit": 3000, "with_row_id": True}),
        ({"k": 7, "columns": {"column_names": ["name"]}}, {"limit": 7, "columns": ["name"]}),
        ({"k": 7, "columns": {"column_aliases": {"twice": "id * 2"}}}, {"limit": 7, "columns": {"twice": "id * 2"}}),
        ({"k": 0, "filter": "id > 4000"}, {"filter": "id > 4000"}),
    ]
    for asked, plain in cases:
        found = catalog.query_batches(make(api.QueryTableRequest, id=["t"], vector={}, **asked)).read_all()
        expected = dataset.scanner(**plain).to_table()
        assert found.equals(expected), asked
        assert found.schema == expected.schema


@pytest.mark.long
def test_a_query_of_a_million_rows_takes_little_memory(tmp_path: Path) -> None:
    """At most 64 MiB, whatever the answer's size (here 458 MB), as the process itself tells."""
    random = np.random.default_rng(0)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 1_000_000, 100_000):
            data = pa.py_buffer(random.bytes(100_000 * 450))
            wide = pa.Array.from_buffers(pa.binary(450), 100_000, [None, data])
            yield pa.record_batch({"id": pa.array(range(start, start + 100_000)), "b": wide})

    fields: Any = [("id", pa.int64()), ("b", pa.binary(450))]
    reader = pa.RecordBatchReader.from_batches(pa.schema(fields), batches())
    DirectoryNamespace(root=str(tmp_path)).create_table_reader(api.CreateTableRequest(id=["t"]), reader)
    with ServeProcess(str(tmp_path), "--port", "0", "--no-access-log", fresh=True) as server:
        status = Path(f"/proc/{server.process.pid}/status")

        def peak() -> int:
            return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1])

        url = f"{server.url}/v1/table/t/query"
        httpx.post(url, json={"k": 10, "vector": {}}, timeout=60)
        before, size = peak(), 0
        with httpx.stream("POST", url, json=QUERY, timeout=60) as answer:
            for piece in answer.iter_raw():
                size += len(piece)
        assert size > 450_000_000
        assert peak() - before < 64 * 1024


def test_a_head_is_sent_with_its_body_or_at_the_next_turn_of_the_loop() -> None:
    async def answer(*parts: bytes) -> list[bytes]:
        transport = Mock(is_closing=lambda: False)
        writer = AnswerWriter(transport, asyncio.get_running_loop())
        for part in parts:
            writer.write(part)
        await asyncio.sleep(0)
        return [call.args[0] for call in transport.write.call_args_list]

    long = b"b" * (MAX_JOINED + 1)
    assert asyncio.run(answer(b"head", b"body", b"more")) == [b"headbody", b"more"]
    assert asyncio.run(answer(b"head", long)) == [b"head", long]
    assert asyncio.run(answer(b"head")) == [b"head"]
