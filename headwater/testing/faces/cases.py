"""The verbs, each in the words of every face that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.testing.faces.outcome import Case

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]})
EVENTS: dict[str, str] = {"id": "bigint", "name": "string", "at": "bigint"}
Facts = Mapping[str, str]


def _nothing(catalog: Catalog, base: str) -> None:
    """The namespace of the case alone."""


def _table(catalog: Catalog, base: str) -> None:
    catalog.create_table(f"{base}.t", ROWS)


def _versions(catalog: Catalog, base: str) -> None:
    """A table of two versions, the first of which has a tag."""
    table = catalog.create_table(f"{base}.t", ROWS)
    table.append([{"id": 4, "name": "d"}])
    table.tags["old"] = 1


def _space(catalog: Catalog, base: str) -> None:
    catalog.create_namespace(f"{base}.a", {"team": "ann"})
    catalog.create_table(f"{base}.a.t", ROWS)


def _dropped(catalog: Catalog, base: str) -> None:
    _table(catalog, base)
    catalog.drop_table(f"{base}.t")


def _dropped_space(catalog: Catalog, base: str) -> None:
    _space(catalog, base)
    catalog.drop_namespace(f"{base}.a", cascade=True)


def _stream(catalog: Catalog, base: str) -> None:
    """A stream table with events of one source that are not published, a history and a quarantined row."""
    table = catalog.create_stream_table(f"{base}.s", EVENTS, keys="id", sequence="at", properties={"history": "scd2"})
    rows = [{"id": 1, "name": "a", "at": 1}, {"id": 2, "name": "b", "at": 1}, {"id": None, "name": "c", "at": 1}]
    table.ingest(rows, source="feed")


def _published(catalog: Catalog, base: str) -> None:
    _stream(catalog, base)
    catalog[f"{base}.s"].publish()


def _dropped_stream(catalog: Catalog, base: str) -> None:
    _published(catalog, base)
    catalog.drop_table(f"{base}.s")


def _changed(catalog: Catalog, base: str) -> Facts:
    """A table and a transaction that changed its rows, to be undone."""
    _table(catalog, base)
    catalog[f"{base}.t"].append([{"id": 4, "name": "d"}])
    return {"txn": list(catalog.log(catalog.slot - 1))[-1].txn}


def _aliased(catalog: Catalog, base: str) -> None:
    _table(catalog, base)
    catalog.alias(f"{base}.t", "other")


def _pinned(catalog: Catalog, base: str) -> None:
    _table(catalog, base)
    catalog.snapshot(f"{base}-end", [f"{base}.t"])


def _branched(catalog: Catalog, base: str) -> None:
    _table(catalog, base)
    catalog[f"{base}.t"].branches.create("trial")


def _route(kind: str, name: str, tail: str) -> str:
    """A route of the Lance document about an object below the namespace of the case."""
    return f"/v1/{kind}/{{base}}{'$' if name else ''}{name}/{tail}"


def _own(kind: str, name: str, tail: str) -> str:
    """A route of ours about such an object."""
    return f"/headwater{_route(kind, name, tail)}"


def _tag(catalog: Catalog, base: str, name: str, version: int) -> None:
    catalog[f"{base}.t"].tags[name] = version


def _untag(catalog: Catalog, base: str, name: str) -> None:
    del catalog[f"{base}.t"].tags[name]


def _unbranch(catalog: Catalog, base: str, name: str) -> None:
    del catalog[f"{base}.t"].branches[name]


def _count(answer: Any) -> int:
    return int(answer["count"] if isinstance(answer, Mapping) else answer)


def _picked(field: str) -> Callable[[Any], list[Any]]:
    """One field of every record of an answer: objects, dictionaries, or a dictionary around a list of them."""

    def pick(answer: Any) -> list[Any]:
        if isinstance(answer, Mapping) and field not in answer:
            answer = next(value for value in answer.values() if isinstance(value, list))
        records = [answer] if isinstance(answer, Mapping) else answer
        return [record[field] if isinstance(record, Mapping) else getattr(record, field) for record in records]

    return pick


def _tags(answer: Any) -> list[str]:
    if isinstance(answer, Mapping):
        return sorted(answer["tags"]) if "tags" in answer else [answer["tag"]]
    return sorted(answer)


CASES: tuple[Case, ...] = (
    Case(
        "create a namespace",
        lambda c, f: c.create_namespace(f"{f['base']}.new", {"team": "ann"}),
        _nothing,
        rest=(_route("namespace", "new", "create"), {"properties": {"team": "ann"}}),
        cli=("create-namespace", "{base}.new", "--set", "team=ann"),
        sql="CREATE NAMESPACE {lake}.{base}.new WITH PROPERTIES (team = 'ann')",
    ),
    Case(
        "create a namespace that exists",
        lambda c, f: c.create_namespace(f"{f['base']}.a"),
        _space,
        rest=(_route("namespace", "a", "create"), {}),
        cli=("create-namespace", "{base}.a"),
        code=2,
    ),
    Case(
        "set properties of a namespace",
        lambda c, f: c.alter_namespace(f"{f['base']}.a", {"tier": "1"}, removed=["team"]),
        _space,
        rest=(_own("namespace", "a", "properties"), {"properties": {"tier": "1"}, "removed": ["team"]}),
        cli=("properties", "{base}.a", "tier=1", "--unset", "team"),
    ),
    Case(
        "rename a namespace",
        lambda c, f: c.rename_namespace(f"{f['base']}.a", f"{f['base']}.b"),
        _space,
        rest=(_own("namespace", "a", "rename"), {"new_id": ["{base}", "b"]}),
        cli=("rename", "{base}.a", "{base}.b"),
    ),
    Case(
        "drop a namespace with all in it",
        lambda c, f: c.drop_namespace(f"{f['base']}.a", cascade=True),
        _space,
        rest=(_route("namespace", "a", "drop"), {"behavior": "Cascade"}),
        cli=("drop", "{base}.a", "--cascade", "--yes"),
        page=("/do/drop-namespace/{base}/a", {"name": "a", "cascade": "yes"}),
        sql="DROP NAMESPACE {lake}.{base}.a CASCADE",
    ),
    Case(
        "drop a namespace that is not empty",
        lambda c, f: c.drop_namespace(f"{f['base']}.a"),
        _space,
        rest=(_route("namespace", "a", "drop"), {"behavior": "Restrict"}),
        cli=("drop", "{base}.a", "--yes"),
        page=("/do/drop-namespace/{base}/a", {"name": "a"}),
        code=3,
    ),
    Case(
        "rename a table",
        lambda c, f: c.rename_table(f"{f['base']}.t", f"{f['base']}.u"),
        _table,
        rest=(_route("table", "t", "rename"), {"new_table_name": "u", "new_namespace_id": ["{base}"]}),
        cli=("rename", "{base}.t", "{base}.u"),
        sql="ALTER TABLE {lake}.{base}.t RENAME TO {base}.u",
    ),
    Case(
        "rename a table that is not there",
        lambda c, f: c.rename_table(f"{f['base']}.none", f"{f['base']}.u"),
        _table,
        rest=(_route("table", "none", "rename"), {"new_table_name": "u", "new_namespace_id": ["{base}"]}),
        code=4,
    ),
    Case(
        "drop a table",
        lambda c, f: c.drop_table(f"{f['base']}.t"),
        _table,
        rest=(_route("table", "t", "drop"), {}),
        cli=("drop", "{base}.t", "--yes"),
        page=("/do/drop-table/{base}/t", {"name": "t"}),
        sql="DROP TABLE {lake}.{base}.t",
    ),
    Case(
        "drop a stream table",
        lambda c, f: c.drop_table(f"{f['base']}.s"),
        _published,
        rest=(_route("table", "s", "drop"), {}),
        cli=("drop", "{base}.s", "--yes"),
        page=("/do/drop-table/{base}/s", {"name": "s"}),
        sql="DROP TABLE {lake}.{base}.s",
    ),
    Case(
        "undrop a table",
        lambda c, f: c.undrop(f"{f['base']}.t"),
        _dropped,
        rest=(_own("object", "t", "undrop"), {}),
        cli=("undrop", "{base}.t"),
        page=("/do/undrop/{base}/t", {}),
    ),
    Case(
        "undrop a namespace",
        lambda c, f: c.undrop(f"{f['base']}.a"),
        _dropped_space,
        rest=(_own("object", "a", "undrop"), {}),
        cli=("undrop", "{base}.a"),
        page=("/do/undrop/{base}/a", {}),
    ),
    Case(
        "undrop a stream table",
        lambda c, f: c.undrop(f"{f['base']}.s"),
        _dropped_stream,
        rest=(_own("object", "s", "undrop"), {}),
        cli=("undrop", "{base}.s"),
        page=("/do/undrop/{base}/s", {}),
    ),
    Case(
        "undrop what was never dropped",
        lambda c, f: c.undrop(f"{f['base']}.none"),
        _table,
        rest=(_own("object", "none", "undrop"), {}),
        cli=("undrop", "{base}.none"),
        page=("/do/undrop/{base}/none", {}),
        code=4,
    ),
    Case(
        "alias a table",
        lambda c, f: c.alias(f"{f['base']}.t", "other"),
        _table,
        rest=(_own("object", "t", "alias"), {"alias": "other"}),
        cli=("alias", "{base}.t", "other"),
    ),
    Case(
        "alias a table by the name of another",
        lambda c, f: c.alias(f"{f['base']}.t", "t"),
        _table,
        rest=(_own("object", "t", "alias"), {"alias": "t"}),
        cli=("alias", "{base}.t", "t"),
        code=5,
    ),
    Case(
        "take an alias away",
        lambda c, f: c.unalias(f"{f['base']}.t", "other"),
        _aliased,
        rest=(_own("object", "t", "unalias"), {"alias": "other"}),
        cli=("unalias", "{base}.t", "other"),
    ),
    Case(
        "undo a transaction",
        lambda c, f: c.undo(f["txn"]),
        _changed,
        rest=("/headwater/v1/undo", {"txn": "{txn}"}),
        cli=("undo", "{txn}", "--yes"),
    ),
    Case(
        "undo what came from a source",
        lambda c, f: c[f"{f['base']}.s"].undo(source="feed"),
        _stream,
        rest=(_own("table", "s", "stream/undo"), {"source": "feed"}),
    ),
    Case(
        "take a snapshot",
        lambda c, f: c.snapshot(f"{f['base']}-end", [f"{f['base']}.t"]),
        _table,
        rest=("/headwater/v1/snapshot", {"name": "{base}-end", "tables": [["{base}", "t"]]}),
        cli=("snapshot", "add", "{base}-end", "--table", "{base}.t"),
    ),
    Case(
        "drop a snapshot",
        lambda c, f: c.drop_snapshot(f"{f['base']}-end"),
        _pinned,
        rest=("/headwater/v1/drop_snapshot", {"name": "{base}-end"}),
        cli=("snapshot", "drop", "{base}-end", "--yes"),
    ),
    Case(
        "restore a version",
        lambda c, f: c[f"{f['base']}.t"].restore(1),
        _versions,
        rest=(_route("table", "t", "restore"), {"version": 1}),
        cli=("restore", "{base}.t", "1", "--yes"),
        page=("/do/restore/{base}/t", {"version": "1"}),
        sql="CALL {lake}.system.rollback('{base}.t', 1)",
    ),
    Case(
        "tag a version",
        lambda c, f: _tag(c, f["base"], "good", 2),
        _versions,
        rest=(_route("table", "t", "tags/create"), {"tag": "good", "version": 2}),
        cli=("tags", "{base}.t", "add", "good", "2"),
        page=("/do/add-tag/{base}/t", {"tag": "good", "version": "2"}),
    ),
    Case(
        "drop a tag",
        lambda c, f: _untag(c, f["base"], "old"),
        _versions,
        rest=(_route("table", "t", "tags/delete"), {"tag": "old"}),
        cli=("tags", "{base}.t", "drop", "old"),
        page=("/do/drop-tag/{base}/t", {"tag": "old"}),
    ),
    Case(
        "make a branch",
        lambda c, f: c[f"{f['base']}.t"].branches.create("trial"),
        _table,
        rest=(_route("table", "t", "branches/create"), {"name": "trial"}),
        cli=("branches", "{base}.t", "add", "trial"),
    ),
    Case(
        "drop a branch",
        lambda c, f: _unbranch(c, f["base"], "trial"),
        _branched,
        rest=(_route("table", "t", "branches/delete"), {"name": "trial"}),
        cli=("branches", "{base}.t", "drop", "trial"),
    ),
    Case(
        "update rows",
        lambda c, f: c[f"{f['base']}.t"].update({"name": "z"}, where="id = 1"),
        _table,
        rest=(_route("table", "t", "update"), {"updates": [["name", "'z'"]], "predicate": "id = 1"}),
        cli=("update", "{base}.t", "--set", "name='z'", "--where", "id = 1"),
        sql="UPDATE {lake}.{base}.t SET name = 'z' WHERE id = 1",
    ),
    Case(
        "delete rows",
        lambda c, f: c[f"{f['base']}.t"].delete("id = 1"),
        _table,
        rest=(_route("table", "t", "delete"), {"predicate": "id = 1"}),
        cli=("delete", "{base}.t", "--where", "id = 1", "--yes"),
        sql="DELETE FROM {lake}.{base}.t WHERE id = 1",
    ),
    Case(
        "delete rows by a predicate that is no SQL",
        lambda c, f: c[f"{f['base']}.t"].delete("id = = 1"),
        _table,
        rest=(_route("table", "t", "delete"), {"predicate": "id = = 1"}),
        cli=("delete", "{base}.t", "--where", "id = = 1", "--yes"),
        code=13,
    ),
    Case(
        "count rows",
        lambda c, f: c[f"{f['base']}.t"].count(),
        _table,
        rest=(_route("table", "t", "count_rows"), {}),
        cli=("count", "{base}.t"),
        answer=_count,
        changes=False,
    ),
    Case(
        "read rows",
        lambda c, f: c[f"{f['base']}.t"].to_arrow(columns=["name"]).to_pylist(),
        _table,
        cli=("head", "{base}.t"),
        tool=("query", {"sql": "SELECT name FROM {base}.t ORDER BY id", "limit": 100}),
        answer=_picked("name"),
        changes=False,
    ),
    Case(
        "list versions",
        lambda c, f: c[f"{f['base']}.t"].versions(),
        _versions,
        rest=(_route("table", "t", "version/list"), {}),
        cli=("versions", "{base}.t"),
        answer=lambda told: sorted(_picked("version")(told)),
        changes=False,
    ),
    Case(
        "list tags",
        lambda c, f: list(c[f"{f['base']}.t"].tags),
        _versions,
        rest=(_route("table", "t", "tags/list"), {}),
        cli=("tags", "{base}.t"),
        answer=_tags,
        changes=False,
    ),
    Case(
        "tell the history of a table",
        lambda c, f: c.history(f"{f['base']}.t"),
        _versions,
        rest=(_own("object", "t", "history"), {}),
        cli=("history", "{base}.t"),
        tool=("history", {"name": "{base}.t", "limit": 100}),
        answer=lambda told: sorted(_picked("message")(told)),
        changes=False,
        in_transaction=False,
    ),
    Case(
        "count rows of a table that is not there",
        lambda c, f: c[f"{f['base']}.none"].count(),
        _table,
        rest=(_route("table", "none", "count_rows"), {}),
        cli=("count", "{base}.none"),
        changes=False,
        code=4,
    ),
    Case(
        "index a column",
        lambda c, f: c[f"{f['base']}.t"].create_index("id", "BTREE"),
        _table,
        rest=(_route("table", "t", "create_scalar_index"), {"column": "id", "index_type": "BTREE"}),
        cli=("index", "{base}.t", "add", "id", "--type", "BTREE"),
        sql="CALL {lake}.system.create_index('{base}.t', 'id', 'BTREE')",
        in_transaction=False,
    ),
    Case(
        "drop a column",
        lambda c, f: c[f"{f['base']}.t"].drop_columns("name"),
        _table,
        rest=(_route("table", "t", "drop_columns"), {"columns": ["name"]}),
        cli=("columns", "{base}.t", "drop", "name", "--yes"),
        sql="ALTER TABLE {lake}.{base}.t DROP COLUMN name",
    ),
    Case(
        "publish a stream table",
        lambda c, f: c.publish([f"{f['base']}.s"]),
        _stream,
        rest=("/headwater/v1/streams/publish", {"tables": [["{base}", "s"]]}),
        cli=("publish", "{base}.s"),
        sql="CALL {lake}.system.publish('{base}.s')",
    ),
    Case(
        "set properties of a stream table",
        lambda c, f: c[f"{f['base']}.s"].set_properties({"late": "quarantine"}),
        _stream,
        rest=(_own("table", "s", "stream/properties"), {"properties": {"late": "quarantine"}}),
        cli=("properties", "{base}.s", "late=quarantine"),
        sql="ALTER TABLE {lake}.{base}.s SET TBLPROPERTIES ('late' = 'quarantine')",
    ),
    Case(
        "insert into a stream table by an operation of plain tables",
        lambda c, f: c[f"{f['base']}.s"].serving.delete("id = 1"),
        _published,
        rest=(_route("table", "s", "delete"), {"predicate": "id = 1"}),
        code=13,
    ),
)
