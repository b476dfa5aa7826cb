"""A name that does not exist is answered with the one that was meant, when somebody reads the answer."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater
from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError, TableNotFoundError
from headwater.rest.auth.keys import create_key
from headwater.rest.server import start_in_thread


@pytest.fixture
def catalog(tmp_path: Path) -> headwater.Catalog:
    made = headwater.Catalog(str(tmp_path / "lake"))
    table = made.create_table("prod.users", [{"id": 1, "name": "Ada"}])
    table.create_index("id")
    table.tags["best"] = 1
    table.branches.create("trial")
    made.snapshot("monday")
    return made


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda c: c["prod.usrs"], "prod.users"),
        (lambda c: c["prd.users"], "prod.users"),
        (lambda c: c.drop_table("prod.user"), "prod.users"),
        (lambda c: c.rename_table("prod.usrs", "prod.people"), "prod.users"),
        (lambda c: c.tables("prodd"), "prod"),
        (lambda c: c.history("prod.usrs"), "prod.users"),
        (lambda c: c.query("SELECT * FROM prod.usrs"), "prod.users"),
        (lambda c: c.query("SELECT naem FROM prod.users"), "'name'"),
        (lambda c: c["prod.users"].tags["bets"], "'best'"),
        (lambda c: c["prod.users"].branches["trail"], "'trial'"),
        (lambda c: c["prod.users"].indices["id_ix"], "'id_idx'"),
        (lambda c: c.at("mondy"), "'monday'"),
    ],
)
def test_an_error_about_a_name_names_the_nearest(
    call: Callable[[headwater.Catalog], Any], meant: str, catalog: headwater.Catalog
) -> None:
    with pytest.raises(LanceNamespaceError) as refused:
        call(catalog)
    assert str(refused.value).count("Did you mean") == 1
    assert f"Did you mean {meant}?" in str(refused.value)


def test_nothing_is_listed_until_the_text_is_read(catalog: headwater.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Any] = []
    tables = headwater.Catalog.tables
    monkeypatch.setattr(headwater.Catalog, "tables", lambda self, *a: listed.append(a) or tables(self, *a))  # type: ignore[func-returns-value]
    with pytest.raises(TableNotFoundError) as missing:
        catalog["prod.usrs"]
    assert listed == []
    assert "prod.users" in str(missing.value)
    assert listed


def test_such_an_error_is_the_protocols_and_can_be_pickled(catalog: headwater.Catalog) -> None:
    with pytest.raises(TableNotFoundError) as missing:
        catalog["prod.usrs"]
    assert type(missing.value).__name__ == "TableNotFoundError"
    again = pickle.loads(pickle.dumps(missing.value))
    assert type(again) is TableNotFoundError
    assert "prod.usrs" in str(again)


def test_a_name_like_no_other_gets_no_suggestion(catalog: headwater.Catalog) -> None:
    with pytest.raises(TableNotFoundError) as missing:
        catalog["prod.zzzzzz"]
    assert "Did you mean" not in str(missing.value)


def test_a_server_names_the_nearest_once_and_not_to_a_caller_with_a_scope(catalog: headwater.Catalog) -> None:
    describe = "/v1/table/prod$usrs/describe"
    with start_in_thread(catalog.namespace) as server:
        answer = httpx.post(server.url + describe, json={})
        assert answer.json()["error"] == "Table prod.usrs does not exist. Did you mean prod.users?"
        assert "Did you mean" not in httpx.post(f"{server.url}/v1/table/prod$usrs/exists", json={}).text
        with pytest.raises(TableNotFoundError) as missing:
            headwater.Catalog(server.url)["prod.usrs"]
        assert str(missing.value).count("Did you mean") == 1
    _, secret = create_key(catalog.namespace.store, SystemClock(), "reader", ["prod"])  # type: ignore[attr-defined]
    with start_in_thread(catalog.namespace) as server:
        answer = httpx.post(server.url + describe, json={}, headers={"x-api-key": secret})
        assert answer.json()["error"] == "Table prod.usrs does not exist."
