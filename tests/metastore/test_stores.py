"""The same metastore on every kind of store."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import obstore.store
import pytest

from headwater.metastore import Metastore
from headwater.store import LocalStore, ObjectStore, PrefixedStore, Store, memory_store
from tests.metastore.model import tree_of
from tests.metastore.writers import work


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """An S3 server of our own, on loopback: the options to reach it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "from moto.server import main; import sys; main(sys.argv[1:])"]
    server = subprocess.Popen(
        [*command, "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                urllib.request.urlopen(urllib.request.Request(f"{endpoint}/lake", method="PUT"), timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        yield {
            "aws_endpoint": endpoint,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }
    finally:
        server.terminate()
        server.wait()


def exercise(first: Metastore, second: Metastore) -> None:
    with first.transaction("before") as tx:
        tx.create_namespace(["a"])
        tx.create_namespace(["a", "b"])
        tx.create_table(["a", "b", "t"])
        tx.append_delta(["a", "b", "t"], [("first", 1, 1)])
    second.run(work)
    for number in range(5):
        for store in (first, second):
            store.run(lambda tx, number=number: tx.append_delta(["new", "b", "t"], [f"{number}"]))  # type: ignore[misc]
    assert [delta.position for delta in first.deltas(["new", "b", "t"])] == list(range(1, 13))
    assert tree_of(first) == tree_of(second)
    assert first.verify() == []
    second.checkpoint()
    second.collect(keep=1)
    assert first.verify() == second.verify() == []
    assert tree_of(first) == tree_of(second)


@pytest.mark.parametrize("kind", ["memory", "prefixed", "obstore on disk"])
def test_the_metastore_works_on(kind: str, tmp_path: Path) -> None:
    stores: dict[str, Store] = {
        "memory": memory_store(),
        "prefixed": PrefixedStore(LocalStore(tmp_path), "deep/down"),
        "obstore on disk": ObjectStore(obstore.store.LocalStore(tmp_path)),
    }
    exercise(Metastore(stores[kind]), Metastore(stores[kind]))


def test_the_metastore_works_on_s3(s3: dict[str, str]) -> None:
    exercise(Metastore("s3://lake/catalog", s3), Metastore("s3://lake/catalog", s3))
    assert tree_of(Metastore("s3://lake/catalog", s3))


def test_the_metastore_works_in_a_named_memory(tmp_path: Path) -> None:
    exercise(Metastore("memory://lake/one"), Metastore("memory://lake/one"))
    assert Metastore("memory://lake/two").list() == []
