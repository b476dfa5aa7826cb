"""The fuzzer, aimed at a running server with workers: the inputs of `tests/decoding/fuzz.py`, sent over REST.

    python -m tests.decoding.fuzz_server --inputs 10000

An answer is fine if it is a success, or an error of the error table other than Internal. A lost connection, any other
answer, and a server process that grows by more than `MAX_GROWTH` are failures.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import pyarrow as pa

from headwater import Catalog
from headwater.errors import ERRORS, ErrorCode
from headwater.streams.rows.input_rows import SENT_FILES
from tests.decoding.fuzz import MAX_GROWTH, Fuzzed, make
from tests.decoding.seeds import stream
from tests.rest.processes import ServeProcess

THREADS = 3
PER_TABLE = 250
"""Inputs for one stream table: what lands makes it slower."""
NAMES = {"file": "x.arrow", "arrow": "x.feather", "parquet": "x.parquet", "csv": "x.csv", "json": "x.json",
         "lines": "x.jsonl", "packed": "x.json.gz", "orc": "x.orc"}  # fmt: skip
Send = Callable[[httpx.Client, Fuzzed, str], httpx.Response]


def _sql(path: str, field: str, headers: dict[str, str], http: httpx.Client, made: Fuzzed, sink: str) -> httpx.Response:
    body: dict[str, object] = {field: made.data, "k": 0, "vector": {"single_vector": []}}
    return http.post(path, json=body, headers=headers)


SQL: tuple[Send, ...] = (
    partial(_sql, "/v1/table/a$t/count_rows", "predicate", {}),
    partial(_sql, "/v1/table/a$t/query", "filter", {}),
    partial(_sql, "/v1/table/a$t/query", "filter", {"x-headwater-at": "3"}),
    partial(_sql, "/headwater/v1/table/a$s/stream/query", "filter", {}),
    partial(_sql, "/headwater/v1/table/a$s/stream/query", "filter", {"x-headwater-at": "4"}),
)


def send(http: httpx.Client, made: Fuzzed, number: int, sink: str) -> httpx.Response:
    """Send one input to a route that decodes it."""
    if made.kind == "sql":
        return SQL[number // 10 % len(SQL)](http, made, sink)
    data = made.data if isinstance(made.data, bytes) else made.data.encode()
    if made.kind == "schema":
        return http.post(f"/headwater/v1/table/{sink}/stream/evolve", json={"widen": {"int64": f"arrow:{data.hex()}"}})
    if made.kind == "stream" and number % 2:
        return http.post("/v1/table/a$made/create", params={"mode": "overwrite"}, content=data)
    if made.kind != "stream":
        columns = [pa.array([NAMES[made.kind]]), pa.array([data], pa.large_binary()), pa.array([str(number)])]
        data = stream(pa.table(columns, SENT_FILES))
    return http.post(f"/headwater/v1/table/{sink}/stream/ingest", content=data)


def problem(answer: httpx.Response) -> str | None:
    """Return what is wrong with an answer."""
    if answer.status_code < 300:
        return None
    try:
        code = answer.json()["code"]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} without a code: {answer.text[:300]}"
    if code not in ERRORS or code == ErrorCode.INTERNAL:
        return f"code {code}: {answer.text[:300]}"
    return None


def memory(pid: int) -> int:
    """Return the bytes that a process holds in memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) * 1024 if found else 0


@contextmanager
def served() -> Iterator[ServeProcess]:
    """A server with workers over a metastore that has a plain table and a stream table."""
    rows = pa.table({"id": [1, 2, 3], "s": ["a", None, "c"], "tags": [["x"], [], None], "v": [0.5, 1.5, None]})
    with tempfile.TemporaryDirectory() as folder:
        with Catalog(f"{folder}/lake") as catalog:
            catalog.create_table("a.t", rows)
            catalog.create_stream_table("a.s", rows.schema).append(rows)
        with ServeProcess(f"{folder}/lake", "--port", "0", "--no-access-log", "--data-workers", str(THREADS)) as server:
            yield server


def run(inputs: int, seed: int = 3) -> tuple[list[str], Counter[str], int]:
    """Send so many inputs; the failures, the answers by their codes, and the most that the server grew, in bytes."""
    failures: list[str] = []
    answers: Counter[str] = Counter()
    with served() as server, httpx.Client(base_url=server.url, timeout=300) as http:
        catalog, pid = Catalog(server.url), server.process.pid
        start, growth = memory(pid), 0

        def one(number: int, sink: str) -> None:
            made = make(seed, number, with_sql=True)
            try:
                answer = send(http, made, number, sink)
            except httpx.HTTPError as error:
                failures.append(f"input {number} ({made.kind}): {error!r}")
                return
            answers[f"{made.kind} {'ok' if answer.status_code < 300 else answer.json().get('code')}"] += 1
            if (wrong := problem(answer)) is not None:
                failures.append(f"input {number} ({made.kind}): {wrong}")

        with ThreadPoolExecutor(THREADS) as threads:
            for first in range(0, inputs, PER_TABLE):
                name = f"sink{first}"
                catalog.create_stream_table(f"a.{name}", {"int64": "int64"}, properties={"contract": "discard"})
                numbers = range(first, min(first + PER_TABLE, inputs))
                list(threads.map(partial(one, sink=f"a${name}"), numbers))
                catalog.drop_table(f"a.{name}")
                growth = max(growth, memory(pid) - start)
                print(f"{first + len(numbers)} inputs, {len(failures)} failures, +{growth >> 20} MiB", flush=True)
        assert catalog["a.t"].count() == 3
    if growth > MAX_GROWTH:
        failures.append(f"the server grew by {growth >> 20} MiB")
    return failures, answers, growth


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--inputs", type=int, default=10_000)
    words.add_argument("--seed", type=int, default=3)
    asked = words.parse_args()
    failures, answers, growth = run(asked.inputs, asked.seed)
    for failure in failures:
        print(failure)
    print(dict(sorted(answers.items())))
    print(f"{asked.inputs} inputs, {len(failures)} failures, the server grew by {growth >> 20} MiB")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
