"""Runs are data: each leaves a record in its catalog, also one that failed or was killed, and hooks are told."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headwater import webhooks
from headwater.catalog import Catalog
from headwater.cli import main
from headwater.clock import SystemClock
from headwater.errors import LanceNamespaceError
from headwater.pipeline.grammar import parse_pipeline, read_pipeline
from headwater.pipeline.hooks import Hooks, notify
from headwater.pipeline.run_records import PUBLISH_AFTER, RUNS, recorded, runs
from headwater.pipeline.running import run_pipeline
from headwater.pipeline.watching import SignalledStop, watch_pipeline
from tests.docs.blocks import ROOT

pytest.importorskip("duckdb")
TEXT = """
[pipeline]
name = "small"
catalog = "lake"
engine = "embedded"
{more}
[[source]]
name = "files"
path = "in/*.json"
into = "raw.t"
[table."raw.t"]
schema = "id BIGINT NOT NULL, n BIGINT"
keys = ["id"]
expect_or_fail = {{ small = "n < 1000" }}
[view."mart.v"]
sql = "SELECT n, count(*) AS c FROM raw.t GROUP BY n"
keys = ["n"]
"""


class Small:
    """A pipeline of one source, and what it takes."""

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder, self.file = folder, folder / "pipeline.toml"
        (folder / "in").mkdir()
        self.file.write_text(TEXT.format(more=more))

    def deliver(self, name: str, *rows: dict[str, Any]) -> None:
        (self.folder / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, **options: Any) -> Any:
        return run_pipeline(read_pipeline(self.file), **options)

    @property
    def catalog(self) -> Catalog:
        return Catalog(str(self.folder / "lake"))

    def records(self) -> list[dict[str, Any]]:
        return runs(self.catalog)


def test_a_run_leaves_a_record_that_sql_and_the_command_line_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Small(tmp_path)
    small.deliver("1.json", {"id": 1, "n": 1}, {"id": None, "n": 2})
    done = small.run()
    row = small.catalog[RUNS].to_arrow().to_pylist()[0]
    assert (row["run"], row["pipeline"], row["state"], row["plan"]) == (done.id, "small", "done", done.plan.id)
    assert (row["rows"], row["quarantined"], row["late"], row["error"]) == (1, 1, 0, None)
    assert (row["where"], row["watch"]) == ("embedded", False)
    assert all((row["who"], row["host"], row["ended"] >= row["began"], row["seconds"] > 0))
    steps = json.loads(row["steps"])
    assert [(step["job"], step["table"], step["rows"]) for step in steps] == [
        ("ingest", "raw.t", 1),
        ("publish", "raw.t", 1),
        ("view", "mart.v", 1),
        ("publish", "mart.v", 1),
    ]
    assert small.catalog["raw.t"].lineage()["run"]["run"] == done.id
    small.run()
    assert [each["rows"] for each in small.records()] == [0, 1], "a run that had nothing to do is a run"
    lake = str(tmp_path / "lake")
    assert main(["runs", lake, "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["run"] for each in listed][1] == done.id
    assert main(["runs", lake, "show", done.id[:13], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == steps
    assert main(["query", "-c", lake, f"SELECT state FROM {RUNS} WHERE run = '{done.id}'"]) == 0
    assert "done" in capsys.readouterr().out
    assert main(["runs", lake, "show", "nope"]) != 0
    assert "There is no run 'nope'" in capsys.readouterr().err


def test_a_run_that_fails_is_recorded_with_its_error_and_what_it_had_done(tmp_path: Path) -> None:
    small = Small(tmp_path)
    small.deliver("1.json", {"id": 1, "n": 1})
    small.deliver("2.json", {"id": 2, "n": 5000})
    with pytest.raises(LanceNamespaceError):
        small.run()
    failed = small.records()[0]
    assert failed["state"] == "failed"
    assert "check 'small'" in failed["error"]
    small.file.write_text(small.file.read_text().replace('keys = ["id"]', 'keys = ["n"]'))
    with pytest.raises(LanceNamespaceError):
        small.run()
    assert "other keys" in small.records()[0]["error"], "a run that cannot be planned is one"


def test_a_run_without_an_end_is_shown_as_killed_once_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(tmp_path)
    pipeline = read_pipeline(small.file)
    begun = recorded(pipeline, small.catalog, "plan", print)
    begun.__enter__().begin(print)
    assert [row["state"] for row in small.records()] == ["running"], "this process lives"
    with monkeypatch.context() as patched, subprocess.Popen(["sleep", "60"]) as other:
        patched.setattr("headwater.pipeline.run_records.os.getpid", lambda: other.pid)
        gone = recorded(pipeline, small.catalog, "plan", print)
        gone.__enter__().begin(print)
        assert [row["state"] for row in small.records()] == ["running", "running"]
        other.kill()
    assert sorted(row["state"] for row in small.records()) == ["killed", "running"]
    assert small.catalog[RUNS].to_arrow()["state"].to_pylist() == ["running", "running"]
    small.deliver("1.json", {"id": 1, "n": 1})
    small.run()
    assert sorted(small.catalog[RUNS].to_arrow()["state"].to_pylist()) == ["done", "killed", "running"]
    begun.__exit__(None, None, None)
    assert sorted(row["state"] for row in small.records()) == ["done", "done", "killed"]
    del gone


@pytest.mark.long
def test_a_run_that_was_killed_is_shown_as_such_and_the_next_one_notes_it(tmp_path: Path) -> None:
    small = Small(tmp_path)
    (tmp_path / "features.py").write_text(
        "import time\nfrom pathlib import Path\n"
        "def wait(n):\n    Path(__file__).with_name('here').touch()\n    time.sleep(600)\n"
    )
    derived = '[table."raw.t".columns.w]\nfunction = "features:wait"\ninputs = ["n"]\ntype = "int64"\n'
    small.file.write_text(small.file.read_text().replace('[view."mart.v"]', f'{derived}[view."mart.v"]'))
    small.deliver("1.json", {"id": 1, "n": 1})
    command = [sys.executable, "-m", "headwater", "run", str(small.file)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    while not (tmp_path / "here").exists():
        assert process.poll() is None
        time.sleep(0.02)
    assert small.records()[0]["state"] == "running"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert [row["state"] for row in small.records()] == ["killed"]
    assert small.catalog[RUNS].to_arrow()["state"].to_pylist() == ["running"]
    small.file.write_text(small.file.read_text().replace(derived, ""))
    small.run()
    assert sorted(small.catalog[RUNS].to_arrow()["state"].to_pylist()) == ["done", "killed"]


def test_rounds_of_a_resident_run_leave_a_record_when_they_took_something_or_failed_anew(tmp_path: Path) -> None:
    small = Small(tmp_path)
    small.deliver("1.json", {"id": 1, "n": 1})
    rounds = 0

    class Counted(SignalledStop):
        def wait(self, timeout: float) -> bool:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                small.deliver("2.json", {"id": 2, "n": 5000})
            if rounds == 6:
                small.deliver("3.json", {"id": 3, "n": 3})
            return rounds == 8

    list(watch_pipeline(read_pipeline(small.file), Counted(), every=0.0))
    found = small.records()[::-1]
    assert [(row["state"], row["rows"], row["watch"]) for row in found] == [
        ("done", 1, True),
        ("failed", 0, True),
        ("failed", 1, True),
    ]
    assert "5000" in found[1]["error"]


def test_many_runs_are_published_so_that_reads_stay_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.pipeline.run_records.PUBLISH_AFTER", 3)
    assert PUBLISH_AFTER > 3
    small = Small(tmp_path)
    small.deliver("1.json", {"id": 1, "n": 1})
    for _ in range(3):
        small.run()
    table = small.catalog[RUNS]
    assert table.published is not None
    assert (table.count(), table.verify()) == (3, [])


def test_a_run_goes_on_where_its_record_cannot_be_written(tmp_path: Path) -> None:
    small = Small(tmp_path)
    small.catalog.create_stream_table(RUNS, {"other": "int64"})
    small.deliver("1.json", {"id": 1, "n": 1})
    said: list[str] = []
    small.run(say=said.append)
    assert small.catalog["raw.t"].count() == 1
    assert any("not recorded" in text for text in said)


# Hooks ----------------------------------------------------------------------------------------------------------------


def test_a_command_is_told_of_failures_and_of_quarantined_rows(tmp_path: Path) -> None:
    more = 'on_failure = "tee failure.json"\non_quarantine = "tee quarantine.json"'
    small = Small(tmp_path, more)
    small.deliver("1.json", {"id": 1, "n": 1})
    small.run()
    assert not list(tmp_path.glob("*.json"))
    small.deliver("2.json", {"id": None, "n": 1})
    done = small.run()
    told = json.loads((tmp_path / "quarantine.json").read_text())
    assert (told["event"], told["run"], told["quarantined"]) == ("quarantine", done.id, 1)
    small.deliver("3.json", {"id": 3, "n": 5000})
    with pytest.raises(LanceNamespaceError):
        small.run()
    told = json.loads((tmp_path / "failure.json").read_text())
    assert (told["event"], told["state"]) == ("failure", "failed")
    assert "5000" in told["error"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "WAITS_S", (0.0, 0.0))
    monkeypatch.setattr(webhooks, "TIMEOUT_S", 0.5)
    monkeypatch.setenv("HOOK_KEY", "k")


@pytest.mark.usefixtures("quick")
def test_a_command_that_fails_or_hangs_is_tried_three_times_and_told(tmp_path: Path) -> None:
    said: list[str] = []
    script = tmp_path / "hook.sh"
    for text, why in (
        ("echo x >> calls; echo sorry >&2; exit 3", "sorry"),
        ("echo x >> calls; sleep 60", "did not end"),
    ):
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        (tmp_path / "calls").write_text("")
        assert not notify(Hooks(), "./hook.sh", {"event": "failure"}, tmp_path, SystemClock(), said.append)
        assert len((tmp_path / "calls").read_text().split()) == 3
        assert why in said[-1] or "no answer" in said[-1]


@pytest.mark.usefixtures("quick")
def test_an_address_gets_a_signed_body_again_after_an_error_and_none_if_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[bytes, str]] = []
    answers = [503, 200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((body, self.headers["Headwater-Signature"]))
            if not answers:
                time.sleep(2)
            self.send_response(answers.pop(0) if answers else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    class Plain:
        """Stands for TLS: certificates are OpenSSL's to test."""

        def wrap_socket(self, raw: Any, server_hostname: str) -> Any:
            assert server_hostname == "localhost"
            return raw

    monkeypatch.setattr("ssl.create_default_context", lambda *args, **kwargs: Plain())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    to, said = f"https://localhost:{server.server_address[1]}/hook?a=1", list[str]()
    allowed = Hooks(to, "", "env:HOOK_KEY", internal=True)
    assert notify(allowed, to, {"event": "failure", "error": "é"}, tmp_path, SystemClock(), said.append)
    assert len(got) == 2
    body, signature = got[-1]
    moment, signed = (part.partition("=")[2] for part in signature.split(","))
    assert hmac.new(b"k", f"{moment}.".encode() + body, hashlib.sha256).hexdigest() == signed
    assert json.loads(body) == {"event": "failure", "error": "é"}
    began = time.monotonic()
    assert not notify(allowed, to, {"event": "failure"}, tmp_path, SystemClock(), said.append)
    assert time.monotonic() - began < 30
    assert "no answer" in said[-1] or "timed out" in said[-1]
    server.shutdown()


@pytest.mark.usefixtures("quick")
def test_a_hook_that_hangs_is_a_sentence_in_the_record_of_its_run(tmp_path: Path) -> None:
    small = Small(tmp_path, 'on_quarantine = "sleep 60"')
    small.deliver("1.json", {"id": 1, "n": 1}, {"id": None, "n": 1})
    said = list[str]()
    small.run(say=said.append)
    (record,) = small.records()
    assert (record["state"], record["rows"], record["quarantined"]) == ("done", 1, 1)
    assert record["error"].startswith("The hook of quarantine was not told: ")
    assert record["error"].endswith("0.5 s")
    assert record["error"] in said


def test_rounds_of_a_resident_run_do_not_wait_for_a_hook(tmp_path: Path) -> None:
    script = tmp_path / "hook.sh"
    script.write_text("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.05; done\ncat > told.$$\n")
    script.chmod(0o755)
    small = Small(tmp_path, 'on_quarantine = "./hook.sh"')
    small.deliver("1.json", {"id": 1, "n": 1}, {"id": None, "n": 1})
    stop = SignalledStop()
    for number, _ in enumerate(watch_pipeline(read_pipeline(small.file), stop, every=0.0), 1):
        if number == 1:
            small.deliver("2.json", {"id": 2, "n": 1}, {"id": None, "n": 1})
        else:
            (tmp_path / "go").touch()
            stop.set()
    for thread in threading.enumerate():
        if thread.name == "headwater-hook":
            thread.join()
    told = [json.loads(file.read_text()) for file in tmp_path.glob("told.*")]  # two hooks may run side by side
    assert sorted(each["quarantined"] for each in told) == [1, 1]
    assert [row["error"] for row in small.records()] == [None, None]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "10.1.2.3", "169.254.169.254", "[fd00::1]"])
def test_an_internal_address_is_refused_at_once(tmp_path: Path, host: str) -> None:
    said: list[str] = []
    to = f"https://{host}/hook"
    assert not notify(Hooks(to, "", "env:HOOK_KEY"), to, {"event": "failure"}, tmp_path, SystemClock(), said.append)
    assert "internal address" in said[0]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('on_failure = "http://example.com"', "without TLS"),
        ('on_failure = "https://example.com"', "hook_secret must name"),
        ('on_failure = "https://example.com"\nhook_secret = "plain"', "holds no secrets"),
        ('on_quarantine = "echo \'x"', "not a command"),
        ('on_failure = "https://"\nhook_secret = "env:X"', "names no host"),
        ('on_failure = "https://h:port"\nhook_secret = "env:X"', "not an address"),
        ("hook_internal = 1", "true or false"),
        ('on_failur = "x"', "on_failure"),
    ],
)
def test_a_hook_that_cannot_be_is_refused_with_the_file(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(LanceNamespaceError, match=why):
        parse_pipeline(TEXT.format(more=line), tmp_path)
