"""Charts of query results as SVG: bars, or a line. They need no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pyarrow as pa
from markupsafe import Markup
from msgspec import Struct

LARGE, SMALL = (760, 260), (340, 140)
"""Width and height of a drawing, in points."""
LEFT, RIGHT, TOP, BOTTOM = 76, 14, 14, 34
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
        left=LEFT,
        right=scale.width - RIGHT,
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
        return (self.width - LEFT - RIGHT) / self.count

    def x(self, place: int) -> float:
        return LEFT + self.step * (place + 0.5)

    def y(self, value: float) -> float:
        return TOP + (self.height - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)


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
    counts = all(value.is_integer() for _, value in points)  # half a commit is no number
    heights = dict.fromkeys((scale.high, *(() if counts and not middle.is_integer() else (middle,)), scale.low))
    sides = (
        Markup('<text class="tick" x="{}" y="{:.1f}">{}</text>').format(LEFT - 8, scale.y(value) + 4, scale.told(value))
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
