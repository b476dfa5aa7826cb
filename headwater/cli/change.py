"""The verbs that change tables and names."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from typing import Any

import lance_namespace as api
import pyarrow as pa

from headwater.cli.consent import ask
from headwater.cli.files import read_rows
from headwater.cli.output import show, show_record
from headwater.errors import InvalidInputError, LanceNamespaceError, UnsupportedOperationError
from headwater.names import format_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.row_streams import write_rows
from headwater.streams.columns import parse_type

_COLUMN = re.compile(r"""\s*("(?:[^"]|"")+"|[^\s"]+)\s+(.+?)\s*""", re.DOTALL)
_SPELLED = re.compile(r"(?:vector|fixed_size_list)\s*\(\s*(\d{1,5})\s*\)", re.IGNORECASE)
_OUTER_COMMA = re.compile(r",(?![^(\[]*[)\]])")
_NOT_NULL = re.compile(r"\s+not\s+null$", re.IGNORECASE)


def create(given: argparse.Namespace) -> int:
    if given.namespace:
        return _create_namespace(given)
    if (given.file is None) == (given.schema is None):
        raise InvalidInputError("Give a file with rows, or --schema 'id int, v vector(4)'.")
    name = _named(given, given.table)
    rows = read_rows(given.file) if given.file is not None else None
    schema = parse_schema(given.schema) if given.schema is not None else None
    table = given.target.made().create_table(name, rows, given.mode or "create", dict(given.set), schema)
    made = {"name": format_name(name), "id": list(name), "version": table.versions()[-1].version, "rows": table.count()}
    show_record(made, given.json)
    return 0


def _create_namespace(given: argparse.Namespace) -> int:
    if given.file is not None or given.schema is not None:
        raise InvalidInputError("A namespace has no rows and no columns: leave the file and --schema out.")
    name = _named(given, given.table)
    given.target.made().create_namespace(name, dict(given.set), exist_ok=(given.mode or "").lower() == "exist_ok")
    show_record({"name": format_name(name), "id": list(name)}, given.json)
    return 0


def parse_schema(text: str) -> pa.Schema:
    """`id int, "my name" text not null, v vector(4)`: names and types with commas between."""
    fields = [_field(part) for part in _OUTER_COMMA.split(text)]
    if len({field.name for field in fields}) != len(fields):
        raise InvalidInputError("--schema has two columns of one name.")
    return pa.schema(fields)


def _field(text: str) -> pa.Field[Any]:
    match = _COLUMN.fullmatch(text)
    if not match:
        raise InvalidInputError(f"--schema: {text.strip()[:200]!r} is not a name and a type, such as id int.")
    name, kind = match[1], match[2]
    name = name[1:-1].replace('""', '"') if name.startswith('"') else name
    nullable = not _NOT_NULL.search(kind)
    return pa.field(name, column_type(_NOT_NULL.sub("", kind)), nullable)


def column_type(text: str) -> pa.DataType:
    """A type as the catalog's own grammar has it, or `vector(4)`: so many float32."""
    vector = _SPELLED.fullmatch(text.strip())
    found: pa.DataType = pa.list_(pa.float32(), int(vector[1])) if vector else parse_type(text)
    return found


def _named(given: argparse.Namespace, text: str) -> tuple[str, ...]:
    name: tuple[str, ...] = given.name_of(text)
    if not name:
        raise InvalidInputError(f"`headwater {given.command.name}` needs a name.")
    return name


def _table(given: argparse.Namespace) -> Any:
    table = given.target.catalog()[_named(given, given.table)]
    branch = getattr(given, "branch", None)
    return table if branch is None else table.serving.at(branch=branch)


def insert(given: argparse.Namespace) -> int:
    table = _table(given)
    rows = read_rows(given.file, table)
    if table.is_stream:
        if (given.mode or "append").lower() != "append":
            raise UnsupportedOperationError("A stream table takes rows by appending or upserting them.")
        return _landed(given, table.append(rows))
    request = api.InsertIntoTableRequest(id=list(table.id.names), mode=given.mode or "append", branch=table.branch)
    answer = write_rows(table.namespace, "insert_into_table", request, rows.to_reader())
    show({"num_inserted_rows": rows.num_rows, **_answered(answer)}, given.json)
    return 0


def _landed(given: argparse.Namespace, report: Any) -> int:
    show(asdict(report), given.json)
    return 0


def _answered(answer: Any) -> dict[str, Any]:
    return {key: value for key, value in answer.model_dump(exclude={"context"}).items() if value is not None}


def upsert(given: argparse.Namespace) -> int:
    table = _table(given)
    rows = read_rows(given.file, table)
    if table.is_stream:
        return _landed(given, table.upsert(rows))
    if not given.on:
        raise InvalidInputError("Say which columns are the key: --on id (repeatable).")
    request = api.MergeInsertIntoTableRequest(
        id=list(table.id.names), on=given.on, when_matched_update_all=True, when_not_matched_insert_all=True,
        branch=table.branch,
    )  # fmt: skip
    show(write_rows(table.namespace, "merge_insert_into_table", request, rows.to_reader()), given.json)
    return 0


def update(given: argparse.Namespace) -> int:
    table = _table(given)
    updates = [[column, expression] for column, expression in given.set]
    request = api.UpdateTableRequest(id=list(table.id.names), updates=updates, predicate=given.where)
    show(given.target.namespace().update_table(request), given.json)
    return 0


def delete(given: argparse.Namespace) -> int:
    table = _table(given)
    if given.where is None:
        ask(given, f"All rows of {format_name(table.id.names)} are deleted.")
    if table.is_stream:
        return _landed(given, table.delete(given.where or "true"))
    request = api.DeleteFromTableRequest(id=list(table.id.names), predicate=given.where or "true", branch=table.branch)
    show(given.target.namespace().delete_from_table(request), given.json)
    return 0


def rename(given: argparse.Namespace) -> int:
    return _move(given, _named(given, given.name), _named(given, given.new))


def move(given: argparse.Namespace) -> int:
    name = _named(given, given.name)
    return _move(given, name, (*given.name_of(given.namespace), name[-1]))


def _move(given: argparse.Namespace, name: tuple[str, ...], new: tuple[str, ...]) -> int:
    catalog = given.target.catalog()
    if _is_namespace(catalog, name):
        catalog.rename_namespace(name, new)
    else:
        catalog.rename_table(name, new)
    show_record({"name": format_name(new), "id": list(new), "was": format_name(name)}, given.json)
    return 0


def _is_namespace(catalog: Any, name: tuple[str, ...]) -> bool:
    """Return True if a name is that of a namespace and of no table."""
    if name in catalog:
        return False
    try:
        catalog.namespace.namespace_exists(api.NamespaceExistsRequest(id=list(name)))
    except LanceNamespaceError:
        return False
    return True


def drop(given: argparse.Namespace) -> int:
    name = _named(given, given.name)
    catalog = given.target.catalog()
    is_namespace = _is_namespace(catalog, name)
    if not is_namespace:
        catalog.namespace.table_exists(api.TableExistsRequest(id=list(name)))
    what = "namespace" if is_namespace else "table"
    below = " with all that is in it" if is_namespace and given.cascade else ""
    ask(given, f"The {what} {format_name(name)}{below} is dropped.")
    if is_namespace:
        catalog.drop_namespace(name, cascade=given.cascade)
    else:
        catalog.drop_table(name)
    show_record({"dropped": format_name(name), "id": list(name)}, given.json)
    return 0


def change_names(given: argparse.Namespace) -> int:
    """Run `undrop`, `alias` or `unalias`: `given.method` is the method of the catalog."""
    name, told = _named(given, given.name), dict[str, Any]()
    catalog = given.target.with_past("memory of what was dropped, nor other names of its objects")
    if given.method == "undrop":
        catalog.undrop(name)
        told["kind"] = "namespace" if _is_namespace(catalog, name) else "table"
    else:
        getattr(catalog, given.method)(name, given.other)
        told["alias"] = given.other
    show_record({"name": format_name(name), "id": list(name), **told}, given.json)
    return 0


def properties(given: argparse.Namespace) -> int:
    name = given.name_of(given.name)
    catalog = given.target.catalog()
    changes = bool(given.set or given.unset)
    if not name or _is_namespace(catalog, name):
        found = (
            catalog.alter_namespace(name, dict(given.set), given.unset)
            if changes
            else catalog.namespace_properties(name)
        )
    else:
        found = _table_properties(given, catalog, name) if changes else catalog[name].serving.properties
    if given.json:
        show(found, True)
    else:
        show([f"{key}={value}" for key, value in sorted(found.items())], False)
    return 0


def _table_properties(given: argparse.Namespace, catalog: Any, name: tuple[str, ...]) -> dict[str, str]:
    """Set and remove properties of a table. Only a metastore can after its creation; a stream table's have rules."""
    table = catalog[name]
    if table.is_stream:
        table.set_properties({**dict.fromkeys(given.unset), **dict(given.set)})
        return dict(catalog[name].serving.properties)
    change = abilities_of(catalog.namespace).change
    if change is None:
        raise UnsupportedOperationError(
            "This catalog sets the properties of a table when it is created, and not later: a metastore catalog, "
            "opened where its files are, can."
        )

    def work(tx: Any) -> None:
        old = dict(tx.get(name).properties)
        tx.update(name, {**{key: value for key, value in old.items() if key not in given.unset}, **dict(given.set)})

    change(work, f"properties of {format_name(name)}")
    return dict(catalog[name].serving.properties)


def optimize(given: argparse.Namespace) -> int:
    show(asdict(_table(given).serving.optimize(**_policy(given))), given.json)
    return 0


def clean_up(given: argparse.Namespace) -> int:
    show(asdict(_table(given).serving.clean_up(**_policy(given))), given.json)
    return 0


def _policy(given: argparse.Namespace) -> dict[str, Any]:
    names = ("keep_versions", "keep_days", "grace_seconds")
    return {name: value for name in names if (value := getattr(given, name)) is not None}
