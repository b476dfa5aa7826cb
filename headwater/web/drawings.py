"""SVG drawings of the page: plots over versions, and the lineage graph.

`static/plots.js` and `static/graph.js` redraw them in browsers that run scripts.

Charts of query results as SVG: bars, or a line. They need no script.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from markupsafe import Markup
from msgspec import Struct

from headwater.cells import ago
from headwater.names import ObjectId
from headwater.rest.page.page_facts import Box, LineageFacts
from headwater.web.visit import Links

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


def draw(graph: LineageFacts, links: Links, now_ms: int, failing: Collection[str] = ()) -> Markup:
    """Return the lineage graph, a column for each step, sources on the left. Keys of boxes are not shown.

    `now_ms`: the time now; a table shows how long ago it was published.
    `failing`: pipelines whose newest run failed, which marks the tables that they publish.
    """
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
    boxes = Markup("").join(
        _drawn(names[key], box, places[key], links, now_ms, failing) for key, box in graph.boxes.items()
    )
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


def _drawn(name: str, box: Box, place: tuple[int, int], links: Links, now_ms: int, failing: Collection[str]) -> Markup:
    failed = bool(box.pipeline) and box.pipeline in failing
    state = "failed" if failed else "here" if box.is_here else box.state
    about = f"{box.about}: {box.pipeline} failed" if failed and box.column else box.about
    about = f"{about}, {ago(box.published_ms, now_ms)}" if box.published_ms is not None and not box.state else about
    about = f"{box.pipeline} failed" if failed and not box.column else about
    inner = Markup(
        '<title>{}</title><rect class="{}" width="{}" height="{}" rx="9"/>'
        '<text class="name" x="12" y="19">{}</text><text class="about" x="12" y="35">{}</text>'
    ).format(f"{box.label}: {about}", f"box {state}".rstrip(), BOX_WIDTH, BOX_HEIGHT, _cut(box.label), _cut(about, 30))
    href = links.table(ObjectId(box.path), view="lineage", column=box.column) if box.path else ""
    linked = Markup('<a href="{}">{}</a>').format(href, inner) if href else inner
    return Markup('<g data-box="{}" transform="translate({} {})">{}</g>').format(name, *place, linked)


def _cut(text: str, most: int = 26) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


LARGE, SMALL = (760, 260), (340, 140)
"""Width and height of a drawing, in points."""
CHART_LEFT, CHART_RIGHT, CHART_TOP, CHART_BOTTOM = 76, 14, 14, 34
MAX_BARS = 60
MAX_POINTS = 1_000
LABEL = 90
"""Points between the labels below a chart."""
BARS, LINE, NO_CHART = "bars", "line", "none"
KINDS = (BARS, LINE, NO_CHART)


class Choice(Struct, frozen=True):
    """The chart of a result: its kind, and the columns that its labels and its heights come from."""

    kind: str
    x: str
    y: str


def choose(schema: pa.Schema, rows: int, kind: str = "", x: str = "", y: str = "") -> Choice | None:
    """Return the chart that a visitor asked for, or one that fits the columns; None if no column is a number."""
    numbers = [field.name for field in schema if _is_number(field.type)]
    if not numbers or not rows or len(schema.names) < 2:
        return None
    others = [name for name in schema.names if name not in numbers] or [schema.names[0]]
    along = x if x in schema.names else others[0]
    free = [name for name in numbers if name != along] or numbers
    up = y if y in numbers else free[0]
    fits = LINE if rows > MAX_BARS or pa.types.is_temporal(schema.field(along).type) else BARS
    return Choice(kind if kind in KINDS else fits, along, up)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def numbers_of(schema: pa.Schema) -> list[str]:
    """Return the columns whose values can be heights."""
    return [field.name for field in schema if _is_number(field.type)]


def chart(choice: Choice, rows: pa.Table) -> Markup:
    """Return the drawing of a result, without the rows whose height is NULL."""
    labels, values = rows.column(choice.x).to_pylist(), rows.column(choice.y).to_pylist()
    pairs = [(_label(label), float(value)) for label, value in zip(labels, values, strict=True) if value is not None]
    points = [pair for pair in pairs if pair[1] == pair[1]][: MAX_BARS if choice.kind == BARS else MAX_POINTS]
    if choice.kind == NO_CHART or not points:
        return Markup("")
    cut = f", the first {len(points)} rows" if len(points) < len(pairs) else ""
    return _figure(f"{choice.y} by {choice.x}", cut, points, choice.kind)


def small(title: str, points: Sequence[tuple[str, float]], kind: str, told: Callable[[float], str]) -> Markup:
    """Return a drawing that stands beside others. `told`: writes a height for people."""
    return _figure(title, "", points, kind, SMALL, told)


def number(value: float) -> str:
    """Return a number for people: thousands apart, and at most six digits of a fraction."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.6g}"


def _figure(
    title: str,
    cut: str,
    points: Sequence[tuple[str, float]],
    kind: str,
    size: tuple[int, int] = LARGE,
    told: Callable[[float], str] = number,
) -> Markup:
    low, high = min(0.0, *(value for _, value in points)), max(0.0, *(value for _, value in points))
    scale = Scale(low, high if high > low else low + 1.0, len(points), *size, told)
    marks = _bars(points, scale) if kind == BARS else _line(points, scale)
    return Markup(
        '<figure class="plot chart{small}" tabindex="0"><figcaption>{title}{cut}</figcaption>'
        '<svg viewBox="0 0 {width} {height}" role="img" aria-label="{about}">'
        '<line class="axis" x1="{left}" y1="{zero:.1f}" x2="{right}" y2="{zero:.1f}"/>{marks}{ticks}</svg></figure>'
    ).format(
        small=" small" if size == SMALL else "",
        title=title,
        cut=cut,
        width=scale.width,
        height=scale.height,
        about=f"{title}: {len(points)} values from {told(min(v for _, v in points))} "
        f"to {told(max(v for _, v in points))}",
        left=CHART_LEFT,
        right=scale.width - CHART_RIGHT,
        zero=scale.y(0.0),
        marks=marks,
        ticks=_ticks(points, scale),
    )


class Scale(Struct, frozen=True):
    """Places in a drawing: `low` to `high` from the bottom to the top, and `count` places from left to right."""

    low: float
    high: float
    count: int
    width: int
    height: int
    told: Callable[[float], str]

    @property
    def step(self) -> float:
        return (self.width - CHART_LEFT - CHART_RIGHT) / self.count

    def x(self, place: int) -> float:
        return CHART_LEFT + self.step * (place + 0.5)

    def y(self, value: float) -> float:
        return CHART_TOP + (self.height - CHART_TOP - CHART_BOTTOM) * (self.high - value) / (self.high - self.low)


def _bars(points: Sequence[tuple[str, float]], scale: Scale) -> Markup:
    wide = max(2.0, min(64.0, scale.step * 0.72))
    found = []
    for place, (label, value) in enumerate(points):
        top, bottom = sorted((scale.y(value), scale.y(0.0)))
        high = max(bottom - top, 0.8) if value else 0.0
        found.append(
            Markup(
                "<g><title>{}</title>"
                '<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2"/></g>'
            ).format(f"{label}: {scale.told(value)}", scale.x(place) - wide / 2, top, wide, high)
        )
    return Markup("").join(found)


def _line(points: Sequence[tuple[str, float]], scale: Scale) -> Markup:
    places = [(scale.x(place), scale.y(value)) for place, (_, value) in enumerate(points)]
    line = Markup('<polyline class="line" points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for x, y in places))
    if len(points) > MAX_BARS:
        return line
    dots = (
        Markup('<g><title>{}</title><circle class="dot" cx="{:.1f}" cy="{:.1f}" r="3"/></g>').format(
            f"{label}: {scale.told(value)}", *place
        )
        for (label, value), place in zip(points, places, strict=True)
    )
    return line + Markup("").join(dots)


def _ticks(points: Sequence[tuple[str, float]], scale: Scale) -> Markup:
    """Return the numbers at the left, and some of the labels below."""
    middle = (scale.high + scale.low) / 2
    counts = all(value.is_integer() for _, value in points)  # half a commit is not a number
    heights = dict.fromkeys((scale.high, *(() if counts and not middle.is_integer() else (middle,)), scale.low))
    sides = (
        Markup('<text class="tick" x="{}" y="{:.1f}">{}</text>').format(
            CHART_LEFT - 8, scale.y(value) + 4, scale.told(value)
        )
        for value in heights
    )
    every = -(-len(points) // (scale.width // LABEL))
    room = max(4, int(scale.step * every / 6.2))
    below = (
        Markup('<text class="tick middle" x="{:.1f}" y="{}">{}</text>').format(
            scale.x(place), scale.height - 12, label if len(label) <= room else f"{label[: room - 1]}…"
        )
        for place, (label, _) in enumerate(points)
        if place % every == 0
    )
    return Markup("").join((*sides, *below))


def _label(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return "NULL" if value is None else str(value)[:80]
