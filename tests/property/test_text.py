"""What holds for any text: identifiers, pages and changes survive the way there and back."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.errors import InvalidInputError
from headwater.model import (
    Add,
    CatalogObject,
    Change,
    Move,
    Namespace,
    Remove,
    Replace,
    RequireLocation,
    RequireTable,
    Table,
    Version,
)
from headwater.names import ROOT, ObjectId, check_delimiter, check_name, object_id, parse
from headwater.paging import page
from headwater.registries.manifest.queue import decode_changes, encode_changes
from headwater.registries.manifest.rows import SCHEMA, Codec
from headwater.registry import hashed_folder, overlap
from headwater.tables.layout import manifest_name, manifest_version

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
DELIMITERS = st.one_of(st.sampled_from(["$", ".", "|", "::", "abab", "/", "é", ""]), st.text(max_size=4))


def is_name(text: str, delimiter: str) -> bool:
    try:
        check_name(text, delimiter)
    except InvalidInputError:
        return False
    return True


def is_delimiter(text: str) -> bool:
    try:
        check_delimiter(text)
    except InvalidInputError:
        return False
    return True


LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="$/\\")
NAMES = st.text(LETTERS, min_size=1, max_size=8).filter(lambda text: text not in (".", ".."))
IDS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: ObjectId(tuple(names)))
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=3)
TABLES = st.builds(Table, IDS, NAMES, PROPERTIES)
VERSIONS = st.builds(
    Version,
    IDS.map(lambda id: id.child("7")),
    NAMES,
    st.none() | st.integers(0, 2**40),
    st.none() | TEXT,
    st.sampled_from(["V1", "V2"]),
    st.none() | st.integers(0, 2**40),
    PROPERTIES,
)
OBJECTS: st.SearchStrategy[CatalogObject] = st.one_of(st.builds(Namespace, IDS, PROPERTIES), TABLES, VERSIONS)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Add, OBJECTS),
    st.builds(Replace, OBJECTS, OBJECTS),
    st.builds(Remove, OBJECTS, st.booleans()),
    st.builds(Move, TABLES, TABLES),
    st.builds(RequireLocation, TEXT, IDS),
    st.builds(RequireTable, TABLES, st.integers(0, 9)),
)


@given(st.lists(st.one_of(TEXT, st.text("ab:.", min_size=1, max_size=5)), max_size=4), DELIMITERS)
def test_an_identifier_that_is_formatted_and_parsed_is_itself(names: list[str], delimiter: str) -> None:
    assume(is_delimiter(delimiter))
    assume(all(is_name(name, delimiter) for name in names))
    id = object_id(names, delimiter)
    assert parse(id.format(delimiter), delimiter) == id
    assert parse(id.format_route(delimiter), delimiter) == id


@given(TEXT, DELIMITERS)
def test_any_text_is_parsed_into_valid_names_or_refused(text: str, delimiter: str) -> None:
    try:
        id = parse(text, delimiter)
    except InvalidInputError:
        return
    assert all(is_name(name, delimiter) for name in id.names)
    assert id == ROOT or id.format(delimiter) == text


@given(st.sets(TEXT), st.integers(1, 5))
def test_pages_hold_every_name_once_and_in_order(names: set[str], limit: int) -> None:
    listed, token, seen = sorted(names - {""}), None, list[str]()
    while True:
        chosen, token = page(listed, token, limit)
        assert len(chosen) <= limit
        seen += chosen
        if token is None:
            break
    assert seen == listed


@given(st.sets(TEXT), st.sets(TEXT), st.sets(TEXT), st.integers(1, 4))
def test_a_name_that_stays_is_never_skipped_or_repeated_while_others_come_and_go(
    stays: set[str], before: set[str], after: set[str], limit: int
) -> None:
    token, seen, turn = None, list[str](), 0
    while True:
        others = before if turn % 2 == 0 else after
        chosen, token = page(sorted((stays | others) - {""}), token, limit)
        seen += chosen
        turn += 1
        if token is None:
            break
    assert [name for name in seen if name in stays] == sorted(stays - {""})


@given(st.lists(st.lists(CHANGES, max_size=3), max_size=3))
def test_changes_handed_to_another_process_arrive_as_they_were(groups: list[list[Change]]) -> None:
    assert decode_changes(encode_changes(groups)) == groups


@given(OBJECTS)
def test_an_object_that_becomes_a_row_is_read_back_as_it_was(item: CatalogObject) -> None:
    codec = Codec(SCHEMA)
    rows = codec.from_arrow(codec.to_arrow([codec.encode(item, 1_700_000_000_000)]))
    assert [codec.decode(row) for row in rows] == [item]


@given(st.integers(1, 2**63 - 2), st.sampled_from(["V1", "V2"]))
def test_a_version_is_read_back_from_its_manifests_name(version: int, scheme: str) -> None:
    assume(scheme == "V2" or version < 10**18)
    assert manifest_version(manifest_name(version, scheme)) == (version, scheme)


@given(IDS, st.text("0123456789abcdef", min_size=8, max_size=8))
def test_a_hashed_folder_is_one_short_plain_name(id: ObjectId, hash: str) -> None:
    folder = hashed_folder(id, hash)
    assert folder.startswith(f"{hash}_")
    assert folder.isascii()
    assert len(folder) <= 200
    assert "/" not in folder


@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=3))
def test_locations_overlap_exactly_when_one_is_the_other_or_inside_it(first: list[str], second: list[str]) -> None:
    size = min(len(first), len(second))
    assert overlap("/".join(first), "/".join(second)) == (first[:size] == second[:size])
    assert overlap("/".join(second), "/".join(first)) == overlap("/".join(first), "/".join(second))
