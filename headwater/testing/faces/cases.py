"""One case for each verb about the rows and parts of a table, and each verb of stream tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.catalog import Catalog
from headwater.testing.faces.case_objects import (
    MORE_EVENTS,
    MORE_ROWS,
    Case,
    a_branch,
    a_published_stream,
    a_second_version,
    a_stream,
    a_table,
    own_route,
    picked,
    route,
    two_versions,
)


def _tag(catalog: Catalog, base: str, name: str, version: int) -> None:
    catalog[f"{base}.t"].tags[name] = version


def _untag(catalog: Catalog, base: str, name: str) -> None:
    del catalog[f"{base}.t"].tags[name]


def _unbranch(catalog: Catalog, base: str, name: str) -> None:
    del catalog[f"{base}.t"].branches[name]


def _count(answer: Any) -> int:
    return int(answer["count"] if isinstance(answer, Mapping) else answer)


def _tags(answer: Any) -> list[str]:
    if isinstance(answer, Mapping):
        return sorted(answer["tags"]) if "tags" in answer else [answer["tag"]]
    return sorted(answer)


ROW_VERBS: tuple[Case, ...] = (
    Case(
        "insert rows",
        lambda c, f: c[f"{f['base']}.t"].append(MORE_ROWS),
        a_table,
        rest=(route("table", "t", "insert"), MORE_ROWS),
        cli=("insert", "{base}.t", "{folder}/rows.jsonl"),
    ),
    Case(
        "insert rows into a table that is not there",
        lambda c, f: c[f"{f['base']}.none"].append(MORE_ROWS),
        a_table,
        cli=("insert", "{base}.none", "{folder}/rows.jsonl"),
        code=4,
    ),
    Case(
        "restore a version",
        lambda c, f: c[f"{f['base']}.t"].restore(1),
        two_versions,
        rest=(route("table", "t", "restore"), {"version": 1}),
        cli=("restore", "{base}.t", "1", "--yes"),
        page=("/do/restore/{base}/t", {"version": "1"}),
        sql="CALL {lake}.system.rollback('{base}.t', 1)",
    ),
    Case(
        "tag a version",
        lambda c, f: _tag(c, f["base"], "good", 2),
        two_versions,
        rest=(route("table", "t", "tags/create"), {"tag": "good", "version": 2}),
        cli=("tags", "{base}.t", "add", "good", "2"),
        page=("/do/add-tag/{base}/t", {"tag": "good", "version": "2"}),
    ),
    Case(
        "drop a tag",
        lambda c, f: _untag(c, f["base"], "old"),
        two_versions,
        rest=(route("table", "t", "tags/delete"), {"tag": "old"}),
        cli=("tags", "{base}.t", "drop", "old"),
        page=("/do/drop-tag/{base}/t", {"tag": "old"}),
    ),
    Case(
        "make a branch",
        lambda c, f: c[f"{f['base']}.t"].branches.create("trial"),
        a_table,
        rest=(route("table", "t", "branches/create"), {"name": "trial"}),
        cli=("branches", "{base}.t", "add", "trial"),
    ),
    Case(
        "drop a branch",
        lambda c, f: _unbranch(c, f["base"], "trial"),
        a_branch,
        rest=(route("table", "t", "branches/delete"), {"name": "trial"}),
        cli=("branches", "{base}.t", "drop", "trial"),
    ),
    Case(
        "update rows",
        lambda c, f: c[f"{f['base']}.t"].update({"name": "z"}, where="id = 1"),
        a_table,
        rest=(route("table", "t", "update"), {"updates": [["name", "'z'"]], "predicate": "id = 1"}),
        cli=("update", "{base}.t", "--set", "name='z'", "--where", "id = 1"),
        sql="UPDATE {lake}.{base}.t SET name = 'z' WHERE id = 1",
    ),
    Case(
        "delete rows",
        lambda c, f: c[f"{f['base']}.t"].delete("id = 1"),
        a_table,
        rest=(route("table", "t", "delete"), {"predicate": "id = 1"}),
        cli=("delete", "{base}.t", "--where", "id = 1", "--yes"),
        sql="DELETE FROM {lake}.{base}.t WHERE id = 1",
    ),
    Case(
        "delete rows by a predicate that is no SQL",
        lambda c, f: c[f"{f['base']}.t"].delete("id = = 1"),
        a_table,
        rest=(route("table", "t", "delete"), {"predicate": "id = = 1"}),
        cli=("delete", "{base}.t", "--where", "id = = 1", "--yes"),
        code=13,
    ),
    Case(
        "count rows",
        lambda c, f: c[f"{f['base']}.t"].count(),
        a_table,
        rest=(route("table", "t", "count_rows"), {}),
        cli=("count", "{base}.t"),
        answer=_count,
        changes=False,
    ),
    Case(
        "read rows",
        lambda c, f: c[f"{f['base']}.t"].to_arrow(columns=["name"]).to_pylist(),
        a_table,
        cli=("head", "{base}.t"),
        tool=("query", {"sql": "SELECT name FROM {base}.t ORDER BY id", "limit": 100, "dialect": "spark"}),
        answer=picked("name"),
        changes=False,
    ),
    Case(
        "list versions",
        lambda c, f: c[f"{f['base']}.t"].versions(),
        two_versions,
        rest=(route("table", "t", "version/list"), {}),
        cli=("versions", "{base}.t"),
        answer=lambda told: sorted(picked("version")(told)),
        changes=False,
    ),
    Case(
        "list tags",
        lambda c, f: list(c[f"{f['base']}.t"].tags),
        two_versions,
        rest=(route("table", "t", "tags/list"), {}),
        cli=("tags", "{base}.t"),
        answer=_tags,
        changes=False,
    ),
    Case(
        "tell the history of a table",
        lambda c, f: c.history(f"{f['base']}.t"),
        two_versions,
        rest=(own_route("object", "t", "history"), {}),
        cli=("history", "{base}.t"),
        tool=("history", {"name": "{base}.t", "limit": 100}),
        answer=lambda told: sorted(picked("message")(told)),
        changes=False,
        in_transaction=False,
    ),
    Case(
        "count rows of a table that is not there",
        lambda c, f: c[f"{f['base']}.none"].count(),
        a_table,
        rest=(route("table", "none", "count_rows"), {}),
        cli=("count", "{base}.none"),
        changes=False,
        code=4,
    ),
    Case(
        "index a column",
        lambda c, f: c[f"{f['base']}.t"].create_index("id", "BTREE"),
        a_table,
        rest=(route("table", "t", "create_scalar_index"), {"column": "id", "index_type": "BTREE"}),
        cli=("index", "{base}.t", "add", "id", "--type", "BTREE"),
        sql="CALL {lake}.system.create_index('{base}.t', 'id', 'BTREE')",
        in_transaction=False,
    ),
    Case(
        "drop a column",
        lambda c, f: c[f"{f['base']}.t"].drop_columns("name"),
        a_table,
        rest=(route("table", "t", "drop_columns"), {"columns": ["name"]}),
        cli=("columns", "{base}.t", "drop", "name", "--yes"),
        sql="ALTER TABLE {lake}.{base}.t DROP COLUMN name",
    ),
)


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
        "activate a table version",
        lambda c, f: c[f"{f['base']}.s"].table_versions.activate("2"),
        a_second_version,
        rest=(own_route("table", "s", "named_version/activate"), {"version": "2"}),
        cli=("table-versions", "{base}.s", "activate", "2"),
    ),
    Case(
        "activate a table version that is not there",
        lambda c, f: c[f"{f['base']}.s"].table_versions.activate("9"),
        a_second_version,
        rest=(own_route("table", "s", "named_version/activate"), {"version": "9"}),
        cli=("table-versions", "{base}.s", "activate", "9"),
        code=11,
    ),
    Case(
        "drop the active table version",
        lambda c, f: c[f"{f['base']}.s"].table_versions.drop("1"),
        a_second_version,
        rest=(own_route("table", "s", "named_version/drop"), {"version": "1"}),
        cli=("table-versions", "{base}.s", "drop", "1", "--yes"),
        code=13,
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
