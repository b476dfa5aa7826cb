"""The audit log: who, from where, what, allowed or refused; and no secret in it."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError
from headwater.rest.auth.gate import Audit
from headwater.rest.auth.keys import create_key
from headwater.rest.settings import Settings
from tests.rest.samples import Serve


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_call_is_noted_with_who_asked_for_what_and_whether_it_was_allowed(
    catalog: DirectoryNamespace, serve: Serve, tmp_path: Path
) -> None:
    catalog.create_namespace(api.CreateNamespaceRequest(id=["prod"]))
    record, key = create_key(catalog.store, SystemClock(), "editor", ["prod"])
    gone, stolen = create_key(catalog.store, SystemClock(), "admin", [], expires_ms=1)
    path = tmp_path / "audit.log"
    server = serve(Settings(audit_log=str(path)))
    with httpx.Client(base_url=server.url, headers={"x-api-key": key}) as client:
        client.post("/v1/table/prod%24a/declare", json={})
        batch = [{"declare_table": {"id": ["prod", name]}} for name in ("b", "c")]
        client.post("/v1/table/batch-commit", json={"operations": batch})
        client.post("/v1/table/prod%24a/rename", json={"new_table_name": "z"})
        client.post("/v1/table/prod%24z/drop", json={})
        client.post("/v1/table/dev%24x/describe", json={})
        client.get("/health/live")
        client.get("/nothing")
        path.rename(tmp_path / "audit.1")
        client.get("/v1/table", headers={"x-api-key": stolen})
        client.get("/metrics", headers={"x-api-key": "", "authorization": "Bearer hw_nokey_hunter2hunter2"})
        client.get("/v1/table", headers={"x-api-key": "hunter2hunter2"})
        client.get("/v1/table", headers={"x-api-key": "", "authorization": "Bearer a.b.hunter2hunter2"})
    first, second = lines(tmp_path / "audit.1"), lines(path)
    assert [(line["operation"], line["objects"], line["allowed"]) for line in first] == [
        ("DeclareTable", ["prod$a"], True),
        ("BatchCommitTables", ["prod$b", "prod$c"], True),
        ("RenameTable", ["prod$a", "prod$z"], True),
        ("DropTable", ["prod$z"], False),
        ("DescribeTable", ["dev$x"], False),
    ]
    assert {line["caller"] for line in first} == {f"key:{record.id}"}
    assert {line["address"] for line in first + second} == {"127.0.0.1"}
    assert [line["credential"] for line in second] == [f"key:{gone.id}", "key:nokey", "a key", "a token"]
    assert {(line["allowed"], line["status"], line["code"]) for line in second} == {(False, 401, 16)}
    said = path.read_text() + (tmp_path / "audit.1").read_text()
    assert not [secret for secret in (key.split("_")[2], stolen.split("_")[2], "hunter2") if secret in said]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_log_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="audit log"):
        Audit(str(tmp_path / "no" / "such" / "folder"), SystemClock())
