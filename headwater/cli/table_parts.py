"""The verbs about parts of a table: columns, tags, branches, indices, table versions. Each lists, and changes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from headwater.cli.look import columns_of
from headwater.cli.output import confirm, show, show_records
from headwater.cli.rows import read_rows
from headwater.errors import InvalidInputError
from headwater.names import format_name
from headwater.schema_text import parse_schema, parse_type

if TYPE_CHECKING:
    from headwater.catalog import CatalogTable

Action = Callable[[argparse.Namespace, "CatalogTable"], None]


def _act(args: argparse.Namespace, actions: Mapping[str, Action]) -> Any:
    """Do what was asked for; the table, to list what there is now."""
    table = args.target.catalog()[args.name_of(args.table)].serving
    if args.action != "list":
        _chosen(args, actions)(args, table)
    return table


def _chosen(args: argparse.Namespace, actions: Mapping[str, Action]) -> Action:
    if args.action not in actions:
        raise InvalidInputError(
            f"`headwater {args.command.name} T` is followed by one of {', '.join(('list', *actions))}."
        )
    return actions[args.action]


def _need(args: argparse.Namespace, name: str) -> str:
    value: str | None = getattr(args, name)
    if value is None:
        raise InvalidInputError(f"`headwater {args.command.name} T {args.action}` needs the {name}.")
    return value


def columns(args: argparse.Namespace) -> int:
    actions = {"add": _add_columns, "drop": _drop_columns, "rename": _rename_column, "cast": _cast_column}
    table = _act(args, actions)
    show_records(columns_of(_on_branch(args, table).schema), args.json)
    return 0


def _on_branch(args: argparse.Namespace, table: CatalogTable) -> CatalogTable:
    return table if args.branch is None else table.at(branch=args.branch)


def _add_columns(args: argparse.Namespace, table: CatalogTable) -> None:
    words = _words(args, "NAME TYPE, or any number of NAME=SQL and NAME:TYPE")
    if len(words) == 2 and not any("=" in word or ":" in word for word in words):
        words = [":".join(words)]
    _on_branch(args, table).add_columns(dict[str, Any](_new_column(word) for word in words))


def _new_column(word: str) -> tuple[str, object]:
    """`twice=id * 2` is computed, `note:string` is empty."""
    name, equals, expression = word.partition("=")
    if equals and ":" not in name:
        return name, expression
    name, colon, kind = word.partition(":")
    if not colon:
        raise InvalidInputError(f"{word[:200]!r} is not NAME TYPE, NAME:TYPE or NAME=SQL.")
    return name, parse_type(kind)


def _words(args: argparse.Namespace, what: str, count: int | None = None) -> list[str]:
    words: list[str] = args.words
    if not words or (count is not None and len(words) != count):
        raise InvalidInputError(f"`headwater columns T {args.action}` is followed by {what}.")
    return words


def _drop_columns(args: argparse.Namespace, table: CatalogTable) -> None:
    names = _words(args, "the columns to drop")
    confirm(args, f"This will drop the columns {', '.join(names)} of {format_name(table.id.names)}.")
    _on_branch(args, table).drop_columns(*names)


def _rename_column(args: argparse.Namespace, table: CatalogTable) -> None:
    old, new = _words(args, "OLD NEW", 2)
    _on_branch(args, table).rename_columns({old: new})


def _cast_column(args: argparse.Namespace, table: CatalogTable) -> None:
    name, kind = _words(args, "NAME TYPE", 2)
    _on_branch(args, table).cast_columns({name: parse_type(kind)})


def tags(args: argparse.Namespace) -> int:
    table = _act(args, {"add": _add_tag, "move": _move_tag, "drop": _drop_tag})
    listed = ({"tag": name, "version": version, "branch": _branch(table, name)} for name, version in table.tags.items())
    show_records(islice(listed, args.limit), args.json)
    return 0


def _branch(table: CatalogTable, tag: str) -> str | None:
    found: str | None = table.tags.branch_of(tag)
    return found


def _newest(args: argparse.Namespace, table: CatalogTable) -> int:
    version: int = args.version if args.version is not None else _on_branch(args, table).versions()[-1].version
    return version


def _add_tag(args: argparse.Namespace, table: CatalogTable) -> None:
    table.tags.create(_need(args, "tag"), _newest(args, table), args.branch)


def _move_tag(args: argparse.Namespace, table: CatalogTable) -> None:
    name = _need(args, "tag")
    _ = table.tags[name]  # a tag that is not there is not made
    table.tags[name] = _newest(args, table)


def _drop_tag(args: argparse.Namespace, table: CatalogTable) -> None:
    del table.tags[_need(args, "tag")]


def table_versions(args: argparse.Namespace) -> int:
    table = args.target.with_past("table versions")[args.name_of(args.table)]
    actions = {"create": _create_version, "activate": _activate_version, "drop": _drop_version}
    if args.action != "list":
        _chosen(args, actions)(args, table)
    listed = (
        {"version": each.id, "lifecycle": each.lifecycle, "stream": each.is_stream, "time": each.time}
        for each in table.table_versions.list()
    )
    show_records(listed, args.json)
    return 0


def _create_version(args: argparse.Namespace, table: CatalogTable) -> None:
    version, schema = _need(args, "version"), None if args.schema is None else parse_schema(args.schema)
    if args.file is None and schema is None:
        raise InvalidInputError("A new table version needs a file with rows, or --schema 'id int, v vector(4)'.")
    rows = None if args.file is None else read_rows(args.file)
    if not table.is_stream:
        table.table_versions.create(version, rows, schema)
        return
    columns = schema if rows is None or schema is not None else rows.schema
    made = table.table_versions.create(version, None, columns, args.key, args.sequence, (), dict(args.set))
    if rows is not None:
        (made.upsert if args.key else made.append)(rows)
        made.publish()


def _activate_version(args: argparse.Namespace, table: CatalogTable) -> None:
    table.table_versions.activate(_need(args, "version"))


def _drop_version(args: argparse.Namespace, table: CatalogTable) -> None:
    version = _need(args, "version")
    confirm(args, f"This will drop the table version {version} of {format_name(table.id.names)}.")
    table.table_versions.drop(version)


def branches(args: argparse.Namespace) -> int:
    table = _act(args, {"add": _add_branch, "drop": _drop_branch})
    listed = (_branch_record(name, found) for name, found in table.branches.items())
    show_records(islice(listed, args.limit), args.json)
    return 0


def _branch_record(name: str, found: object) -> dict[str, object]:
    return {
        "branch": name,
        "from_branch": getattr(found, "parent_branch", None),
        "from_version": getattr(found, "parent_version", None),
    }


def _add_branch(args: argparse.Namespace, table: CatalogTable) -> None:
    table.branches.create(_need(args, "branch"), args.version, args.source)


def _drop_branch(args: argparse.Namespace, table: CatalogTable) -> None:
    del table.branches[_need(args, "branch")]


def index(args: argparse.Namespace) -> int:
    if args.action == "stats":
        table = args.target.catalog()[args.name_of(args.table)].serving
        show(table.indices.stats(_need(args, "column")), args.json)
        return 0
    table = _act(args, {"add": _add_index, "drop": _drop_index})
    listed = (_index_record(table, name, item) for name, item in table.indices.items())
    show_records(islice(listed, args.limit), args.json)
    return 0


def _index_record(table: CatalogTable, name: str, item: Any) -> dict[str, object]:
    known = table.indices.stats(name)
    return {
        "index": name,
        "columns": list(item.columns),
        "type": known.index_type,
        "indexed_rows": known.num_indexed_rows,
        "unindexed_rows": known.num_unindexed_rows,
    }


def _add_index(args: argparse.Namespace, table: CatalogTable) -> None:
    told = {"name": args.name, "distance_type": args.distance}
    options = {key: value for key, value in told.items() if value is not None}
    table.create_index(_need(args, "column"), args.type, **options)


def _drop_index(args: argparse.Namespace, table: CatalogTable) -> None:
    del table.indices[_need(args, "column")]
