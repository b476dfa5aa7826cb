"""Publishes of child tables: after their parents, and only with the state of the parent that they were made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headwater.errors import InvalidTableStateError
from headwater.metastore import Reading, Transaction
from headwater.names import format_name, parse_name
from headwater.streams.reading.position_views import Published
from headwater.streams.stream_lookup import Stream, open_in, open_stream
from headwater.streams.table_functions import function_of, made_of

ROWS = "rows"
"""The name that lineage has for the function of a child table, among those of its derived columns."""


class StagedPublish(Protocol):
    """A publish of one table that a transaction has staged."""

    @property
    def published(self) -> Published: ...

    @property
    def stream(self) -> Stream: ...


class ChildBehindError(InvalidTableStateError):
    """A child table was made of another state of its parent than the one that is published with it."""

    child: str = ""


def parents_first(snapshot: Reading, paths: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the tables of a publish, parents before their children."""
    waiting = {tuple(path): path for path in paths}
    parents: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path in waiting:
        function = function_of(format_name(path), open_stream(snapshot, path).definition)
        parents[path] = tuple(parse_name(function.parent)) if function is not None else ()
    done: list[Sequence[str]] = []
    while waiting:
        free = [path for path in waiting if parents[path] not in waiting] or list(waiting)
        done += [waiting.pop(path) for path in free]
    return done


def of_parent(tx: Transaction, path: Sequence[str], made: Mapping[tuple[str, ...], StagedPublish]) -> dict[str, Any]:
    """Return the lineage of a child table; ChildBehindError if its parent is published at another state.

    `made`: what the transaction publishes so far, by path.
    """
    stream = open_in(tx, path)
    function, state = function_of(stream.name, stream.definition), made_of(stream.definition.properties)
    if function is None or state is None:
        return {}
    parent = next((each for known, each in made.items() if format_name(known) == function.parent), None)
    if parent is not None and (parent.stream.version_home, parent.published.position) != state.parent:
        behind = ChildBehindError(
            f"{stream.name} was made of {function.parent} at position {state.parent[1]}, and that is at "
            f"{parent.published.position}: run the pipeline that makes it, which publishes both."
        )
        behind.child = stream.name
        raise behind
    version = parent.published.version if parent is not None else 0
    return {"inputs": {function.parent: {"position": state.parent[1], "version": version}}}


def of_rows(stream: Stream) -> dict[str, dict[str, Any]]:
    """Return the function that made the rows of a child table, as lineage names it."""
    function, state = function_of(stream.name, stream.definition), made_of(stream.definition.properties)
    if function is None or state is None:
        return {}
    return {ROWS: {"function": function.function, "identity": state.function[0]}}
