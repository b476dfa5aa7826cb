"""The verbs that look: tree, ls, show, schema, stats, find."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from headwater.cli.lookups import Child, Lookups, names_of, walk
from headwater.cli.output import (
    Bytes,
    ago,
    cell,
    fitted,
    is_terminal,
    plain,
    say_json,
    show,
    show_names,
    show_records,
    size,
    visible,
)
from headwater.cli.parsing import fail
from headwater.cli.target import Target, moment_of, open_table
from headwater.config import is_catalog
from headwater.errors import LanceNamespaceError, NamespaceNotFoundError, UnsupportedOperationError
from headwater.lance_manifest import COMMENT, MEM_WAL_INDEX
from headwater.metastore import Locator
from headwater.metastore.records.layout import is_key
from headwater.names import format_name
from headwater.tables.handle import unread_rows
from headwater.wording import many, partition_text

SHOWN_LINES = 24
SHOWN_COLUMNS = 10
SHOWN_NAMES = 15
SHOWN_DERIVED = 4
SHOWN_CATALOGS = 3
MOST_FOLDERS = 100


def _record(child: Child, id: Sequence[str]) -> dict[str, object]:
    return {"name": format_name(id), "id": list(id), "kind": "table" if child.is_table else "namespace"}


def ls(args: argparse.Namespace) -> int:
    parent = args.name_of(args.namespace)
    found = names_of(args.target, moment_of(args))
    children = islice(found.children(parent), args.limit)
    lines = ((_shown(child), _record(child, (*parent, child.name))) for child in children)
    show_names(lines, args.json)
    return 0


def _shown(child: Child) -> str:
    name = format_name([child.name])
    return name if child.is_table else f"{name}/"


def tree(args: argparse.Namespace) -> int:
    parent = args.name_of(args.namespace)
    found = names_of(args.target, moment_of(args))
    if args.json:
        for child, id in walk(found, parent):
            say_json(_record(child, id))
        return 0
    print(format_name(parent) or ".")
    for line in branches(found, parent, ""):
        print(line)
    return 0


def branches(found: Lookups, parent: Sequence[str], indent: str) -> Iterator[str]:
    """The drawing of what is below a namespace."""
    children = found.children(parent)
    for position, child in enumerate(children, start=1):
        last = position == len(children)
        yield f"{indent}{'└── ' if last else '├── '}{visible(_shown(child))}"
        if not child.is_table:
            yield from branches(found, (*parent, child.name), indent + ("    " if last else "│   "))


def find(args: argparse.Namespace) -> int:
    exact = _identified(args)
    if exact is not None:
        show_records([exact], args.json)
        return 0
    found = names_of(args.target, moment_of(args))
    word = args.word.casefold()
    hits = (
        {**_record(child, id), "where": where, "found": text}
        for child, id in walk(found)
        for where, text in _hits(found, child, id, word)
    )
    show_records(islice(hits, args.limit), args.json, f"headwater: nothing has {args.word!r} in it.")
    return 0


def _identified(args: argparse.Namespace) -> dict[str, object] | None:
    """Return the record of the object that a locator or an id names; None for a word that is neither."""
    is_id = is_key(args.word)
    state = _objects(args) if is_id or "|" in args.word else None
    if state is None:
        return None
    try:
        found = state.by_id(args.word) if is_id else state.find(args.word)
    except LanceNamespaceError as error:
        if int(error.code) not in (0, 1, 4, 11, 13):  # a word like any other
            raise
        return None
    above = state.by_id(found.key.partition("/")[0]) if found.kind == "delta" else found
    where = "id" if is_id else "locator"
    record = {"name": format_name(above.path), "id": list(above.path), "kind": found.kind, "where": where}
    return {**record, "locator": found.locator, "immutable_id": found.id, "key": found.key}


def _objects(args: argparse.Namespace) -> Any:
    """Return what finds objects by locator and id at a moment: a state of the metastore, or a served catalog."""
    said, here = moment_of(args), args.target.metastore
    if here is not None:
        return here.now() if said is None else here.at(said)
    if args.target.server is None:
        return None
    catalog = args.target.catalog()
    return catalog if said is None else catalog.at(said)


def _hits(found: Lookups, child: Child, id: Sequence[str], word: str) -> Iterator[tuple[str, str]]:
    """Yield the places of an object that hold a word, with their texts."""
    if word in child.name.casefold():
        yield "name", child.name
    words = found.words(child, id)
    for column, comment in words.columns.items():
        if word in column.casefold():
            yield "column", column
        if word in comment.casefold():
            yield f"comment of {column}", comment
    for key, value in words.properties.items():
        if word in key.casefold() or word in value.casefold():
            yield ("comment", value) if key == COMMENT else ("property", f"{key}={value}")


def schema(args: argparse.Namespace) -> int:
    show_records(columns_of(open_table(args).schema), args.json)
    return 0


def columns_of(schema: Any) -> list[dict[str, Any]]:
    return [
        {
            "column": field.name,
            "type": str(field.type),
            "nullable": field.nullable,
            "comment": (field.metadata or {}).get(COMMENT.encode(), b"").decode(errors="replace") or None,
        }
        for field in schema
    ]


def stats(args: argparse.Namespace) -> int:
    found = plain(open_table(args).serving.stats())
    show({**found, "total_bytes": Bytes(found["total_bytes"])} if "total_bytes" in found else found, args.json)
    return 0


def show_verb(args: argparse.Namespace) -> int:
    """A table or namespace in at most 24 lines."""
    id = args.name_of(args.name)
    try:
        record = _table_record(args, id) if id else _namespace_record(args, id)
    except LanceNamespaceError as error:
        if int(error.code) not in (1, 4) or not id:
            raise
        try:
            record = _namespace_record(args, id)
        except NamespaceNotFoundError:
            raise error from None
    if args.json:
        say_json(record)
        return 0
    for line in _lines(record)[:SHOWN_LINES]:
        print(fitted(line))
    return 0


def here(args: argparse.Namespace) -> int:
    """Print what the default catalog, or the catalogs of this folder, hold; exit 2 with the usage if there is none."""
    named = [args.catalog] if args.catalog else _catalogs()
    if not named:
        fail("there is no catalog here, and no verb: say what to do")
    for name in named[:SHOWN_CATALOGS]:
        target = args.target if args.catalog else Target(name)
        drawn = list(islice(branches(names_of(target), (), ""), SHOWN_LINES))
        print(f"catalog {visible(name)}{'' if drawn else ': empty'}")
        room = SHOWN_LINES // min(len(named), SHOWN_CATALOGS) - 2
        for line in [*drawn[:room], *(["..."] if len(drawn) > room else [])]:
            print(fitted(line))
    if len(named) > SHOWN_CATALOGS:
        print(f"... and {len(named) - SHOWN_CATALOGS} more catalogs")
    print(f"Next: headwater show -c {visible(named[0])} NAME, or headwater --help.")
    return 0


def _catalogs() -> list[str]:
    """Return this folder if it is a catalog, whose folders are its own, else the catalogs in it."""
    if is_catalog("."):
        return ["."]
    below = sorted(entry.name for entry in os.scandir(".") if entry.is_dir() and not entry.name.startswith("."))
    return [each for name in below[:MOST_FOLDERS] if is_catalog(each := f"./{name}")]


def _namespace_record(args: argparse.Namespace, id: Sequence[str]) -> dict[str, object]:
    record = namespace_record(names_of(args.target, moment_of(args)), id)
    return {**record, **_identity(_objects(args), id)} if id else record


def _table_record(args: argparse.Namespace, id: Sequence[str]) -> dict[str, object]:
    table = open_table(args, name=args.name)
    record, said, catalog = table_record(table), moment_of(args), args.target.catalog()
    then = catalog if said is None else _asked(lambda: catalog.at(said))
    known = _identity(then, id)
    if known:
        known["parts"] = [
            {
                "kind": each.kind,
                "immutable_id": each.id,
                "key": each.key,
                "locator": each.locator,
                "values": each.values,
            }
            for each in then.objects(id)
        ]
    return {**record, **known}


def _identity(objects: Any, id: Sequence[str]) -> dict[str, object]:
    """Return the immutable id, locator and aliases of a namespace or table, as far as its catalog has them."""
    found = None if objects is None else _asked(lambda: objects.find(Locator(tuple(id))))
    if found is None:
        return {}
    return {"immutable_id": found.id, "locator": found.locator, "aliases": list(found.aliases)}


def namespace_record(found: Lookups, id: Sequence[str]) -> dict[str, Any]:
    """Return the record of a namespace that `show` prints."""
    children = found.children(id)
    properties = dict(found.words(Child("", False), id).properties) if id else {}
    return {
        "name": format_name(id),
        "id": list(id),
        "kind": "namespace",
        "level": len(id),
        "tables_at_level": None if id else _level_of(found),
        "comment": properties.pop(COMMENT, None),
        "namespaces": [child.name for child in children if not child.is_table],
        "tables": [child.name for child in children if child.is_table],
        "properties": properties,
    }


def _level_of(found: Lookups) -> int | None:
    """Return N if every table of the catalog is at level N; None if they are at several, or there is none."""
    levels, waiting = set[int](), list[tuple[str, ...]]([()])
    while waiting and len(levels) < 2:
        id = waiting.pop()
        children = found.children(id)
        levels |= {len(id) + 1} if any(child.is_table for child in children) else set()
        waiting += [(*id, child.name) for child in children if not child.is_table]
    return levels.pop() if len(levels) == 1 else None


def table_record(table: Any) -> dict[str, Any]:
    """Return the record of a table, or of a stream table and its serving copy, that `show` prints."""
    serving, is_stream = table.serving, table.is_stream
    properties = dict(serving.properties)
    versions = _asked(serving.versions) or []
    version = table.version if not is_stream and table.version else versions[-1].version if versions else None
    seen = next((item.time for item in versions if item.version == version), None)
    sizes = _asked(serving.stats)
    record = {
        "name": format_name(serving.id.names),
        "id": list(serving.id.names),
        "kind": "stream table" if is_stream else "table",
        "comment": properties.pop(COMMENT, None),
        "rows": _asked(table.count),
        "bytes": Bytes(sizes.total_bytes) if sizes is not None and sizes.total_bytes is not None else None,
        "version": version,
        "changed": seen,
        "columns": columns_of(table.schema) if versions or is_stream else [],
        "indices": _indices(serving),
        "tags": _asked(lambda: dict(serving.tags)) or {},
        "branches": _asked(lambda: list(serving.branches)) or [],
        "properties": properties,
    }
    if any(index["index"] == MEM_WAL_INDEX for index in record["indices"]):
        record["note"] = unread_rows(record["name"])
    if is_stream:
        published = table.published
        record["keys"], record["sequence"] = list(table.definition.keys), list(table.definition.sequence)
        record["derived"] = [_derived(each) for each in table.definition.derived]
        record["unpublished"] = table.position - (published.position if published is not None else 0)
    return record


def _derived(column: Any) -> dict[str, object]:
    told = {"column": column.name, "type": str(column.type), "function": column.function}
    return {**told, "inputs": list(column.inputs), "version": column.version}


def _asked(question: Any) -> Any:
    """Return an answer, or None where the catalog or a table that is only declared has none."""
    try:
        return question()
    except LanceNamespaceError as error:
        if isinstance(error, UnsupportedOperationError) or int(error.code) in (4, 11, 18, 19):
            return None
        raise


def _indices(table: Any) -> list[dict[str, Any]]:
    found = _asked(lambda: dict(table.indices)) or {}
    return [{"index": name, "columns": list(item.columns), "type": index_type(item)} for name, item in found.items()]


def index_type(item: object) -> str | None:
    return getattr(item, "index_type", None)


def _lines(record: Mapping[str, Any]) -> list[str]:
    lines = [f"{record['kind']} {visible(record['name'] or 'the root')}"]
    if record.get("comment"):
        lines.append(visible(record["comment"]))
    if record.get("locator"):
        lines.append(visible(f"id {record['immutable_id']}, locator {record['locator']}"))
        names = record["aliases"]
        lines += [f"aliases: {visible(', '.join(names[:5]))}{_more(names, 5)}"] if names else []
    if record["kind"] == "namespace":
        for key in ("namespaces", "tables"):
            names = record[key]
            shown = f": {visible(', '.join(names[:SHOWN_NAMES]))}{_more(names, SHOWN_NAMES)}" if names else ""
            lines.append(f"{key} ({len(names)}){shown}")
        if record["tables_at_level"] is not None:
            lines.append(f"every table is at level {record['tables_at_level']}")
    else:
        lines += _table_lines(record)
    properties = list(record["properties"].items())
    lines += [f"{visible(key)} = {visible(value)}" for key, value in properties[:3]]
    return [*lines, f"... {len(properties) - 3} more properties"] if len(properties) > 3 else lines


def _table_lines(record: Mapping[str, Any]) -> list[str]:
    rows = (
        "no rows yet (declared)"
        if record["rows"] is None
        else f"{record['rows']:,} row{'' if record['rows'] == 1 else 's'}"
    )
    bytes = "" if record["bytes"] is None else f", {size(record['bytes'])}"
    changed = record["changed"]
    when = "" if changed is None else f", {ago(changed) if is_terminal() else cell(changed)}"
    lines = [f"{rows}{bytes}", "no version yet" if record["version"] is None else f"version {record['version']}{when}"]
    if record.get("keys"):
        order = f", ordered by {', '.join(record['sequence'])}" if record["sequence"] else ""
        lines.append(visible(f"keys {', '.join(record['keys'])}{order}"))
    if record.get("note"):
        lines.append(visible(record["note"]))
    if record.get("unpublished"):
        is_one = record["unpublished"] == 1
        waiting = f"{many(record['unpublished'], 'delta')} {'is' if is_one else 'are'} not published yet"
        lines.append(f"{waiting}: headwater publish {visible(record['name'])}")
    texts = [partition_text(each["values"]) for each in record.get("parts", ()) if each["values"]]
    if texts:
        lines.append(f"partitions ({len(texts)}): {visible(', '.join(texts[:5]))}{_more(texts, 5)}")
    columns, derived = record["columns"], record.get("derived", ())[:SHOWN_DERIVED]
    width = min(30, max((len(visible(item["column"])) for item in [*columns[:SHOWN_COLUMNS], *derived]), default=0))
    lines += [_column(item, width) for item in columns[:SHOWN_COLUMNS]]
    if len(columns) > SHOWN_COLUMNS:
        lines.append(f"  ... {len(columns) - SHOWN_COLUMNS} more columns: headwater schema {visible(record['name'])}")
    for each in derived:
        made = f"{each['function']}({', '.join(each['inputs'])}), version {each['version']}"
        lines.append(visible(f"  {each['column']:{width}}  {each['type']}  derived: {made}"))
    indices = [f"{item['index']} ({', '.join(item['columns'])})" for item in record["indices"]]
    tags = [f"{name} (version {version})" for name, version in record["tags"].items()]
    for key, names in (("indices", indices), ("tags", tags), ("branches", record["branches"])):
        if names:
            lines.append(f"{key}: {visible(', '.join(names[:5]))}{_more(names, 5)}")
    return lines


def _column(item: Mapping[str, Any], width: int) -> str:
    comment = f"  {visible(item['comment'])}" if item["comment"] else ""
    null = "" if item["nullable"] else "  not null"
    return f"  {visible(item['column']):<{width}}  {visible(item['type'])}{null}{comment}"


def _more(names: Sequence[object], shown: int) -> str:
    return f" and {len(names) - shown} more" if len(names) > shown else ""
