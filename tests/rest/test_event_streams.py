"""The log as server-sent events, `headwater follow`, and commits sent to webhooks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater import Catalog, MetastoreNamespace
from headwater import webhooks as hooks
from headwater.cli import commit_feed, main
from headwater.clock import SystemClock
from headwater.errors import InvalidInputError
from headwater.rest import endpoint as streams
from headwater.rest.auth.keys import create_key
from headwater.rest.dispatch import Dispatcher
from headwater.rest.server import start_in_thread
from headwater.verbs.catalog import LogPage

CHANGES = "/headwater/v1/changes"


@pytest.fixture(autouse=True)
def long_streams(short_streams: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAM_SECONDS", 60.0)


@pytest.fixture
def lake(tmp_path: Path) -> Catalog:
    made = Catalog(str(tmp_path / "lake"))
    for name in ("a.one", "b.two"):
        made.create_stream_table(name, {"id": "bigint"}, keys="id")
    return made


@pytest.fixture
def http(lake: Catalog, tmp_path: Path) -> Iterator[httpx.Client]:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    with start_in_thread(namespace) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


class Followed:
    """The events of a stream as they come."""

    def __init__(self, http: httpx.Client, headers: dict[str, str] | None = None, **query: Any) -> None:
        self._open = http.stream("GET", CHANGES, params=query, headers=headers)
        self.response = self._open.__enter__()
        self._lines = self.response.iter_lines()
        self.last = ""

    def next(self) -> dict[str, Any]:
        """The next event with data; `last` is the id that a browser would resume with."""
        data = ""
        for line in self._lines:
            if line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("data: "):
                data = line[6:]
            elif not line and data:
                found: dict[str, Any] = json.loads(data)
                return found
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self._open.__exit__(None, None, None)


def _names(event: dict[str, Any]) -> set[str]:
    return {".".join(change["path"]) for change in event["changes"]}


def test_commits_come_as_events_and_a_client_that_comes_back_misses_none(lake: Catalog, http: httpx.Client) -> None:
    found = Followed(http)
    assert found.response.headers["content-type"] == "text/event-stream"
    lake["a.one"].upsert([{"id": 1}])
    assert "a.one" in _names(found.next())
    found.close()
    lake["a.one"].upsert([{"id": 2}])
    lake["b.two"].upsert([{"id": 3}])
    again = Followed(http, {"Last-Event-ID": found.last})
    assert ["a.one" in _names(again.next()), "b.two" in _names(again.next())] == [True, True]
    again.close()
    slots = [entry.slot for entry in lake.log(0)]
    every = Followed(http, after=0)
    assert [every.next()["slot"] for _ in slots] == slots
    every.close()


def test_a_stream_of_one_table_tells_its_changes_only_and_resumes_after_the_others(
    lake: Catalog, http: httpx.Client
) -> None:
    found = Followed(http, after=lake.slot, below=["b", "two"])
    lake["a.one"].upsert([{"id": 1}])
    lake["b.two"].upsert([{"id": 1}])
    event = found.next()
    assert _names(event) == {"b.two"}
    assert event["slot"] == lake.slot
    found.close()


def test_a_caller_is_told_of_what_it_may_describe_and_learns_nothing_of_the_rest(
    lake: Catalog, http: httpx.Client
) -> None:
    namespace: Any = lake.namespace
    assert isinstance(namespace, MetastoreNamespace)
    key = {"x-api-key": create_key(namespace.store, SystemClock(), "reader", ["a"])[1]}
    assert http.get(CHANGES).status_code == 401
    began = lake.slot
    lake["b.two"].upsert([{"id": 1}])
    lake["a.one"].upsert([{"id": 1}])
    found = Followed(http, key, after=began)
    event = found.next()
    assert (_names(event), event["message"]) == ({"a.one"}, "")
    found.close()
    hidden = Followed(http, key, after=began, below=["b"])
    text = next(hidden.response.iter_text())
    assert "commit" not in text
    hidden.close()


def test_the_end_of_a_page_tells_nothing_of_names_that_a_caller_may_not_see(lake: Catalog, http: httpx.Client) -> None:
    """A page of so many changes below a name ended where the first of them was: its position told that there is one."""
    namespace: Any = lake.namespace
    key = {"x-api-key": create_key(namespace.store, SystemClock(), "reader", ["a"])[1]}
    for number in range(3):
        lake["b.two"].upsert([{"id": number}])
        lake["a.one"].upsert([{"id": number}])
    lake.rename_table("a.one", "b.taken")

    def ask(*below: str) -> dict[str, Any]:
        asked = {"after": 0, "limit": 1, "below": below}
        told: dict[str, Any] = http.post("/headwater/v1/log", json=asked, headers=key).json()
        return told

    assert ask("b", "two") == ask("b", "nothing") == ask("b") == {"slot": lake.slot, "entries": [], "until": lake.slot}
    assert ask("a", "one") == ask("a", "nothing")
    assert len(ask("a")["entries"]) == 1


def test_a_stream_that_cannot_begin_is_an_error_and_one_that_is_over_ends(
    lake: Catalog, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.get(CHANGES, headers={"Last-Event-ID": "x"}).json()["code"] == 13
    assert http.get(CHANGES, params={"after": "x"}).json()["code"] == 13
    ahead = {"Last-Event-ID": str(lake.slot + 5)}  # of a catalog that was restored since: it waited in silence
    assert "There is no commit" in http.get(CHANGES, headers=ahead).json()["error"]
    monkeypatch.setattr(streams, "STREAM_SECONDS", 0.3)
    monkeypatch.setattr(streams, "SILENT_SECONDS", 0.1)
    text = http.get(CHANGES, params={"after": lake.slot}).text
    assert text.endswith(": waiting\n\n")


def test_many_waiting_clients_are_one_look_at_the_catalog(
    lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LOOK_EVERY", 60.0)
    looks: list[int] = []
    newest = Dispatcher.newest

    def noted(self: Dispatcher) -> int:
        looks.append(1)
        return newest(self)

    monkeypatch.setattr(Dispatcher, "newest", noted)
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    with start_in_thread(namespace) as server, httpx.Client(base_url=server.url, timeout=30) as http:
        waiting = [Followed(http, after=lake.slot) for _ in range(5)]
        for each in waiting:
            next(each.response.iter_text())
            each.close()
    assert len(looks) <= 1


def test_events_of_one_commit_have_its_id_at_the_last_of_them(lake: Catalog) -> None:
    (entry,) = list(lake.log(lake.slot - 1))
    two = list(streams.events(LogPage(entry.slot, [entry, entry], entry.slot), entry.slot))
    assert [b"id: " in each for each in two] == [False, True, True]
    assert list(streams.events(LogPage(0, [], 0), 0)) == []


# The command line and webhooks ----------------------------------------------------------------------------------------


def test_follow_prints_commits_and_goes_on_where_its_position_is(
    lake: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, kept = str(tmp_path / "lake"), str(tmp_path / "position")
    lake["a.one"].upsert([{"id": 1}])
    line = ["follow", place, "a.one", "--after", "0", "--position", kept, "--json", "--limit"]
    assert main([*line, "1"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["changes"]]
    before = int(Path(kept).read_text())
    assert main([*line, "1"]) == 0
    assert json.loads(capsys.readouterr().out)["slot"] == lake.slot
    assert before < int(Path(kept).read_text()) == lake.slot


def test_follow_through_a_server_is_the_same(lake: Catalog, http: httpx.Client) -> None:
    remote = Catalog(str(http.base_url))
    entries = remote.follow("b.two", after=lake.slot)
    threading.Timer(0.2, lambda: lake["b.two"].upsert([{"id": 1}])).start()
    assert next(entries).slot == lake.slot


def test_a_commit_is_sent_to_a_webhook_and_the_position_stays_where_it_was_not_taken(
    lake: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOOK_KEY", "k")
    monkeypatch.setattr(hooks, "WAITS_S", (0.0, 0.0))
    sent: list[bytes] = []

    def post(webhook: hooks.Webhook, body: bytes, moment: int) -> None:
        sent.append(body)
        if len(sent) < 3:
            raise OSError("503")

    monkeypatch.setattr(commit_feed, "post", post)
    kept = tmp_path / "position"
    line = ["follow", str(tmp_path / "lake"), "--after", "0", "--limit", "1", "--position", str(kept)]
    to = ["--to", "https://hooks.example.com/x?y=1", "--secret", "env:HOOK_KEY"]
    assert main([*line, *to]) == 0
    assert (json.loads(sent[-1])["event"], len(sent)) == ("commit", 3)
    before = kept.read_text()
    monkeypatch.setattr(commit_feed, "post", hooks.post)
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: [(2, 1, 6, "", ("10.0.0.7", 443))])
    assert main([*line, *to]) != 0
    told = capsys.readouterr().err
    assert "10.0.0.7, an internal address: --internal allows that" in told
    assert "y=1" not in told
    assert kept.read_text() == before


INTERNAL = [
    *("127.0.0.1", "169.254.169.254", "192.168.1.1", "::1", "fe80::1%eth0", "0.0.0.0", "::", "fd00::1"),
    *("::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:a00:1::1"),  # they carry another
    *("fec0::1", "ff02::1", "224.0.0.1", "168.63.129.16", "192.0.0.192", "100.64.0.1"),
]


@pytest.mark.parametrize("host", INTERNAL)
def test_no_name_leads_a_webhook_to_an_internal_address(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: [(2, 1, 6, "", (host, 443))])
    with pytest.raises(hooks.WebhookRefusedError):
        hooks.post(hooks.Webhook("https://hooks.example.com", "env:HOOK_KEY"), b"{}", 0)


@pytest.mark.parametrize("host", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"])
def test_a_public_address_is_connected_to(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(place: tuple[str, int], timeout: float) -> None:
        raise OSError(f"connected to {place[0]}")

    monkeypatch.setenv("HOOK_KEY", "k")
    monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: [(2, 1, 6, "", (host, 443))])
    monkeypatch.setattr("socket.create_connection", connect)
    with pytest.raises(OSError, match=f"connected to {host}"):
        hooks.post(hooks.Webhook("https://hooks.example.com", "env:HOOK_KEY"), b"{}", 0)


@pytest.mark.parametrize(
    ("to", "secret", "told"),
    [
        ("http://example.com", "env:K", "without TLS"),
        ("https://example.com", "", "--secret must name the key"),
        ("https://example.com", "plain", "is a reference"),
        ("https://", "env:K", "names no host"),
        ("https://a:b/", "env:K", "is not an address"),
    ],
)
def test_a_webhook_that_cannot_be_is_refused(to: str, secret: str, told: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        hooks.check_webhook(hooks.Webhook(to, secret), "--to", "--secret")
    assert told in str(error.value)


def test_a_position_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "position"
    assert commit_feed.start(str(file), 7) == 7
    file.write_text("")  # a full disk, or a machine that lost power
    with pytest.raises(InvalidInputError, match="holds no commit"):
        commit_feed.start(str(file), 7)
    file.write_text("soon\n")
    with pytest.raises(InvalidInputError):
        commit_feed.start(str(file), None)
