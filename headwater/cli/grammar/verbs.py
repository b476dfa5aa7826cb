"""Grammar of the verbs that look, change tables and names, are about the past, or are one operation of Lance."""

from __future__ import annotations

import argparse

from headwater.cli.grammar.words import (
    AT,
    BRANCH,
    COLUMN,
    ENGINE,
    FILE,
    KEEP,
    MODE,
    NAME,
    OUT,
    PAST,
    SET,
    TABLE,
    TAG,
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
        "table-versions", "change", "list, create, activate and drop table versions",
        "table_parts:table_versions",
        (
            TABLE, arg("action", about="list, create, activate or drop", **_ACTION),
            arg("version", about="the id of the table version", nargs="?"),
            arg("file", about="rows of a new version, which a stream table publishes", nargs="?"),
            arg("--schema", about="columns of a new version, such as 'id int, v vector(4)' (those of the file)"),
            arg("--key", about="a column of a stream table's key (repeatable)", action="append", default=[]),
            arg("--sequence", about="a column of its sequence (repeatable)", action="append", default=[]), SET, YES,
        ),
        "one object a line: version, lifecycle, stream, time",
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
        (TABLE, *KEEP),
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


LOOK = (
    Command(
        "tree", "look", "draw the catalog, or a namespace", "look:tree",
        (arg("namespace", about="a namespace (the root)", nargs="?", default=""), AT),
        "one object a line for each namespace and table: name, id, kind",
    ),
    Command(
        "ls", "look", "list a namespace; names of namespaces end in /", "look:ls",
        (arg("namespace", about="a namespace (the root)", nargs="?", default=""), AT, limit(None)),
        "one object a line: name, id, kind",
    ),
    Command(
        "show", "look", "describe a table or namespace", "look:show_verb",
        (arg("name", about="a table or namespace (the root)", nargs="?", default=""), *PAST),
        "one object: name, id, kind, rows, bytes, version, changed, columns, indices, tags, branches, comment, "
        "properties; of a stream table keys, sequence, derived, unpublished; in a metastore catalog immutable_id, "
        "locator, aliases, and of a table its parts",
    ),
    Command(
        "schema", "look", "list the columns of a table, with types and comments", "look:schema", (TABLE, *PAST),
        "one object a line: column, type, nullable, comment",
    ),
    Command(
        "head", "look", "print the first rows of a table", "rows:head",
        (TABLE, WHERE, COLUMN, limit(10), *PAST, arg("--vector", about=argparse.SUPPRESS), *OUT),
        "one object a line for each row",
    ),
    Command(
        "query", "look", "run one SELECT over tables, such as SELECT * FROM prod.users", "rows:query",
        (
            arg("sql", about="one SELECT in Spark SQL; tables by their names (or the name of one table)"),
            arg("--dialect", about="the language of the SELECT: spark (the default) or duckdb", default="spark"),
            WHERE, COLUMN, limit(None), *PAST, arg("--vector", about=argparse.SUPPRESS), *OUT,
        ),
        "one object a line for each row", like=("sql",),
    ),
    Command(
        "search", "look", "find the rows nearest to a text, a vector or another row", "rows:search",
        (
            TABLE,
            arg("--text", about="these words"),
            arg("--vector", about="this vector: numbers with commas between"),
            arg("--like-row", about="the vector of the row with this key", metavar="KEY"),
            arg("--key", about="the column of --like-row's key (the first column)"),
            arg("--on", about="the column to search in (the only one that fits)"),
            WHERE, COLUMN, limit(10), *PAST, *OUT,
        ),
        "one object a line for each row, with _distance, _score or _relevance",
    ),
    Command("count", "look", "count rows", "rows:count", (TABLE, WHERE, *PAST), "one object: count"),
    Command(
        "stats", "look", "count rows, bytes, fragments and indices of a table", "look:stats", (TABLE, *PAST),
        "one object, as GetTableStats",
    ),
    Command(
        "find", "look", "search names, columns and comments, or find an object", "look:find",
        (
            arg("word", about="a part of a word, in any case; or the locator (prod|users) or id of an object"),
            limit(100), AT,
        ),
        "one object a line: name, id, kind, where, found; of an object locator, immutable_id, key",
    ),
)  # fmt: skip

HERE = Command("", "look", "say what is here", "look:here")
"""`headwater` without a verb."""

TIME = (
    Command(
        "versions", "time", "list the versions of a table, and what each changed", "moments:versions",
        (
            TABLE, BRANCH, limit(None, "only this many of the newest"),
            arg("--descending", about="newest first", action="store_true"),
        ),
        "one object a line: version, time, change",
    ),
    Command(
        "history", "time", "list the commits that changed a table or namespace", "moments:history",
        (NAME, limit(None, "only this many of the newest")),
        "one object a line: slot, time, operation, change, position, name, id, version, author, message",
    ),
    Command(
        "log", "time", "list the commits of the catalog, oldest first", "moments:log",
        (
            arg("--after", about="only commits after this one", type=number),
            limit(None, "only this many of the newest"),
        ),
        "one object a line: slot, time, txn, author, message, changes",
    ),
    Command(
        "follow", "time", "print each commit as it is made, or send it to a webhook", "commit_feed:follow",
        (
            arg("name", about="a namespace or table: only its changes (all)", nargs="?"),
            arg("--after", about="begin after this commit (the newest)", type=number),
            arg("--position", about="a file that keeps the last commit that was handled, to go on from"),
            arg("--to", about="an HTTPS address that gets each commit as a signed JSON body"),
            arg("--secret", about="the key of the signature: env:NAME or file:PATH"),
            arg("--internal", about="allow an address of the internal network", action="store_true"),
            limit(None, "end after this many commits"),
        ),
        "one object a line: slot, time, txn, author, message, changes",
    ),
    Command(
        "diff", "time", "list what changed between two states", "moments:diff",
        (
            arg("since", about="a commit, a snapshot, an ISO time, or an age (2h ago)"),
            arg("until", about="the same, later (now)", nargs="?"),
        ),
        "one object a line: name, id, kind, change, was",
    ),
    Command(
        "undo", "time", "undo a transaction, or what a source or file brought", "moments:run_undo",
        (
            arg(
                "what", nargs="?",
                about="the number or id of a commit, as `log` shows them; or a stream table (with --source: all "
                "that it fed)",
            ),
            arg("--source", about="of stream tables: the name of the source"),
            arg("--file", about="of stream tables: one of its files"),
            arg("--digest", about="of stream tables: only what came from this content"),
            arg("--dry-run", about="of a transaction: only show the steps", action="store_true"), YES,
            *ENGINE,
        ),
        "one object: undone, slot, steps; of a stream table its report", like=("what",),
    ),
    Command(
        "restore", "time", "make an old version of a table the current one", "moments:restore",
        (TABLE, arg("number", about="the version", nargs="?", type=number), VERSION, TAG, AT, BRANCH, YES),
        "one object: name, id, restored, version",
    ),
    Command(
        "snapshot", "time", "list, add and drop named snapshots of the catalog", "moments:run_snapshot",
        (
            arg("action", about="list, add or drop", nargs="?", default="list"),
            arg("name", about="the name of the snapshot", nargs="?"),
            arg("--table", about="of add: only this table (repeatable; all)", action="append", default=[]), YES,
        ),
        "one object a line: snapshot, slot, time, tables", like=(),
    ),
)  # fmt: skip
