"""Lineage of published versions, as their commits record it.

`positions` are the deltas it took in (first exclusive, last inclusive), `sources` what those were landed from, and
`functions` what its derived columns were computed by. A caller adds `inputs` (tables) and `run`.
"""

from __future__ import annotations

from typing import Any

from headwater.errors import TableVersionNotFoundError
from headwater.metastore import Reading
from headwater.streams.layout import LANCE, LINEAGE
from headwater.streams.reading.position_views import PositionView, Published
from headwater.streams.stream_lookup import Stream

MAX_FILES = 1_000
"""So many files of a source are named; all of them are counted."""


def lineage_of(view: PositionView, before: Published | None, made: Published) -> dict[str, Any]:
    start = before.position if before is not None else 0
    sources: dict[str, dict[str, Any]] = {}
    for delta in view.after_base:
        if delta.position <= start or "voids" in delta.properties:
            continue
        known = delta.properties
        entry = sources.setdefault(str(known.get("source") or ""), {"files": {}, "deltas": 0})
        entry["deltas"] += 1
        if known.get("file"):
            entry["files"][known["file"]] = None
    return {
        "positions": [start, made.position],
        "sources": [_source(name, entry) for name, entry in sources.items()],
        "functions": {
            derived.name: {"function": derived.function, "identity": computed.identity}
            for derived in view.stream.definition.derived
            for computed in made.derived
            if computed.name == derived.name
        },
    }


def noted(snapshot: Reading, stream: Stream, version: int | None) -> dict[str, Any]:
    """Return the lineage in a version's commit; of one that changed no rows, that of the publish before it.

    11: there is no such version, or nothing was published yet.
    """
    last = snapshot.last_position(stream.path, format=LANCE, version=stream.version)
    found = snapshot.deltas(stream.path, format=LANCE, version=stream.version)
    known = {delta.position: delta.properties.get(LINEAGE) for delta in found}
    wanted = last if version is None else version
    if wanted not in known:
        raise TableVersionNotFoundError(f"{stream.name} has no published version {wanted}; its newest is {last}.")
    later = (known[number] for number in sorted(known, reverse=True) if number <= wanted)
    return dict(next((lineage for lineage in later if lineage is not None), {}))


def _source(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    files = list(entry["files"])
    return {"source": name, "deltas": entry["deltas"], "files": files[:MAX_FILES], "file_count": len(files)}
