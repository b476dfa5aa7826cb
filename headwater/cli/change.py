"""The verbs that change tables and names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import lance_namespace as api
from pydantic import ValidationError

from headwater.cli.output import confirm, show, show_record
from headwater.cli.rows import read_rows
from headwater.errors import InvalidInputError, LanceNamespaceError, NamespaceNotFoundError, UnsupportedOperationError
from headwater.names import format_name
from headwater.namespace.abilities import abilities_of, write_rows
from headwater.rest.routes import BY_OPERATION
from headwater.schema_text import parse_schema
from headwater.wording import many

if TYPE_CHECKING:
    from headwater.catalog import Catalog
    from headwater.metastore import Transaction


def create(args: argparse.Namespace) -> int:
    if args.namespace:
        return _create_namespace(args)
    if (args.file is None) == (args.schema is None):
        raise InvalidInputError("Give a file with rows, or --schema 'id int, v vector(4)'.")
    name = _named(args, args.table)
    rows = read_rows(args.file) if args.file is not None else None
    schema = parse_schema(args.schema) if args.schema is not None else None
    table = args.target.made().create_table(name, rows, args.mode or "create", dict(args.set), schema)
    made = {"name": format_name(name), "id": list(name), "version": table.versions()[-1].version, "rows": table.count()}
    show_record(made, args.json)
    return 0


def _create_namespace(args: argparse.Namespace) -> int:
    if args.file is not None or args.schema is not None:
        raise InvalidInputError("A namespace has no rows and no columns: leave the file and --schema out.")
    name = _named(args, args.table)
    args.target.made().create_namespace(name, dict(args.set), exist_ok=(args.mode or "").lower() == "exist_ok")
    show_record({"name": format_name(name), "id": list(name)}, args.json)
    return 0


def _named(args: argparse.Namespace, text: str) -> tuple[str, ...]:
    name: tuple[str, ...] = args.name_of(text)
    if not name:
        raise InvalidInputError(f"`headwater {args.command.name}` needs a name.")
    return name


def _table(args: argparse.Namespace) -> Any:
    table = args.target.catalog()[_named(args, args.table)]
    branch = getattr(args, "branch", None)
    return table if branch is None else table.serving.at(branch=branch)


def insert(args: argparse.Namespace) -> int:
    table = _table(args)
    rows = read_rows(args.file, table)
    if table.is_stream:
        if (args.mode or "append").lower() != "append":
            raise UnsupportedOperationError("A stream table takes rows by appending or upserting them.")
        return _landed(args, table.append(rows))
    request = api.InsertIntoTableRequest(id=list(table.id.names), mode=args.mode or "append", branch=table.branch)
    answer = write_rows(table.namespace, "insert_into_table", request, rows.to_reader())
    show({"num_inserted_rows": rows.num_rows, **_answered(answer)}, args.json)
    return 0


def _landed(args: argparse.Namespace, report: Any) -> int:
    show(asdict(report), args.json)
    return 0


def _answered(answer: Any) -> dict[str, Any]:
    return {key: value for key, value in answer.model_dump(exclude={"context"}).items() if value is not None}


def upsert(args: argparse.Namespace) -> int:
    table = _table(args)
    rows = read_rows(args.file, table)
    if table.is_stream:
        return _landed(args, table.upsert(rows))
    if not args.on:
        raise InvalidInputError("Say which columns are the key: --on id (repeatable).")
    request = api.MergeInsertIntoTableRequest(
        id=list(table.id.names), on=args.on, when_matched_update_all=True, when_not_matched_insert_all=True,
        branch=table.branch,
    )  # fmt: skip
    show(write_rows(table.namespace, "merge_insert_into_table", request, rows.to_reader()), args.json)
    return 0


def update(args: argparse.Namespace) -> int:
    table = _table(args)
    updates = [[column, expression] for column, expression in args.set]
    request = api.UpdateTableRequest(id=list(table.id.names), updates=updates, predicate=args.where)
    show(args.target.namespace().update_table(request), args.json)
    return 0


def delete(args: argparse.Namespace) -> int:
    table = _table(args)
    if args.where is None:
        confirm(args, f"This will delete all {many(table.count(), 'row')} of {format_name(table.id.names)}.")
    if table.is_stream:
        return _landed(args, table.delete(args.where or "true"))
    request = api.DeleteFromTableRequest(id=list(table.id.names), predicate=args.where or "true", branch=table.branch)
    answer = _answered(args.target.namespace().delete_from_table(request))
    show({"deleted_rows": _rows_less(table, answer.get("version")), **answer}, args.json)
    return 0


def _rows_less(table: Any, version: int | None) -> int | None:
    """Return by how many rows a version is smaller than the one before it; None if the catalog names no version."""
    if version is None:
        return None
    before, after = (table.at(number, branch=table.branch).count() for number in (version - 1, version))
    return int(before - after)


def rename(args: argparse.Namespace) -> int:
    return _move(args, _named(args, args.name), _named(args, args.new))


def move(args: argparse.Namespace) -> int:
    name = _named(args, args.name)
    return _move(args, name, (*args.name_of(args.namespace), name[-1]))


def _move(args: argparse.Namespace, name: tuple[str, ...], new: tuple[str, ...]) -> int:
    catalog = args.target.catalog()
    if _is_namespace(catalog, name):
        catalog.rename_namespace(name, new)
    else:
        catalog.rename_table(name, new)
    show_record({"name": format_name(new), "id": list(new), "was": format_name(name)}, args.json)
    return 0


def _is_namespace(catalog: Catalog, name: tuple[str, ...]) -> bool:
    """Return True if a name is that of a namespace and of no table."""
    if name in catalog:
        return False
    try:
        catalog.namespace.namespace_exists(api.NamespaceExistsRequest(id=list(name)))
    except LanceNamespaceError:
        return False
    return True


def drop(args: argparse.Namespace) -> int:
    name = _named(args, args.name)
    catalog = args.target.catalog()
    is_namespace = _is_namespace(catalog, name)
    if not is_namespace:
        catalog.namespace.table_exists(api.TableExistsRequest(id=list(name)))
    what = "namespace" if is_namespace else "table"
    below = " with all that is in it" if is_namespace and args.cascade else ""
    confirm(args, f"This will drop the {what} {format_name(name)}{below}.")
    if is_namespace:
        catalog.drop_namespace(name, cascade=args.cascade)
    else:
        catalog.drop_table(name)
    show_record({"dropped": format_name(name), "id": list(name)}, args.json)
    return 0


def change_names(args: argparse.Namespace) -> int:
    """Run `undrop`, `alias` or `unalias`: `args.method` is the method of the catalog."""
    name, told = _named(args, args.name), dict[str, Any]()
    catalog = args.target.with_past("memory of what was dropped, nor other names of its objects")
    if args.method == "undrop":
        catalog.undrop(name)
        told["kind"] = "namespace" if _is_namespace(catalog, name) else "table"
    else:
        getattr(catalog, args.method)(name, args.other)
        told["alias"] = args.other
    show_record({"name": format_name(name), "id": list(name), **told}, args.json)
    return 0


def properties(args: argparse.Namespace) -> int:
    name = args.name_of(args.name)
    catalog = args.target.catalog()
    changes = bool(args.set or args.unset)
    if not name or _is_namespace(catalog, name):
        found = (
            catalog.alter_namespace(name, dict(args.set), args.unset) if changes else catalog.namespace_properties(name)
        )
    else:
        found = _table_properties(args, catalog, name) if changes else catalog[name].serving.properties
    if args.json:
        show(found, True)
    else:
        show([f"{key}={value}" for key, value in sorted(found.items())], False)
    return 0


def _table_properties(args: argparse.Namespace, catalog: Catalog, name: tuple[str, ...]) -> dict[str, str]:
    """Set and remove properties of a table. Only a metastore can after its creation; a stream table's have rules."""
    table = catalog[name]
    if table.is_stream:
        table.set_properties({**dict.fromkeys(args.unset), **dict(args.set)})
        return dict(catalog[name].serving.properties)
    here = abilities_of(catalog.namespace).session
    if here is None:
        raise UnsupportedOperationError(
            "This catalog sets the properties of a table when it is created, and not later: a metastore catalog, "
            "opened where its files are, can."
        )

    def work(tx: Transaction) -> None:
        old = dict(tx.get(name).properties)
        tx.update(name, {**{key: value for key, value in old.items() if key not in args.unset}, **dict(args.set)})

    here.change(work, f"properties of {format_name(name)}")
    return dict(catalog[name].serving.properties)


def optimize(args: argparse.Namespace) -> int:
    show(asdict(_table(args).serving.optimize(**_policy(args))), args.json)
    return 0


def clean_up(args: argparse.Namespace) -> int:
    show(asdict(_table(args).serving.clean_up(**_policy(args))), args.json)
    return 0


def _policy(args: argparse.Namespace) -> dict[str, object]:
    names = ("keep_versions", "keep_days", "grace_seconds")
    return {name: value for name in names if (value := getattr(args, name)) is not None}


Fields = dict[str, Any]
FIELDS: dict[str, Callable[[argparse.Namespace], Fields]] = {
    "DeclareTable": lambda args: {"location": args.location, "properties": dict(args.set) or None},
    "RegisterTable": lambda args: {
        "location": args.location, "mode": args.mode, "properties": dict(args.set) or None
    },
    "DeregisterTable": lambda args: {},
    "ExplainTableQueryPlan": lambda args: {
        "query": {"k": 10, "vector": {}, "filter": args.where}, "verbose": args.verbose or None
    },
    "AnalyzeTableQueryPlan": lambda args: {"k": 10, "vector": {}, "filter": args.where},
    "DescribeTableVersion": lambda args: {"version": args.version, "branch": args.branch},
    "BatchDeleteTableVersions": lambda args: {"ranges": args.versions, "branch": args.branch},
    "UpdateTableSchemaMetadata": lambda args: {"metadata": dict(args.set), "branch": args.branch},
    "DescribeTransaction": lambda args: {},
}  # fmt: skip
"""The fields of each request, from the arguments of its verb."""


def run_operation(args: argparse.Namespace) -> int:
    """Call one operation. DeclareTable also makes the catalog and the namespaces above the table."""
    request, method = _request(args), BY_OPERATION[args.operation].method
    if args.operation == "BatchDeleteTableVersions":
        confirm(args, f"This will delete the records of versions of {args.id}, in some catalogs for good.")
    creates = args.operation == "DeclareTable"
    namespace = args.target.opening.writing() if creates else args.target.opening.reading()
    try:
        answer = getattr(namespace, method)(request)
    except NamespaceNotFoundError:
        if not creates or len(request.id) < 2:
            raise
        args.target.made().create_namespace(request.id[:-1], exist_ok=True)
        answer = getattr(namespace, method)(request)
    show(answer, args.json)
    return 0


def _request(args: argparse.Namespace) -> Any:
    named = args.name_of(args.id)
    if not named:
        raise InvalidInputError(f"`headwater {args.command.name}` needs the name of a table.")
    fields = {name: value for name, value in FIELDS[args.operation](args).items() if value is not None}
    try:
        return getattr(api, BY_OPERATION[args.operation].request_model).from_dict({"id": list(named), **fields})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_url=False))
        raise InvalidInputError(f"{args.command.name}: {problems}") from None
