"""Grammar of the verbs that look, and of those about the past. Versions are every table's, the rest a metastore's."""

from __future__ import annotations

import argparse

from headwater.cli.grammar.words import (
    AT,
    BRANCH,
    COLUMN,
    ENGINE,
    NAME,
    OUT,
    PAST,
    TABLE,
    TAG,
    VERSION,
    WHERE,
    YES,
    Command,
    arg,
    limit,
    number,
)

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
        "find", "look", "search names, columns, properties and comments for a word, or find an object", "look:find",
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
        "versions", "time", "list the versions of a table, newest last, and what each changed", "moments:versions",
        (
            TABLE, BRANCH, limit(None, "only this many of the newest"),
            arg("--descending", about="newest first", action="store_true"),
        ),
        "one object a line: version, time, change",
    ),
    Command(
        "history", "time", "list the commits that changed a table or namespace", "moments:history",
        (NAME, limit(None, "only this many of the newest")),
        "one object a line: slot, time, operation, name, id, version, author, message",
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
        "diff", "time", "list what changed between two states", "moments:diff",
        (
            arg("since", about="a commit, a snapshot, an ISO time, or an age (2h ago)"),
            arg("until", about="the same, later (now)", nargs="?"),
        ),
        "one object a line: name, id, kind, change, was",
    ),
    Command(
        "undo", "time", "undo a transaction, or what a source or file brought", "moments:undo",
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
        "snapshot", "time", "list, add and drop named snapshots of the catalog", "moments:snapshot",
        (
            arg("action", about="list, add or drop", nargs="?", default="list"),
            arg("name", about="the name of the snapshot", nargs="?"),
            arg("--table", about="of add: only this table (repeatable; all)", action="append", default=[]), YES,
        ),
        "one object a line: snapshot, slot, time, tables", like=(),
    ),
)  # fmt: skip
