"""The Glue catalog of `lance-namespace-impls` behind our server: names in Glue and rows in S3, both of moto."""

from __future__ import annotations

from pathlib import Path

import lance
import lance_namespace as api
import lancedb
import pyarrow as pa
import pytest
from lance.namespace import RestNamespace

import headwater
from headwater.cli import main
from headwater.config import connect
from tests.adapter.test_adapter import ask
from tests.rest.processes import ServeProcess

pytestmark = pytest.mark.long
ROWS = pa.table({"id": [1, 2], "v": pa.array([[1.0, 0.0], [0.0, 1.0]], pa.list_(pa.float32(), 2))})


def properties(s3_server: str, s3_options: dict[str, str]) -> list[str]:
    told = {
        "endpoint": s3_server,
        "region": "us-east-1",
        "access_key_id": "testing",
        "secret_access_key": "env:GLUE_SECRET",
    }
    told |= {f"storage.{key}": value for key, value in s3_options.items() if key != "secret_access_key"}
    told |= {"storage.secret_access_key": "env:GLUE_SECRET", "max_retries": "1"}
    return [word for key, value in told.items() for word in ("--property", f"{key}={value}")]


def test_a_glue_catalog_is_served_to_the_clients_of_lance(
    s3_server: str,
    s3_options: dict[str, str],
    s3_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GLUE_SECRET", "testing")
    monkeypatch.chdir(tmp_path)
    keys = str(tmp_path / "keys")
    assert main(["token", "create", "--keys", keys, "--role", "admin"]) == 0
    key = capfd.readouterr().out.strip()
    line = ["--impl", "glue", *properties(s3_server, s3_options), "--keys", keys, "--vend-credentials", "--port", "0"]
    with ServeProcess(*line) as server:
        assert server.url, server.stop()
        mine = {"x-api-key": key}
        client = RestNamespace(**{"uri": server.url, "headers.x-api-key": key})
        client.create_namespace(
            api.CreateNamespaceRequest(id=["prod"], properties={"location": s3_root, "owner": "ann"})
        )
        lance.write_dataset(ROWS, namespace_client=client, table_id=["prod", "t"])
        lance.write_dataset(ROWS, namespace_client=client, table_id=["prod", "t"], mode="append")
        assert lance.dataset(namespace_client=client, table_id=["prod", "t"]).count_rows() == 4
        db = lancedb.connect_namespace("rest", {"uri": server.url, "headers.x-api-key": key})
        assert db.list_tables(namespace_path=["prod"]).tables == ["t"]
        assert db.open_table("t", namespace_path=["prod"]).count_rows() == 4
        catalog = headwater.Catalog(connect("rest", {"uri": server.url, "headers.x-api-key": key}))
        assert list(catalog) == ["prod.t"]
        assert "prod.t" in catalog
        assert "prod.none" not in catalog
        assert catalog["prod.t"].dataset().count_rows() == 4
        assert (catalog["prod.t"].count(), catalog["prod.t"].to_arrow().num_rows) == (4, 4)
        assert catalog.namespace_properties("prod")["owner"] == "ann"
        for path, code in (
            ("/v1/namespace/prod/create", 2),
            ("/v1/namespace/prod/drop", 3),
            ("/v1/namespace/none/describe", 1),
            ("/v1/namespace/a$b/describe", 1),
            ("/v1/table/prod$none/describe", 4),
            ("/v1/table/none$t/describe", 1),
            ("/v1/table/prod$t/declare", 5),
            ("/v1/table/prod$t/drop", 0),
            ("/headwater/v1/log", 0),
        ):
            status, answer = ask(server.url, path, {}, **mine)
            assert (answer["code"], status != 500) == (code, True), (path, answer)
        assert ask(server.url, "/v1/table/prod$t/deregister", {}, **mine)[0] == 200
        assert ask(server.url, "/v1/namespace/prod/drop", {}, **mine)[0] == 200
        assert ask(server.url, "/v1/namespace/$/list", **mine)[1]["namespaces"] == []


def test_a_service_that_is_not_there_is_one_clear_error_at_start(capfd: pytest.CaptureFixture[str]) -> None:
    told = {
        "endpoint": "http://127.0.0.1:9",
        "region": "us-east-1",
        "access_key_id": "x",
        "secret_access_key": "env:HOME",
    }
    words = [word for key, value in {**told, "max_retries": "1"}.items() for word in ("--property", f"{key}={value}")]
    assert main(["serve", "--impl", "glue", *words, "--port", "0"]) == 7
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "glue does not answer" in err
