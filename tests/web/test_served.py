"""`headwater serve` as people start it: several workers, data work in processes of its own, the page on each."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headwater.clock import SystemClock
from headwater.namespace.directory import DirectoryNamespace
from headwater.rest.auth.keys import create_key
from tests.rest.processes import ServeProcess
from tests.web.pages import Document
from tests.web.samples import fill


@pytest.mark.long
def test_a_session_is_good_on_every_worker_and_rows_come_from_theirs(tmp_path: Path) -> None:
    namespace = DirectoryNamespace(root=str(tmp_path / "lake"))
    fill(namespace)
    secret = create_key(namespace.store, SystemClock(), "reader", [])[1]
    with ServeProcess(str(tmp_path / "lake"), "--port", "0", "--workers", "2", "--data-workers", "1") as served:
        assert served.url
        cookies = httpx.Cookies()
        with httpx.Client(base_url=served.url, headers={"accept": "text/html"}, timeout=60) as client:
            form = Document(client.get("/signin").text).form("signin")
            cookies = httpx.Cookies(client.post("/signin", data={"token": form["token"], "key": secret}).cookies)
        for _ in range(6):  # a new connection each, so that both workers get some
            answer = httpx.get(
                f"{served.url}/t/prod/photos?view=rows", cookies=cookies, headers={"accept": "text/html"}, timeout=60
            )
            assert "mountain 0" in answer.text
        assert served.stop()[0] == 0


@pytest.mark.long
def test_without_the_page_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    with ServeProcess(str(tmp_path / "lake"), "--port", "0", "--no-page", "--read-only") as served:
        assert httpx.get(served.url, headers={"accept": "text/html"}).headers["content-type"] == "application/json"
        assert httpx.post(f"{served.url}/v1/namespace/a/create", json={}).json()["code"] == 0
        assert served.stop()[0] == 0
