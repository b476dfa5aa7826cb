"""The pages of one table, selected by `?view=`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headwater.cells import cell, image_type, is_vector, size
from headwater.decoding.arrow import read_file, read_schema
from headwater.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError, TableNotFoundError
from headwater.metastore.records.objects import HistoryEntry
from headwater.names import ObjectId
from headwater.rest.page.page_facts import (
    ComparedRows,
    CompareFacts,
    FragmentFacts,
    HistoryFacts,
    LineageFacts,
    QuarantineFacts,
    StreamFacts,
    TableFacts,
    Unpublished,
    VersionFacts,
)
from headwater.rest.routes import Permission
from headwater.web.drawings import Point, draw, number, plot
from headwater.web.queries import FEW, MAX_ROWS, MAX_TEXT, Query, read_query, run, select_from, snippets
from headwater.web.visit import Page, RequestContext
from headwater.web.work_pages import failing

SHOWN = 200
MAX_IMAGE = 8 * 1024 * 1024
PICTURE = ((b"content-security-policy", b"sandbox; default-src 'none'"), (b"cache-control", b"private, max-age=600"))


def table(visit: RequestContext) -> Page:
    """Return the page of a table that the address names."""
    if visit.id.is_root:
        raise TableNotFoundError("The address names no table.")
    name = visit.query.get("view", "overview")
    view = VIEWS.get(name)
    if view is None or name not in _names_of_views(visit):
        visit.ask("TableExists", visit.id)
        raise InvalidInputError(f"There is no view {name[:40]!r} of this table: choose one of those that are shown.")
    return view(visit, visit.id)


def _page(visit: RequestContext, template: str, **values: object) -> Page:
    shared = {
        "id": visit.id,
        "title": visit.id.name,
        "view": visit.query.get("view", "overview"),
        "views": [(name, LABELS[name]) for name in _names_of_views(visit) if name in LABELS],
        "may_drop": visit.may(Permission.DROP, visit.id),
    }
    return Page(template, {**shared, **values})


def _names_of_views(visit: RequestContext) -> list[str]:
    """Return the views of this table for this visitor and kind of catalog."""
    found = ["overview"]
    kind: TableFacts | None = visit.question("PageTable", visit.id) if visit.served.has_history else None
    if kind is None or kind.has_version:
        found += ["rows"] if visit.caller.may(Permission.SELECT, visit.id) else []
        found += ["versions"]
        found += ["compare"] if visit.caller.may(Permission.SELECT, visit.id) else []
        found += ["indices", "files"]
    if kind is not None:
        found += ["streams", "history", "lineage"] if kind.is_stream else ["streams", "history"]
        found += ["quarantine"] if kind.has_quarantine and visit.caller.may(Permission.SELECT, visit.id) else []
    return [*found, "use", "restore", "drop"]


def overview(visit: RequestContext, id: ObjectId) -> Page:
    told = visit.ask("DescribeTable", id, check_declared=True)
    values: dict[str, Any] = {"properties": told.get("properties") or {}, "columns": [], "facts": None}
    if not told.get("is_only_declared"):
        facts = visit.ask("DescribeTableExact", id)
        schema = _schema(facts["arrow_schema"])
        values |= {"facts": facts, "columns": columns_of(schema, _indices(visit, id)), "tags": _tags(visit, id)}
        values["comment"] = (schema.metadata or {}).get(b"comment", b"").decode(errors="replace")
    unpublished = values["unpublished"] = _unpublished(visit, id)
    if unpublished is not None and values["facts"] is None:
        values["columns"] = columns_of(_schema(unpublished.arrow_schema), [])
    values |= {"may_select": visit.caller.may(Permission.SELECT, id), "identity": visit.identity(id)}
    return _page(visit, "table.html", **values)


def _schema(text: str) -> pa.Schema:
    return read_schema(bytes.fromhex(text))


def _unpublished(visit: RequestContext, id: ObjectId) -> Unpublished | None:
    """None for a table that is no stream table."""
    if not visit.served.has_history:
        return None
    found: TableFacts = visit.question("PageTable", id, details=True)
    return found.unpublished


def columns_of(schema: pa.Schema, indices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns, each with its comment and indices."""
    return [
        {
            "name": field.name,
            "type": str(field.type).replace("fixed_size_list<item: ", "vector<"),
            "nullable": field.nullable,
            "comment": (field.metadata or {}).get(b"comment", b"").decode(errors="replace"),
            "indices": [one for one in indices if field.name in one["columns"]],
        }
        for field in schema
    ]


def _indices(visit: RequestContext, id: ObjectId) -> list[dict[str, Any]]:
    return list(visit.ask("ListTableIndices", id, limit=SHOWN).get("indexes") or ())


def _tags(visit: RequestContext, id: ObjectId) -> dict[str, int]:
    found: Mapping[str, Any] = visit.ask("ListTableTags", id, limit=SHOWN).get("tags") or {}
    return {name: int(tag["version"]) for name, tag in found.items() if not tag.get("branch")}


def rows(visit: RequestContext, id: ObjectId) -> Page:
    """Return the page of rows: the first rows, or those of a filter or search."""
    query = read_query(visit)
    error, found = "", None
    try:
        found = run(visit, id, query)
    except LanceNamespaceError as refused:
        if not query.is_asked or int(refused.code) not in (0, 12, 13):
            raise
        error = str(refused)
    schema = _schema(visit.ask("DescribeTableExact", id)["arrow_schema"])
    values = {
        "query": query,
        "found": found,
        "error": error,
        "vectors": [field.name for field in schema if is_vector(field.type)],
        "texts": [
            one["columns"][0] for one in _indices(visit, id) if one.get("index_type") in ("Inverted", "INVERTED", "FTS")
        ],
        "embeds": _text_vectors(visit, id),
        "limit": MAX_ROWS,
        "tags": _tags(visit, id),
        "first": select_from(id.names),
    }
    return _page(visit, "part/rows.html" if visit.is_part else "rows.html", **values)


def _text_vectors(visit: RequestContext, id: ObjectId) -> list[str]:
    """Return the columns whose functions make a vector of a text."""
    if not visit.served.has_history:
        return []
    found: TableFacts = visit.question("PageTable", id, details=True)
    return found.text_vectors


def versions(visit: RequestContext, id: ObjectId) -> Page:
    tags = _tags(visit, id)
    by_version: dict[int, list[str]] = {}
    for name, version in tags.items():
        by_version.setdefault(version, []).append(name)
    found: VersionFacts = visit.question("PageVersions", id, limit=SHOWN)
    may_select = visit.caller.may(Permission.SELECT, id)

    def points(value: str) -> list[Point]:
        return [
            Point(
                f"version {one.version}",
                getattr(one, value),
                ", ".join(by_version.get(one.version, ())),
                one.time_ms,
                visit.links.table(id, view="rows", version=one.version) if may_select else "",
            )
            for one in found.items
        ]

    return _page(
        visit,
        "versions.html",
        versions=[one for one in reversed(found.items) if visit.keeps(one.version, *by_version.get(one.version, ()))],
        total=found.total,
        tags=by_version,
        rows_plot=plot("Rows", points("rows"), number),
        bytes_plot=plot("Bytes", points("bytes"), size, "bytes"),
        may_write=visit.may(Permission.WRITE, id),
        may_select=may_select,
    )


def indices(visit: RequestContext, id: ObjectId) -> Page:
    found = _indices(visit, id)
    kept = [one for one in found if visit.keeps(one["index_name"], one.get("index_type", ""), *one["columns"])]
    return _page(visit, "indices.html", indices=kept, total=len(found))


def files(visit: RequestContext, id: ObjectId) -> Page:
    found: FragmentFacts = visit.question("PageFragments", id, limit=SHOWN, word=visit.wanted)
    values = {"fragments": found.fragments, "total": found.total, "largest": found.largest, "version": found.version}
    return _page(visit, "files.html", **values)


def streams(visit: RequestContext, id: ObjectId) -> Page:
    visit.ask("TableExists", id)
    found: StreamFacts = visit.question("PageStreams", id, limit=SHOWN, word=visit.wanted)
    versions = visit.ask("ListNamedVersions", id)["versions"]
    values = {"streams": found.streams, "version": found.version, "versions": versions}
    return _page(visit, "streams.html", unpublished=_unpublished(visit, id), **values)


def history(visit: RequestContext, id: ObjectId) -> Page:
    """Return the page of transactions of the table, newest first, with author and changes."""
    visit.ask("TableExists", id)
    found: HistoryFacts = visit.question("PageHistory", id, limit=SHOWN)
    changed: dict[str, list[tuple[str, str | None, str | None]]] = {}
    before: Mapping[str, Any] = {}
    for txn, properties in found.properties:
        changed[txn] = differences(before, properties)
        before = properties
    steps = [
        {"entry": one, "told": one.summary, "changes": changed.get(one.txn, [])}
        for one in reversed(found.entries)
        if visit.keeps(*_texts_of(one, changed.get(one.txn, [])))
    ]
    return _page(visit, "history.html", steps=steps, total=found.total)


def _texts_of(entry: HistoryEntry, changes: list[tuple[str, str | None, str | None]]) -> list[object]:
    """Return the texts of a history entry, for the filter box."""
    told = [entry.summary, entry.author, entry.slot, entry.message]
    return [*told, *(text or "" for one in changes for text in one)]


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[tuple[str, str | None, str | None]]:
    """Return the changed properties: name, old value, new value; None for a missing value."""
    names = sorted({*before, *after})
    return [
        (name, _shown(before.get(name)), _shown(after.get(name)))
        for name in names
        if before.get(name) != after.get(name)
    ]


def _shown(value: object) -> str | None:
    return None if value is None else str(value)[:500]


def lineage(visit: RequestContext, id: ObjectId) -> Page:
    """Return the page of the lineage of a table, or of the column that the address names."""
    visit.ask("TableExists", id)
    column = visit.query.get("column", "")[:MAX_TEXT]
    found: LineageFacts = visit.question("PageLineage", id, word=column)
    failed = failing(visit)
    drawing = draw(found, visit.links, visit.served.clock.now_ms(), {run.pipeline for run in failed})
    values = {"complete": found.complete, "told": found.noted, "columns": found.columns, "column": column}
    return _page(visit, "lineage.html", drawing=drawing, alone=len(found.boxes) == 1, failing=failed, **values)


def quarantine(visit: RequestContext, id: ObjectId) -> Page:
    """Return the page of rejected rows by reason and source, with buttons to take them again or to drop them."""
    found: QuarantineFacts = visit.question("PageQuarantine", id)
    kept = [
        group for group in found.groups if visit.keeps(group.reason, group.source, *(one.row for one in group.rows))
    ]
    done = {name: visit.number(name) for name in ("taken", "left", "dropped")}
    may_write = visit.may(Permission.WRITE, id)
    return _page(visit, "quarantine.html", groups=kept, total=found.total, done=done, may_write=may_write)


def compare(visit: RequestContext, id: ObjectId) -> Page:
    """Return the page of two versions side by side: columns, and rows added, removed and changed."""
    since, until = visit.number("from", 1), visit.number("to", 1)
    error, found, shown = "", None, dict[str, Any]()
    try:
        found = visit.question("PageCompare", id, since=since, until=until, limit=FEW)
        since, until, shown = found.since, found.until, compared(found)
    except LanceNamespaceError as refused:
        if int(refused.code) not in (11, 13):
            raise
        error = str(refused)
    return _page(visit, "compare.html", since=since or "", until=until or "", found=found, error=error, **shown)


def compared(found: CompareFacts) -> dict[str, Any]:
    """Return rows of a comparison as cells: added and removed rows, and of changed rows the cells that differ."""
    if found.added is None or found.removed is None or found.old is None or found.new is None:
        return {}
    old, new = _read(found.old), _read(found.new)
    names = [name for name in new.schema.names if name in old.schema.names]
    types = {field.name: field.type for field in new.schema}
    changed = []
    for before, after in zip(old.to_pylist(), new.to_pylist(), strict=True):
        differ = [name for name in names if before[name] != after[name]]
        keys = [cell(after[name], types[name]) for name in found.by]
        changed.append(
            (keys, [(name, cell(before[name], types[name]), cell(after[name], types[name])) for name in differ])
        )
    return {"added": _cells(found.added), "removed": _cells(found.removed), "changed": changed}


def _read(rows: ComparedRows) -> pa.Table:
    return read_file(bytes.fromhex(rows.arrow)).read_all()


def _cells(rows: ComparedRows) -> dict[str, object]:
    table = _read(rows)
    values = table.to_pylist()
    return {
        "names": table.schema.names,
        "rows": [[cell(row[field.name], field.type) for field in table.schema] for row in values],
        "total": rows.total,
    }


def use(visit: RequestContext, id: ObjectId) -> Page:
    return _page(visit, "use.html", snippets=snippets(visit.site, id, visit.served.gate.is_closed()))


def restore(visit: RequestContext, id: ObjectId) -> Page:
    """Return the page that asks for confirmation of a restore."""
    version = visit.number("version", 1)
    visit.ask("TableExists", id, version=version)
    return _page(visit, "restore.html", version=version)


def drop(visit: RequestContext, id: ObjectId) -> Page:
    visit.ask("TableExists", id)
    action = visit.links.to("do", "drop-table", *id.names)
    return _page(visit, "confirm.html", kind="table", inside=0, action=action)


def image(visit: RequestContext) -> Page:
    """Return a cell as an image if its first bytes are of one, in a sandbox without scripts."""
    column = visit.query.get("column", "")
    query = Query(
        filter=visit.query.get("filter", ""), version=visit.number("version"), offset=visit.number("offset") or 0
    )
    found = visit.rows(
        visit.id,
        k=1,
        offset=query.offset,
        version=query.version,
        filter=query.filter or None,
        columns={"column_names": [column]},
    )
    value = found.column(0)[0].as_py() if found.num_rows and found.num_columns else None
    data = value if isinstance(value, bytes) else b""
    kind = image_type(data)
    if kind is None or len(data) > MAX_IMAGE:
        raise InvalidTableStateError(
            "The cell holds no image that is shown here: PNG, JPEG, GIF and WebP up to 8 MiB are."
        )
    return Page(body=data, headers=((b"content-type", kind.encode()), *PICTURE))


VIEWS: dict[str, Callable[[RequestContext, ObjectId], Page]] = {
    "overview": overview,
    "rows": rows,
    "versions": versions,
    "compare": compare,
    "quarantine": quarantine,
    "indices": indices,
    "files": files,
    "streams": streams,
    "history": history,
    "lineage": lineage,
    "use": use,
    "restore": restore,
    "drop": drop,
}
LABELS = {
    "overview": "Overview",
    "rows": "Rows and search",
    "versions": "Versions",
    "compare": "Compare",
    "quarantine": "Quarantine",
    "indices": "Indices",
    "files": "Files",
    "streams": "Streams",
    "history": "History",
    "lineage": "Lineage",
    "use": "Use it",
}
