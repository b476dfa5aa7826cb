"""Values of rows as safe HTML. Pure: the contents of a cell are text, never markup."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from markupsafe import Markup

MAX_SHORT = 120
MAX_TEXT = 4000
MAX_ITEMS = 200
SPARK_POINTS = 96
SPARK_WIDTH, SPARK_HEIGHT = 96, 22
MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def image_type(data: bytes) -> str | None:
    """Return the image type of the first bytes; None for other bytes, which are never sent as an image."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in MAGIC if data.startswith(magic)), None)


@dataclass(frozen=True)
class Cell:
    """A value as HTML, and its alignment: numbers stand to the right."""

    html: Markup
    is_number: bool = False


def cell(value: Any, kind: pa.DataType, image: str | None = None, near: str | None = None) -> Cell:
    """Return a value as a cell. `image`: the address that shows an image. `near`: of a search for similar vectors."""
    if value is None:
        return Cell(Markup('<span class="null">NULL</span>'))
    if isinstance(value, bool):
        return Cell(Markup("true") if value else Markup("false"))
    if isinstance(value, (int, float)):
        return Cell(Markup.escape(_number(value)), is_number=True)
    if isinstance(value, Decimal):
        return Cell(Markup.escape(str(value)), is_number=True)
    if isinstance(value, (bytes, bytearray)):
        return Cell(_bytes(bytes(value), image))
    if is_vector(kind):
        return Cell(_vector(value, near))
    if isinstance(value, (list, dict, tuple)):
        return Cell(_nested(value))
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return Cell(Markup.escape(value.isoformat()))
    return Cell(_text(str(value)))


def is_vector(kind: pa.DataType) -> bool:
    """Return True for a type of vectors: lists of numbers of one length."""
    return pa.types.is_fixed_size_list(kind) and (
        pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
    )


def sparkline(values: Sequence[float | None]) -> Markup:
    """Return a vector as a small SVG line."""
    step = max(1, math.ceil(len(values) / SPARK_POINTS))
    points = [value for value in values[::step] if value is not None and math.isfinite(value)]
    if not points:
        return Markup("")
    low, high = min(points), max(points)
    span = (high - low) or 1.0
    wide = SPARK_WIDTH / max(len(points) - 1, 1)
    tall = SPARK_HEIGHT - 4
    line = " ".join(
        f"{at * wide:.1f},{SPARK_HEIGHT - 2 - (value - low) / span * tall:.1f}" for at, value in enumerate(points)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" aria-hidden="true"><polyline points="{}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, SPARK_WIDTH, SPARK_HEIGHT, line)


def _vector(values: Sequence[Any], near: str | None) -> Markup:
    shown = ", ".join(_number(value) if value is not None else "NULL" for value in values[:MAX_ITEMS])
    more = ", …" if len(values) > MAX_ITEMS else ""
    folded = Markup(
        '<details class="vector"><summary>{}<span class="dim">{} values</span></summary><code>[{}{}]</code></details>'
    ).format(sparkline(values), len(values), shown, more)
    return folded + Markup('<a class="near" href="{}">similar rows</a>').format(near) if near else folded


def _bytes(value: bytes, image: str | None) -> Markup:
    kind = image_type(value)
    if kind is not None and image is not None:
        label = f"{kind.removeprefix('image/').upper()} image, {size(len(value))}"
        return Markup('<a href="{}"><img class="cell" loading="lazy" src="{}" alt="{}"></a>').format(
            image, image, label
        )
    head = value[:12].hex(" ")
    return Markup('<span class="dim">{}</span> <code class="hex">{}{}</code>').format(
        size(len(value)), head, " …" if len(value) > 12 else ""
    )


def _text(value: str) -> Markup:
    if len(value) <= MAX_SHORT and "\n" not in value:
        return Markup("<bdi>{}</bdi>").format(value)
    short = " ".join(value[:MAX_SHORT].split())
    cut = f" … ({len(value)} characters)" if len(value) > MAX_TEXT else ""
    return Markup("<details><summary><bdi>{}</bdi> …</summary><pre><bdi>{}</bdi>{}</pre></details>").format(
        short, value[:MAX_TEXT], cut
    )


def _nested(value: Any) -> Markup:
    count = len(value)
    what = "fields" if isinstance(value, dict) else "items"
    text = json.dumps(_plain(value), indent=1, ensure_ascii=False, default=str)[:MAX_TEXT]
    mark = "{…}" if isinstance(value, dict) else "[…]"
    return Markup(
        '<details><summary>{} <span class="dim">{} {}</span></summary><pre><bdi>{}</bdi></pre></details>'
    ).format(mark, count, what if count != 1 else what[:-1], text)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value[:MAX_ITEMS]]
    if isinstance(value, (bytes, bytearray)):
        return f"{size(len(value))}: {bytes(value[:12]).hex(' ')}"
    return value


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def size(count: float | None) -> str:
    """Return a number of bytes as text, such as `1.2 MB`."""
    if count is None:
        return "unknown"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{int(count)} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return ""


def ago(then_ms: int | None, now_ms: int) -> str:
    """Return the time since an instant as text."""
    if then_ms is None:
        return ""
    seconds = max(0, (now_ms - then_ms) // 1000)
    for length, unit in ((86400, "day"), (3600, "hour"), (60, "min")):
        if seconds >= length:
            count = seconds // length
            return f"{count} {unit}{'s' if count != 1 and unit != 'min' else ''} ago"
    return "just now" if seconds < 5 else f"{seconds} s ago"


def instant(then_ms: int | None) -> str:
    """Return an instant as RFC 3339, in UTC."""
    if then_ms is None:
        return ""
    return dt.datetime.fromtimestamp(then_ms / 1000, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
