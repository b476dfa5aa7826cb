"""The pages of one table, selected by `?view=`, and their SVG drawings: plots over versions, and the lineage.

`static/plots.js` and `static/graph.js` redraw the drawings in browsers that run scripts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from headwater.cells import image_type, is_vector, size
from headwater.decoding.arrow import read_schema
from headwater.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError, TableNotFoundError
from headwater.metastore.records.objects import HistoryEntry, summary_of
from headwater.names import ObjectId
from headwater.rest.page.page_facts import (
    Box,
    FragmentFacts,
    HistoryFacts,
    LineageFacts,
    StreamFacts,
    TableFacts,
    Unpublished,
    VersionFacts,
)
from headwater.rest.routes import Permission
from headwater.web.queries import MAX_ROWS, Query, read_query, run, snippets
from headwater.web.visit import Links, Page, Visit

SHOWN = 200
MAX_IMAGE = 8 * 1024 * 1024
PICTURE = ((b"content-security-policy", b"sandbox; default-src 'none'"), (b"cache-control", b"private, max-age=600"))


def table(visit: Visit) -> Page:
    """Return the page of a table that the address names."""
    if visit.id.is_root:
        raise TableNotFoundError("The address names no table.")
    name = visit.query.get("view", "overview")
    view = VIEWS.get(name)
    if view is None or name not in _names_of_views(visit):
        visit.ask("TableExists", visit.id)
        raise InvalidInputError(f"There is no view {name[:40]!r} of this table: choose one of those that are shown.")
    return view(visit, visit.id)


def _page(visit: Visit, template: str, **values: object) -> Page:
    shared = {
        "id": visit.id,
        "title": visit.id.name,
        "view": visit.query.get("view", "overview"),
        "views": [(name, LABELS[name]) for name in _names_of_views(visit) if name in LABELS],
        "may_drop": visit.may(Permission.DROP, visit.id),
    }
    return Page(template, {**shared, **values})


def _names_of_views(visit: Visit) -> list[str]:
    """Return the views of this table for this visitor and kind of catalog."""
    found = ["overview"]
    kind: TableFacts | None = visit.question("PageTable", visit.id) if visit.served.has_history else None
    if kind is None or kind.has_version:
        found += ["rows"] if visit.caller.may(Permission.SELECT, visit.id) else []
        found += ["versions", "indices", "files"]
    if kind is not None:
        found += ["streams", "history", "lineage"] if kind.is_stream else ["streams", "history"]
    return [*found, "use", "restore", "drop"]


def overview(visit: Visit, id: ObjectId) -> Page:
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


def _unpublished(visit: Visit, id: ObjectId) -> Unpublished | None:
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


def _indices(visit: Visit, id: ObjectId) -> list[dict[str, Any]]:
    return list(visit.ask("ListTableIndices", id, limit=SHOWN).get("indexes") or ())


def _tags(visit: Visit, id: ObjectId) -> dict[str, int]:
    found: Mapping[str, Any] = visit.ask("ListTableTags", id, limit=SHOWN).get("tags") or {}
    return {name: int(tag["version"]) for name, tag in found.items() if not tag.get("branch")}


def rows(visit: Visit, id: ObjectId) -> Page:
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
        "limit": MAX_ROWS,
        "tags": _tags(visit, id),
    }
    return _page(visit, "part/rows.html" if visit.is_part else "rows.html", **values)


def versions(visit: Visit, id: ObjectId) -> Page:
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
        rows_plot=plot("Rows", points("rows"), lambda value: f"{int(value):,}".replace(",", " ")),
        bytes_plot=plot("Bytes", points("bytes"), size, "bytes"),
        may_write=visit.may(Permission.WRITE, id),
        may_select=may_select,
    )


def indices(visit: Visit, id: ObjectId) -> Page:
    found = _indices(visit, id)
    kept = [one for one in found if visit.keeps(one["index_name"], one.get("index_type", ""), *one["columns"])]
    return _page(visit, "indices.html", indices=kept, total=len(found))


def files(visit: Visit, id: ObjectId) -> Page:
    found: FragmentFacts = visit.question("PageFragments", id, limit=SHOWN, word=visit.wanted)
    values = {"fragments": found.fragments, "total": found.total, "largest": found.largest, "version": found.version}
    return _page(visit, "files.html", **values)


def streams(visit: Visit, id: ObjectId) -> Page:
    visit.ask("TableExists", id)
    found: StreamFacts = visit.question("PageStreams", id, limit=SHOWN, word=visit.wanted)
    values = {"streams": found.streams, "version": found.version}
    return _page(visit, "streams.html", unpublished=_unpublished(visit, id), **values)


def history(visit: Visit, id: ObjectId) -> Page:
    """Return the page of transactions of the table, newest first, with author and changes."""
    visit.ask("TableExists", id)
    found: HistoryFacts = visit.question("PageHistory", id, limit=SHOWN)
    changed: dict[str, list[tuple[str, str | None, str | None]]] = {}
    before: Mapping[str, Any] = {}
    for txn, properties in found.properties:
        changed[txn] = differences(before, properties)
        before = properties
    steps = [
        {"entry": one, "told": summary_of(one), "changes": changed.get(one.txn, [])}
        for one in reversed(found.entries)
        if visit.keeps(*_texts_of(one, changed.get(one.txn, [])))
    ]
    return _page(visit, "history.html", steps=steps, total=found.total)


def _texts_of(entry: HistoryEntry, changes: list[tuple[str, str | None, str | None]]) -> list[object]:
    """Return the texts of a history entry, for the filter box."""
    told = [summary_of(entry), entry.author, entry.slot, entry.message]
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


def lineage(visit: Visit, id: ObjectId) -> Page:
    visit.ask("TableExists", id)
    found: LineageFacts = visit.question("PageLineage", id)
    drawing = draw(found, visit.links)
    return _page(visit, "lineage.html", drawing=drawing, complete=found.complete, told=found.noted)


def use(visit: Visit, id: ObjectId) -> Page:
    return _page(visit, "use.html", snippets=snippets(visit.site, id, visit.served.gate.is_closed()))


def restore(visit: Visit, id: ObjectId) -> Page:
    """Return the page that asks for confirmation of a restore."""
    version = visit.number("version", 1)
    visit.ask("TableExists", id, version=version)
    return _page(visit, "restore.html", version=version)


def drop(visit: Visit, id: ObjectId) -> Page:
    visit.ask("TableExists", id)
    action = visit.links.to("do", "drop-table", *id.names)
    return _page(visit, "confirm.html", kind="table", inside=0, action=action)


def image(visit: Visit) -> Page:
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


VIEWS: dict[str, Callable[[Visit, ObjectId], Page]] = {
    "overview": overview,
    "rows": rows,
    "versions": versions,
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
    "indices": "Indices",
    "files": "Files",
    "streams": "Streams",
    "history": "History",
    "lineage": "Lineage",
    "use": "Use it",
}


WIDTH, HEIGHT = 560, 130
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 22


@dataclass(frozen=True)
class Point:
    """One version in a plot, with its mark."""

    label: str
    value: float
    mark: str = ""
    time_ms: int | None = None
    href: str = ""


def plot(title: str, points: Sequence[Point], text: Callable[[float], str], unit: str = "") -> Markup:
    """Return a line of values over versions, with a dot for each version and a flag for each mark."""
    if not points:
        return Markup("")
    top = max((point.value for point in points), default=0) or 1.0
    places = [_place(at, point.value, len(points), top) for at, point in enumerate(points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    floor = HEIGHT - BOTTOM
    area = f"{places[0][0]:.1f},{floor} {line} {places[-1][0]:.1f},{floor}"
    dots = Markup("").join(_dot(point, place, text) for point, place in zip(points, places, strict=True))
    return Markup(
        '<figure class="plot" data-title="{title}" data-unit="{unit}" data-points="{points}">'
        "<figcaption>{title}</figcaption>"
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{about}">'
        '<line class="axis" x1="{left}" y1="{floor}" x2="{right}" y2="{floor}"/>'
        '<text class="tick" x="{label}" y="{high}">{most}</text><text class="tick" x="{label}" y="{floor}">0</text>'
        '<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>{dots}'
        '<text class="tick start" x="{left}" y="{bottom}">{first}</text>'
        '<text class="tick" x="{right}" y="{bottom}">{last}</text></svg></figure>'
    ).format(
        title=title,
        unit=unit,
        points=json.dumps([_as_data(point) for point in points]),
        width=WIDTH,
        height=HEIGHT,
        about=f"{title}: {text(points[0].value)} at first, {text(points[-1].value)} at last",
        left=LEFT,
        right=WIDTH - RIGHT,
        floor=floor,
        label=LEFT - 8,
        high=TOP + 5,
        most=text(top),
        area=area,
        line=line,
        dots=dots,
        bottom=HEIGHT - 5,
        first=points[0].label,
        last=points[-1].label if len(points) > 1 else "",
    )


def _as_data(point: Point) -> dict[str, str | float | None]:
    told: dict[str, str | float | None] = {"label": point.label, "value": point.value, "time": point.time_ms}
    told.update({key: value for key, value in (("mark", point.mark), ("href", point.href)) if value})
    return told


def _place(at: int, value: float, count: int, top: float) -> tuple[float, float]:
    wide = WIDTH - LEFT - RIGHT
    x = LEFT + (wide * at / (count - 1) if count > 1 else wide / 2)
    return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _dot(point: Point, place: tuple[float, float], text: Callable[[float], str]) -> Markup:
    x, y = place
    flag = Markup('<text class="flag" x="{:.1f}" y="{:.1f}">{}</text>').format(x, max(y - 7, 10), point.mark)
    return Markup('<g><title>{}</title><circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3.5"/>{}</g>').format(
        f"{point.label}: {text(point.value)}", x, y, flag if point.mark else ""
    )


BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 190, 44, 60, 16


def draw(graph: LineageFacts, links: Links) -> Markup:
    """Return the lineage graph, a column for each step, sources on the left. Keys of boxes are not shown."""
    columns: dict[int, list[str]] = {}
    for key, box in graph.boxes.items():
        columns.setdefault(box.step, []).append(key)
    places: dict[str, tuple[int, int]] = {}
    tallest = max(len(keys) for keys in columns.values())
    for column, step in enumerate(sorted(columns)):
        keys = columns[step]
        top = (tallest - len(keys)) * (BOX_HEIGHT + GAP_Y) // 2
        for row, key in enumerate(keys):
            places[key] = 4 + column * (BOX_WIDTH + GAP_X), 4 + top + row * (BOX_HEIGHT + GAP_Y)
    width = len(columns) * (BOX_WIDTH + GAP_X) - GAP_X + 8
    height = tallest * (BOX_HEIGHT + GAP_Y) - GAP_Y + 8
    names = {key: str(number) for number, key in enumerate(graph.boxes)}
    arrows = Markup("").join(
        Markup('<g data-from="{}" data-to="{}">{}</g>').format(
            names[start], names[end], _arrow(places[start], places[end])
        )
        for start, end in sorted(graph.arrows)
    )
    boxes = Markup("").join(_drawn(names[key], box, places[key], links) for key, box in graph.boxes.items())
    return Markup(
        '<svg class="graph" viewBox="0 0 {} {}" width="{}" height="{}" data-box-width="{}" data-box-height="{}">'
        "{}{}</svg>"
    ).format(width, height, width, height, BOX_WIDTH, BOX_HEIGHT, arrows, boxes)


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x, y = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT // 2
    to_x, to_y = end[0], end[1] + BOX_HEIGHT // 2
    bend = (x + to_x) // 2
    path = f"M{x} {y} C{bend} {y} {bend} {to_y} {to_x - 6} {to_y}"
    tip = f"{to_x},{to_y} {to_x - 8},{to_y - 4} {to_x - 8},{to_y + 4}"
    return Markup('<path class="arrow" d="{}"/><polygon class="tip" points="{}"/>').format(path, tip)


def _drawn(name: str, box: Box, place: tuple[int, int], links: Links) -> Markup:
    label = box.label if len(box.label) <= 26 else f"{box.label[:25]}…"
    inner = Markup(
        '<title>{}</title><rect class="{}" width="{}" height="{}" rx="9"/>'
        '<text class="name" x="12" y="19">{}</text><text class="about" x="12" y="35">{}</text>'
    ).format(box.label, "box here" if box.is_here else "box", BOX_WIDTH, BOX_HEIGHT, label, box.about)
    href = links.table(ObjectId(box.path), view="lineage") if box.path else ""
    linked = Markup('<a href="{}">{}</a>').format(href, inner) if href else inner
    return Markup('<g data-box="{}" transform="translate({} {})">{}</g>').format(name, *place, linked)
