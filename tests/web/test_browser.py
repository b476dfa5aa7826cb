"""The page in a real Chromium: nothing fails, nothing is asked of another host, nothing is out of reach.

Screenshots are left in build/screenshots. Without Playwright or a Chromium every test here is skipped, and says so.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from headwater.catalog import Catalog
from headwater.clock import SystemClock
from headwater.namespace.metastore import MetastoreNamespace
from headwater.rest.auth.keys import create_key, revoke_key
from headwater.rest.server import RunningServer, start_in_thread
from headwater.web import page
from tests.web.samples import HOSTILE, WORK_PAGES, fill_metastore, fill_work
from tests.web.test_page import PAGES

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium"),
    pytest.mark.xdist_group("browser"),
]
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
RULES = ["wcag2a", "wcag2aa", "wcag21aa"]


@dataclass
class Tab:
    """A page of the browser, and whatever went wrong in it."""

    page: Any
    site: str
    wrong: list[str] = field(default_factory=list)

    def go(self, address: str) -> None:
        self.page.goto(self.site + address)
        self.page.wait_for_load_state("networkidle")

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(chromium: Any, server: RunningServer, **options: Any) -> Tab:
    context = chromium.new_context(**{"viewport": {"width": 1280, "height": 820}, **options})
    context.set_default_timeout(15_000)
    tab = Tab(context.new_page(), server.url)
    own = urlsplit(server.url).netloc
    tab.page.on("console", lambda said: tab.wrong.append(said.text) if said.type in ("error", "warning") else None)
    tab.page.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.page.on("dialog", lambda dialog: tab.wrong.append(f"a dialog: {dialog.message}"))
    tab.page.on("request", lambda sent: tab.wrong.append(sent.url) if urlsplit(sent.url).netloc != own else None)
    return tab


@pytest.fixture
def tab(chromium: Any, site: RunningServer) -> Iterator[Tab]:
    made = opened(chromium, site)
    yield made
    made.page.context.close()
    assert made.wrong == []


def name_of(address: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", address.lower()).strip("-") or "catalog"


LOOKS = pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])


def problems_of(tab: Tab, addresses: Iterable[str], look: str) -> list[Any]:
    """Return what is wrong with pages: rules of accessibility that they break, and pages wider than the window."""
    problems: list[Any] = []
    for address in addresses:
        tab.go(address)
        tab.shoot(f"{look}-{name_of(address)}")
        assert len(tab.page.content()) < 300_000, address
        tab.page.evaluate(AXE)
        found = tab.page.evaluate("rules => axe.run(document, {runOnly: rules})", RULES)
        problems += [
            (address, one["id"], node["html"][:200], node["failureSummary"][:300])
            for one in found["violations"]
            for node in one["nodes"]
        ]
        if not tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            problems.append((address, "is wider than the window"))
    return problems


@LOOKS
def test_every_page_is_accessible_fits_and_fails_nowhere(
    chromium: Any, site: RunningServer, scheme: str, width: int
) -> None:
    tab = opened(chromium, site, color_scheme=scheme, viewport={"width": width, "height": 844})
    addresses = [*PAGES, "/signin", "/n/odd", "/search?q=nothing-is-called-so"]
    assert problems_of(tab, addresses, f"{scheme}-{width}") == []
    assert tab.wrong == []


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with start_in_thread(fill_work(tmp_path_factory.mktemp("worked")), face=page) as server:
        yield server


@LOOKS
def test_every_page_of_work_is_accessible_fits_and_fails_nowhere(
    chromium: Any, worked: RunningServer, scheme: str, width: int
) -> None:
    tab = opened(chromium, worked, color_scheme=scheme, viewport={"width": width, "height": 844})
    assert problems_of(tab, WORK_PAGES, f"work-{scheme}-{width}") == []
    assert tab.wrong == []


def test_a_query_is_run_by_the_keyboard_and_drawn(chromium: Any, worked: RunningServer) -> None:
    tab = opened(chromium, worked)
    tab.go("/sql")
    tab.page.get_by_label("One SELECT").fill("SELECT city, total FROM sums.cities")
    tab.page.keyboard.press("Control+Enter")
    tab.page.wait_for_url("**/sql?sql=*")
    assert tab.page.locator(".chart .bar").count() == 4
    tab.page.get_by_label("Chart").select_option("line")
    tab.page.get_by_role("button", name="Draw").click()
    tab.page.locator(".chart .line").wait_for()
    tab.page.get_by_role("button", name="Show the plan").click()
    tab.page.get_by_text("Nothing was run").wait_for()
    assert tab.wrong == []


def test_rejected_rows_are_taken_again_and_dropped_by_hand(chromium: Any, tmp_path: Path) -> None:
    with start_in_thread(fill_work(tmp_path), face=page) as server:
        tab = opened(chromium, server)
        tab.go("/")
        tab.page.get_by_role("link", name="orders").first.click()
        tab.go("/t/raw/orders?view=quarantine")
        tab.page.get_by_role("button", name="Take all again").click()
        tab.page.get_by_text("still do not fit").wait_for()
        tab.page.get_by_text("Drop…").nth(1).click()
        tab.page.get_by_role("button", name="Drop 1 row for good").first.click()
        tab.page.get_by_text("was dropped").wait_for()
        assert tab.wrong == []


def test_a_key_is_made_copied_and_used_by_hand(chromium: Any, tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    fill_metastore(namespace)
    _, secret = create_key(namespace.store, SystemClock(), "admin", [])
    with start_in_thread(namespace, face=page) as server:
        tab = opened(chromium, server)
        tab.go("/access")
        tab.page.get_by_label("API key or token").fill(secret)
        tab.page.get_by_role("button", name="Sign in").click()
        tab.page.wait_for_url("**/access")
        tab.page.get_by_label("For", exact=True).fill("ada")
        tab.page.get_by_label("Within").fill("prod")
        tab.page.get_by_role("button", name="Make key").click()
        made = tab.page.locator("#made").inner_text()
        assert problems_of(tab, ["/access"], "keys") == []
        tab.page.get_by_role("button", name="Sign out").click()
        tab.page.get_by_label("API key or token").fill(made)
        tab.page.get_by_role("button", name="Sign in").click()
        tab.page.get_by_role("link", name="prod").first.wait_for()
        assert tab.page.get_by_role("link", name="Access").count() == 0
        assert problems_of(tab, ["/lineage"], "reader") == []
        assert tab.wrong == []


def test_a_filter_narrows_the_list_and_the_address_while_typing(tab: Tab) -> None:
    tab.go("/n/prod")
    tab.page.locator("#filter").press_sequentially("phot")
    tab.page.wait_for_url("**/n/prod?filter=phot")
    assert tab.page.locator("#children li").count() == 1
    tab.page.reload()
    assert tab.page.locator("#filter").input_value() == "phot"
    tab.page.get_by_role("link", name="photos table").click()
    tab.page.locator("#preview + div table").wait_for()
    assert tab.page.locator("img.cell").first.evaluate("image => image.complete || image.loading === 'lazy'")


def test_the_way_back_from_a_filtered_list_shows_the_whole_page(tab: Tab) -> None:
    tab.go("/n/prod")
    tab.page.locator("#filter").press_sequentially("phot")
    tab.page.wait_for_url("**/n/prod?filter=phot")
    tab.page.get_by_role("link", name="photos table").click()
    tab.page.wait_for_url("**/t/prod/photos")
    tab.page.go_back()
    tab.page.wait_for_url("**/n/prod?filter=phot")
    tab.page.locator("header.top").wait_for()
    assert tab.page.locator("#children li").count() == 1


def test_versions_are_plotted_and_lineage_is_arranged_by_the_libraries(tab: Tab) -> None:
    tab.go("/t/prod/photos?view=versions")
    assert tab.page.locator(".drawn canvas").count() == 2
    plot = tab.page.locator(".drawn .u-over").first
    size = plot.bounding_box()
    assert size is not None
    plot.hover(position={"x": size["width"] - 2, "y": 20})
    tab.page.locator(".drawn .u-value", has_text="version 5").first.wait_for()
    plot.click(position={"x": size["width"] - 2, "y": 20})
    tab.page.wait_for_url("**view=rows&version=5")
    tab.go("/t/prod/daily?view=lineage")
    assert tab.page.locator("svg.graph.arranged [data-box]").count() >= 2
    boxes = [box.bounding_box() for box in tab.page.locator("svg.graph rect").all()]
    assert all(box is not None and box["width"] > 100 for box in boxes)


def test_every_list_is_narrowed_while_typing(tab: Tab) -> None:
    for address, word in (("/t/prod/photos?view=versions", "good"), ("/log", "photos"), ("/deleted", "nothing")):
        tab.go(address)
        tab.page.locator("#filter").press_sequentially(word)
        tab.page.wait_for_url(f"**filter={word}")
        tab.page.reload()
        assert tab.page.locator("#filter").input_value() == word


def test_restoring_asks_and_names_the_table(tab: Tab) -> None:
    tab.go("/t/prod/users?view=rows")
    tab.go("/t/prod/photos?view=restore&version=2")
    assert tab.page.get_by_role("button", name="Restore photos to version 2").is_visible()


def test_search_query_and_similar_rows(tab: Tab) -> None:
    tab.go("/")
    tab.page.keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.id") == "q"
    tab.page.keyboard.type("photos")
    tab.page.keyboard.press("Enter")
    tab.page.locator("#found a").first.click()
    tab.page.get_by_role("link", name="Rows and search").click()
    tab.page.get_by_label("Filter (SQL condition)").fill("id < 3")
    tab.page.get_by_role("button", name="Look").click()
    tab.page.wait_for_url("**filter=id*")
    assert tab.page.locator("table.rows tbody tr").count() == 3
    tab.go("/t/prod/photos?view=rows")
    tab.page.get_by_role("link", name="similar rows").nth(2).click()
    tab.page.get_by_text("_distance").wait_for()


def test_keyboard_alone_gets_to_the_content_and_through_the_tree(tab: Tab) -> None:
    tab.go("/n/prod")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.className") == "skip"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.id") == "main"
    tab.page.locator(".treebox a").first.focus()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/n/odd")


def test_hostile_names_are_text_wherever_they_are_shown(tab: Tab) -> None:
    for name in HOSTILE:
        tab.go("/n/odd")
        tab.page.locator("#children a", has=tab.page.get_by_text(name, exact=True)).click()
        tab.page.wait_for_url(f"**/t/odd/{quote(name, safe='')}")
        assert tab.page.locator("h1").inner_text().strip() == name
        for view in ("rows", "versions", "files", "streams", "history", "use", "drop"):
            tab.go(f"/t/odd/{quote(name, safe='')}?view={view}")
    tab.go("/log")
    tab.go(f"/search?q={quote(HOSTILE[0], safe='')}")
    assert tab.page.locator("#found li").count() == 1


def test_a_snippet_is_copied_with_the_address_the_browser_used(chromium: Any, site: RunningServer) -> None:
    tab = opened(chromium, site, permissions=["clipboard-read", "clipboard-write"])
    tab.go("/t/prod/photos?view=use")
    tab.page.get_by_role("button", name="Copy the Python snippet").click()
    tab.page.get_by_text("Copied").wait_for()
    code = tab.page.evaluate("navigator.clipboard.readText()")
    assert site.url in code
    ran: dict[str, Any] = {}
    exec(code, ran)
    assert ran["table"].count() == 80
    assert tab.wrong == []


def test_the_change_log_shows_what_is_committed_while_it_is_open(tab: Tab, lake: MetastoreNamespace) -> None:
    tab.go("/log")
    Catalog(lake).create_namespace("just_made")
    tab.page.locator("#log").get_by_role("link", name="just_made", exact=True).wait_for()


def test_signing_in_dropping_and_undropping_by_hand(chromium: Any, tmp_path: Path) -> None:
    namespace = MetastoreNamespace(root=str(tmp_path / "lake"))
    fill_metastore(namespace)
    record, secret = create_key(namespace.store, SystemClock(), "admin", [])
    with start_in_thread(namespace, face=page) as server:
        tab = opened(chromium, server)
        tab.go("/t/prod/users")
        tab.page.get_by_label("API key or token").fill("hw_not_right")
        tab.page.get_by_role("button", name="Sign in").click()
        tab.page.get_by_role("alert").wait_for()
        assert any("401" in line for line in tab.wrong)
        tab.wrong.clear()
        tab.page.get_by_label("API key or token").fill(secret)
        tab.page.get_by_role("button", name="Sign in").click()
        tab.page.wait_for_url("**/t/prod/users")
        assert tab.page.evaluate("document.cookie") == ""
        tab.page.get_by_role("link", name="Drop…").click()
        tab.page.locator("#name").fill("users")
        tab.page.get_by_role("button", name="Drop users").click()
        tab.page.wait_for_url("**/n/prod")
        tab.page.get_by_role("link", name="Deleted").click()
        tab.page.get_by_role("button", name="Undrop users").click()
        tab.page.wait_for_url("**/t/prod/users")
        assert tab.wrong == []
        revoke_key(namespace.store, SystemClock(), record.id)
        tab.page.wait_for_timeout(2_100)
        tab.go("/")
        assert "/signin" in tab.page.url


def test_a_hundred_thousand_tables_are_filtered_paged_and_found(chromium: Any) -> None:
    namespace = MetastoreNamespace(root="memory://many")
    for first in range(0, 100_000, 10_000):
        with namespace.metastore.transaction("many") as tx:
            if not first:
                tx.create_namespace(("big",))
            for number in range(first, first + 10_000):
                tx.create_table(("big", f"table_{number:06d}"))
    with start_in_thread(namespace, face=page) as server:
        tab = opened(chromium, server)
        tab.go("/n/big")
        assert tab.page.locator("#children li").count() == 200
        assert len(tab.page.content()) < 300_000
        tab.page.get_by_role("link", name="Next").click()
        tab.page.get_by_text("Page 2 of 500").wait_for()
        tab.page.locator("#filter").press_sequentially("99999")
        tab.page.wait_for_url("**/n/big?filter=99999")
        tab.page.get_by_text("1 of 100,000 object", exact=False).wait_for()
        tab.go("/search?q=table_054321")
        assert tab.page.locator("#found li").count() == 1
        assert tab.wrong == []
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
            look = opened(chromium, server, color_scheme=scheme, viewport={"width": width, "height": 844})
            assert problems_of(look, MANY_PAGES, f"many-{scheme}-{width}") == []
            assert look.wrong == []


MANY_PAGES = (
    "/",
    "/n/big",
    "/n/big?page=500",
    "/t/big/table_000001",
    "/t/big/table_000001?view=history",
    "/log",
    "/snapshots",
    "/deleted",
    "/lineage",
    "/runs",
    "/sql",
    "/access",
    "/server",
    "/search?q=table_05432",
)
"""Pages of a catalog of 100,000 tables, which have no rows."""
