"""The verbs about parts of a table: columns, tags, branches, indices. Each lists, and has actions that change."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from headwater.cli.change import column_type
from headwater.cli.consent import ask
from headwater.cli.look import columns_of
from headwater.cli.output import show, show_records
from headwater.errors import InvalidInputError
from headwater.names import format_name

Action = Callable[[argparse.Namespace, Any], None]


def _act(given: argparse.Namespace, actions: Mapping[str, Action]) -> Any:
    """Do what was asked for; the table, to list what there is now."""
    table = given.target.catalog()[given.name_of(given.table)].serving
    if given.action == "list":
        return table
    if given.action not in actions:
        raise InvalidInputError(
            f"`headwater {given.command.name} T` is followed by one of {', '.join(('list', *actions))}."
        )
    actions[given.action](given, table)
    return table


def _need(given: argparse.Namespace, name: str) -> Any:
    value = getattr(given, name)
    if value is None:
        raise InvalidInputError(f"`headwater {given.command.name} T {given.action}` needs the {name}.")
    return value


def columns(given: argparse.Namespace) -> int:
    actions = {"add": _add_columns, "drop": _drop_columns, "rename": _rename_column, "cast": _cast_column}
    table = _act(given, actions)
    show_records(columns_of(_on_branch(given, table).schema), given.json)
    return 0


def _on_branch(given: argparse.Namespace, table: Any) -> Any:
    return table if given.branch is None else table.at(branch=given.branch)


def _add_columns(given: argparse.Namespace, table: Any) -> None:
    words = _words(given, "NAME TYPE, or any number of NAME=SQL and NAME:TYPE")
    if len(words) == 2 and not any("=" in word or ":" in word for word in words):
        words = [":".join(words)]
    _on_branch(given, table).add_columns(dict(_new_column(word) for word in words))


def _new_column(word: str) -> tuple[str, Any]:
    """`twice=id * 2` is computed, `note:string` is empty."""
    name, equals, expression = word.partition("=")
    if equals and ":" not in name:
        return name, expression
    name, colon, kind = word.partition(":")
    if not colon:
        raise InvalidInputError(f"{word[:200]!r} is not NAME TYPE, NAME:TYPE or NAME=SQL.")
    return name, column_type(kind)


def _words(given: argparse.Namespace, what: str, count: int | None = None) -> list[str]:
    words: list[str] = given.words
    if not words or (count is not None and len(words) != count):
        raise InvalidInputError(f"`headwater columns T {given.action}` is followed by {what}.")
    return words


def _drop_columns(given: argparse.Namespace, table: Any) -> None:
    names = _words(given, "the columns to drop")
    ask(given, f"The columns {', '.join(names)} of {format_name(table.id.names)} are dropped.")
    _on_branch(given, table).drop_columns(*names)


def _rename_column(given: argparse.Namespace, table: Any) -> None:
    old, new = _words(given, "OLD NEW", 2)
    _on_branch(given, table).rename_columns({old: new})


def _cast_column(given: argparse.Namespace, table: Any) -> None:
    name, kind = _words(given, "NAME TYPE", 2)
    _on_branch(given, table).cast_columns({name: column_type(kind)})


def tags(given: argparse.Namespace) -> int:
    table = _act(given, {"add": _add_tag, "move": _move_tag, "drop": _drop_tag})
    listed = ({"tag": name, "version": version, "branch": _branch(table, name)} for name, version in table.tags.items())
    show_records(islice(listed, given.limit), given.json)
    return 0


def _branch(table: Any, tag: str) -> str | None:
    found: str | None = table.tags.branch_of(tag)
    return found


def _newest(given: argparse.Namespace, table: Any) -> int:
    version: int = given.version if given.version is not None else _on_branch(given, table).versions()[-1].version
    return version


def _add_tag(given: argparse.Namespace, table: Any) -> None:
    table.tags.create(_need(given, "tag"), _newest(given, table), given.branch)


def _move_tag(given: argparse.Namespace, table: Any) -> None:
    name = _need(given, "tag")
    _ = table.tags[name]  # a tag that is not there is not made
    table.tags[name] = _newest(given, table)


def _drop_tag(given: argparse.Namespace, table: Any) -> None:
    del table.tags[_need(given, "tag")]


def branches(given: argparse.Namespace) -> int:
    table = _act(given, {"add": _add_branch, "drop": _drop_branch})
    listed = (_branch_record(name, found) for name, found in table.branches.items())
    show_records(islice(listed, given.limit), given.json)
    return 0


def _branch_record(name: str, found: Any) -> dict[str, Any]:
    return {
        "branch": name,
        "from_branch": getattr(found, "parent_branch", None),
        "from_version": getattr(found, "parent_version", None),
    }


def _add_branch(given: argparse.Namespace, table: Any) -> None:
    table.branches.create(_need(given, "branch"), given.version, given.source)


def _drop_branch(given: argparse.Namespace, table: Any) -> None:
    del table.branches[_need(given, "branch")]


def index(given: argparse.Namespace) -> int:
    if given.action == "stats":
        table = given.target.catalog()[given.name_of(given.table)].serving
        show(table.indices.stats(_need(given, "column")), given.json)
        return 0
    table = _act(given, {"add": _add_index, "drop": _drop_index})
    listed = (_index_record(table, name, item) for name, item in table.indices.items())
    show_records(islice(listed, given.limit), given.json)
    return 0


def _index_record(table: Any, name: str, item: Any) -> dict[str, Any]:
    known = table.indices.stats(name)
    return {
        "index": name,
        "columns": list(item.columns),
        "type": known.index_type,
        "indexed_rows": known.num_indexed_rows,
        "unindexed_rows": known.num_unindexed_rows,
    }


def _add_index(given: argparse.Namespace, table: Any) -> None:
    told = {"name": given.name, "distance_type": given.distance}
    options = {key: value for key, value in told.items() if value is not None}
    table.create_index(_need(given, "column"), given.type, **options)


def _drop_index(given: argparse.Namespace, table: Any) -> None:
    del table.indices[_need(given, "column")]
