"""Lineage, read from the commits that made each published version, and written as OpenLineage events.

Events go to a file, or to a collector by one request each.
Nothing is kept beside the catalog: what a version comes from stands in the record of the version.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError, ServiceUnavailableError, UnsupportedOperationError
from headwater.namespace.vending.scoped import WITHOUT_REDIRECTS
from headwater.references import follow
from headwater.rest.remote_streams import RemoteStream
from headwater.streams.layout import LANCE, LINEAGE
from headwater.streams.serving.publication import sources_so_far
from headwater.wording import many

PRODUCER = "https://github.com/headwater"
SCHEMA_URL = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
UPSTREAM, DOWNSTREAM = "upstream", "downstream"


@dataclass(frozen=True)
class VersionOrigin:
    """Origin of one published version."""

    table: str
    version: int
    position: int
    time_ms: int
    inputs: dict[str, dict[str, int]] = field(default_factory=dict)
    sources: tuple[dict[str, Any], ...] = ()
    functions: dict[str, dict[str, str]] = field(default_factory=dict)
    run: dict[str, str] = field(default_factory=dict)
    sql: str | None = None
    undone: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class LineageNode:
    """A table and what it comes from, or what comes from it."""

    table: str
    origin: VersionOrigin | None
    related: tuple[LineageNode, ...] = ()


def origins(stream: CatalogStream) -> list[VersionOrigin]:
    """Return the origins of all kept published versions, oldest first."""
    opened, snapshot = stream.opened()
    found = []
    for delta in snapshot.deltas(opened.path, format=LANCE, version=opened.version):
        noted = delta.properties.get(LINEAGE)
        if noted is not None:
            found.append(
                VersionOrigin(
                    stream.name,
                    delta.position,
                    int(delta.properties["position"]),
                    delta.time_ms,
                    dict(noted.get("inputs", {})),
                    tuple(noted.get("sources", ())),
                    dict(noted.get("functions", {})),
                    dict(noted.get("run", {})),
                    noted.get("sql"),
                    tuple(noted.get("undone", ())),
                )
            )
    return found


def latest(catalog: Catalog, name: str) -> VersionOrigin | None:
    """Return the origin of the newest published version: the sources of all versions, the rest as of the last."""
    if name not in catalog:
        return None
    stream = catalog[name]
    if isinstance(stream, RemoteStream):
        raise UnsupportedOperationError(
            f"The lineage of {name} is read where the files of the catalog are, or on the page of its server."
        )
    if not isinstance(stream, CatalogStream):
        return None
    found = origins(stream)
    if not found:
        return None
    sources = sources_so_far({"sources": origin.sources, "undone": origin.undone} for origin in found)
    return replace(found[-1], sources=tuple(sources), undone=())


def upstream(catalog: Catalog, name: str, above: Sequence[str] = ()) -> LineageNode:
    """Return a table, the tables it was made of, theirs, and so on."""
    catalog[name]
    origin = latest(catalog, name)
    inputs = [each for each in (origin.inputs if origin is not None else {}) if each not in above]
    there = [each for each in inputs if each in catalog]
    return LineageNode(name, origin, tuple(upstream(catalog, each, (*above, name)) for each in there))


def downstream(catalog: Catalog, name: str, above: Sequence[str] = ()) -> LineageNode:
    """Return a table, the tables that were made of it, of those, and so on."""
    catalog[name]
    made = {each: origin for each in catalog if (origin := latest(catalog, each)) is not None and each not in above}
    below = [each for each, origin in made.items() if name in origin.inputs]
    return LineageNode(name, latest(catalog, name), tuple(downstream(catalog, each, (*above, name)) for each in below))


def drawing(node: LineageNode, way: str = UPSTREAM, indent: str = "") -> Iterator[str]:
    """Yield a tree of names for people, a line each."""
    origin = node.origin
    at = f"  version {origin.version}, position {origin.position}" if origin is not None else ""
    yield f"{indent}{node.table}{at}"
    inner = indent + "    "
    if origin is not None and way == UPSTREAM:
        for column, function in origin.functions.items():
            yield f"{inner}{column} = {function['function']} ({function['identity'][:8]})"
        for source in origin.sources:
            files = source["files"]
            if origin.inputs and not files:
                continue  # the rows of a view: its inputs are told below
            told = f"{many(len(files), 'file')}, the last {files[-1]}" if files else "rows"
            yield f"{inner}source {source['source'] or '(unnamed)'}: {told}"
    for each in node.related:
        yield from drawing(each, way, inner)


def open_lineage(catalog: Catalog, names: Sequence[str] = (), namespace: str = "headwater") -> list[dict[str, Any]]:
    """Return an OpenLineage run event for each published version of these tables (of all, when none is named)."""
    events = []
    for name in names or tuple(catalog):
        table = catalog[name]
        if isinstance(table, CatalogStream):
            events += [_event(origin, table, namespace) for origin in origins(table)]
    return sorted(events, key=lambda event: str(event["eventTime"]))


def _event(origin: VersionOrigin, table: CatalogStream, namespace: str) -> dict[str, Any]:
    files = [_file(file) for source in origin.sources for file in source["files"]]
    tables = [
        {"namespace": namespace, "name": name, "facets": {"version": _version(entry.get("version", 0))}}
        for name, entry in origin.inputs.items()
    ]
    fields = [{"name": name, "type": str(each.type)} for name, each in table.definition.shown.items()]
    facets: dict[str, Any] = {
        "version": _version(origin.version),
        "schema": {"_producer": PRODUCER, "_schemaURL": _facet("1-1-1/SchemaDatasetFacet"), "fields": fields},
    }
    job: dict[str, Any] = {"namespace": namespace, "name": f"{origin.run.get('pipeline', 'publish')}.{origin.table}"}
    if origin.sql:
        job["facets"] = {"sql": {"_producer": PRODUCER, "_schemaURL": _facet("1-0-1/SQLJobFacet"), "query": origin.sql}}
    return {
        "eventType": "COMPLETE",
        "eventTime": datetime.fromtimestamp(origin.time_ms / 1000, UTC).isoformat(),
        "producer": PRODUCER,
        "schemaURL": SCHEMA_URL,
        "run": _run(origin, namespace),
        "job": job,
        "inputs": [*tables, *files],
        "outputs": [{"namespace": namespace, "name": origin.table, "facets": facets}],
    }


def _run(origin: VersionOrigin, namespace: str) -> dict[str, object]:
    """Return the run that made a version: one of its own, below that of the pipeline, which makes versions of many
    tables."""
    whole = origin.run.get("run")
    name = f"{whole or namespace}/{origin.table}/{origin.version}/{origin.time_ms}"
    own: dict[str, object] = {"runId": str(uuid.uuid5(uuid.NAMESPACE_URL, name))}
    if whole is not None:
        job = {"namespace": namespace, "name": origin.run.get("pipeline", "publish")}
        parent = {
            "_producer": PRODUCER,
            "_schemaURL": _facet("1-0-1/ParentRunFacet"),
            "run": {"runId": whole},
            "job": job,
        }
        own["facets"] = {"parent": parent}
    return own


def _file(address: str) -> dict[str, str]:
    """Return a file as OpenLineage names it: by its bucket and its key, or by its path."""
    scheme, found, rest = address.partition("://")
    if not found or scheme == "file":
        return {"namespace": "file", "name": rest or address}
    bucket, _, key = rest.partition("/")
    return {"namespace": f"{scheme}://{bucket}", "name": key}


def _version(version: int) -> dict[str, Any]:
    return {
        "_producer": PRODUCER,
        "_schemaURL": _facet("1-0-1/DatasetVersionDatasetFacet"),
        "datasetVersion": str(version),
    }


def _facet(name: str) -> str:
    version, kind = name.split("/")
    return f"https://openlineage.io/spec/facets/{version}/{kind}.json#/$defs/{kind}"


TIMEOUT_S = 30.0


def export_lineage(events: Sequence[Mapping[str, object]], to: str, token: str | None = None) -> int:
    """Write events to a file or send them to an address; how many there were.

    A token is sent as a bearer's; `env:NAME` and `file:PATH` say where it is.
    """
    if not to.startswith(("http://", "https://")):
        Path(to).write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
        return len(events)
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {follow(token, 'token')}"
    for event in events:
        _send(to, json.dumps(event).encode(), headers)
    return len(events)


def _send(to: str, body: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(to, body, dict(headers), method="POST")  # http or https
    try:
        with WITHOUT_REDIRECTS.open(request, timeout=TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        raise InvalidInputError(f"{to} refused a lineage event: {error.code} {error.reason}.") from None
    except (urllib.error.URLError, TimeoutError) as error:
        raise ServiceUnavailableError(f"{to} cannot be reached: {getattr(error, 'reason', error)}.") from None
