"""Names and identifiers (lance-objects.md)."""

from __future__ import annotations

from pathlib import Path

import lance_namespace as api
import pytest

from headwater import DirectoryNamespace
from headwater.errors import InvalidInputError
from headwater.names import MAX_DEPTH, ROOT, ObjectId, check_delimiter, check_name, is_name, nameable, object_id, parse


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
    assert namespace.level() is None
    for id in (["a"], ["b"], ["b", "c"]):
        namespace.create_namespace(api.CreateNamespaceRequest(id=id))
    for name in ("t", "u"):
        namespace.declare_table(api.DeclareTableRequest(id=["a", name]))
    assert namespace.level() == 2
    namespace.declare_table(api.DeclareTableRequest(id=["b", "c", "t"]))
    assert namespace.level() is None


@pytest.mark.parametrize("delimiter", ["$", ".", "::", "a"])
@pytest.mark.parametrize("odd", ["", "a$b", "x.y", "é", "a/b", "n" * 255, "n" * 256, "end:", "plain", "..", "a\nb"])
def test_the_names_of_a_list_are_those_that_can_each_be_asked_for(odd: str, delimiter: str) -> None:
    for names in ([odd], ["t1", odd, "t-2"], []):
        assert nameable(names, delimiter) == [name for name in names if is_name(name, delimiter)]
