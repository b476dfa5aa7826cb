"""The lineage of a table as an SVG drawing in layers; `static/graph.js` arranges it anew where scripts run. Pure."""

from __future__ import annotations

from markupsafe import Markup

from headwater.names import ObjectId
from headwater.rest.page.page_facts import Box, LineageFacts
from headwater.web.links import Links

BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y = 190, 44, 60, 16


def draw(graph: LineageFacts, links: Links) -> Markup:
    """The drawing: a column for each step, what comes before to the left. Keys of boxes are not told."""
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
