"""The verbs that look."""

from __future__ import annotations

import argparse

from headwater.cli.grammar.words import (
    AT,
    BRANCH,
    COLUMN,
    OUT,
    PAST,
    TABLE,
    WHERE,
    Command,
    arg,
    limit,
)

LOOK = (
    Command(
        "tree", "look", "draw the catalog, or what is below a namespace", "look:tree",
        (arg("namespace", about="a namespace (the root)", nargs="?", default=""), AT),
        "one object a line for each namespace and table: name, id, kind",
    ),
    Command(
        "ls", "look", "list what is in a namespace: namespaces end in /", "look:ls",
        (arg("namespace", about="a namespace (the root)", nargs="?", default=""), AT, limit(None)),
        "one object a line: name, id, kind",
    ),
    Command(
        "show", "look", "a table or namespace at a glance", "look:show_verb",
        (arg("name", about="a table or namespace (the root)", nargs="?", default=""), *PAST),
        "one object: name, id, kind, rows, bytes, version, changed, columns, indices, tags, branches, comment, "
        "properties; of a stream table keys, sequence, unpublished",
    ),
    Command(
        "schema", "look", "the columns of a table, with types and comments", "look:schema", (TABLE, *PAST),
        "one object a line: column, type, nullable, comment",
    ),
    Command(
        "head", "look", "the first rows of a table", "rows:head",
        (TABLE, WHERE, COLUMN, limit(10), *PAST, arg("--vector", about=argparse.SUPPRESS), *OUT),
        "one object a line for each row",
    ),
    Command(
        "query", "look", "run one SELECT over tables, such as SELECT * FROM prod.users", "rows:query",
        (
            arg("sql", about="one SELECT in Spark SQL; tables by their names (or, as before, a table)"),
            arg("--dialect", about="the language of the SELECT: spark (the default) or duckdb", default="spark"),
            WHERE, COLUMN, limit(None), *PAST, arg("--vector", about=argparse.SUPPRESS), *OUT,
        ),
        "one object a line for each row", like=("sql",),
    ),
    Command(
        "search", "look", "the rows nearest to a text, a vector or another row", "rows:search",
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
        "stats", "look", "sizes and numbers of a table", "look:stats", (TABLE, BRANCH), "one object, as GetTableStats"
    ),
    Command(
        "find", "look", "search names, columns, properties and comments for a word", "look:find",
        (arg("word", about="a part of a word, in any case"), limit(100), AT),
        "one object a line: name, id, kind, where, found",
    ),
)  # fmt: skip
