"""Verbs of stream tables."""

from __future__ import annotations

from headwater.testing.faces.case_objects import MORE_EVENTS, a_published_stream, a_stream, own_route, route
from headwater.testing.faces.outcome import Case

STREAM_VERBS: tuple[Case, ...] = (
    Case(
        "undo what came from a source",
        lambda c, f: c[f"{f['base']}.s"].undo(source="feed"),
        a_stream,
        rest=(own_route("table", "s", "stream/undo"), {"source": "feed"}),
    ),
    Case(
        "publish a stream table",
        lambda c, f: c.publish([f"{f['base']}.s"]),
        a_stream,
        rest=("/headwater/v1/streams/publish", {"tables": [["{base}", "s"]]}),
        cli=("publish", "{base}.s"),
        sql="CALL {lake}.system.publish('{base}.s')",
    ),
    Case(
        "set properties of a stream table",
        lambda c, f: c[f"{f['base']}.s"].set_properties({"late": "quarantine"}),
        a_stream,
        rest=(own_route("table", "s", "stream/properties"), {"properties": {"late": "quarantine"}}),
        cli=("properties", "{base}.s", "late=quarantine"),
        sql="ALTER TABLE {lake}.{base}.s SET TBLPROPERTIES ('late' = 'quarantine')",
    ),
    Case(
        "insert into a stream table by an operation of plain tables",
        lambda c, f: c[f"{f['base']}.s"].serving.delete("id = 1"),
        a_published_stream,
        rest=(route("table", "s", "delete"), {"predicate": "id = 1"}),
        code=13,
    ),
    Case(
        "upsert rows into a stream table",
        lambda c, f: c[f"{f['base']}.s"].upsert(MORE_EVENTS),
        a_stream,
        rest=(own_route("table", "s", "stream/upsert"), MORE_EVENTS),
        cli=("upsert", "{base}.s", "{folder}/events.jsonl"),
    ),
    Case(
        "append rows to a stream table with keys and no change log of appends",
        lambda c, f: c[f"{f['base']}.s"].append(MORE_EVENTS),
        a_stream,
        rest=(own_route("table", "s", "stream/append"), MORE_EVENTS),
        cli=("insert", "{base}.s", "{folder}/events.jsonl"),
        code=13,
    ),
    Case(
        "ingest rows",
        lambda c, f: c[f"{f['base']}.s"].ingest(MORE_EVENTS, source="more"),
        a_stream,
        rest=(own_route("table", "s", "stream/ingest?source=more"), MORE_EVENTS),
    ),
    Case(
        "ingest a file",
        lambda c, f: c[f"{f['base']}.s"].ingest(f"{f['folder']}/events.jsonl", source="files"),
        a_stream,
        cli=("ingest", "{base}.s", "{folder}/events.jsonl", "--name", "files"),
    ),
)
