"""The front page: figures of the catalog, tables that need somebody, and commits of any size."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import lance
import pyarrow as pa
import pytest

from headwater.catalog import Catalog
from headwater.lance_manifest import fragments_of
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.page import kept_facts
from headwater.rest.page.kept_facts import tables_of
from headwater.rest.page.overview_facts import Growth
from headwater.rest.server import start_in_thread
from headwater.streams.serving import compaction
from headwater.web import page
from tests.web.pages import Document


def front_page(namespace: MetastoreNamespace, address: str = "/") -> Document:
    with start_in_thread(namespace, face=page) as server, httpx.Client(base_url=server.url, timeout=60) as browser:
        answer = browser.get(address, headers={"accept": "text/html"})
        while "still being counted" in answer.text:
            answer = browser.get(address, headers={"accept": "text/html"})
    assert answer.status_code == 200
    assert len(answer.content) < 300_000
    return Document(answer.text)


def test_the_front_page_shows_rows_data_and_what_needs_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MANY", 2)
    namespace = MetastoreNamespace(root=str(tmp_path))
    catalog = Catalog(namespace)
    users = catalog.create_table("prod.users", [{"id": n} for n in range(40)])
    for n in range(2):
        users.append([{"id": 100 + n}])
    deleted = catalog.create_table("prod.deleted", [{"id": n} for n in range(20)])
    deleted.delete("id < 15")
    place = {"function": "tests.web.samples:letters", "inputs": ["word"], "type": "float32[3]"}
    words = catalog.create_stream_table("raw.words", {"id": "int64", "word": "string"}, keys="id")
    words.upsert([{"id": n, "word": "abc"} for n in range(3)])
    words.publish()
    words.set_properties({"column.place": json.dumps(place)})
    words.publish()
    shown = front_page(namespace).text
    assert "Rows50" in shown
    assert "Served at http://127.0.0.1" in shown
    assert "prod / users3 small fragments" in shown
    assert "prod / deleted1 small fragment, 1 fragment with many deleted rows" in shown
    assert "raw / words place3 rows" in shown
    assert "headwater backfill raw.words" in shown


def test_tables_beyond_the_limit_are_not_measured_and_the_page_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_facts, "MEASURED", 2)
    monkeypatch.setattr(kept_facts, "READ_AT_ONCE", 1)
    namespace = MetastoreNamespace(root=str(tmp_path))
    for n in range(5):
        Catalog(namespace).create_table(f"t{n}", [{"id": 1}])
    shown = front_page(namespace).text
    assert "Rows2" in shown
    assert "3 tables were not measured" in shown


def test_an_empty_catalog_says_what_to_do_first(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path))
    Catalog(namespace).create_namespace("prod")
    shown = front_page(namespace).text
    assert "This catalog has no tables yet" in shown
    assert "create prod.users users.parquet" in shown


def test_a_large_commit_shows_its_first_changes_and_how_many_more_there_are(tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path))
    with namespace.metastore.transaction("bulk load") as tx:
        for n in range(500):
            tx.create_table((f"t{n:03d}",))
    listed = front_page(namespace, "/log").text.partition("bulk load")[2]
    assert "and 480 more" in listed
    assert "t019" in listed
    assert "t020" not in listed
    assert "bulk load" in front_page(namespace, "/log?filter=t150").text


@pytest.fixture
def hourly(tmp_path: Path) -> MetastoreNamespace:
    """A metastore whose clock makes a quarter of an hour of each look at it."""
    namespace = MetastoreNamespace(root=str(tmp_path))
    times = iter(range(1_700_000_000_000, 1_700_000_000_000 + 4_000 * 3_600_000, 3_600_000 // 4))
    namespace.metastore.clock.now_ms = lambda: next(times)  # type: ignore[method-assign]
    return namespace


def growth_of(namespace: MetastoreNamespace) -> Growth:
    tables = tables_of(namespace.metastore)
    with tables.lock:
        tables.bring_up(namespace.metastore)
    while tables.unread:
        pass
    with tables.lock:
        found = tables.growth()
    assert found is not None
    return found


def test_commits_over_time_are_counted_in_whole_spans(hourly: MetastoreNamespace) -> None:
    for n in range(20):
        with hourly.metastore.transaction("one") as tx:
            tx.create_namespace((f"n{n}",))
    found = growth_of(hourly)
    assert sum(found.commits) == 20
    assert all(start % found.span_ms == 0 for start in found.starts)


def test_rows_and_data_over_time_are_those_of_the_versions_then(hourly: MetastoreNamespace) -> None:
    catalog = Catalog(hourly)
    users = catalog.create_table("prod.users", [{"id": n} for n in range(10)])
    for n in range(6):
        users.append([{"id": 100 + n}])
    catalog.create_table("gone", [{"id": 1}])
    catalog.drop_table("gone")
    users.delete("id < 10")
    catalog.rename_table("prod.users", "prod.people")
    found = growth_of(hourly)
    assert found.rows[-1] == 6
    assert found.bytes[-1] > 0
    assert max(found.rows) == 16
    assert found.rows[: len(found.rows) // 2] == sorted(found.rows[: len(found.rows) // 2])
    assert len(set(found.rows)) > 4
    catalog["prod.people"].append([{"id": 7}])
    again = growth_of(hourly)
    assert again.rows[-1] == 7
    assert again.unsampled == 0
    shown = front_page(hourly).text
    assert "today’s tables as they grew." in shown


def test_a_version_that_was_cleaned_up_counts_as_the_next_one(hourly: MetastoreNamespace, tmp_path: Path) -> None:
    users = Catalog(hourly).create_table("users", [{"id": n} for n in range(10)])
    for n in range(3):
        users.append([{"id": 100 + n}])
    first = growth_of(hourly)
    assert 10 in first.rows
    next(tmp_path.glob("**/_versions/*614.manifest")).unlink()  # version 1
    namespace = MetastoreNamespace(root=str(tmp_path))
    again = growth_of(namespace)
    assert 10 not in again.rows
    assert again.rows[-1] == 13
    assert again.starts == first.starts


def test_tables_whose_older_versions_are_not_read_are_counted(
    hourly: MetastoreNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_facts, "SAMPLED", 2)
    monkeypatch.setattr(kept_facts, "READ_AT_ONCE", 1)
    for n in range(4):
        Catalog(hourly).create_table(f"t{n}", [{"id": 1}])
    assert growth_of(hourly).unsampled == 2


def test_the_rows_and_bytes_of_a_manifest_are_those_of_pylance(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": list(range(100))}), str(tmp_path / "t"), max_rows_per_file=40)
    dataset.delete("id < 10")
    manifest = next((tmp_path / "t" / "_versions").glob(f"{2**64 - 1 - dataset.version:020d}.manifest"))
    found = fragments_of(manifest.read_bytes())
    assert [(each.rows, each.deleted) for each in found] == [
        (each.metadata.physical_rows, each.metadata.num_deletions) for each in dataset.get_fragments()
    ]
    assert sum(each.bytes for each in found) == sum(file.stat().st_size for file in (tmp_path / "t/data").iterdir())
