"""Inputs and outputs of a published table, as a graph.

Lineage stands in the commits of published versions (`streams/serving/publication.py`). What comes before is
followed from version to version; what comes after is found by looking at every stream table, so many at most. Nothing
is followed through a table that the caller may not describe: not its sources, nor what lies behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lance_namespace import LanceNamespace

from headwater.errors import LanceNamespaceError
from headwater.metastore import Snapshot
from headwater.names import ObjectId, format_name, parse_name
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.page_facts import Box, LineageFacts
from headwater.streams.layout import LANCE, LINEAGE
from headwater.verbs.verb import metastore_of
from headwater.wording import many

MAX_STEPS = 8
MAX_BOXES = 80
MAX_TABLES = 1_000
MAX_NAMESPACES = 200
LOOK_BACK = 50


def lineage(namespace: LanceNamespace, call: Call) -> LineageFacts:
    """The graph around a table, as far as the caller may be told of it."""
    metastore = metastore_of(namespace)
    graph = _Graph(metastore.now(), Projection(call.asker, metastore))
    own = _noted(graph.snapshot, call.id)
    here = format_name(call.id.names)
    graph.found.boxes[here] = Box(call.id.name, _about(own), 0, is_here=True)
    graph.before(here, call.id, 0)
    graph.after(here)
    graph.found.noted = {"sql": None, "functions": {}, **graph.told.lineage(own)}
    return graph.found


def _noted(snapshot: Snapshot, id: ObjectId) -> dict[str, Any]:
    """Return the lineage of the newest publish, with the sources of those before it; nothing for a table that
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


class _Graph:
    """The graph, while it is made."""

    def __init__(self, snapshot: Snapshot, told: Projection) -> None:
        self.snapshot = snapshot
        self.told = told
        self.found = LineageFacts({}, set())

    def before(self, key: str, id: ObjectId, step: int) -> None:
        """Add the inputs of a table, and theirs."""
        made = _noted(self.snapshot, id)
        for source in made.get("sources", ()):
            name = str(source.get("source") or "unnamed source")
            files = len(source.get("files", ()))
            self._lead(f"source:{name}", key, Box(name, many(files, "file") if files else "rows", step - 1))
        for name in made.get("inputs", {}):
            there, known = ObjectId(parse_name(name)), name in self.found.boxes
            if not self._lead(name, key, self._box(there, step - 1)) or known:
                continue
            if -step < MAX_STEPS and self.told.tells(there.names):
                self.before(name, there, step - 1)

    def after(self, here: str) -> None:
        """Add the tables made from a table, and from those."""
        tables = _tables(self.snapshot)
        self.found.complete = self.found.complete and len(tables) < MAX_TABLES
        inputs = {format_name(table.names): set(_noted(self.snapshot, table).get("inputs", {})) for table in tables}
        waiting = [(here, 0)]
        while waiting:
            key, step = waiting.pop(0)
            for name in (each for each, made_of in inputs.items() if key in made_of):
                there, known = ObjectId(parse_name(name)), name in self.found.boxes
                led = self._lead(key, name, self._box(there, step + 1), target=True)
                if led and not known and step < MAX_STEPS and self.told.tells(there.names):
                    waiting.append((name, step + 1))

    def _box(self, id: ObjectId, step: int) -> Box:
        if not self.told.tells(id.names):
            return Box("a table you may not see", "", step)
        there = self.snapshot.exists(id.names)
        about = _about(_noted(self.snapshot, id)) if there else "no longer there"
        return Box(format_name(id.names), about, step, id.names if there else ())

    def _lead(self, start: str, end: str, box: Box, target: bool = False) -> bool:
        """An arrow, and the box at its new end, if there is room for it."""
        key = end if target else start
        if key not in self.found.boxes:
            if len(self.found.boxes) >= MAX_BOXES:
                self.found.complete = False
                return False
            self.found.boxes[key] = box
        self.found.arrows.add((start, end))
        return True


def _tables(snapshot: Snapshot) -> list[ObjectId]:
    """The first tables of the catalog, namespace by namespace."""
    found: list[ObjectId] = []
    waiting, seen = [ObjectId()], 0
    while waiting and len(found) < MAX_TABLES and seen < MAX_NAMESPACES:
        parent, seen = waiting.pop(0), seen + 1
        found += [parent.child(name) for name in snapshot.names(parent.names, "table")[: MAX_TABLES - len(found)]]
        waiting += [parent.child(name) for name in snapshot.names(parent.names, "namespace")]
    return found
