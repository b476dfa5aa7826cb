"""The command line: parse, open the catalog, call one operation, print, and exit as the error table says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import lance_namespace
import pyarrow as pa
from lance_namespace import LanceNamespace
from pydantic import ValidationError

from headwater.catalog import Catalog, CatalogTable
from headwater.cli.files import read_rows
from headwater.cli.moving import add_moving
from headwater.cli.output import plain, show, show_rows
from headwater.cli.pipeline import add_pipeline
from headwater.cli.serving import add_serving, properties_of, say
from headwater.cli.verbs import VERBS, Arg, Verb, number, request_fields
from headwater.config import Opening, repair, resolve
from headwater.errors import (
    ERRORS,
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    UnsupportedOperationError,
)
from headwater.names import ObjectId, parse
from headwater.namespace.readers import write_rows
from headwater.rest.routes import BY_OPERATION

INTERNAL_EXIT = 1
INTERRUPTED_EXIT = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is 0, argparse's 2, or that of the error table."""
    given = build_parser().parse_args(arguments)
    try:
        return int(given.run(given) or 0)
    except LanceNamespaceError as error:
        print(f"headwater: {error}", file=sys.stderr)
        return ERRORS[int(error.code)].exit
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except Exception as error:
        print(f"headwater: unexpected failure ({type(error).__name__}): {error}", file=sys.stderr)
        return INTERNAL_EXIT


def build_parser() -> argparse.ArgumentParser:
    """Every verb, from the table and the few that are more than one operation."""
    parser = argparse.ArgumentParser(prog="headwater", description="One catalog for Lance tables, on plain storage.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    add_serving(verbs)
    add_pipeline(verbs)
    add_moving(verbs)
    _add_composed(verbs)
    for verb in VERBS:
        _add_verb(verbs, verb)
    return parser


def _add_catalog(parser: argparse.ArgumentParser, id: str | None = None, optional: bool = False) -> None:
    parser.add_argument("catalog", help="a path, a URI, or the name of a profile")
    if id is not None:
        parser.add_argument("id", nargs="?" if optional else None, default="", help=id)
    parser.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="as `connect` takes them")
    parser.add_argument("--delimiter", default=".", help="between the names of an id (.)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_verb(verbs: Any, verb: Verb) -> None:
    parser = verbs.add_parser(verb.name, help=verb.about, description=f"{verb.operation}: {verb.about}.")
    is_list = verb.operation in ("ListNamespaces", "ListTables")
    _add_catalog(parser, None if verb.without_id else "names joined by the delimiter, such as prod.users", is_list)
    if verb.data:
        parser.add_argument(
            "file", help="rows: .parquet, .csv, .arrow (IPC file or stream), or - for a stream on stdin"
        )
    for arg in verb.args:
        _add_arg(parser, arg)
    parser.set_defaults(run=lambda given: _run(verb, given))


def _add_arg(parser: argparse.ArgumentParser, arg: Arg) -> None:
    options: dict[str, Any] = {"help": arg.about}
    if arg.flag:
        options["action"] = "store_true"
    elif arg.repeat:
        options["action"] = "append"
    if arg.convert is not None and not arg.flag:
        options["type"] = arg.convert
    if arg.required:
        options["required"] = True
    parser.add_argument(arg.name, **options)


def _opening(given: argparse.Namespace) -> Opening:
    return Opening(given.catalog, properties_of(given.property), say)


def _open(given: argparse.Namespace) -> LanceNamespace:
    """The catalog of a verb that makes none."""
    return _opening(given).reading()


def _run(verb: Verb, given: argparse.Namespace) -> int:
    """One verb that is one operation; one that creates also makes the catalog and the namespaces above."""
    fields = request_fields(verb, given)
    model = getattr(lance_namespace, BY_OPERATION[verb.operation].request_model)
    try:
        request = model.from_dict(fields)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors(include_url=False))
        raise InvalidInputError(f"{verb.name}: {problems}") from None
    rows = read_rows(given.file) if verb.data and verb.creates else None
    namespace = _opening(given).writing() if verb.creates else _open(given)
    if verb.data and rows is None:
        rows = read_rows(given.file, CatalogTable(namespace, ObjectId(tuple(request.id))))
    try:
        answer = _call(namespace, verb, request, rows)
    except NamespaceNotFoundError:
        if not verb.creates or len(request.id) < 2:
            raise
        Catalog(namespace).create_namespace(request.id[:-1], exist_ok=True)
        answer = _call(namespace, verb, request, rows)
    show(answer, given.json)
    return 0


def _call(namespace: LanceNamespace, verb: Verb, request: Any, rows: pa.Table | None) -> Any:
    if rows is None:
        return getattr(namespace, verb.method)(request)
    return write_rows(namespace, verb.method, request, rows.to_reader())


def _add_composed(verbs: Any) -> None:
    """Verbs that people want and that are more than one operation."""
    listing = verbs.add_parser("ls", help="list what is in a namespace: namespaces end in /")
    _add_catalog(listing, "a namespace (the root)", optional=True)
    listing.set_defaults(run=_ls)
    tree = verbs.add_parser("tree", help="draw the whole catalog")
    _add_catalog(tree)
    tree.set_defaults(run=_tree)
    for name, about, limit in (("query", "read rows of a table", 100), ("head", "show the first rows of a table", 10)):
        rows = verbs.add_parser(name, help=about)
        _add_catalog(rows, "a table")
        rows.add_argument("--where", help="only rows where this SQL holds")
        rows.add_argument("--column", action="append", help="only this column (repeatable)")
        rows.add_argument("--limit", type=number, default=limit, help=f"at most so many ({limit})")
        rows.add_argument("--version", type=number, help="at this version")
        rows.add_argument("--vector", help="the nearest to this vector: numbers with commas between")
        rows.set_defaults(run=_query)
    for name, about in (("clean-up", "remove old versions and free their disk"), ("optimize", "merge, then clean up")):
        clean = verbs.add_parser(name, help=about)
        _add_catalog(clean, "a table")
        clean.add_argument("--keep-versions", type=number, help="the newest so many stay")
        clean.add_argument("--keep-days", type=float, help="those of so many days stay")
        clean.add_argument("--grace-seconds", type=float, help="those replaced so recently stay (600)")
        clean.set_defaults(run=_clean_up)
    migrate = verbs.add_parser(
        "migrate", help="give every table that is only a folder its row in __manifest (V1 to V2)"
    )
    _add_catalog(migrate)
    migrate.set_defaults(run=_migrate)
    verify = verbs.add_parser("verify", help="check that a catalog is whole")
    _add_catalog(verify)
    verify.set_defaults(run=_verify)
    mend = verbs.add_parser("repair", help="write anew what a metastore has lost and its other files still say")
    _add_catalog(mend)
    mend.set_defaults(run=_repair)


def _ls(given: argparse.Namespace) -> int:
    catalog = Catalog(_open(given))
    names = parse(given.id or "", given.delimiter).names
    listed = [*(f"{name}/" for name in catalog.namespaces(names)), *catalog.tables(names)]
    show(listed, given.json)
    return 0


def _tree(given: argparse.Namespace) -> int:
    drawing = Catalog(_open(given)).tree()
    show(drawing, given.json)
    return 0


def _query(given: argparse.Namespace) -> int:
    fields: dict[str, Any] = {
        "id": list(parse(given.id, given.delimiter).names),
        "k": max(given.limit, 1),
        "vector": {"single_vector": _vector(given.vector)} if given.vector else {},
        "filter": given.where,
        "version": given.version,
        "columns": {"column_names": given.column} if given.column else None,
    }
    request = lance_namespace.QueryTableRequest.from_dict(fields)
    if request is None:
        raise InvalidInputError("The query is empty.")
    answer = _open(given).query_table(request)
    data: Any = answer if isinstance(answer, bytes) else answer.data
    show_rows(pa.ipc.open_file(data).read_all().slice(0, given.limit), given.json)
    return 0


def _vector(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInputError("--vector takes numbers with commas between, such as 0.1,0.2.") from None


def _clean_up(given: argparse.Namespace) -> int:
    names = ("keep_versions", "keep_days", "grace_seconds")
    policy = {name: value for name in names if (value := getattr(given, name)) is not None}
    table = Catalog(_open(given))[parse(given.id, given.delimiter).names]
    show(asdict(table.clean_up(**policy) if given.verb == "clean-up" else table.optimize(**policy)), given.json)
    return 0


def _repair(given: argparse.Namespace) -> int:
    """The files that were written; InvalidTableState (19), saying what is missing, if that is not enough."""
    written = repair(resolve(given.catalog, properties_of(given.property)))
    show(written if written else "Nothing was missing.", given.json)
    return 0


def _migrate(given: argparse.Namespace) -> int:
    migrate = getattr(_open(given), "migrate", None)
    if migrate is None:
        raise UnsupportedOperationError(f"The catalog {given.catalog} has no folders to migrate.")
    show(migrate(), given.json)
    return 0


def _verify(given: argparse.Namespace) -> int:
    """A catalog that can check itself does so; its findings are printed, and any of them is exit 1."""
    check = getattr(_open(given), "verify", None)
    if check is None:
        raise UnsupportedOperationError(f"The catalog {given.catalog} has no check of its own.")
    findings = plain(check())
    show(findings if findings else "The catalog is whole.", given.json)
    return INTERNAL_EXIT if findings else 0
