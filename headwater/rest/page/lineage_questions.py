"""Questions of the page about lineage: of a table, of one of its columns, and of the whole catalog.

Nothing is followed through a table that the caller may not describe. A drawing has a limited number of boxes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Any

from lance_namespace import LanceNamespace
from msgspec.structs import replace

from headwater.errors import LanceNamespaceError
from headwater.metastore import Metastore, Snapshot
from headwater.metastore.records.serving_copy import columns_at
from headwater.names import format_name, parse_name
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.kept_facts import MadeTable, lineage_of, tables_of
from headwater.rest.page.page_facts import Box, LineageFacts
from headwater.rest.page.table_questions import unpublished
from headwater.sql.spark_parser import Inputs, column_inputs
from headwater.streams.definition import Definition
from headwater.streams.stream_lookup import is_stream_table, open_stream
from headwater.verbs.verb import metastore_of
from headwater.wording import many

STALE = "stale"
"""The state of a table whose log is ahead of its serving copy."""
MAX_STEPS = 8
MAX_BOXES = 80
HIDDEN = "a table you may not see"


def lineage(namespace: LanceNamespace, call: Call) -> LineageFacts:
    """Return the graph around a table, or around its column `word`, as far as the caller may be told of it."""
    metastore = metastore_of(namespace)
    graph = _Graph(metastore, Projection(call.asker, metastore))
    own = graph.table(call.id.names)
    columns = graph.columns(own.path)
    if call.request.word:
        _ColumnGraph(graph).around(own, call.request.word)
    else:
        graph.around(own)
    graph.found.columns = columns
    graph.found.noted = {"sql": None, "functions": {}, **graph.told.lineage(own.noted)}
    return graph.found


def catalog_lineage(namespace: LanceNamespace, call: Call) -> LineageFacts:
    """Return the graph of the whole catalog: the tables with lineage that were published last, and their sources.

    `word` keeps the tables whose names hold it, and what is next to them.
    """
    metastore = metastore_of(namespace)
    graph = _Graph(metastore, Projection(call.asker, metastore))
    low = call.request.word.casefold()
    linked = {name: table for name, table in graph.made.items() if table.inputs or table.noted.get("sources")}
    read = {name for table in linked.values() for name in table.inputs}
    linked |= {name: graph.made[name] for name in read & graph.made.keys()}
    seen = {name: table for name, table in linked.items() if graph.told.tells(table.path, table.key)}
    graph.found.total = len(seen)
    wanted = [table for name, table in seen.items() if not low or low in name.casefold()]
    newest = nlargest(MAX_BOXES, wanted, key=lambda table: table.noted.get("time_ms", 0))
    graph.found.complete = graph.found.complete and len(newest) == len(wanted)
    graph.add_tables(newest)
    return graph.found


class _Graph:
    """A graph of tables, while it is made."""

    def __init__(self, metastore: Metastore, told: Projection) -> None:
        self.metastore = metastore
        self.snapshot: Snapshot = metastore.now()
        self.told = told
        tables = tables_of(metastore)
        with tables.lock:
            tables.bring_up(metastore)
            self.made = {table.name: table for table in tables.made.values()}
            self.found = LineageFacts({}, set(), unread=len(tables.unread))
        self.found.complete = not self.found.unread

    def table(self, names: Sequence[str]) -> MadeTable:
        """Return a table with its lineage; nothing is known of one that is gone, or no stream table."""
        known = self.made.get(format_name(names))
        if known is not None:
            return known
        log = None
        if self.snapshot.exists(names) and is_stream_table(self.snapshot, names):
            log = unpublished(self.snapshot, names)
        rows, deltas = (log.rows, log.deltas) if log is not None else (0, 0)
        return MadeTable(tuple(names), format_name(names), "", lineage_of(self.snapshot, names), rows, deltas)

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns of a table; none for one that cannot be read."""
        definition = self.definition(names)
        if definition is not None:
            return list(definition.shown)
        return list(columns_at(self.snapshot, self.metastore.store, names))

    def definition(self, names: Sequence[str]) -> Definition | None:
        try:
            return open_stream(self.snapshot, names).definition
        except LanceNamespaceError:
            return None

    def around(self, own: MadeTable) -> None:
        """Add a table, what it was made of, and what was made of it."""
        here = own.name
        self.found.boxes[here] = self.box(own.path, 0, is_here=True)
        self._before(here, own, 0)
        self._after(here)

    def add_tables(self, tables: Sequence[MadeTable]) -> None:
        """Add tables, each with its sources and inputs, and what was made of it as far as there is room."""
        steps = _steps({table.name: set(table.inputs) for table in tables})
        for table in tables:
            name = table.name
            if not self.add(name, self.box(table.path, steps[name])):
                continue
            self._sources(name, table, steps[name] - 1)
            for each in table.inputs:
                self.lead(each, name, self.box(parse_name(each), steps.get(each, steps[name] - 1)))

    def _before(self, key: str, table: MadeTable, step: int) -> None:
        self._sources(key, table, step - 1)
        for name in table.inputs:
            names, known = tuple(parse_name(name)), name in self.found.boxes
            if not self.lead(name, key, self.box(names, step - 1)) or known:
                continue
            if -step < MAX_STEPS and self.told.tells(names):
                self._before(name, self.table(names), step - 1)

    def _sources(self, key: str, table: MadeTable, step: int) -> None:
        for source in table.noted.get("sources", ()):
            name = str(source.get("source") or "unnamed source")
            files = len(source.get("files", ()))
            self.lead(f"source:{name}", key, Box(name, many(files, "file") if files else "rows", step))

    def _after(self, here: str) -> None:
        waiting = [(here, 0)]
        while waiting:
            key, step = waiting.pop(0)
            for name in self.readers(key):
                names, known = tuple(parse_name(name)), name in self.found.boxes
                led = self.lead(key, name, self.box(names, step + 1), target=True)
                if led and not known and step < MAX_STEPS and self.told.tells(names):
                    waiting.append((name, step + 1))

    def readers(self, name: str) -> Iterator[str]:
        """Return the tables that were made of a table."""
        return (each for each, table in self.made.items() if name in table.inputs)

    def box(self, names: Sequence[str], step: int, is_here: bool = False) -> Box:
        if not self.told.tells(names):
            return Box(HIDDEN, "", step)
        if not self.snapshot.exists(names):
            return Box(format_name(names), "no longer there", step)
        table = self.table(names)
        about = f"version {table.noted['version']}" if "version" in table.noted else "a table"
        state = STALE if table.deltas else ""
        about = f"{about}, {many(table.rows, 'row')} waiting" if state else about
        pipeline = str(self.told.lineage(table.noted).get("run", {}).get("pipeline", ""))
        label = names[-1] if is_here else format_name(names)
        path, published = () if is_here else tuple(names), table.noted.get("time_ms")
        return Box(label, about, step, path, is_here, state, pipeline, published_ms=published)

    def add(self, key: str, box: Box) -> bool:
        """Add a box if there is room for it."""
        if key not in self.found.boxes:
            if len(self.found.boxes) >= MAX_BOXES:
                self.found.complete = False
                return False
            self.found.boxes[key] = box
        return True

    def lead(self, start: str, end: str, box: Box, target: bool = False) -> bool:
        """Add an arrow, and the box at its new end, if there is room for it."""
        if not self.add(end if target else start, box):
            return False
        self.found.arrows.add((start, end))
        return True


def _steps(inputs: Mapping[str, set[str]]) -> dict[str, int]:
    """Return the column of each table in the drawing: one after the last of its inputs."""
    found = dict.fromkeys(inputs, 0)
    for _ in range(MAX_STEPS):
        after = {name: max((found.get(one, 0) + 1 for one in some), default=0) for name, some in inputs.items()}
        if after == found:
            break
        found = after
    return found


class _ColumnGraph:
    """A graph of columns, in the boxes of a graph of tables."""

    def __init__(self, graph: _Graph) -> None:
        self.graph = graph

    def around(self, own: MadeTable, column: str) -> None:
        """Add a column, the columns and sources that it was computed from, and the columns computed from it."""
        key = self._key(own.path, column)
        self.graph.found.boxes[key] = self._box(own.path, column, 0, is_here=True)
        self._before(key, own.path, column, 0)
        self._after(key, own.path, column, 0)

    def _before(self, key: str, names: Sequence[str], column: str, step: int) -> None:
        if -step > MAX_STEPS or not self.graph.told.tells(names):
            return
        table = self.graph.table(names)
        inputs = self._inputs(table, column)
        if not inputs and not table.inputs:
            for source in table.noted.get("sources", ()):
                name = str(source.get("source") or "unnamed source")
                self.graph.lead(f"source:{name}", key, Box(name, "source", step - 1))
        for other, each in inputs:
            start = self._key(other, each)
            known = start in self.graph.found.boxes
            if self.graph.lead(start, key, self._box(other, each, step - 1)) and not known:
                self._before(start, other, each, step - 1)

    def _after(self, key: str, names: Sequence[str], column: str, step: int) -> None:
        if step > MAX_STEPS or not self.graph.told.tells(names):
            return
        for other, each in self._outputs(names, column):
            end = self._key(other, each)
            known = end in self.graph.found.boxes
            if self.graph.lead(key, end, self._box(other, each, step + 1), target=True) and not known:
                self._after(end, other, each, step + 1)

    def _inputs(self, table: MadeTable, column: str) -> list[tuple[tuple[str, ...], str]]:
        """Return the columns that a column is computed from: by its function, or by the query of its table."""
        definition = self.graph.definition(table.path)
        for derived in definition.derived if definition is not None else ():
            if derived.name == column:
                return [(tuple(table.path), name) for name in derived.inputs]
        return [(tuple(parse_name(name)), each) for name, each in sorted(self._computed(table).get(column.lower(), ()))]

    def _outputs(self, names: Sequence[str], column: str) -> Iterator[tuple[tuple[str, ...], str]]:
        definition, name = self.graph.definition(names), format_name(names)
        for derived in definition.derived if definition is not None else ():
            if column in derived.inputs:
                yield tuple(names), derived.name
        for reader in self.graph.readers(name):
            path = self.graph.made[reader].path
            if self.graph.told.tells(path):
                computed = self._computed(self.graph.made[reader])
                yield from ((path, each) for each in self._named(path, computed, (name, column)))

    def _named(self, path: Sequence[str], computed: Inputs, wanted: tuple[str, str]) -> Iterable[str]:
        """Return the columns of a table that are computed from a column, as the table writes their names."""
        spelled = {name.lower(): name for name in self.graph.columns(path)}
        return (spelled.get(each, each) for each, inputs in computed.items() if wanted in inputs)

    def _computed(self, table: MadeTable) -> Inputs:
        """Return the columns of a table's query with their inputs; none if the caller may not see the query."""
        sql: Any = self.graph.told.lineage(table.noted).get("sql")
        if not sql:
            return {}
        return column_inputs(str(sql), {name: self.graph.columns(parse_name(name)) for name in table.inputs})

    def _key(self, names: Sequence[str], column: str) -> str:
        return f"{format_name(names)}\0{column}"

    def _box(self, names: Sequence[str], column: str, step: int, is_here: bool = False) -> Box:
        table = self.graph.box(names, step)
        if not table.path:
            return table
        return replace(table, label=column, about=table.label, is_here=is_here, column=column)
