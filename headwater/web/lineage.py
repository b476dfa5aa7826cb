"""What a published table was made of and what was made of it, as a graph: an SVG drawing in layers.

`static/graph.js` arranges it anew with dagre where scripts run.

Lineage stands in the commits of published versions (`streams/lineage.py`). What comes before is followed from version
to version; what comes after is found by looking at every stream table, so many at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from headwater.errors import LanceNamespaceError
from headwater.metastore import Snapshot
from headwater.names import ObjectId, format_name, parse_name
from headwater.rest.routes import Permission
from headwater.streams.layout import LANCE, LINEAGE
from headwater.web.visit import Visit
from headwater.wording import many

MAX_STEPS = 8
MAX_BOXES = 80
MAX_TABLES = 1_000
MAX_NAMESPACES = 200
LOOK_BACK = 50
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 190, 44, 60, 16


@dataclass
class Box:
    """A table or a source in the drawing; `step` is negative for what comes before."""

    label: str
    about: str
    step: int
    href: str = ""
    is_here: bool = False


@dataclass
class Graph:
    """Boxes by their key, and which leads to which. Not `complete` when there was more than is drawn."""

    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: set[tuple[str, str]] = field(default_factory=set)
    complete: bool = True


def lineage_graph(visit: Visit, id: ObjectId) -> Graph:
    assert visit.metastore is not None
    snapshot = visit.metastore.now()
    graph = Graph()
    here = format_name(id.names)
    graph.boxes[here] = Box(id.name, _about(noted(snapshot, id)), 0, is_here=True)
    _before(visit, snapshot, graph, here, id, 0)
    _after(visit, snapshot, graph, here)
    return graph


def noted(snapshot: Snapshot, id: ObjectId) -> dict[str, Any]:
    """What the newest publish says its rows come from, with the sources of those before it; nothing for a table that
    was never published. A publish names what it took in itself: one that takes an undo in names no source."""
    try:
        last = snapshot.last_position(id.names, format=LANCE)
        deltas = snapshot.deltas(id.names, max(0, last - LOOK_BACK), format=LANCE)
    except LanceNamespaceError:
        return {}
    told = [{**delta.properties[LINEAGE], "version": delta.position} for delta in deltas if LINEAGE in delta.properties]
    return {**told[-1], "sources": _sources(told)} if told else {}


def _sources(told: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources of all publishes, each with its files. What a view gave itself comes from its inputs."""
    found: dict[str, dict[str, None]] = {}
    is_view = bool(told[-1].get("inputs"))
    for one in told:
        for source in one.get("sources", ()):
            found.setdefault(str(source.get("source") or ""), {}).update(dict.fromkeys(source.get("files", ())))
    return [{"source": name, "files": list(files)} for name, files in found.items() if files or not is_view]


def _about(told: dict[str, Any]) -> str:
    return f"version {told['version']}" if "version" in told else "a table"


def _before(visit: Visit, snapshot: Snapshot, graph: Graph, key: str, id: ObjectId, step: int) -> None:
    told = noted(snapshot, id)
    for source in told.get("sources", ()):
        name = str(source.get("source") or "unnamed source")
        files = len(source.get("files", ()))
        _lead(graph, f"source:{name}", key, Box(name, many(files, "file") if files else "rows", step - 1))
    for name in told.get("inputs", {}):
        there = ObjectId(parse_name(name))
        known = name in graph.boxes
        if not _lead(graph, name, key, _box(visit, snapshot, there, step - 1)) or known:
            continue
        if -step < MAX_STEPS:
            _before(visit, snapshot, graph, name, there, step - 1)


def _after(visit: Visit, snapshot: Snapshot, graph: Graph, here: str) -> None:
    tables = list(_tables(snapshot))
    graph.complete = graph.complete and len(tables) < MAX_TABLES
    inputs = {format_name(table.names): set(noted(snapshot, table).get("inputs", {})) for table in tables}
    waiting = [(here, 0)]
    while waiting:
        key, step = waiting.pop(0)
        for name in (each for each, made_of in inputs.items() if key in made_of):
            known = name in graph.boxes
            box = _box(visit, snapshot, ObjectId(parse_name(name)), step + 1)
            if _lead(graph, key, name, box, target=True) and not known and step < MAX_STEPS:
                waiting.append((name, step + 1))


def _tables(snapshot: Snapshot) -> list[ObjectId]:
    """The first tables of the catalog, namespace by namespace."""
    found: list[ObjectId] = []
    waiting, seen = [ObjectId()], 0
    while waiting and len(found) < MAX_TABLES and seen < MAX_NAMESPACES:
        parent, seen = waiting.pop(0), seen + 1
        found += [parent.child(name) for name in snapshot.names(parent.names, "table")[: MAX_TABLES - len(found)]]
        waiting += [parent.child(name) for name in snapshot.names(parent.names, "namespace")]
    return found


def _box(visit: Visit, snapshot: Snapshot, id: ObjectId, step: int) -> Box:
    if not visit.caller.may(Permission.DESCRIBE, id):
        return Box("a table you may not see", "", step)
    there = snapshot.exists(id.names)
    about = _about(noted(snapshot, id)) if there else "no longer there"
    return Box(format_name(id.names), about, step, visit.links.table(id, view="lineage") if there else "")


def _lead(graph: Graph, start: str, end: str, box: Box, target: bool = False) -> bool:
    """An arrow, and the box at its new end, if there is room for it."""
    key = end if target else start
    if key not in graph.boxes:
        if len(graph.boxes) >= MAX_BOXES:
            graph.complete = False
            return False
        graph.boxes[key] = box
    graph.arrows.add((start, end))
    return True


def draw(graph: Graph) -> Markup:
    """The drawing: a column for each step, what comes before to the left."""
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
    boxes = Markup("").join(_drawn(names[key], box, places[key]) for key, box in graph.boxes.items())
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


def _drawn(name: str, box: Box, place: tuple[int, int]) -> Markup:
    label = box.label if len(box.label) <= 26 else f"{box.label[:25]}…"
    inner = Markup(
        '<title>{}</title><rect class="{}" width="{}" height="{}" rx="9"/>'
        '<text class="name" x="12" y="19">{}</text><text class="about" x="12" y="35">{}</text>'
    ).format(box.label, "box here" if box.is_here else "box", BOX_WIDTH, BOX_HEIGHT, label, box.about)
    linked = Markup('<a href="{}">{}</a>').format(box.href, inner) if box.href else inner
    return Markup('<g data-box="{}" transform="translate({} {})">{}</g>').format(name, *place, linked)
