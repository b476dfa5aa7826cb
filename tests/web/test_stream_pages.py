"""The pages of stream tables: what feeds them, what is not published yet, and what was done to them, in plain words."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headwater import Catalog
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.server import start_in_thread
from headwater.web import page
from tests.web.pages import Document

SCHEMA = {"id": "int64", "at": "int64", "note": "string"}


@pytest.fixture(scope="module")
def fed(lake: MetastoreNamespace) -> Catalog:
    """A catalog with a stream table that two sources feed, whose last rows were undone; some of its rows were bad."""
    catalog = Catalog(lake)
    orders = catalog.create_stream_table("raw.orders", SCHEMA, keys="id", sequence="at")
    for source in ("shop", "till"):
        orders.ingest([{"id": 1, "at": 1, "note": source}, {"id": None, "at": 1}], source=source, token="1")
    orders.publish()
    wrong = orders.ingest([{"id": 2, "at": 1}], source="till", token="2")
    assert wrong.rows == 1
    orders.undo(source="till", token="2")
    orders.publish()
    return catalog


def text_of(browser: httpx.Client, address: str) -> str:
    answer = browser.get(address)
    assert answer.status_code == 200, answer.text
    return Document(answer.text).text


@pytest.mark.usefixtures("fed")
def test_the_streams_of_a_table_that_several_sources_feed_are_its_log_and_its_versions(browser: httpx.Client) -> None:
    found = text_of(browser, "/t/raw/orders?view=streams")
    assert ("the change log" in found, "versions of the Lance table" in found) == (True, True)
    assert "record" not in found


def test_ids_locators_aliases_and_partition_values_stand_on_the_pages(fed: Catalog, browser: httpx.Client) -> None:
    table = fed.create_stream_table("raw.parted", SCHEMA, keys="id", partition_by="note")
    table.upsert([{"id": 1, "at": 1, "note": "eu"}, {"id": 2, "at": 1, "note": None}])
    fed.alias("raw.parted", "divided")
    known, found = fed.describe("raw.parted"), text_of(browser, "/t/raw/parted")
    assert [word for word in (known.id, known.locator, "divided") if word not in found] == []
    assert fed.describe("raw").id in text_of(browser, "/n/raw")
    found = text_of(browser, "/t/raw/parted?view=streams")
    told = [each.locator for each in (*fed.objects("raw.parted"), *table.deltas())]
    assert [word for word in ("note=eu", "note=null", *told) if word not in found] == []


def test_table_versions_stand_on_the_page_with_their_lifecycles(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    catalog = Catalog(namespace)
    catalog.create_stream_table("raw.orders", SCHEMA, keys="id")
    with start_in_thread(namespace, face=page) as server, httpx.Client(base_url=server.url) as browser:
        assert "Lifecycle" not in text_of(browser, "/t/raw/orders?view=streams")
        catalog["raw.orders"].table_versions.create("2", schema={"id": "string"}, keys="id")
        found = text_of(browser, "/t/raw/orders?view=streams")
    assert [word for word in ("Lifecycle", "active", "unreleased") if word not in found] == []


@pytest.mark.usefixtures("fed")
def test_a_stream_table_that_is_not_published_shows_its_columns_and_no_view_that_fails(browser: httpx.Client) -> None:
    answer = browser.get("/t/raw/orders__quarantine")
    found = Document(answer.text).text
    assert ("not published yet" in found, "reason" in found, "reserved" in found) == (True, True, False)
    views = {link for link in Document(answer.text).links if "orders__quarantine?view=" in link}
    assert {link.partition("view=")[2] for link in views} >= {"streams", "history", "use"}
    assert [browser.get(link).status_code for link in sorted(views)] == [200] * len(views)


@pytest.mark.usefixtures("fed")
def test_history_and_log_tell_of_versions_and_deltas_and_not_of_how_they_are_kept(browser: httpx.Client) -> None:
    for address in ("/t/raw/orders?view=history", "/log"):
        found = text_of(browser, address)
        assert ("version 2" in found, "delta 1" in found) == (True, True), address
        assert [word for word in ("create delta", "table version", "partition") if word in found] == [], address


@pytest.mark.usefixtures("fed")
def test_lineage_names_the_sources_of_all_rows_and_not_only_of_the_last_publish(browser: httpx.Client) -> None:
    found = text_of(browser, "/t/raw/orders?view=lineage")
    assert ("shop" in found, "till" in found) == (True, True)


@pytest.mark.usefixtures("fed")
def test_the_front_page_counts_tells_what_waits_and_what_was_rejected_and_what_was_done_last(
    browser: httpx.Client, fed: Catalog
) -> None:
    fed["raw.orders"].ingest([{"id": 7, "at": 1}], source="till", token="7")
    found = text_of(browser, "/")
    tables = sum(len(fed.tables(namespace)) for namespace in ("odd", "prod", "raw"))
    assert f"Tables{tables}\n" in found
    assert ("Waiting to be published" in found, "raw / orders" in found) == (True, True)
    assert ("Rejected rows" in found, "orders__quarantine" in found, "2 rows" in found) == (True, False, True)
    assert ("Newest changes" in found, "All changes" in found) == (True, True)
    fed["raw.orders"].publish()
    assert "Waiting to be published raw / orders " not in " ".join(text_of(browser, "/").split())
