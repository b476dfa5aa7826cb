"""The reference server of Iceberg's REST catalog behind our server: `iceberg` of lance-namespace-impls.

The server's jars come from Maven Central by version and hash, Hadoop's from PySpark. The test skips, saying why, where
Java or Maven is not to be had. The reference server has no prefixes, and the implementation always sends one, so a
proxy before it takes the prefix off.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import lance
import lancedb
import pyarrow as pa
import pyspark
import pytest
from lance.namespace import RestNamespace

import headwater
from headwater.errors import (
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableNotFoundError,
    UnsupportedOperationError,
)

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("iceberg")]
PROJECT, PINS = Path(__file__).parents[2], Path(__file__).parent / "iceberg_rest"
ROWS = pa.table({"id": [1, 2], "v": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2))})
WAREHOUSE = "lake"
START_SECONDS, MOST_SECONDS = 120, 600


class WithoutPrefix(BaseHTTPRequestHandler):
    """Passes `/v1/lake/namespaces` on as `/v1/namespaces`."""

    protocol_version = "HTTP/1.1"
    port: ClassVar[int]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        behind = http.client.HTTPConnection("127.0.0.1", self.port)
        path = self.path.replace(f"/v1/{WAREHOUSE}/", "/v1/", 1)
        behind.request(self.command, path, body, {"content-type": "application/json"})
        answer = behind.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server's jars, each with its pinned hash."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} here: Iceberg's server is not tried")
    home = tmp_path_factory.mktemp("iceberg-jars")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home / 'jars'}"]
    line = ["mvn", "-q", "-B", "-f", str(PINS / "pom.xml"), f"-Dmaven.repo.local={home / 'm2'}", *goal]
    done = subprocess.run(line, cwd=home, capture_output=True, text=True, timeout=MOST_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"Maven failed, so Iceberg's server is not tried: {(done.stdout + done.stderr)[-400:]}")
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (home / "jars").glob("*.jar")}
    lines = (PINS / "jars.sha256").read_text().splitlines()
    assert found == {name: digest for digest, name in (line.split() for line in lines)}
    return home / "jars"


@pytest.fixture(scope="module")
def endpoint(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Iceberg REST catalog that this test starts and ends."""
    home = tmp_path_factory.mktemp("iceberg")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        WithoutPrefix.port = free.getsockname()[1]
    settings = {
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.inmemory.InMemoryCatalog",
        "CATALOG_WAREHOUSE": str(home / "warehouse"),
        "CATALOG_REST_PORT": str(WithoutPrefix.port),
    }
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    path = os.pathsep.join([f"{jars}/*", *map(str, hadoop)])
    line = ["java", "-Xmx256m", "-cp", path, "org.apache.iceberg.rest.RESTCatalogServer"]
    with (home / "log.txt").open("w") as log:
        process = subprocess.Popen(line, cwd=home, stdout=log, stderr=log, env={**os.environ, **settings})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), WithoutPrefix)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        _wait(process, WithoutPrefix.port, home / "log.txt")
        yield f"http://127.0.0.1:{proxy.server_port}"
    finally:
        proxy.shutdown()
        proxy.server_close()
        process.terminate()
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"Iceberg's server did not start: {log.read_text()[-2000:]}")


@pytest.fixture
def url(endpoint: str, tmp_path: Path) -> Iterator[str]:
    """The address of a server of ours in front of it."""
    line = ["--impl", "iceberg", "--property", f"endpoint={endpoint}", "--property", f"root={tmp_path}", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "serve", *line, "--data-workers", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_an_iceberg_rest_catalog_is_served_to_the_clients_of_lance(url: str) -> None:
    catalog, client = headwater.Catalog(url), RestNamespace(uri=url)
    catalog.create_namespace("lake.shop", {"owner": "ann"})
    catalog.create_namespace("lake.shop", exist_ok=True)
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace("lake.shop")
    parent = ["lake", "shop"]
    lance.write_dataset(ROWS, namespace_client=client, table_id=[*parent, "t"])
    lance.write_dataset(ROWS, namespace_client=client, table_id=[*parent, "t"], mode="append")
    db = lancedb.connect_namespace("rest", {"uri": url})
    assert db.list_tables(namespace_path=parent).tables == ["t"]
    assert db.open_table("t", namespace_path=parent).search([1.0, 0.0]).limit(1).to_list()[0]["id"] == 1
    assert (catalog.namespaces("lake"), catalog.tables("lake.shop")) == (["shop"], ["t"])
    assert catalog.namespace_properties("lake.shop")["owner"] == "ann"
    table = catalog["lake.shop.t"]
    assert (table.count(), table.to_arrow().num_rows) == (4, 4)
    table.append(ROWS)
    table.delete("id = 1")
    assert table.to_arrow()["id"].to_pylist() == [2, 2, 2]
    with pytest.raises(TableNotFoundError):
        _ = catalog["lake.shop.none"]
    with pytest.raises(NamespaceNotFoundError):
        catalog.tables("lake.none")
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace("lake.shop")
    with pytest.raises(UnsupportedOperationError):  # the implementation only forgets tables
        catalog.drop_table("lake.shop.t")
    catalog.deregister_table("lake.shop.t")
    assert catalog.tables("lake.shop") == []
    catalog.drop_namespace("lake.shop")
    assert catalog.namespaces("lake") == []
