"""Grammar of the verbs that change tables and names, and of single operations of the Lance protocol."""

from __future__ import annotations

from headwater.cli.grammar.words import (
    BRANCH,
    FILE,
    MODE,
    NAME,
    SET,
    TABLE,
    VERSION,
    WHERE,
    YES,
    Arg,
    Command,
    arg,
    limit,
    number,
    pair,
)

_ACTION = {"nargs": "?", "default": "list"}
CHANGE = (
    Command(
        "create", "change", "create a table from a file or by its columns", "change:create",
        (
            TABLE, arg("file", about=FILE.options["help"], nargs="?"),
            arg("--schema", about="columns of an empty table, such as 'id int, v vector(4)'"),
            arg("--namespace", about="an empty namespace instead of a table", action="store_true"), MODE, SET,
        ),
        "one object: name, id, version, rows",
    ),
    Command(
        "insert", "change", "add the rows of a file", "change:insert",
        (TABLE, FILE, arg("--mode", about="append (default) or overwrite"), BRANCH),
        "one object: num_inserted_rows, and version if the catalog returns it",
    ),
    Command(
        "upsert", "change", "update rows by key from a file, and insert the new ones", "change:upsert",
        (TABLE, FILE, arg("--on", about="a column to match by (repeatable)", action="append"), BRANCH),
        "one object: num_inserted_rows, num_updated_rows, version",
    ),
    Command(
        "update", "change", "change values of rows", "change:update",
        (
            TABLE,
            arg("--set", about="column=SQL expression (repeatable)", action="append", type=pair, required=True), WHERE,
        ),
        "one object: updated_rows, version",
    ),
    Command(
        "delete", "change", "delete rows", "change:delete",
        (TABLE, arg("--where", about="only the rows where this SQL holds (all rows)"), BRANCH, YES),
        "one object: deleted_rows, version",
    ),
    Command(
        "rename", "change", "rename a table or namespace", "change:rename",
        (NAME, arg("new", about="its new full name")), "one object: name, id, was",
    ),
    Command(
        "move", "change", "move a table or namespace to another namespace", "change:move",
        (NAME, arg("namespace", about='the namespace to move it to ("" is the root)')), "one object: name, id, was",
    ),
    Command(
        "drop", "change", "drop a table or namespace", "change:drop",
        (NAME, arg("--cascade", about="drop what is in the namespace too", action="store_true"), YES),
        "one object: dropped, id",
    ),
    Command(
        "undrop", "change", "restore the table or namespace dropped last under a name",
        "change:change_names", (NAME,), "one object: name, id, kind", fixed={"method": "undrop"},
    ),
    Command(
        "alias", "change", "give a table or namespace a second name",
        "change:change_names",
        (NAME, arg("other", about="the other name, beside its own in the same namespace: one word, no dots")),
        "one object: name, id, alias", fixed={"method": "alias"},
    ),
    Command(
        "unalias", "change", "remove a second name", "change:change_names",
        (NAME, arg("other", about="the other name")), "one object: name, id, alias", fixed={"method": "unalias"},
    ),
    Command(
        "properties", "change", "show, set and remove properties", "change:properties",
        (
            arg("name", about="a table or namespace (the root)", nargs="?", default=""),
            arg("set", about="key=value (repeatable)", nargs="*", type=pair),
            arg("--unset", about="a key to remove (repeatable)", action="append", default=[]),
        ),
        "one object: the properties",
    ),
    Command(
        "columns", "change", "list, add, drop, rename and cast columns", "table_parts:columns",
        (
            TABLE, arg("action", about="list, add, drop, rename or cast", **_ACTION),
            arg("words", about="add NAME=SQL|NAME:TYPE..., drop NAME..., rename OLD NEW, cast NAME TYPE", nargs="*"),
            BRANCH, YES,
        ),
        "one object a line: column, type, nullable, comment",
    ),
    Command(
        "tags", "change", "list, add, move and drop names for versions", "table_parts:tags",
        (
            TABLE, arg("action", about="list, add, move or drop", **_ACTION),
            arg("tag", about="the name of the tag", nargs="?"),
            arg("version", about="the version it names (the newest)", nargs="?", type=number), BRANCH, limit(None),
        ),
        "one object a line: tag, version, branch",
    ),
    Command(
        "branches", "change", "list, add and drop branches", "table_parts:branches",
        (
            TABLE, arg("action", about="list, add or drop", **_ACTION),
            arg("branch", about="the name of the branch", nargs="?"),
            arg("version", about="the version it starts from (the newest)", nargs="?", type=number),
            arg("--from", about="the branch it starts from", dest="source"), limit(None),
        ),
        "one object a line: branch, from_branch, from_version",
    ),
    Command(
        "index", "change", "list, add and drop indices", "table_parts:index",
        (
            TABLE, arg("action", about="list, add, drop or stats", **_ACTION),
            arg("column", about="the column to index, or the index to drop", nargs="?"),
            arg("--type", about="IVF_PQ, BTREE, BITMAP, FTS, ... (what fits the column)"),
            arg("--name", about="its name"), arg("--distance", about="l2, cosine or dot"), BRANCH, limit(None),
        ),
        "one object a line: index, columns, type, indexed_rows, unindexed_rows",
    ),
    Command(
        "optimize", "change", "compact files, update indices, clean up old versions", "change:optimize",
        (
            TABLE,
            arg("--keep-versions", about="keep this many of the newest versions", type=number),
            arg("--keep-days", about="keep the versions of this many days", type=float),
            arg("--grace-seconds", about="keep versions replaced in the last seconds (600)", type=float),
        ),
        "one object: what was merged and freed",
    ),
)  # fmt: skip

_ID = arg("id", about="a table, such as prod.users")
_FILTER = arg("--where", about="the filter of the query, as SQL")


def ranges(text: str) -> list[dict[str, int]]:
    """`3`, `1-5` (the last one included), `7-` (and all that follow, the newest too), or several: `1-3,5,9-`."""
    return [_range(part.strip()) for part in text.split(",")]


def _range(text: str) -> dict[str, int]:
    first, dash, last = text.partition("-")
    start = number(first)
    end = -1 if dash and not last else (number(last) if dash else start) + 1
    return {"start_version": start, "end_version": end}


def _command(name: str, operation: str, about: str, *args: Arg) -> Command:
    shown = f"one object: the response of {operation}"
    return Command(name, "protocol", about, "change:run_operation", (_ID, *args), shown, fixed={"operation": operation})


PROTOCOL = (
    _command(
        "declare", "DeclareTable", "reserve a name for a table that another program writes",
        arg("--location", about="where"), SET,
    ),
    _command(
        "register", "RegisterTable", "give a name to an existing Lance table",
        arg("location", about="where it is, relative to the catalog"), MODE, SET,
    ),
    _command("deregister", "DeregisterTable", "forget a table and keep its data"),
    _command(
        "explain", "ExplainTableQueryPlan", "show the plan of a query",
        _FILTER, arg("--verbose", about="in detail", action="store_true"),
    ),
    _command("analyze", "AnalyzeTableQueryPlan", "run a query and show its plan with timings", _FILTER),
    _command("describe-version", "DescribeTableVersion", "show a version of a table", VERSION, BRANCH),
    _command(
        "delete-versions", "BatchDeleteTableVersions", "delete the records of old versions",
        arg("versions", about="such as 3, 1-5, 1-3,5 or 7- (the newest too)", type=ranges), BRANCH, YES,
    ),
    _command(
        "set-metadata", "UpdateTableSchemaMetadata", "set the metadata of a table's schema",
        arg("--set", about="key=value (repeatable)", action="append", type=pair, required=True), BRANCH,
    ),
    _command(
        "transaction", "DescribeTransaction", "show one transaction of a table, by its id"
    ),
)  # fmt: skip
