"""Indices that follow their rows, housekeeping by policy, lineage sent to a collector, and how far a job is."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.catalog import Catalog
from headwater.cli.main import main
from headwater.cli.pipeline import Bar, Lines
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.pipeline import export, import_files, index, ingest, maintain, publish
from headwater.pipeline.keeping import Policy, policy_of
from headwater.pipeline.lineage import export_lineage, open_lineage, upstream
from headwater.streams.serving import compaction


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = Catalog(str(tmp_path / "lake"))
    made.create_stream_table("raw.t", {"id": "bigint", "text": "string"}, keys=["id"])
    return made


def land(catalog: Catalog, first: int, last: int) -> None:
    catalog["raw.t"].upsert([{"id": number, "text": f"word{number}"} for number in range(first, last)], source="s")
    publish(None, catalog, "raw.t")


def test_an_index_is_made_once_then_brought_up_to_date_and_says_what_it_covers(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert index(None, catalog, "raw.t", "text").coverage == {}  # there are no rows yet
    land(catalog, 0, 1000)
    made = index(None, catalog, "raw.t", "text", "FTS")
    assert made.coverage == {"id_idx": 1.0, "text_idx": 1.0}
    assert index(None, catalog, "raw.t", "text").version == made.version
    land(catalog, 1000, 1010)
    assert catalog["raw.t"].coverage()["text_idx"] == 1000 / 1010  # ten rows are not worth an update of each index
    assert len(catalog["raw.t"].search("word1005").to_list()) == 1  # and they are found
    land(catalog, 1010, 1150)
    assert catalog["raw.t"].coverage() == {"id_idx": 1.0, "text_idx": 1.0}
    monkeypatch.setattr(compaction, "SMALL_ROWS", 1000)
    land(catalog, 1150, 1300)
    assert catalog["raw.t"].coverage()["text_idx"] < 1
    assert main(["reindex", str(tmp_path / "lake"), "raw.t"]) == 0
    assert "text_idx covers 100%" in capsys.readouterr().out
    assert catalog["raw.t"].verify() == []
    with pytest.raises(InvalidInputError, match="no column 'words'"):
        index(None, catalog, "raw.t", "words")


def test_a_policy_of_the_table_or_of_the_namespace_above_says_what_housekeeping_does(catalog: Catalog) -> None:
    land(catalog, 0, 1000)
    land(catalog, 0, 1000)
    catalog["raw.t"].upsert([{"id": number, "text": "new"} for number in range(300)])
    catalog["raw.t"].set_properties({"maintain.index": "no", "maintain.compact": "no"})
    publish(None, catalog, "raw.t")
    land(catalog, 1000, 1100)
    version = catalog["raw.t"].published.version
    assert maintain(None, catalog, "raw.t").parts[0].version == version
    catalog["raw.t"].set_properties({"maintain.index": "0.5", "maintain.compact": None})
    assert maintain(None, catalog).parts[0].coverage["id_idx"] < 1
    catalog["raw.t"].set_properties({"maintain.index": None})
    report = maintain(None, catalog, "raw.t")
    assert report.parts[0].coverage == {"id_idx": 1.0}
    assert catalog["raw.t"].verify() == []


def test_a_policy_is_read_from_properties_and_what_is_not_understood_is_named() -> None:
    assert policy_of({}, "t") == Policy(True, True, 0.0, None)
    told = {"maintain.compact": "no", "maintain.index": "0.25", "maintain.keep_days": "3", "other": "x"}
    assert policy_of(told, "t") == Policy(False, True, 0.25, 3.0)
    for wrong in ({"maintain.compact": "perhaps"}, {"maintain.keep_days": "long"}, {"maintain.what": "no"}):
        with pytest.raises(InvalidInputError, match="t"):
            policy_of(wrong, "t")


class Collector(BaseHTTPRequestHandler):
    """Takes events as a lineage service does; what is posted to /refuse is refused."""

    got: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.got.append((self.path, self.headers.get("Authorization"), body))
        self.send_response(403 if self.path == "/refuse" else 201)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Collector)
    Collector.got.clear()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_name_with_a_dot_in_it_is_written_in_quotes_everywhere(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": 1, "text": "a"}\n')
    (tmp_path / "p.toml").write_text(
        """
        pipeline = { name = "p", catalog = "lake" }
        source = [{ name = "s", path = "rows.jsonl", into = 'raw."a.b"' }]
        table = { 'raw."a.b"' = { keys = ["id"] } }
        view = { 'raw."v.w"' = { keys = ["id"], sql = 'SELECT id, text FROM raw.`a.b`' } }
        """
    )
    assert main(["run", str(tmp_path / "p.toml")]) == 0
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_namespace("other", {"maintain.compact": "yes"})
    assert [catalog[name].name for name in catalog] == ['raw."a.b"', 'raw."v.w"', "system.runs"]
    assert catalog[["raw", "v.w"]].to_arrow().to_pylist() == [{"id": 1, "text": "a"}]
    assert upstream(catalog, 'raw."v.w"').related[0].table == 'raw."a.b"'
    assert [part.table for part in maintain(None, catalog).parts] == ['raw."a.b"', 'raw."v.w"', "system.runs"]


def test_lineage_is_sent_to_a_collector_an_event_for_each_version(
    catalog: Catalog, tmp_path: Path, collector: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(catalog, 0, 3)
    land(catalog, 3, 5)
    monkeypatch.setenv("LINEAGE_TOKEN", "secret")
    command = ["lineage", str(tmp_path / "lake"), "raw.t", "--open-lineage", f"{collector}/api/v1/lineage"]
    assert main([*command, "--token", "env:LINEAGE_TOKEN"]) == 0
    assert [path for path, _, _ in Collector.got] == ["/api/v1/lineage"] * 2
    assert {token for _, token, _ in Collector.got} == {"Bearer secret"}
    assert [event["outputs"][0]["name"] for _, _, event in Collector.got] == ["raw.t", "raw.t"]
    events = open_lineage(catalog, ["raw.t"])
    with pytest.raises(InvalidInputError, match="403"):
        export_lineage(events, f"{collector}/refuse")
    with pytest.raises(ServiceUnavailableError, match="cannot be reached"):
        export_lineage(events, "http://127.0.0.1:1/none")
    assert export_lineage(events, str(tmp_path / "events.json")) == 2


def test_every_version_is_a_run_of_its_own_below_the_run_of_its_pipeline(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_stream_table("raw.u", {"id": "bigint"})
    run = {"pipeline": "shop", "run": "1b53d700-0a25-43ce-87eb-278c9ba618fb"}
    (tmp_path / "a.json").write_text('{"id": 1}')
    for name in ("raw.t", "raw.u"):
        ingest(None, catalog, name, tmp_path / "a.json", name="s")
    publish(None, catalog, "raw.t", "raw.u", lineage={name: {"run": run} for name in ("raw.t", "raw.u")})
    events = open_lineage(catalog)
    assert sorted(event["job"]["name"] for event in events) == ["shop.raw.t", "shop.raw.u"]
    assert len({str(UUID(event["run"]["runId"])) for event in events} | {run["run"]}) == 3
    for event in events:
        parent = event["run"]["facets"]["parent"]
        assert (parent["run"], parent["job"]["name"]) == ({"runId": run["run"]}, "shop")
        assert parent.keys() == {"_producer", "_schemaURL", "run", "job"}
        assert event["inputs"] == [{"namespace": "file", "name": str(tmp_path / "a.json")}]


def test_the_report_of_a_publish_counts_what_was_late_and_what_is_in_the_quarantine(catalog: Catalog) -> None:
    rules = {"lateness": "10"}
    log = catalog.create_stream_table("raw.l", {"id": "bigint", "at": "bigint"}, ["id"], ["at"], properties=rules)
    for at in (100, 95, 50):
        log.upsert([{"id": 1, "at": at}])
    done = publish(None, catalog, "raw.l", "raw.t")
    assert (done.rows, done.late, done.quarantined) == (3, 2, 1)
    assert [(part.late, part.quarantined) for part in done.parts] == [(2, 1), (0, 0)]
    log.set_properties({"late": "quarantine"})
    log.upsert([{"id": 1, "at": 99}])
    done = publish(None, catalog, "raw.l")
    assert (done.rows, done.late, done.quarantined, done.position) == (1, 1, 1, 4)
    assert catalog["raw.l__quarantine"].count() == 2
    assert index(None, catalog, "raw.l").position == 4


def test_a_job_tells_its_stages_tasks_rows_and_bytes(
    catalog: Catalog, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": number, "text": "x"}) + "\n")
    monkeypatch.setattr("headwater.cli.pipeline.PLAIN_S", 0)
    told = Lines()
    ingest(None, catalog, "raw.t", str(tmp_path / "*.json"), tell=told)
    publish(None, catalog, "raw.t", tell=told)
    text = capsys.readouterr().err.splitlines()
    assert text[0].startswith("take 3 files into raw.t: 3 tasks, ")
    assert text[3].startswith("take 3 files into raw.t: 3/3 tasks 3 rows, ")
    assert "publish raw.t: 1 task" in text
    console = Console(record=True, force_terminal=True, width=120, file=(tmp_path / "screen").open("w"))
    bar = Bar(console)
    with bar.progress:
        bar.stage("take files", 4, 4_000_000)
        bar.step(2, 1000, 2_000_000)
        bar.progress.refresh()
        shown = console.export_text()
    assert "take files" in shown
    assert "2/4" in shown
    assert "1,000 rows, 2.0 MB of 4.0 MB" in shown


def test_parquet_files_come_in_and_a_catalog_goes_out_as_jobs_with_reports(catalog: Catalog, tmp_path: Path) -> None:
    land(catalog, 0, 10)
    (tmp_path / "in").mkdir()
    for number in range(2):
        pq.write_table(pa.table({"n": [number] * 3}), tmp_path / "in" / f"{number}.parquet")
    came = import_files(None, catalog, "raw.sizes", tmp_path / "in")
    assert (came.job, came.table, came.rows, came.version) == ("import", "raw.sizes", 6, 1)
    went = export(None, catalog, tmp_path / "out")
    assert (went.job, went.files) == ("export", 2)
    other = Catalog(str(tmp_path / "out"))
    assert (other["raw.sizes"].count(), other["raw.t"].count()) == (6, 10)
    with pytest.raises(InvalidInputError, match="export to a new folder"):
        export(None, catalog, tmp_path / "out")
