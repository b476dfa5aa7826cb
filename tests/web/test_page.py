"""Every page of a catalog, read over HTTP: what it shows, and the headers that keep it harmless."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

import headwater
from headwater.namespace.directory import DirectoryNamespace
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.server import RunningServer, start_in_thread
from headwater.rest.settings import Settings
from headwater.web import page, pages
from headwater.web import site as site_module
from headwater.web.visit import Page, RequestContext
from tests.web.pages import Document
from tests.web.samples import HOSTILE, fill

TABLE = "/t/prod/photos"
PAGES = {
    "/": "odd",
    "/n/prod": "what customers see",
    TABLE: "what the picture shows, in words",
    f"{TABLE}?view=rows": "river 1 <b>bold</b>",
    f"{TABLE}?view=rows&text=mountain": "mountain",
    f"{TABLE}?view=rows&like=3&by=embedding": "_distance",
    f"{TABLE}?view=rows&filter=id%20%3E%2070": "rows 0 to 8",
    f"{TABLE}?view=rows&version=1": "This is version 1",
    f"{TABLE}?view=versions": "good",
    f"{TABLE}?view=compare&from=2&to=3": "Added10",
    f"{TABLE}?view=compare&from=3&to=1": "is after",
    f"{TABLE}?view=indices": "75 of 80 rows",
    f"{TABLE}?view=files": "4 of 4 fragments",
    f"{TABLE}?view=streams": "versions of the Lance table",
    f"{TABLE}?view=history": "create",
    f"{TABLE}?view=use": "catalog",
    f"{TABLE}?view=restore&version=1": "Make version 1 of",
    f"{TABLE}?view=drop": "Type its name",
    "/t/prod/events": "not published yet",
    "/t/prod/events?view=streams": "the log is at position 2, the serving copy at 1",
    "/t/prod/daily?view=lineage": "SELECT count(*) FROM prod.events",
    "/t/prod/events?view=lineage": "prod.daily",
    "/lineage": "prod.daily",
    "/runs": "No pipeline has run yet",
    "/access": "the first key closes it",
    "/t/prod/daily?view=lineage&column=what": "Lineage of",
    "/sql": "start with a table",
    "/sql?sql=SELECT+id%2C+score+FROM+prod.photos": "score by id",
    "/sql?sql=SELECT+nothing": "cannot be run",
    "/sql?sql=SELECT+id+FROM+prod.users&show=plan": "Nothing was run",
    "/search?q=PHOTO": "photos",
    "/search?q=vision": "by its properties",
    "/search?q=EMBEDDING": "by its column embedding",
    "/search?q=in%20words": "by its comment of caption",
    "/search?q=prod%7Cphotos": "by its locator",
    "/search?q=prod%7Cphotos%7C1%7Clance%7Clance": "by its locator",
    "/search?q=prod%7Cnone": "Nothing that you may see",
    "/log": "commit",
    "/deleted": "Kept until",
    "/snapshots": "before",
    "/server": "answers",
}


def test_every_page_shows_what_it_is_for_and_nothing_in_it_can_run(browser: httpx.Client) -> None:
    for address, told in PAGES.items():
        answer = browser.get(address)
        assert answer.status_code == 200, address
        policy = answer.headers["content-security-policy"]
        for rule in ("default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"):
            assert rule in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        found = Document(answer.text)
        assert told in found.text, address
        assert found.inline == [], address
        assert len(answer.content) < 300_000
        assert all(one.startswith(("/", "#")) and not one.startswith("//") for one in found.addresses), address


def test_the_page_finds_an_object_by_its_id_and_says_the_level_of_all_tables(tmp_path: Path) -> None:
    lake = MetastoreNamespace(root=str(tmp_path))
    catalog = headwater.Catalog(lake)
    catalog.create_stream_table("prod.orders", {"id": "int64", "region": "text"}, keys="id", partition_by="region")
    catalog["prod.orders"].upsert([{"id": 1, "region": "eu"}])
    found = catalog.describe("prod.orders")
    part = next(each for each in catalog.objects("prod.orders") if each.values)
    with start_in_thread(lake, face=page) as server, httpx.Client(base_url=server.url) as browser:
        browser.headers["accept"] = "text/html"
        for key in (found.id, part.key):
            shown = browser.get(f"/search?q={quote(key)}").text
            assert "by its id" in shown
            assert 'href="/t/prod/orders"' in shown
        assert "region=eu" in browser.get("/t/prod/orders?view=streams").text
        level = "Every table is at level</dt><dd>"
        assert f"{level}2" in browser.get("/server").text
        catalog.create_table("other", [{"a": 1}])
        assert level not in browser.get("/server").text


def test_no_link_of_any_page_is_dead(browser: httpx.Client) -> None:
    waiting, seen = ["/"], {"/"}
    while waiting:
        address = waiting.pop()
        answer = browser.get(address)
        assert answer.status_code == 200, address
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        for link in Document(answer.text).addresses:
            plain = link.partition("#")[0]
            if plain and plain not in seen and "/do/" not in plain and "signout" not in plain:
                seen.add(plain)
                if "view=rows" not in plain or "version" not in plain:
                    waiting.append(plain)
    assert len(seen) > 80


def test_odd_names_are_text_and_lead_where_they_say(browser: httpx.Client) -> None:
    listed = Document(browser.get("/n/odd").text)
    for name in HOSTILE:
        address = f"/t/odd/{quote(name, safe='')}"
        assert address in listed.links
        assert name in listed.text
        found = Document(browser.get(f"{address}?view=rows").text)
        assert found.text.count(name) >= 2
        assert found.inline == []


def test_a_filter_has_an_address_and_a_script_gets_only_the_list(browser: httpx.Client) -> None:
    whole = browser.get("/n/prod", params={"filter": "PHO"})
    assert "1 of 4" in whole.text
    part = browser.get("/n/prod", params={"filter": "PHO"}, headers={"hx-request": "true"})
    assert "<html" not in part.text
    assert "photos" in part.text
    assert "users" not in part.text


@pytest.mark.parametrize(
    ("address", "word", "kept", "left"),
    [
        ("/log", "photos", "prod / photos", "prod / users"),
        ("/deleted", "nothing-like-it", "nothing-like-it", "Undrop"),
        ("/snapshots", "nothing-like-it", "nothing-like-it", "commit"),
        ("/server", "requests_total", "headwater_requests_total", "headwater_request_seconds_sum"),
        (f"{TABLE}?view=versions", "good", "1 of 5 versions", "+40"),
        (f"{TABLE}?view=indices", "nothing-like-it", "nothing-like-it", "75 of 80"),
        (f"{TABLE}?view=files", "nothing-like-it", "0 of 4 fragments", ".lance"),
        (f"{TABLE}?view=history", "create table", "1 of 6 transactions", "version 3"),
        ("/t/prod/events?view=streams", "lance", "lance", "not published\n"),
    ],
)
def test_every_list_has_a_filter_with_an_address(
    browser: httpx.Client, address: str, word: str, kept: str, left: str
) -> None:
    assert 'name="filter"' in browser.get(address).text
    found = Document(browser.get(httpx.URL(address).copy_merge_params({"filter": word})).text).text
    assert kept in found
    assert left not in found


def test_a_page_that_the_browser_goes_back_to_is_whole(browser: httpx.Client) -> None:
    back = {"hx-request": "true", "hx-history-restore-request": "true"}
    assert "<html" in browser.get("/n/prod", params={"filter": "pho"}, headers=back).text


def test_an_image_is_sent_by_its_first_bytes_from_where_nothing_runs(browser: httpx.Client) -> None:
    picture = browser.get("/cell/prod/photos", params={"column": "picture", "offset": 1})
    assert picture.headers["content-type"] == "image/png"
    assert picture.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert picture.headers["x-content-type-options"] == "nosniff"
    for column, offset in (("picture", 0), ("caption", 1), ("nope", 1)):
        refused = browser.get("/cell/prod/photos", params={"column": column, "offset": offset})
        assert refused.status_code >= 400
        assert refused.headers["content-type"].startswith("text/html")


def test_a_wrong_query_is_said_beside_the_box_and_a_wrong_address_on_a_page(browser: httpx.Client) -> None:
    wrong = browser.get(TABLE, params={"view": "rows", "filter": "nope > 1"})
    assert wrong.status_code == 200
    assert "nope" in Document(wrong.text).text
    for address, status in (
        ("/nope", 404),
        ("/t/prod/nope", 404),
        ("/n/nope", 404),
        (f"{TABLE}?view=x", 400),
        ("/t/%ff", 400),
    ):
        answer = browser.get(address)
        assert answer.status_code == status, address
        assert answer.headers["content-type"].startswith("text/html")


def test_who_does_not_ask_for_a_page_gets_the_apis_answer(site: RunningServer) -> None:
    with httpx.Client(base_url=site.url) as client:
        unknown = client.get("/nope", headers={"accept": "application/json"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, 0)
        of_api = client.get("/v1/nope", headers={"accept": "text/html"})
        assert of_api.headers["content-type"] == "application/json"
        assert client.post("/nope").status_code == 404
        assert client.get("/static/../site.py").status_code == 404


def test_a_page_that_takes_too_long_is_given_up(browser: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def slow(visit: RequestContext) -> Page:
        visit.call.can_stop(released.set)
        released.wait(30)
        return Page(body=b"", status=204)

    monkeypatch.setitem(pages.VIEWS, "slow", slow)
    monkeypatch.setattr(site_module, "PAGE_SECONDS", 0.05)
    answer = browser.get("/slow")
    assert (answer.status_code, released.is_set()) == (503, True)
    assert "not ready" in answer.text


def test_another_sites_page_may_link_here_and_nothing_more(site: RunningServer) -> None:
    visit = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    with httpx.Client(base_url=site.url, headers={"accept": "text/html"}) as client:
        assert client.get("/n/prod", headers=visit).status_code == 200
        for headers in ({**visit, "sec-fetch-dest": "iframe"}, {**visit, "sec-fetch-mode": "no-cors"}):
            assert client.get("/n/prod", headers=headers).status_code == 403
        assert client.get("/v1/namespace/$/list", headers=visit).status_code == 403
        assert client.post("/do/undrop/prod/old", headers=visit).status_code == 403


def test_a_directory_catalog_shows_no_link_to_what_it_has_not(tmp_path: object) -> None:
    catalog = DirectoryNamespace(root=f"{tmp_path}/lake")
    fill(catalog)
    with start_in_thread(catalog, face=page) as server, httpx.Client(base_url=server.url) as client:
        client.headers["accept"] = "text/html"
        home = Document(client.get(TABLE).text)
        assert not any("log" in link or "deleted" in link or "history" in link for link in home.links)
        for address in ("/log", "/deleted"):
            assert client.get(address).status_code == 406
        assert client.get(f"{TABLE}?view=versions").status_code == 200
        assert "photos" in client.get("/search", params={"q": "hot"}).text


@pytest.mark.parametrize("base", ["", "/lake"])
def test_a_base_path_is_in_every_link_and_off_every_request(lake: MetastoreNamespace, base: str) -> None:
    settings = Settings(base_path=base)
    with start_in_thread(lake, settings=settings, face=page) as server, httpx.Client(base_url=server.url) as client:
        client.headers["accept"] = "text/html"
        found = Document(client.get(f"{base}{TABLE}").text)
        assert all(link.startswith((f"{base}/", "#")) for link in found.addresses)
        assert client.get(f"{base}/health/live").status_code == 200
        assert client.post(f"{base}/v1/table/prod$photos/describe", json={}).status_code == 200
        snippet = client.get(f"{base}{TABLE}", params={"view": "use"}).text
        assert f"{server.url}{base}" in snippet


def test_a_read_only_server_refuses_every_change_and_shows_no_button_for_one(lake: MetastoreNamespace) -> None:
    settings = Settings(read_only=True)
    with start_in_thread(lake, settings=settings, face=page) as server, httpx.Client(base_url=server.url) as client:
        client.headers["accept"] = "text/html"
        assert client.post("/v1/namespace/new/create", json={}).json()["code"] == 0
        assert client.post("/v1/table/prod$photos/drop", json={}).status_code == 406
        assert client.post("/v1/table/prod$new/create", content=b"").status_code == 406
        found = Document(client.get(f"{TABLE}?view=versions").text)
        assert not any("/do/" in form["action"] for form in found.forms)
        assert not any("view=restore" in link or "view=drop" in link for link in found.links)
        token = Document(client.get("/signin").text).form("signin")["token"]
        for action in ("drop-table/prod/photos", "undrop/prod/old", "restore/prod/photos", "add-tag/prod/photos"):
            sent = {"token": token, "name": "photos", "version": "1", "tag": "x"}
            assert client.post(f"/do/{action}", data=sent).status_code == 406, action
        assert client.post("/v1/table/prod$photos/describe", json={}).status_code == 200


def test_a_name_that_is_not_there_leads_to_the_nearest_one(browser: httpx.Client) -> None:
    for address, near in (
        ("/t/prod/fotos", "/t/prod/photos"),
        ("/t/prd/photos", "/t/prod/photos"),
        ("/n/prd", "/n/prod"),
    ):
        answer = browser.get(address, headers={"accept": "text/html"})
        assert (answer.status_code, near in Document(answer.text).links) == (404, True), address
    found = Document(browser.get("/sql", params={"sql": "SELECT * FROM prod.fotos"}).text).text
    assert "Did you mean prod.photos?" in found
    assert "Did you mean" not in browser.get("/t/prod/zzzzzz", headers={"accept": "text/html"}).text
