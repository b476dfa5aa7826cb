"""The table of verbs: what a row promises to routes, clients and handlers."""

from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec
import pytest

from headwater.cli.grammar import COMMANDS
from headwater.cli.grammar.words import number
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.namespace.directory import DirectoryNamespace
from headwater.rest.extensions import ALL_ROUTES
from headwater.verbs.all_verbs import BY_OPERATION, answer, fields_of, read_request
from headwater.verbs.catalog import AddAlias, CollectCatalog, LogPage, ReadLog, TakeSnapshot, Undrop
from headwater.verbs.stream_requests import CountStreamTable
from headwater.verbs.verb import VERBS, Verb, VerbSession

ROUTES = {route.operation: route for route in ALL_ROUTES}
LINES = {
    "undrop": ("Undrop", {"id": "name"}),
    "alias": ("AddAlias", {"id": "name", "alias": "other"}),
    "unalias": ("RemoveAlias", {"id": "name", "alias": "other"}),
    "optimize": ("OptimizeTable", {"id": "table"}),
    "clean-up": ("CleanUpTableVersions", {"id": "table"}),
    "history": ("DescribeHistory", {"id": "name"}),
    "diff": ("DescribeDifference", {"before": "since", "after": "until"}),
    "undo": ("UndoTransaction", {"txn": "what"}),
}
"""Verbs of the command line that are one row, with fields that have another name there. The grammar does not import
the table: that would take each line ten times as long to parse."""
TYPES = {int: number, float: float, bool: None}


@pytest.mark.parametrize("line", LINES)
def test_a_verb_of_the_command_line_takes_every_field_of_its_row_with_its_type(line: str) -> None:
    operation, renamed = LINES[line]
    taken = {arg.names[-1].lstrip("-").replace("-", "_"): arg for arg in COMMANDS[line].args}
    for name, kind in get_type_hints(BY_OPERATION[operation].request).items():
        option = taken[renamed.get(name, name)].options
        plain = next((each for each in TYPES if each in (kind, *get_args(kind)) and name not in renamed), None)
        assert plain is None or option.get("type") is TYPES[plain]
        assert plain is not bool or option["action"] == "store_true"


@pytest.mark.parametrize("row", VERBS.values(), ids=lambda row: row.operation)
def test_a_row_is_a_frozen_request_and_becomes_one_route(row: Verb) -> None:
    assert row.request.__struct_config__.frozen
    assert row.request.__doc__
    assert ("id" in row.request.__struct_fields__) == ("{id}" in row.path)
    assert row.about.endswith(".")
    route = ROUTES[row.operation]
    assert (route.needs, route.runs, route.sessions) == (row.needs, row.runs, row.sessions)
    assert {param.name for param in route.query} == (set(fields_of(row)) if row.takes_rows else set())


def test_no_two_rows_share_a_path() -> None:
    assert len({row.path for row in VERBS.values()}) == len(VERBS) == len(BY_OPERATION)


@pytest.mark.parametrize(
    ("operation", "fields", "told"),
    [
        ("AddAlias", {"id": ["a"]}, "alias"),
        ("AddAlias", {"id": ["a"], "alias": 1}, "alias"),
        ("UndoTransaction", {}, "txn"),
        ("CommitStreamReader", {"id": ["a"], "reader": "r", "position": "x"}, "position"),
        ("PublishStreamTables", {"tables": "a.b"}, "tables"),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_named(operation: str, fields: object, told: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"{operation}: .*{told}"):
        read_request(BY_OPERATION[operation], fields)  # type: ignore[arg-type]


def test_fields_that_a_row_does_not_have_are_left_out_as_in_every_request() -> None:
    found = read_request(BY_OPERATION["AddAlias"], {"id": ["a"], "alias": "b", "unknown": 1})
    assert found == AddAlias(id=("a",), alias="b")


def test_an_answer_is_on_the_wire_as_it_was_returned() -> None:
    for request, value in (
        (ReadLog(), LogPage(3, [])),
        (Undrop(id=("a",)), "table"),
        (CountStreamTable(id=("a",)), 7),
        (TakeSnapshot(name="a"), None),
    ):
        row = VERBS[type(request)]
        assert row.decode(msgspec.json.encode(row.wrap(value))) == value
    count = VERBS[CountStreamTable]
    assert count.decode(b'{"count": 7, "of a newer server": [1]}') == 7


def test_a_catalog_without_a_history_refuses_the_verbs_that_need_one(tmp_path: object) -> None:
    session = VerbSession(DirectoryNamespace(root=str(tmp_path)))
    with pytest.raises(UnsupportedOperationError, match="keeps no history: a metastore catalog does"):
        answer(session, Undrop(id=("a",)))
    for seconds in (float("nan"), float("inf"), 1e300):
        with pytest.raises(InvalidInputError, match="number of seconds"):
            answer(session, CollectCatalog(keep_seconds=seconds))
