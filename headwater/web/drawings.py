"""Small plots as SVG, with the same numbers for a script that draws them better. Pure: numbers to points."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 560, 130
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 22


@dataclass(frozen=True)
class Point:
    """One version in a plot, and what it is marked with."""

    label: str
    value: float
    mark: str = ""
    time_ms: int | None = None
    href: str = ""


def plot(title: str, points: Sequence[Point], text: Callable[[float], str], unit: str = "") -> Markup:
    """Values over versions as a line, with a dot for each one and a flag for what is marked.

    `static/plots.js` draws the points anew, over time, where scripts run.
    """
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
