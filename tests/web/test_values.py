"""Values to safe HTML, addresses and plots: the pure parts of the page."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cells import ago, cell, image_type, instant, size, sparkline
from headwater.cli.serving import base_path
from headwater.errors import InvalidInputError
from headwater.names import ObjectId
from headwater.web.drawings import Point, plot
from headwater.web.queries import snippets
from headwater.web.table_pages import differences
from headwater.web.visit import Links, own_path, segments
from tests.web.pages import Document
from tests.web.samples import HOSTILE, png
from tools.vendor import different

MARKUP = "<script>alert(1)</script>"
VECTOR = pa.list_(pa.float32(), 3)


@given(st.lists(st.text(min_size=1).filter(lambda name: name.isprintable()), min_size=1, max_size=4))
def test_the_address_of_any_names_leads_back_to_them(names: list[str]) -> None:
    address = Links("/lake").table(ObjectId(tuple(names)), view="rows", filter="a & b")
    path, _, query = address.removeprefix("/lake").partition("?")
    assert segments(path) == ("t", *names)
    assert query == "view=rows&filter=a+%26+b"
    assert address.isascii()


@given(st.text())
def test_onward_is_a_path_of_this_server_or_nothing(text: str) -> None:
    found = own_path(text)
    assert found is None or (found.startswith("/") and found[1:2] not in ("/", "\\") and "\n" not in found)


@pytest.mark.parametrize(
    "value",
    [MARKUP, f"{MARKUP}\n{'x' * 5000}", {"<b>": MARKUP}, [MARKUP], MARKUP.encode(), [{"a": [MARKUP.encode(), None]}]],
)
def test_whatever_a_cell_holds_is_text(value: object) -> None:
    shown = str(cell(value, pa.string(), "/cell", "/near").html)
    assert "<script" not in shown
    assert "<b>" not in shown
    assert Document(shown).inline == []


def test_cells_show_what_they_hold() -> None:
    assert "NULL" in cell(None, pa.int64()).html
    assert cell(3.14159265, pa.float64()).html == "3.14159"
    assert cell(7, pa.int64()).is_number
    assert cell(True, pa.bool_()).html == "true"
    assert cell(float("nan"), pa.float64()).html == "nan"
    assert "2026-01-02" in cell(dt.date(2026, 1, 2), pa.date32()).html
    assert "<svg" in cell([0.0, 1.0, math.nan], VECTOR).html
    assert "<svg" not in cell([None, math.inf, None], VECTOR).html
    assert '<img class="cell"' in cell(png(), pa.binary(), "/cell/x").html
    assert "<img" not in cell(b"<svg onload=alert(1)>", pa.binary(), "/cell/x").html
    assert sparkline([]) == ""


def test_only_four_kinds_of_bytes_are_images() -> None:
    kinds = (png(), b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF\0\0\0\0WEBP")
    assert [image_type(data) for data in kinds] == ["image/png", "image/jpeg", "image/gif", "image/webp"]
    for data in (b"", b"<svg xmlns=", b"<html>", b"RIFF\0\0\0\0WAVE", b"\x89PNG", b"%PDF"):
        assert image_type(data) is None


def test_sizes_and_times_are_said_as_people_say_them() -> None:
    assert [size(count) for count in (0, 999, 1500, 2_500_000, None)] == [
        "0 bytes",
        "999 bytes",
        "1.5 kB",
        "2.5 MB",
        "unknown",
    ]
    assert [ago(0, ms) for ms in (0, 30_000, 60_000, 7_200_000, 86_400_000)] == [
        "just now", "30 s ago", "1 min ago", "2 hours ago", "1 day ago",
    ]  # fmt: skip
    assert instant(0) == "1970-01-01T00:00:00Z"


def test_a_plot_holds_its_points_and_no_markup_of_others() -> None:
    drawn = str(plot("Rows", [Point("version 1", 0), Point("version 2", 5, MARKUP)], str))
    assert drawn.count("<circle") == 2
    assert "<script" not in drawn
    assert plot("Rows", [], str) == ""


def test_snippets_hold_any_name_as_a_value() -> None:
    for name in HOSTILE:
        found = {one.name: one.code for one in snippets("http://127.0.0.1:1", ObjectId(("odd", name)), True)}
        compile(found["Python"], "snippet", "exec")
        compile(found["LanceDB"], "snippet", "exec")
        compile(found["Spark"], "snippet", "exec")
        assert "hw_..." in found["curl"]


def test_a_difference_of_properties_says_what_was_and_what_is() -> None:
    assert differences({"a": "1", "b": "2"}, {"b": "3", "c": "4"}) == [
        ("a", "1", None),
        ("b", "2", "3"),
        ("c", None, "4"),
    ]


def test_what_others_wrote_is_what_the_list_says() -> None:
    assert different() == []
    assert different(Path(__file__).parent / "vendor") == []


def test_a_base_path_is_a_plain_path() -> None:
    assert [base_path(text) for text in ("", "/", "/lake", "lake/", "/a/b")] == ["", "", "/lake", "/lake", "/a/b"]
    for text in ("/a b", "/../x", '/"', "/a?b", "https://x"):
        with pytest.raises(InvalidInputError, match="--base-path"):
            base_path(text)
