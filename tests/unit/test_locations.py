"""Where a table may be, and every on-disk name of the directory catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import InvalidInputError
from headwater.model import Namespace, Table
from headwater.names import ObjectId
from headwater.registries.folders import MAX_LOCATION_BYTES, check_location, check_place, table_uri
from headwater.registries.layout import table_folder
from headwater.registries.manifest.queue import decode_changes
from headwater.registries.manifest.rows import RowIndex
from headwater.registry import hashed_folder
from headwater.store import LocalStore
from headwater.tables.layout import manifest_name, manifest_version


@pytest.mark.parametrize(
    ("location", "root", "relative"),
    [
        ("a", "/lake", "a"),
        ("a/b/", "/lake", "a/b"),
        ("/lake/a", "/lake", "a"),
        ("file:///lake/a", "/lake", "a"),
        ("s3://b/lake/a", "s3://b/lake", "a"),
        ("é b", "/lake", "é b"),
        ("x" * MAX_LOCATION_BYTES, "/lake", "x" * MAX_LOCATION_BYTES),
    ],
)
def test_a_location_inside_the_root_is_taken_relative_to_it(location: str, root: str, relative: str) -> None:
    assert check_location(location, root) == relative


OUTSIDE = ("", "/", ".", "..", "a/..", "a/./b", "a//b", "/lakes/a", "/lake", "/lake/../x", "file:///other", "s3://b/x")
OWN = ("__manifest", "__manifest/x", ".headwater/spool")
ODD = ("a\\b", "a\nb", "a\x7f", "\ud800", "x" * (MAX_LOCATION_BYTES + 1))


@pytest.mark.parametrize("location", [*OUTSIDE, *OWN, *ODD])
def test_a_location_that_is_not_below_the_root_or_is_the_catalogs_own_is_refused(location: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be used"):
        check_location(location, "/lake")


def test_a_link_that_leads_out_of_the_root_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    store = LocalStore(tmp_path / "lake")
    store.put("inside/x", b"")
    (tmp_path / "lake" / "link").symlink_to(tmp_path / "outside")
    check_place(store, "inside")
    check_place(store, "new/place")
    for place in ("link", "link/deeper"):
        with pytest.raises(InvalidInputError, match="outside the catalog's root"):
            check_place(store, place)


def test_a_place_inside_a_table_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("t/_versions/1.manifest", b"")
    store.put("d/.lance-reserved", b"")
    for place in ("t/x", "t/x/y", "d/x"):
        with pytest.raises(InvalidInputError, match="is a table"):
            check_place(store, place)


def test_a_uri_is_plain_on_disk_and_encoded_elsewhere() -> None:
    assert table_uri("/lake", "a b%") == "/lake/a b%"
    assert table_uri("s3://b/p", "a b%") == "s3://b/p/a%20b%25"


def test_the_names_on_disk_are_those_of_the_directory_document() -> None:
    assert table_folder("users") == "users.lance"
    assert hashed_folder(ObjectId(("ns1", "t2")), "6a53e01d") == "6a53e01d_ns1$t2"
    assert hashed_folder(ObjectId(("é/",)), "6a53e01d") == "6a53e01d___"
    assert manifest_name(1) == "18446744073709551614.manifest"
    assert manifest_name(7, "V1") == "7.manifest"
    assert manifest_version("18446744073709551614.manifest") == (1, "V2")
    assert manifest_version("7.manifest") == (7, "V1")
    for name in ("x.manifest", "7.manifest-1234", "latest_version_hint.json", "7.manifest.tmp", ".manifest"):
        assert manifest_version(name) is None


@pytest.mark.parametrize("data", [b"", b"[[{}]]", b'[[{"kind":"Unknown"}]]', b'[[{"kind":"Add"}]]', b"7", b"[7]"])
def test_what_is_no_list_of_changes_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no changes"):
        decode_changes(data)


def test_the_index_finds_who_holds_a_place_around_and_inside_it() -> None:
    index = RowIndex()
    index.put(Namespace(ObjectId(("n",))))
    for name, place in (("a", "x/y"), ("b", "x/yz"), ("c", "w")):
        index.put(Table(ObjectId((name,)), place))
    holders = {
        place: {id.name for id in index.location_holders(place)} for place in ("x", "x/y", "x/y/z", "x/yz", "v", "w/")
    }
    assert holders == {"x": {"a", "b"}, "x/y": {"a"}, "x/y/z": {"a"}, "x/yz": {"b"}, "v": set(), "w/": {"c"}}
    index.put(Table(ObjectId(("a",)), "elsewhere"))
    assert index.location_holders("x/y") == set()
    index.remove(ObjectId(("b",)))
    assert index.location_holders("x") == set()
