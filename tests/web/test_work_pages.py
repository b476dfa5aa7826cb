"""Pages of work: a quarantine whose rows are taken again by a click, runs, two versions compared, the whole lineage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headwater import Catalog
from headwater.errors import LanceNamespaceError
from headwater.namespace.metastore import MetastoreNamespace
from headwater.pipeline import read_pipeline, run_pipeline
from headwater.rest.server import start_in_thread
from headwater.web import page
from headwater.web.pages import NEWEST
from tests.web.pages import Document

PIPELINE = """
[pipeline]
name = "small"
catalog = "lake"
engine = "embedded"
[[source]]
name = "shop"
path = "in/*.json"
into = "raw.orders"
[table."raw.orders"]
schema = "id BIGINT NOT NULL, total BIGINT"
keys = ["id"]
"""


@pytest.fixture
def lake(tmp_path: Path) -> MetastoreNamespace:
    return MetastoreNamespace(root=str(tmp_path / "lake"))


@pytest.fixture
def client(lake: MetastoreNamespace) -> Iterator[httpx.Client]:
    with start_in_thread(lake, face=page) as server:
        yield httpx.Client(base_url=server.url, headers={"accept": "text/html"}, timeout=60, follow_redirects=True)


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return " ".join(Document(answer.text).text.split())


def test_rows_of_a_quarantine_are_shown_by_reason_and_taken_again_or_dropped_by_a_click(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    orders = Catalog(lake).create_stream_table("raw.orders", {"id": "int64", "total": "int64"}, keys="id")
    assert "view=quarantine" not in client.get("/t/raw/orders").text
    orders.ingest([{"id": 1, "total": 5}, {"id": 2, "total": "much"}, {"id": None, "total": 7}], source="shop")
    assert "view=quarantine" in client.get("/").text
    answer = client.get("/t/raw/orders?view=quarantine")
    found = text_of(answer)
    assert ("2 rows did not fit" in found, "from shop" in found, "much" in found) == (True, True, True)
    forms = [form for form in Document(answer.text).forms if form.get("reason")]
    assert len({form["reason"] for form in forms}) == 2
    taken = client.post(forms[0]["action"], data=forms[0])
    assert "left the quarantine" in text_of(taken)
    for form in forms:
        if "drop-quarantine" in form["action"]:
            assert "1 row of the quarantine was dropped" in text_of(client.post(form["action"], data=form))
    assert "The quarantine of this table is empty" in text_of(client.get("/t/raw/orders?view=quarantine"))
    assert orders.quarantine().num_rows == 0


def test_a_comparison_counts_rows_added_changed_and_removed_and_shows_columns_that_differ(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    catalog = Catalog(lake)
    users = catalog.create_stream_table("prod.users", {"id": "int64", "name": "string"}, keys="id")
    users.upsert([{"id": n, "name": f"user {n}"} for n in range(6)])
    users.publish()
    users.evolve(add={"city": "string"})
    users.upsert([{"id": 1, "name": "renamed", "city": "Bern"}, {"id": 9, "name": "new", "city": "Ulm"}])
    users.delete([{"id": 4}, {"id": 5}])
    users.publish()
    found = text_of(client.get("/t/prod/users?view=compare"))
    counts = ("Added1", "Changed1", "Removed2", "Columns that differ1")
    assert [word for word in counts if word not in found] == []
    assert [word for word in ("user 1", "renamed", "city", "not there", "by id", "Ulm") if word not in found] == []
    wrong = client.get("/t/prod/users?view=compare&from=1&to=99")
    assert (wrong.status_code, 'role="alert"' in wrong.text) == (200, True)


def test_rows_without_keys_are_compared_one_by_one_and_equal_rows_are_counted_each(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    table = Catalog(lake).create_table("prod.log", [{"n": 1}, {"n": 1}, {"n": 2}])
    table.append([{"n": 1}, {"n": 3}])
    table.delete("n = 2")
    found = text_of(client.get("/t/prod/log?view=compare&from=1&to=3"))
    assert ("Added2" in found, "Changed0" in found, "Removed1" in found) == (True, True, True)


def test_runs_show_their_steps_their_errors_and_lead_to_the_tables_that_they_wrote(
    lake: MetastoreNamespace, client: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "total": 5}\n{"id": null, "total": 1}\n')
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
    answer = client.get("/runs")
    found = text_of(answer)
    assert ("done" in found, "raw.orders" in found, "1 row rejected" in found) == (True, True, True)
    assert "/t/raw/orders?view=quarantine" in Document(answer.text).links
    again = Document(answer.text).form("retry-quarantine")
    assert "1 row still does not fit" in text_of(client.post(again["action"], data=again))
    assert "Nothing here has" in text_of(client.get("/runs?filter=no-such-run"))
    for _ in range(NEWEST):  # each commits a note of itself, which the front page leaves out
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
    assert "publish raw.orders" in text_of(client.get("/"))


def test_the_lineage_of_the_catalog_marks_tables_that_have_rows_to_publish(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    assert "No table that you may see has lineage" in text_of(client.get("/lineage"))
    events = Catalog(lake).create_stream_table("raw.events", {"id": "int64"}, keys="id")
    events.ingest([{"id": 1}], source="sensors")
    events.publish()
    fresh = text_of(client.get("/lineage"))
    assert ("Not published yet" in fresh, "version 2, " in fresh) == (False, True)
    events.ingest([{"id": 2}], source="sensors")
    answer = client.get("/lineage")
    assert ("sensors" in text_of(answer), "1 row waiting" in text_of(answer)) == (True, True)
    assert 'class="box stale"' in answer.text


def test_the_lineage_of_a_column_follows_queries_and_functions_in_both_directions(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    catalog = Catalog(lake)
    orders = catalog.create_stream_table("raw.orders", {"id": "int64", "total": "int64"}, keys="id")
    orders.ingest([{"id": 1, "total": 5}], source="shop")
    orders.publish()
    sums = catalog.create_stream_table("prod.sums", {"id": "int64", "twice": "int64"}, keys="id")
    sums.upsert([{"id": 1, "twice": 10}])
    sums.publish(
        lineage={
            "inputs": {"raw.orders": {"version": 2}},
            "sql": "WITH o AS (SELECT id, total * 2 AS t FROM raw.orders) SELECT id, t AS twice FROM o",
        }
    )
    before = text_of(client.get("/t/prod/sums?view=lineage&column=twice"))
    assert ("total: raw.orders" in before, "shop" in before, "id: raw.orders" in before) == (True, True, False)
    after = text_of(client.get("/t/raw/orders?view=lineage&column=total"))
    assert ("twice: prod.sums" in after, "id: prod.sums" in after) == (True, False)


def test_the_lineage_marks_the_tables_of_a_pipeline_that_fails(
    lake: MetastoreNamespace, client: httpx.Client, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "total": 5}\n')
    (tmp_path / "pipeline.toml").write_text(PIPELINE)
    run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
    assert "box failed" not in client.get("/lineage").text
    (tmp_path / "in" / "b.json").write_bytes(b"\xff\xfe not JSON at all")
    with pytest.raises(LanceNamespaceError):
        run_pipeline(read_pipeline(tmp_path / "pipeline.toml"))
    answer = client.get("/lineage")
    assert ('class="box failed"' in answer.text, "small failed" in text_of(answer)) == (True, True)
    assert "Failed runs" in text_of(client.get("/"))


def test_a_query_is_run_drawn_and_planned_and_its_mistakes_are_shown(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    catalog = Catalog(lake)
    catalog.create_table("prod.people", [{"id": n, "city": ("Bern", "Ulm", "Graz")[n % 3]} for n in range(10)])
    pay = catalog.create_stream_table("prod.pay", {"id": "int64", "euros": "int64"}, keys="id")
    pay.upsert([{"id": n, "euros": n * 10} for n in range(10)])
    assert "prod / people" in text_of(client.get("/sql"))
    joined = "SELECT city, sum(euros) AS total FROM prod.people JOIN prod.pay USING (id) GROUP BY city ORDER BY city"
    answer = client.get("/sql", params={"sql": joined})
    found = text_of(answer)
    assert ("total by city" in found, "3 rows, read at commit" in found, "Graz: 150" in found) == (True, True, True)
    assert answer.text.count('class="bar"') == 3
    assert 'class="line"' in client.get("/sql", params={"sql": joined, "chart": "line"}).text
    assert "Nothing was run" in text_of(client.get("/sql", params={"sql": joined, "show": "plan"}))
    assert "The first 20 rows" not in found
    many = "SELECT a.id FROM prod.people a CROSS JOIN prod.people b"
    assert "The first 20 rows; there are more" in text_of(client.get("/sql", params={"sql": many, "limit": 20}))
    for wrong in (
        "SELEC 1",
        "SELECT * FROM prod.nothing",
        "DROP TABLE prod.people",
        "SELECT repeat('a', 9) FROM prod.pay",
    ):
        refused = client.get("/sql", params={"sql": wrong})
        assert (refused.status_code, 'role="alert"' in refused.text) == (200, True), wrong


def test_a_pasted_text_is_embedded_by_a_function_of_several_texts(
    lake: MetastoreNamespace, client: httpx.Client
) -> None:
    made = {"function": "tests.web.samples:letters_of_both", "inputs": ["title", "text"], "type": "float32[3]"}
    schema = {"id": "int64", "title": "string", "text": "string"}
    told = {"column.place": json.dumps(made)}
    words = Catalog(lake).create_stream_table("prod.texts", schema, keys="id", properties=told)
    words.upsert([{"id": 1, "title": "a", "text": "aa"}, {"id": 2, "title": "b", "text": "bb"}])
    words.publish()
    found = text_of(client.get("/t/prod/texts", params={"view": "rows", "near": "bbb", "by": "place", "limit": 1}))
    assert "Near a text or vector" in found
    assert "bb" in found
    assert "aa" not in found


def test_rows_are_found_near_a_pasted_text_or_vector(lake: MetastoreNamespace, client: httpx.Client) -> None:
    place = {"function": "tests.web.samples:letters", "inputs": ["word"], "type": "float32[3]"}
    words = Catalog(lake).create_stream_table(
        "prod.words", {"id": "int64", "word": "string"}, keys="id", properties={"column.place": json.dumps(place)}
    )
    words.upsert([{"id": 1, "word": "aaa"}, {"id": 2, "word": "bbb"}, {"id": 3, "word": "ccc"}])
    words.publish()
    assert "Near a text or vector" in text_of(client.get("/t/prod/words?view=rows"))
    for near, first in (("bbb", "bbb"), ("0, 0, 3", "ccc"), ("[3.0, 0.5, 0]", "aaa")):
        found = client.get("/t/prod/words", params={"view": "rows", "near": near, "by": "place", "limit": 10})
        cells = re.findall(r"<td>(?:<bdi>)?(aaa|bbb|ccc)", found.text)
        assert cells[:1] == [first], near
    plain = client.get("/t/prod/words", params={"view": "rows", "near": "a text", "by": "word"})
    assert (plain.status_code, "paste a vector" in plain.text) == (200, True)
    both = client.get("/t/prod/words", params={"view": "rows", "near": "aaa", "text": "aaa", "by": "place"})
    assert "one way at a time" in both.text
