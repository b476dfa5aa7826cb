"""HTML of catalogs, tables and lists in a notebook: safe, and without opening tables where names are enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater.catalog import Catalog
from headwater.metastore.records.objects import Diff
from headwater.notebook import MAX_NAMES, load_ipython_extension, record
from headwater.rest.server import start_in_thread

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 8
ROWS = pa.table(
    {
        "k": [1, 2],
        "text": ["<script>alert(1)</script>", None],
        "vector": pa.array([[1.0, 2.0], [2.0, 1.0]], pa.list_(pa.float32(), 2)),
        "image": [PNG, None],
    }
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog(str(tmp_path / "lake"))
    catalog.create_table("shop.items", ROWS)
    return catalog


def test_a_catalog_shows_the_names_of_its_tables(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_NAMES):
        catalog.declare_table(f"many.t{number:03d}")
    monkeypatch.setattr("headwater.catalog.table.CatalogTable.describe", None)  # a name needs no table to be opened
    html = catalog._repr_html_()
    assert "many.t000" in html
    assert f"The first {MAX_NAMES} tables" in html
    assert "shop.items" not in html


def test_a_catalog_that_is_not_there_says_so_and_makes_nothing(tmp_path: Path) -> None:
    assert "No catalog is here yet" in Catalog(str(tmp_path / "none"))._repr_html_()
    assert list(tmp_path.iterdir()) == []


def test_a_table_shows_vectors_as_lines_images_as_pictures_and_text_as_text(catalog: Catalog) -> None:
    html = catalog["shop.items"]._repr_html_()
    assert "2 rows" in html
    assert html.count("<polyline") == 2
    assert html.count('<img class="cell"') == 1
    assert 'src="data:image/png;base64,' in html
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_lists_of_versions_and_commits_are_lists_that_show_themselves(catalog: Catalog) -> None:
    table = catalog["shop.items"]
    table.append(ROWS)
    versions: Any = table.versions()
    history: Any = catalog.history("shop.items")
    snapshots: Any = catalog.snapshots()
    assert versions == list(versions)
    assert [each.version for each in versions] == [1, 2]
    for shown, word in ((versions, "Versions of shop.items"), (history, "History of shop.items")):
        assert word in shown._repr_html_()
    assert "There is none." in snapshots._repr_html_()


def test_a_stream_table_shows_its_definition_and_draws_its_lineage(catalog: Catalog) -> None:
    stream = catalog.create_stream_table("shop.orders", pa.schema({"id": pa.int64()}), keys="id")
    stream.upsert([{"id": 1}], source="files <b>")
    assert "never" in stream._repr_html_()
    stream.publish()
    assert "version 2, position 1" in stream._repr_html_()
    drawn = stream.lineage()._repr_html_()
    assert "<svg" in drawn
    assert "files &lt;b&gt;: 1 delta" in drawn
    sums = catalog.create_stream_table("shop.sums", pa.schema({"id": pa.int64()}), keys="id")
    sums.upsert([{"id": 1}], source="view")
    sums.publish(lineage={"inputs": {"shop.orders": {"version": 2, "position": 1}, "far.away": {}}})
    drawn = sums.lineage()._repr_html_()
    assert "<title>shop.orders, version 2</title>" in drawn
    assert "<title>far.away</title>" in drawn
    assert "view" not in drawn


def test_a_catalog_behind_a_server_shows_itself_too(catalog: Catalog) -> None:
    catalog.create_stream_table("shop.orders", pa.schema({"id": pa.int64()}), keys="id")
    with start_in_thread(catalog.namespace) as server:
        far = Catalog(server.url)
        assert "shop.orders" in far._repr_html_()
        assert "2 rows" in far["shop.items"]._repr_html_()
        assert "never" in far["shop.orders"]._repr_html_()


def test_a_difference_is_shown_by_its_parts(catalog: Catalog) -> None:
    before = catalog.slot
    catalog.create_table("shop.more", ROWS)
    found = catalog.diff(before, catalog.slot)
    assert isinstance(found, Diff)
    assert "shop.more" in record("Diff", found)


class Shell:
    """The parts of IPython's shell that the extension uses."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[str, Any] = {}
        self.types: dict[Any, Any] = {}
        self.display_formatter = self
        self.formatters = {"text/html": self}

    def for_type(self, kind: Any, show: Any) -> None:
        self.types[kind] = show

    def for_type_by_name(self, module: str, name: str, show: Any) -> None:
        self.types[f"{module}.{name}"] = show

    def register_magic_function(self, run: Any, magic_kind: str, magic_name: str) -> None:
        self.magics[f"{magic_kind} {magic_name}"] = run


def test_the_extension_runs_cells_of_sql_and_shows_their_rows(catalog: Catalog) -> None:
    pytest.importorskip("duckdb")
    pytest.importorskip("sqlglot")
    shell = Shell()
    assert headwater.load_ipython_extension is load_ipython_extension
    load_ipython_extension(shell)
    run = shell.magics["cell headwater"]
    with pytest.raises(NameError, match="%%headwater NAME"):
        run("", "SELECT 1 AS one")
    shell.user_ns["lake"] = catalog
    assert run("lake", "SELECT k FROM shop.items ORDER BY k").column("k").to_pylist() == [1, 2]
    assert shell.types[pa.Table](catalog["shop.items"].to_arrow()).count("<polyline") == 2
    for name in shell.types:
        if isinstance(name, str):  # each class is where the extension says it is
            module, _, kind = name.rpartition(".")
            assert getattr(pytest.importorskip(module), kind)


def test_history_and_log_are_short_texts_and_tables_that_say_what_was_done(catalog: Catalog) -> None:
    catalog["shop.items"].append(ROWS)
    catalog["shop.items"].delete("k = 1")
    entries = catalog.history("shop.items")
    assert [entry.change for entry in entries] == ["create with 2 rows", "append 2 rows", "delete 2 rows"]
    assert repr(entries[1]).endswith("'append 2 rows', 'append 2 rows to shop.items (version 2)')")
    log = catalog.log()
    assert "append 2 rows" in log._repr_html_()  # type: ignore[attr-defined]
    assert [entry.slot for entry in log] == [1, 2, 3, 4]
    assert repr(catalog.diff(1, 4)) == "Diff(1, 4, added=['shop.items'], streams=['shop.items'])"
    assert repr(catalog.at(3)["shop.items"]) == "CatalogTable('shop.items', at commit 3)"
    with start_in_thread(catalog.namespace) as server:
        far = Catalog(server.url)
        assert repr(far) == f"Catalog(RestNamespace({server.url!r}))"
        assert repr(far.at(3)) == f"Catalog(RestNamespace({server.url!r}, at commit 3))"
        assert repr(far.at(3)["shop.items"]) == "CatalogTable('shop.items', at commit 3)"


def test_the_history_of_a_stream_table_says_what_landed_and_what_was_undone(tmp_path: Path) -> None:
    catalog = Catalog(str(tmp_path / "lake"))
    events = catalog.create_stream_table("a.events", {"id": "int64"}, keys="id")
    events.upsert([{"id": 1}, {"id": 2}], source="shop")
    with catalog.transaction("close the day") as tx:
        tx["a.events"].delete([{"id": 1}])
        tx["a.events"].publish()
    events.undo(source="shop")
    told = [entry.change for entry in catalog.history("a.events")]
    assert told == [None, "upsert 2 rows", "publish 1 row", "undo"]
