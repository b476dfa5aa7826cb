"""The page has one door: it asks the dispatcher, in the visitor's name, and every question is on record."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headwater import Catalog
from headwater.clock import SystemClock
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline.run_records import SCHEMA
from headwater.rest.auth.keys import create_key
from headwater.rest.page.catalog_questions import QUESTIONS
from headwater.rest.server import start_in_thread
from headwater.rest.settings import Settings
from headwater.web import page
from tests.web.pages import Document

WEB = Path(__file__).parents[2] / "headwater" / "web"
DATA = ("metastore", "streams", "tables", "registries", "namespace", "workers", "catalog", "pipeline", "adapter")
"""Parts of the package that can answer a question about a catalog."""
VALUES = {
    "headwater.metastore.records.layout",
    "headwater.metastore.records.objects",
    "headwater.tables.write.arrow",
}
"""Modules of those parts that hold values, words about them, and rows in bytes."""
FOREIGN = ("lance", "lance_namespace", "duckdb", "obstore")
ROWS = pa.table({"id": [1, 2], "name": ["cAnArY", "cAnArY two"]})


def imported(path: Path) -> Iterator[str]:
    """Every module that one imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_page_imports_nothing_that_could_answer_without_the_dispatcher() -> None:
    found = {
        f"{path.name} imports {module}"
        for path in WEB.glob("*.py")
        for module in imported(path)
        if module not in VALUES
        and (module.startswith(tuple(f"headwater.{part}" for part in DATA)) or module.split(".")[0] in FOREIGN)
    }
    assert found == set()


@dataclass
class Visited:
    """A server with its page, its audit log, and the keys of visitors."""

    namespace: MetastoreNamespace
    url: str
    audit: Path

    def visitor(self, role: str, *scope: str) -> tuple[httpx.Client, str]:
        record, secret = create_key(self.namespace.store, SystemClock(), role, list(scope))
        client = httpx.Client(base_url=self.url, headers={"accept": "text/html"}, timeout=60)
        form = Document(client.get("/signin").text).form("signin")
        assert client.post("/signin", data={"token": form["token"], "key": secret}).status_code == 303
        return client, f"key:{record.id}"

    def lines(self, start: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.audit.read_text().splitlines()[start:]]


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visited]:
    folder = tmp_path_factory.mktemp("doors")
    namespace = MetastoreNamespace(root=str(folder / "lake"))
    catalog = Catalog(namespace)
    secret = catalog.create_stream_table("hr.secret", ROWS.schema, keys="id")
    secret.upsert(ROWS, source="payroll-source")
    secret.publish()
    view = catalog.create_stream_table("prod.view", ROWS.schema, keys="id")
    view.ingest([{"id": 1, "name": "cAnArY"}, {"id": None}], source="staff")
    view.publish(lineage={"inputs": {"hr.secret": {"version": 1}}, "sql": "SELECT * FROM hr.secret"})
    catalog.create_stream_table("system.runs", SCHEMA, keys="run")
    embeds = {"column.place": '{"function": "tests.web.samples:letters", "inputs": ["name"], "type": "float32[3]"}'}
    words = catalog.create_stream_table("prod.words", ROWS.schema, keys="id", properties=embeds)
    words.upsert(ROWS)
    words.publish()
    catalog.create_table("prod.departed", ROWS)
    catalog.create_table("prod.plain", ROWS)
    catalog.snapshot("kept")
    catalog.rename_table("prod.departed", "hr.arrived")
    catalog.create_table("hr.came", ROWS)
    catalog.rename_table("hr.came", "prod.came")
    catalog.create_table("old.t", ROWS)
    catalog.drop_namespace("old", cascade=True)
    create_key(namespace.store, SystemClock(), "admin", [])
    settings = Settings(audit_log=str(folder / "audit.log"))
    with start_in_thread(namespace, settings=settings, face=page) as server:
        yield Visited(namespace, server.url, folder / "audit.log")


ACTIONS = {"PageCreateKey", "PageRevokeKey", "PageDefineRole", "PageRemoveRole"}
"""Operations of forms, which change keys and roles (tests/web/test_access_pages.py)."""
PAGES = {
    "/": {"PageOverview", "PageNames", "NamespaceExists", "DescribeNamespace", "ListTables"},
    "/n/prod": {"PageNames", "ListNamespaces"},
    "/t/prod/plain": {"DescribeTable", "DescribeTableExact", "PageTable"},
    "/t/prod/plain?view=rows": {"QueryTable"},
    "/t/prod/plain?view=versions": {"PageVersions"},
    "/t/prod/plain?view=files": {"PageFragments"},
    "/t/prod/plain?view=indices": {"ListTableIndices"},
    "/t/prod/plain?view=history": {"PageHistory"},
    "/t/prod/view?view=streams": {"PageStreams", "ListNamedVersions"},
    "/t/prod/view?view=lineage": {"PageLineage"},
    "/cell/prod/plain?column=name&offset=0": {"QueryTable"},
    "/t/prod/plain?view=compare": {"PageCompare"},
    "/t/prod/view?view=quarantine": {"PageQuarantine"},
    "/lineage": {"PageCatalogLineage"},
    "/t/prod/words?view=rows&near=word&by=place": {"PageEmbed", "QueryTable"},
    "/runs": {"PageRuns"},
    "/access": {"PageAccess"},
    "/sql?sql=SELECT+name+FROM+prod.plain": {"PageQueryTables", "PageQuery"},
    "/log": {"PageLog"},
    "/deleted": {"PageDropped"},
    "/snapshots": {"PageSnapshots"},
    "/search?q=pl": {"PageSearch"},
    "/server": {"PageServer"},
}


def test_every_read_of_every_page_is_audited_in_the_visitors_name(visited: Visited) -> None:
    client, name = visited.visitor("admin")
    seen = set()
    for address, expected in PAGES.items():
        start = len(visited.lines())
        answer = client.get(address)
        assert answer.status_code in (200, 409), (address, answer.text)
        lines = visited.lines(start)
        assert {line["caller"] for line in lines} == {name}, address
        asked = {line["operation"] for line in lines if line["allowed"]}
        assert expected <= asked, (address, asked)
        assert all(line["status"] in (200, 409) for line in lines)
        seen |= asked
    reads = {name for name, question in QUESTIONS.items() if name not in ACTIONS}
    assert reads <= seen, "no question of the page is left out here"
    objects = [line["objects"] for line in visited.lines() if line["operation"] == "PageLineage"]
    assert objects == [["prod$view"]]


def test_every_action_and_every_refusal_of_the_page_is_audited(visited: Visited) -> None:
    Catalog(visited.namespace).create_table("prod.shortlived", ROWS)
    client, name = visited.visitor("admin", "prod")
    token = Document(client.get("/t/prod/shortlived?view=drop").text).form("drop-table")["token"]
    start = len(visited.lines())
    for action, status in (
        ("drop-table/prod/shortlived", 303),
        ("undrop/prod/shortlived", 303),
        ("undrop/old", 403),
        ("drop-table/hr/secret", 403),
    ):
        asked = {"token": token, "name": action.rpartition("/")[2]}
        assert client.post(f"/do/{action}", data=asked).status_code == status, action
    told = [(line["operation"], line["objects"], line["allowed"]) for line in visited.lines(start)]
    for line in (
        ("DropTable", ["prod$shortlived"], True),
        ("Undrop", ["prod$shortlived"], True),
        ("Undrop", ["old"], False),
        ("DropTable", ["hr$secret"], False),
    ):
        assert line in told, told
    assert {line["caller"] for line in visited.lines(start)} == {name}
    log = [entry.author for entry in Catalog(visited.namespace).log()][-2:]
    assert all(name in author for author in log)


def test_no_page_tells_a_name_a_source_or_a_query_beside_a_visitors_scope(visited: Visited) -> None:
    client, _ = visited.visitor("admin", "prod")
    hidden = ("hr", "secret", "payroll-source", "SELECT * FROM", "arrived", "departed", "old")
    for address in (*PAGES, "/search?q=e", "/search?q=a", "/t/prod/came?view=history", "/t/prod/view?view=history"):
        text = Document(client.get(address).text).text if "/cell/" not in address else client.get(address).text
        words = set(text.replace("/", " ").replace(",", " ").replace(":", " ").split())
        found = [word for word in hidden if word in words or (len(word) > 4 and word in text)]
        assert not found, (address, found)
    whole, _ = visited.visitor("admin")
    text = whole.get("/t/prod/view?view=lineage").text
    assert all(word in text for word in ("hr.secret", "payroll-source", "SELECT * FROM"))
    assert "arrived" in whole.get("/log").text


def test_a_visitor_of_a_reused_name_sees_nothing_of_what_had_it(visited: Visited) -> None:
    Catalog(visited.namespace).create_table("old.fresh", ROWS)
    client, _ = visited.visitor("admin", "old")
    assert "fresh" in client.get("/n/old").text
    for address in ("/deleted", "/log", "/snapshots"):
        assert "old / t" not in client.get(address).text, address
    Catalog(visited.namespace).drop_namespace("old", cascade=True)


def test_a_query_reads_only_tables_that_its_visitor_may_select(visited: Visited) -> None:
    client, name = visited.visitor("reader", "prod")
    assert "cAnArY" in client.get("/sql?sql=SELECT+name+FROM+prod.plain").text
    start = len(visited.lines())
    for sql in ("SELECT name FROM hr.secret", "SELECT * FROM prod.plain, hr.secret", "SELECT name FROM hr.nothing"):
        text = client.get("/sql", params={"sql": sql}).text
        assert ("may not call" in text, "cAnArY" in text) == (True, False), sql
    asked = [(line["objects"], line["allowed"]) for line in visited.lines(start) if line["operation"] == "PageQuery"]
    assert asked == [(["hr$secret"], False), (["hr$secret", "prod$plain"], False), (["hr$nothing"], False)]
    assert {line["caller"] for line in visited.lines(start)} == {name}
