"""Names and identifiers (lance-objects.md)."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock
from urllib.request import Request, urlopen

import lance_namespace as api
import pytest

import headwater
from headwater import Catalog, DirectoryNamespace
from headwater.errors import InvalidInputError
from headwater.names import (
    MAX_DEPTH,
    ROOT,
    ObjectId,
    check_delimiter,
    check_name,
    check_new_name,
    is_name,
    nameable,
    object_id,
    parse,
)
from headwater.rest.server import start_in_thread

DIRECTORY = {"manifest_enabled": "true"}


def test_an_identifier_has_a_list_and_a_string_style() -> None:
    id = object_id(["prod", "analytics", "users"])
    assert id.format() == "prod$analytics$users"
    assert id.format(".") == "prod.analytics.users"
    assert parse("prod.analytics.users", ".") == id
    assert (id.name, id.level, id.parent.name) == ("users", 3, "analytics")
    assert id.ancestors == (object_id(["prod"]), object_id(["prod", "analytics"]))


@pytest.mark.parametrize("root", [parse(""), parse("$"), parse(".", "."), object_id([]), object_id(None)])
def test_the_root_is_empty_in_every_style(root: ObjectId) -> None:
    assert root == ROOT
    assert (root.level, root.name, root.format(), root.format_route("."), str(root)) == (
        0,
        "",
        "",
        ".",
        "the root namespace",
    )
    with pytest.raises(InvalidInputError, match="no parent"):
        _ = root.parent


def test_a_child_is_below_its_ancestors_and_nothing_else() -> None:
    parent = object_id(["a", "b"])
    assert parent.child("c").is_below(parent)
    assert parent.child("c").is_below(ROOT)
    assert not parent.is_below(parent)
    assert not object_id(["a", "bc", "d"]).is_below(parent)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "a$b", "\n", "\x00", "\x9f", "\ud800", "x" * 256, 7, None]
)
def test_what_may_not_be_a_name_is_refused_with_a_reason(name: object) -> None:
    with pytest.raises(InvalidInputError, match="cannot be used"):
        check_name(name)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, " ", "...", "日本", "a.b", "-", "a%2Fb"])
def test_any_other_text_is_a_name(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["a\u202eb", "a\u2066b", "\u200eab", "ab\u061c", "a\u200bb", "a\u200db", "\ufeffa", "a\u00adb", "\u3164",
     "a\U000e0041", "a\u2028b", "a\u2800", "\u200c\u0645"],
)  # fmt: skip
def test_a_new_name_shows_all_that_is_in_it_and_one_of_before_stays_readable(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"U\+[0-9A-F]+ is invisible"):
        check_new_name(name)
    check_name(name)


@pytest.mark.parametrize(
    "name",
    ["\u0645\u06cc\u200c\u062e\u0648\u0627", "\U0001f468\u200d\U0001f469", "\u65e5\u672c", "\u2764\ufe0f"],
)
def test_a_joiner_that_a_script_needs_may_be_in_a_new_name(name: str) -> None:
    check_new_name(name)


@pytest.mark.parametrize("kind", ["metastore", "dir"])
def test_no_way_to_name_an_object_takes_what_cannot_be_seen(tmp_path: Path, kind: str) -> None:
    catalog = headwater.Catalog(
        headwater.connect(kind, {"root": str(tmp_path), **(DIRECTORY if kind == "dir" else {})})
    )
    catalog.create_table("ns.t", [{"id": 1}])
    for attempt in (
        lambda: catalog.create_namespace(["a\u202eb"]),
        lambda: catalog.create_table(["ns", "a\u202eb"], [{"id": 1}]),
        lambda: catalog.rename_table("ns.t", ["ns", "a\u202eb"]),
    ):
        with pytest.raises(InvalidInputError, match="U\\+202E is invisible"):
            attempt()
    with mock.patch("headwater.names.INVISIBLE", ()):
        catalog.create_table(["ns", "a\u202eb"], [{"id": 7}])
    assert catalog[["ns", "a\u202eb"]].to_arrow().to_pylist() == [{"id": 7}]
    catalog.rename_table(["ns", "a\u202eb"], "ns.seen")
    assert catalog["ns.seen"].count() == 1


@pytest.mark.parametrize(("name", "delimiter"), [("a.b", "."), ("a::b", "::"), ("a:", "::"), ("a$b", ".")])
def test_a_name_that_the_delimiter_would_cut_is_refused(name: str, delimiter: str) -> None:
    with pytest.raises(InvalidInputError, match="delimiter"):
        check_name(name, delimiter)


@pytest.mark.parametrize("delimiter", ["", "/", "\\", "a/b", "\n", "x" * 17])
def test_what_may_not_be_a_delimiter_is_refused(delimiter: str) -> None:
    with pytest.raises(InvalidInputError, match="delimiter"):
        check_delimiter(delimiter)
    with pytest.raises(InvalidInputError, match="delimiter"):
        parse("a", delimiter)


@pytest.mark.parametrize("text", ["$a", "a$", "a$$b", "$$"])
def test_a_string_with_an_empty_name_in_it_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="not empty"):
        parse(text)


def test_an_identifier_is_only_so_deep() -> None:
    assert object_id(["a"] * MAX_DEPTH).level == MAX_DEPTH
    with pytest.raises(InvalidInputError, match="at most 64 levels"):
        object_id(["a"] * (MAX_DEPTH + 1))


def test_a_catalog_tells_whether_it_is_leveled_and_its_level(tmp_path: Path) -> None:
    """Leveled (lance-objects.md): every table is at the same level."""
    namespace = DirectoryNamespace(root=str(tmp_path))
    catalog = Catalog(namespace)
    levels: list[int | None] = [catalog.level]
    assert levels == [None]
    for id in (["a"], ["b"], ["b", "c"]):
        namespace.create_namespace(api.CreateNamespaceRequest(id=id))
    for name in ("t", "u"):
        namespace.declare_table(api.DeclareTableRequest(id=["a", name]))
    with start_in_thread(namespace) as server:
        far = Catalog(server.url)
        levels = [catalog.level, far.level]
        assert levels == [2, 2]
        with urlopen(Request(f"{server.url}/headwater/v1/level", b"{}", method="POST")) as answer:
            assert json.load(answer) == {"level": 2}
        namespace.declare_table(api.DeclareTableRequest(id=["b", "c", "t"]))
        levels = [catalog.level, far.level]
        assert levels == [None, None]
    flat = Catalog(DirectoryNamespace(root=str(tmp_path / "flat"), manifest_enabled="false"))
    flat.namespace.declare_table(api.DeclareTableRequest(id=["t"]))
    assert flat.level == 1


@pytest.mark.parametrize("delimiter", ["$", ".", "::", "a"])
@pytest.mark.parametrize("odd", ["", "a$b", "x.y", "é", "a/b", "n" * 255, "n" * 256, "end:", "plain", "..", "a\nb"])
def test_the_names_of_a_list_are_those_that_can_each_be_asked_for(odd: str, delimiter: str) -> None:
    for names in ([odd], ["t1", odd, "t-2"], []):
        assert nameable(names, delimiter) == [name for name in names if is_name(name, delimiter)]
