"""Keys and roles on the page: who may manage them does so by clicks, and nobody hands on a right that it lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from headwater import Catalog
from headwater.clock import SystemClock
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.auth.keys import create_key, defined_roles, find_key, list_keys
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from headwater.store import Store
from headwater.web import page
from tests.web.pages import Document

KEY = re.compile(r"hw_[0-9a-f]{12}_[0-9a-f]{64}")


@dataclass
class Managed:
    """A server with keys, its store, and its audit log."""

    url: str
    store: Store
    audit: Path

    def visitor(self, secret: str) -> httpx.Client:
        client = httpx.Client(base_url=self.url, headers={"accept": "text/html"}, timeout=60, follow_redirects=True)
        form = Document(client.get("/signin").text).form("signin")
        client.post("/signin", data={"token": form["token"], "key": secret})
        return client

    def of_role(self, role: str, *scope: str) -> httpx.Client:
        return self.visitor(create_key(self.store, SystemClock(), role, list(scope))[1])


@pytest.fixture
def managed(tmp_path: Path) -> Iterator[Managed]:
    lake = MetastoreNamespace(root=str(tmp_path / "lake"))
    Catalog(lake).create_table("prod.users", [{"id": 1}])
    create_key(lake.store, SystemClock(), "admin", [])
    settings = Settings(audit_log=str(tmp_path / "audit.log"))
    with start_in_thread(lake, settings=settings, face=page) as server:
        yield Managed(server.url, lake.store, tmp_path / "audit.log")


def test_a_key_is_made_shown_once_used_and_revoked_by_clicks(managed: Managed) -> None:
    admin = managed.of_role("admin")
    form = Document(admin.get("/access").text).form("create-key")
    asked = {**form, "name": "ada", "role": "reader", "scope": "prod", "days": "30"}
    made = admin.post("/do/create-key", data=asked)
    found = KEY.findall(made.text)
    assert (made.status_code, len(found), made.headers["cache-control"]) == (200, 1, "no-store")
    assert found[0] not in admin.get("/access").text
    assert found[0] not in managed.audit.read_text()
    record = find_key(managed.store, found[0].split("_")[1])
    assert record is not None
    assert (record.name, record.role, record.scope, record.expires_ms is not None) == ("ada", "reader", ["prod"], True)
    ada = managed.visitor(found[0])
    assert (ada.get("/t/prod/users").status_code, ada.get("/access").status_code) == (200, 403)
    admin.post("/do/revoke-key", data={"token": form["token"], "key": record.id})
    revoked = find_key(managed.store, record.id)
    assert revoked is not None
    assert revoked.revoked_ms is not None
    lines = [json.loads(line)["operation"] for line in managed.audit.read_text().splitlines()]
    assert {"PageCreateKey", "PageRevokeKey", "PageAccess"} <= set(lines)


def test_a_role_is_defined_and_removed_by_clicks(managed: Managed) -> None:
    admin = managed.of_role("admin")
    token = Document(admin.get("/access").text).form("define-role")["token"]
    saved = admin.post("/do/define-role", data={"token": token, "role": "analyst", "describe": "yes", "select": "yes"})
    assert "analyst" in Document(saved.text).text
    assert "analyst" in defined_roles(managed.store)
    none = admin.post("/do/define-role", data={"token": token, "role": "nobody"})
    assert (none.status_code, "at least one permission" in none.text) == (400, True)
    admin.post("/do/remove-role", data={"token": token, "role": "analyst"})
    assert defined_roles(managed.store) == {}


def test_keys_are_managed_only_by_who_may_manage_the_whole_catalog(managed: Managed) -> None:
    for visitor in (managed.of_role("writer"), managed.of_role("admin", "prod")):
        before = len(list_keys(managed.store))
        assert "/access" not in Document(visitor.get("/").text).links
        assert visitor.get("/access").status_code == 403
        token = Document(visitor.get("/").text).form("signout")["token"]
        asked = {"token": token, "role": "viewer", "name": "", "scope": "", "days": ""}
        assert visitor.post("/do/create-key", data=asked).status_code == 403
        assert len(list_keys(managed.store)) == before


def test_nobody_hands_on_or_takes_away_rights_that_it_lacks(managed: Managed) -> None:
    admin = list_keys(managed.store)[0]
    keeper = managed.of_role("describe,manage")
    answer = keeper.get("/access")
    token = Document(answer.text).form("create-key")["token"]
    before = len(list_keys(managed.store))
    asked = {"token": token, "name": "", "scope": "", "days": ""}
    assert keeper.post("/do/create-key", data={**asked, "role": "admin"}).status_code == 403
    assert keeper.post("/do/revoke-key", data={"token": token, "key": admin.id}).status_code == 403
    powers = {"token": token, "role": "root", "drop": "yes"}
    assert keeper.post("/do/define-role", data=powers).status_code == 403
    assert (len(list_keys(managed.store)), defined_roles(managed.store)) == (before, {})
    found = find_key(managed.store, admin.id)
    assert found is not None
    assert found.revoked_ms is None
    assert keeper.post("/do/create-key", data={**asked, "role": "viewer"}).status_code == 200


def test_a_server_without_keys_says_that_the_first_one_closes_it(tmp_path: Path) -> None:
    lake = MetastoreNamespace(root=str(tmp_path / "lake"))
    Catalog(lake).create_namespace("prod")
    with start_in_thread(lake, face=page) as server, httpx.Client(headers={"accept": "text/html"}) as client:
        assert "the first key closes it" in client.get(f"{server.url}/access").text
    with start_in_thread(lake, settings=Settings(catalog_keys=False), face=page) as server:
        answer = httpx.get(f"{server.url}/access", headers={"accept": "text/html"})
        assert "takes no API keys" in answer.text


def test_a_read_only_server_shows_keys_and_changes_none(tmp_path: Path) -> None:
    lake = MetastoreNamespace(root=str(tmp_path / "lake"))
    Catalog(lake).create_namespace("prod")
    with start_in_thread(lake, settings=Settings(read_only=True), face=page) as server:
        answer = httpx.get(f"{server.url}/access", headers={"accept": "text/html"})
        assert (answer.status_code, [form for form in Document(answer.text).forms if "/do/" in form["action"]]) == (
            200,
            [],
        )
