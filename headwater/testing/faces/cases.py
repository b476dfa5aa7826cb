"""One case for each verb: about names and transactions, about the rows and parts of a table, of stream tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.catalog import Catalog
from headwater.testing.faces.case_objects import (
    MORE_EVENTS,
    MORE_ROWS,
    Case,
    a_branch,
    a_changed_table,
    a_dropped_namespace,
    a_dropped_stream,
    a_dropped_table,
    a_namespace,
    a_published_stream,
    a_second_version,
    a_snapshot,
    a_stream,
    a_table,
    an_alias,
    an_identified_part,
    nothing,
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


NAME_VERBS: tuple[Case, ...] = (
    Case(
        "create a namespace",
        lambda c, f: c.create_namespace(f"{f['base']}.new", {"team": "ann"}),
        nothing,
        rest=(route("namespace", "new", "create"), {"properties": {"team": "ann"}}),
        cli=("create", "{base}.new", "--namespace", "--set", "team=ann"),
        sql="CREATE NAMESPACE {lake}.{base}.new WITH PROPERTIES (team = 'ann')",
    ),
    Case(
        "create a namespace that exists",
        lambda c, f: c.create_namespace(f"{f['base']}.a"),
        a_namespace,
        rest=(route("namespace", "a", "create"), {}),
        cli=("create", "{base}.a", "--namespace"),
        code=2,
    ),
    Case(
        "set properties of a namespace",
        lambda c, f: c.alter_namespace(f"{f['base']}.a", {"tier": "1"}, removed=["team"]),
        a_namespace,
        rest=(own_route("namespace", "a", "properties"), {"properties": {"tier": "1"}, "removed": ["team"]}),
        cli=("properties", "{base}.a", "tier=1", "--unset", "team"),
    ),
    Case(
        "rename a namespace",
        lambda c, f: c.rename_namespace(f"{f['base']}.a", f"{f['base']}.b"),
        a_namespace,
        rest=(own_route("namespace", "a", "rename"), {"new_id": ["{base}", "b"]}),
        cli=("rename", "{base}.a", "{base}.b"),
    ),
    Case(
        "drop a namespace with all in it",
        lambda c, f: c.drop_namespace(f"{f['base']}.a", cascade=True),
        a_namespace,
        rest=(route("namespace", "a", "drop"), {"behavior": "Cascade"}),
        cli=("drop", "{base}.a", "--cascade", "--yes"),
        page=("/do/drop-namespace/{base}/a", {"name": "a", "cascade": "yes"}),
        sql="DROP NAMESPACE {lake}.{base}.a CASCADE",
    ),
    Case(
        "drop a namespace that is not empty",
        lambda c, f: c.drop_namespace(f"{f['base']}.a"),
        a_namespace,
        rest=(route("namespace", "a", "drop"), {"behavior": "Restrict"}),
        cli=("drop", "{base}.a", "--yes"),
        page=("/do/drop-namespace/{base}/a", {"name": "a"}),
        code=3,
    ),
    Case(
        "rename a table",
        lambda c, f: c.rename_table(f"{f['base']}.t", f"{f['base']}.u"),
        a_table,
        rest=(route("table", "t", "rename"), {"new_table_name": "u", "new_namespace_id": ["{base}"]}),
        cli=("rename", "{base}.t", "{base}.u"),
        sql="ALTER TABLE {lake}.{base}.t RENAME TO {base}.u",
    ),
    Case(
        "rename a table that is not there",
        lambda c, f: c.rename_table(f"{f['base']}.none", f"{f['base']}.u"),
        a_table,
        rest=(route("table", "none", "rename"), {"new_table_name": "u", "new_namespace_id": ["{base}"]}),
        code=4,
    ),
    Case(
        "drop a table",
        lambda c, f: c.drop_table(f"{f['base']}.t"),
        a_table,
        rest=(route("table", "t", "drop"), {}),
        cli=("drop", "{base}.t", "--yes"),
        page=("/do/drop-table/{base}/t", {"name": "t"}),
        sql="DROP TABLE {lake}.{base}.t",
    ),
    Case(
        "drop a stream table",
        lambda c, f: c.drop_table(f"{f['base']}.s"),
        a_published_stream,
        rest=(route("table", "s", "drop"), {}),
        cli=("drop", "{base}.s", "--yes"),
        page=("/do/drop-table/{base}/s", {"name": "s"}),
        sql="DROP TABLE {lake}.{base}.s",
    ),
    Case(
        "undrop a table",
        lambda c, f: c.undrop(f"{f['base']}.t"),
        a_dropped_table,
        rest=(own_route("object", "t", "undrop"), {}),
        cli=("undrop", "{base}.t"),
        page=("/do/undrop/{base}/t", {}),
    ),
    Case(
        "undrop a namespace",
        lambda c, f: c.undrop(f"{f['base']}.a"),
        a_dropped_namespace,
        rest=(own_route("object", "a", "undrop"), {}),
        cli=("undrop", "{base}.a"),
        page=("/do/undrop/{base}/a", {}),
    ),
    Case(
        "undrop a stream table",
        lambda c, f: c.undrop(f"{f['base']}.s"),
        a_dropped_stream,
        rest=(own_route("object", "s", "undrop"), {}),
        cli=("undrop", "{base}.s"),
        page=("/do/undrop/{base}/s", {}),
    ),
    Case(
        "undrop what was never dropped",
        lambda c, f: c.undrop(f"{f['base']}.none"),
        a_table,
        rest=(own_route("object", "none", "undrop"), {}),
        cli=("undrop", "{base}.none"),
        page=("/do/undrop/{base}/none", {}),
        code=4,
    ),
    Case(
        "alias a table",
        lambda c, f: c.alias(f"{f['base']}.t", "other"),
        a_table,
        rest=(own_route("object", "t", "alias"), {"alias": "other"}),
        cli=("alias", "{base}.t", "other"),
    ),
    Case(
        "alias a table by the name of another",
        lambda c, f: c.alias(f"{f['base']}.t", "t"),
        a_table,
        rest=(own_route("object", "t", "alias"), {"alias": "t"}),
        cli=("alias", "{base}.t", "t"),
        code=5,
    ),
    Case(
        "take an alias away",
        lambda c, f: c.unalias(f"{f['base']}.t", "other"),
        an_alias,
        rest=(own_route("object", "t", "unalias"), {"alias": "other"}),
        cli=("unalias", "{base}.t", "other"),
    ),
    Case(
        "find an object by its locator",
        lambda c, f: [c.find(f"{f['base']}|other")],
        an_alias,
        rest=("/headwater/v1/find", {"locator": "{base}|other"}),
        cli=("find", "{base}|other"),
        answer=picked("locator"),
        changes=False,
    ),
    Case(
        "find an object by its id",
        lambda c, f: [c.by_id(f["key"])],
        an_identified_part,
        rest=("/headwater/v1/find", {"key": "{key}"}),
        cli=("find", "{key}"),
        answer=picked("locator"),
        changes=False,
    ),
    Case(
        "find an object that is not there",
        lambda c, f: c.find(f"{f['base']}|none"),
        a_table,
        rest=("/headwater/v1/find", {"locator": "{base}|none"}),
        changes=False,
        code=4,
    ),
    Case(
        "list the parts of a table",
        lambda c, f: c.objects(f"{f['base']}.s"),
        a_published_stream,
        rest=(own_route("object", "s", "objects"), {}),
        answer=picked("locator"),
        changes=False,
    ),
    Case(
        "undo a transaction",
        lambda c, f: c.undo(f["txn"]),
        a_changed_table,
        rest=("/headwater/v1/undo", {"txn": "{txn}"}),
        cli=("undo", "{txn}", "--yes"),
    ),
    Case(
        "take a snapshot",
        lambda c, f: c.snapshot(f"{f['base']}-end", [f"{f['base']}.t"]),
        a_table,
        rest=("/headwater/v1/snapshot", {"name": "{base}-end", "tables": [["{base}", "t"]]}),
        cli=("snapshot", "add", "{base}-end", "--table", "{base}.t"),
    ),
    Case(
        "drop a snapshot",
        lambda c, f: c.drop_snapshot(f"{f['base']}-end"),
        a_snapshot,
        rest=("/headwater/v1/drop_snapshot", {"name": "{base}-end"}),
        cli=("snapshot", "drop", "{base}-end", "--yes"),
    ),
)
