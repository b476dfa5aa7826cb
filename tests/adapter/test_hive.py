"""A real Hive MetaStore 2.3, from the jars of PySpark, behind our server: `hive2` and `hive3` of lance-namespace-impls.

The client comes from PyPI (`requirements/hive.txt`). The test skips, saying why, where Java or the client is not to be
had.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import lance
import lance_namespace as api
import lancedb
import pyarrow as pa
import pyspark
import pytest
from lance.namespace import RestNamespace

import headwater
from headwater.errors import NamespaceAlreadyExistsError, TableNotFoundError

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("hive")]
PROJECT = Path(__file__).parents[2]
ROWS = pa.table({"id": [1, 2], "v": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2))})
OPENS = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "net", "nio", "util")]
SETTINGS = {
    "hive.async.log.enabled": "false",
    "hive.metastore.schema.verification": "false",
    "datanucleus.schema.autoCreateAll": "true",
    "datanucleus.connectionPoolingType": "none",
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
}
START_SECONDS = 120


@pytest.fixture(scope="module")
def client_packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the Thrift client."""
    home = str(tmp_path_factory.mktemp("hive-client"))
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--target", home]
    pins = PROJECT / "requirements" / "hive.txt"
    done = subprocess.run([*line, "-r", str(pins)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"hive-metastore-client cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return home


@pytest.fixture(scope="module")
def metastore_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Hive MetaStore that this test starts and ends."""
    if shutil.which("java") is None:
        pytest.skip("Java is not installed here")
    home = tmp_path_factory.mktemp("hive")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    jars = Path(pyspark.__file__).parent / "jars" / "*"
    settings = {**SETTINGS, "hive.metastore.warehouse.dir": str(home / "warehouse")}
    told = [word for key, value in settings.items() for word in ("--hiveconf", f"{key}={value}")]
    main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
    line = ["java", "-Xmx512m", *OPENS, "-cp", str(jars), main, "-p", str(port), *told]
    with (home / "log.txt").open("w") as log:
        process = subprocess.Popen(line, cwd=home, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(process, port, home / "log.txt")
        yield f"thrift://127.0.0.1:{port}"
    finally:
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
    pytest.fail(f"The Hive MetaStore did not start: {log.read_text()[-2000:]}")


@pytest.fixture(params=["hive2", "hive3"])
def impl(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(impl: str, metastore_uri: str, client_packages: str, tmp_path: Path) -> Iterator[str]:
    """The address of a server of ours in front of the metastore."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), client_packages])}
    line = ["--impl", impl, "--property", f"uri={metastore_uri}", "--property", f"root={tmp_path}", "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "serve", *line, "--data-workers", "1"],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_hive_metastore_is_served_to_the_clients_of_lance(url: str, impl: str) -> None:
    parent = ["shop"] if impl == "hive2" else ["hive", "shop3"]
    level = len(parent) + 1
    client = RestNamespace(uri=url)
    client.create_namespace(api.CreateNamespaceRequest(id=parent, properties={"owner": "ann"}))
    lance.write_dataset(ROWS, namespace_client=client, table_id=[*parent, "t"])
    lance.write_dataset(ROWS, namespace_client=client, table_id=[*parent, "t"], mode="append")
    db = lancedb.connect_namespace("rest", {"uri": url})
    assert db.list_tables(namespace_path=parent).tables == ["t"]
    assert db.open_table("t", namespace_path=parent).search([1.0, 0.0]).limit(1).to_list()[0]["id"] == 1
    catalog = headwater.Catalog(url)
    name = ".".join([*parent, "t"])
    assert list(catalog) == [name]
    assert catalog.level == level
    assert (catalog[name].count(), catalog[name].to_arrow().num_rows) == (4, 4)
    assert catalog[name].describe(load_detailed_metadata=True).version == 2
    catalog[name].append(ROWS)
    catalog[name].delete("id = 1")
    assert catalog[name].to_arrow()["id"].to_pylist() == [2, 2, 2]
    catalog.create_namespace(".".join(parent), exist_ok=True)
    assert catalog.namespace_properties(".".join(parent))["owner"] == "ann"
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(".".join(parent))
    with pytest.raises(TableNotFoundError):
        _ = catalog[".".join([*parent, "none"])]
    catalog.drop_table(name)
    assert list(catalog) == []
    catalog.drop_namespace(".".join(parent))
