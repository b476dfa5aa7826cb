"""HTML for notebooks: catalogs, tables, stream tables, lists of versions and commits, lineage.

`%load_ext headwater` adds the magic `%%headwater`, and HTML of diffs, snapshots, plans, runs and Arrow tables, with
vectors as lines and images as pictures. Only `catalog`, `table` and `stream` read; the rest is pure.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from markupsafe import Markup

from headwater.cells import cell, image_type
from headwater.errors import LanceNamespaceError
from headwater.names import ObjectId, format_name
from headwater.wording import many

MAX_NAMES = 50
MAX_ROWS = 20
PREVIEW = 5
MAX_IMAGE = 1 << 20
STYLE = Markup(
    "<style>.headwater{font:13px/1.5 system-ui,sans-serif}.headwater table{border-collapse:collapse;margin:4px 0}"
    ".headwater th,.headwater td{border-bottom:1px solid #8884;padding:2px 10px 2px 0;text-align:left;"
    "vertical-align:top}.headwater td.number{text-align:right}.headwater .dim,.headwater .null{opacity:.6}"
    ".headwater .spark polyline{fill:none;stroke:currentColor}.headwater img{max-width:96px;max-height:96px}"
    ".headwater rect{fill:none;stroke:currentColor}.headwater .graph text{fill:currentColor;font-size:12px}"
    ".headwater path{fill:none;stroke:currentColor}.headwater pre{white-space:pre-wrap;text-align:left}</style>"
)
RECORDS = (
    *(
        ("headwater.metastore.records.objects", name)
        for name in ("Collected", "Diff", "LogEntry", "NamedSnapshot", "Undone")
    ),
    *(("headwater.pipeline.planning", name) for name in ("Plan", "Step")),
    ("headwater.pipeline.running", "Run"),
    ("headwater.pipeline.jobs", "Report"),
    ("headwater.streams.log.landing", "LandingReport"),
    ("headwater.verbs.object_verbs", "DescribedObject"),
)
"""The classes of values that the extension shows as HTML."""
FIELDS = {
    "HistoryEntry": ("slot", "time", "change", "version", "position", "author", "message"),
    "LogEntry": ("slot", "time", "author", "message", "changes"),
}
"""The fields that people read of records with many, by the name of the class."""
BOX_WIDTH, BOX_HEIGHT, GAP = 200, 28, 12
Item = TypeVar("Item")


class ShownList(list[Item]):
    """A list that a notebook shows as a table. `title` stands above it."""

    def __init__(self, items: Iterable[Item], title: str) -> None:
        super().__init__(items)
        self.title = title

    def _repr_html_(self) -> str:
        return records(self.title, self)


class ShownIterator(Iterator[Item]):
    """An iterator over what `read` yields. A notebook shows the newest items, which it reads for itself."""

    def __init__(self, read: Callable[[], Iterator[Item]], title: str) -> None:
        self._read, self._items = read, read()
        self.title = title

    def __next__(self) -> Item:
        return next(self._items)

    def __repr__(self) -> str:
        return f"<{self.title}, to iterate over>"

    def _repr_html_(self) -> str:
        return records(self.title, deque(self._read(), MAX_ROWS))


class ShownLineage(dict[str, Any]):
    """The lineage of one version, which a notebook draws: sources on the left, the version on the right."""

    def __init__(self, facts: Mapping[str, object], name: str) -> None:
        super().__init__(facts)
        self.name = name

    def _repr_html_(self) -> str:
        return _framed(f"Lineage of {self.name}", _drawing(self, self.name))


# Objects that read what they show


def catalog(shown: Any, tables: Iterable[ObjectId]) -> str:
    """Return a catalog as a list of its first tables. Reads names only, and no more of them than it shows."""
    title = repr(shown)
    if not shown.is_there:
        return _framed(title, _note("No catalog is here yet. The first write makes one."))
    found = list(islice(tables, MAX_NAMES + 1))
    rows = [(format_name(id.names[:-1]), format_name(id.names)) for id in found[:MAX_NAMES]]
    more = _note(f"The first {MAX_NAMES} tables; len(catalog) counts them all.") if len(found) > MAX_NAMES else ""
    return _framed(title, _grid(("namespace", "table"), rows) + more if rows else _note("There is no table."))


def table(shown: Any) -> str:
    """Return a table as its schema, its size and its first rows."""
    try:
        count, first = shown.count(), shown.head(PREVIEW)
    except LanceNamespaceError as error:
        return _framed(repr(shown), _note(str(error)))
    return _framed(repr(shown), _note(many(count, "row")) + _schema(first.schema) + rows_of(first))


def stream(shown: Any) -> str:
    """Return a stream table as its definition, how far it is published, and its schema."""
    definition, published = shown.definition, shown.published
    facts = {
        "keys": ", ".join(definition.keys) or "none: an append-only log",
        "sequence": ", ".join(definition.sequence) or "none: order of arrival",
        "position": shown.position,
        "published": "never" if published is None else f"version {published.version}, position {published.position}",
        "derived columns": ", ".join(each.name for each in definition.derived) or "none",
    }
    return _framed(repr(shown), _grid(("", ""), list(facts.items())) + _schema(shown.schema))


# Values: pure


def records(title: str, found: Iterable[object]) -> str:
    """Return records of one class as a table, newest entries of long lists only."""
    items = list(found)
    if not items:
        return _framed(title, _note("There is none."))
    names = [name for name in _names(items[0]) if any(_has_value(getattr(item, name)) for item in items)]
    shown = items[-MAX_ROWS:]
    more = _note(f"The last {MAX_ROWS} of {len(items)}.") if len(items) > MAX_ROWS else Markup("")
    return _framed(title, _grid(names, [[getattr(item, name) for name in names] for item in shown]) + more)


def record(title: str, item: object) -> str:
    """Return one record: its plain fields as a list, and each field of records as a table."""
    plain, parts = [], Markup("")
    for name in _names(item):
        value = getattr(item, name)
        if isinstance(value, (tuple, list)) and value and _names(value[0]):
            inner = _names(value[0])
            parts += Markup("<b>{}</b>").format(name.replace("_", " "))
            parts += _grid(inner, [[getattr(each, field) for field in inner] for each in value[:MAX_ROWS]])
        elif _has_value(value):
            plain.append((name.replace("_", " "), value))
    return _framed(title, _grid(("", ""), plain) + parts)


def rows_of(data: pa.Table) -> Markup:
    """Return the first rows of an Arrow table, with vectors as lines and images as pictures."""
    some = data.slice(0, MAX_ROWS)
    lines = [Markup("<tr>{}</tr>").format(Markup("").join(map(_head, some.schema.names)))]
    for row in some.to_pylist(maps_as_pydicts=None):
        made = []
        for name, kind in zip(some.schema.names, some.schema.types, strict=True):
            shown = cell(row[name], kind, _inline(row[name]))
            made.append(Markup('<td class="{}">{}</td>').format("number" if shown.is_number else "", shown.html))
        lines.append(Markup("<tr>{}</tr>").format(Markup("").join(made)))
    more = _note(f"The first {MAX_ROWS} of {many(data.num_rows, 'row')}.") if data.num_rows > MAX_ROWS else ""
    return Markup("<table>{}</table>{}").format(Markup("").join(lines), more)


def arrow_table(data: pa.Table) -> str:
    """Return an Arrow table as HTML, as `%load_ext headwater` shows it."""
    return _framed(f"{many(data.num_rows, 'row')}, {many(data.num_columns, 'column')}", rows_of(data))


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext headwater`: add the magic `%%headwater` and the HTML of Arrow tables to an IPython shell."""
    html = shell.display_formatter.formatters["text/html"]
    html.for_type(pa.Table, arrow_table)
    for module, name in RECORDS:
        html.for_type_by_name(module, name, lambda item: record(type(item).__name__, item))

    def run(line: str, text: str) -> Any:
        """Run a cell of SQL. `line` names the variable that holds the catalog; the default is `catalog`."""
        name = line.strip() or "catalog"
        if name not in shell.user_ns:
            raise NameError(f"There is no variable {name!r}: use `%%headwater NAME` with a variable that is a Catalog.")
        return shell.user_ns[name].query(text)

    shell.register_magic_function(run, magic_kind="cell", magic_name="headwater")


# Parts


def _framed(title: str, inner: Markup) -> str:
    return str(Markup('<div class="headwater">{}<b>{}</b>{}</div>').format(STYLE, title, inner))


def _note(text: str) -> Markup:
    return Markup('<div class="dim">{}</div>').format(text)


def _head(name: str) -> Markup:
    return Markup("<th>{}</th>").format(name.replace("_", " ") if name.isidentifier() else name)


def _grid(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    head = Markup("<tr>{}</tr>").format(Markup("").join(map(_head, names))) if any(names) else Markup("")
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(_shown(value)) for value in row))
        for row in rows
    )
    return Markup("<table>{}{}</table>").format(head, body)


def _schema(schema: pa.Schema) -> Markup:
    kinds = [(field.name, f"{field.type}{'' if field.nullable else ' not null'}") for field in schema]
    return Markup("<details><summary>{}</summary>{}</details>").format(
        many(len(kinds), "column"), _grid(("column", "type"), kinds)
    )


def _shown(value: object) -> Any:
    """Return one field of a record as text: paths with dots, times to the second, collections by their length."""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, (tuple, list)):
        return format_name(value) if all(isinstance(each, str) for each in value) else many(len(value), "item")
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return value if isinstance(value, Markup) else cell(value, pa.null()).html


def _names(item: object) -> tuple[str, ...]:
    if isinstance(item, msgspec.Struct):
        return FIELDS.get(type(item).__name__, item.__struct_fields__)
    return tuple(each.name for each in dataclasses.fields(item)) if dataclasses.is_dataclass(item) else ()


def _has_value(value: object) -> bool:
    return value is not None and value not in ("", (), [], {})


def _inline(value: object) -> str | None:
    """Return the address of an image inside the page, or None if the bytes are none or are too many."""
    if not isinstance(value, (bytes, bytearray)) or len(value) > MAX_IMAGE:
        return None
    kind = image_type(bytes(value))
    return None if kind is None else f"data:{kind};base64,{base64.b64encode(value).decode()}"


def _drawing(facts: Mapping[str, Any], name: str) -> Markup:
    """Return the lineage of a version as SVG: a box for each source, input and function, with lines to the version."""
    inputs = facts.get("inputs") or {}
    sources = [each for each in facts.get("sources", ()) if each.get("files") or not inputs]  # a view gives itself rows
    left = [f"{each['source'] or 'written rows'}: {many(each['deltas'], 'delta')}" for each in sources]
    versions = {each: at.get("version") if isinstance(at, Mapping) else at for each, at in inputs.items()}
    left += [f"{each}, version {version}" if version else each for each, version in versions.items()]
    left += [f"{column} = {each['function']}" for column, each in (facts.get("functions") or {}).items()]
    if not left:
        return _note("Nothing is known of its sources.")
    height = len(left) * (BOX_HEIGHT + GAP)
    middle = height // 2
    parts = [_box(4 + 2 * BOX_WIDTH, middle - BOX_HEIGHT // 2, name)]
    for row, label in enumerate(left):
        top = row * (BOX_HEIGHT + GAP) + GAP // 2
        parts.append(_box(4, top, label))
        start, end = 4 + BOX_WIDTH, 2 * BOX_WIDTH + 4
        line = (
            f"M{start} {top + BOX_HEIGHT // 2} C{start + 60} {top + BOX_HEIGHT // 2} {end - 60} {middle} {end} {middle}"
        )
        parts.append(Markup('<path d="{}"/>').format(line))
    return Markup('<svg class="graph" width="{}" height="{}">{}</svg>').format(
        3 * BOX_WIDTH + 12, max(height, BOX_HEIGHT + GAP), Markup("").join(parts)
    )


def _box(x: int, y: int, label: str) -> Markup:
    short = label if len(label) <= 28 else f"{label[:27]}…"
    return Markup(
        '<g transform="translate({} {})"><title>{}</title><rect width="{}" height="{}" rx="6"/>'
        '<text x="8" y="18">{}</text></g>'
    ).format(x, y, label, BOX_WIDTH, BOX_HEIGHT, short)
