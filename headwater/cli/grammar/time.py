"""The verbs about time. Versions are every table's; the rest is a metastore catalog's."""

from __future__ import annotations

import argparse

from headwater.cli.grammar.words import (
    AT,
    BRANCH,
    ENGINE,
    NAME,
    TABLE,
    TAG,
    VERSION,
    YES,
    Command,
    arg,
    limit,
    number,
)

TIME = (
    Command(
        "versions", "time", "the versions of a table, newest last", "moments:versions",
        (
            TABLE, BRANCH, limit(None, "only the newest so many"),
            arg("--page-token", about=argparse.SUPPRESS),
            arg("--descending", about="newest first", action="store_true"),
        ),
        "one object a line: version, time",
    ),
    Command(
        "history", "time", "what was done to a table or namespace, and when", "moments:history",
        (NAME, limit(None, "only the newest so many")),
        "one object a line: slot, time, operation, name, id, version, author, message",
    ),
    Command(
        "log", "time", "the transactions of the catalog, oldest first", "moments:log",
        (
            arg("--after", about="only those after this slot", type=number),
            limit(None, "only the newest so many"),
        ),
        "one object a line: slot, time, txn, author, message, changes",
    ),
    Command(
        "diff", "time", "what changed between two moments", "moments:diff",
        (
            arg("since", about="a slot, a snapshot, an ISO time, or so long ago"),
            arg("until", about="the same, later (now)", nargs="?"),
        ),
        "one object a line: name, id, kind, change, was",
    ),
    Command(
        "undo", "time", "take a transaction back, or what came into a stream table from a source", "moments:undo",
        (
            arg(
                "what", nargs="?",
                about="the slot or the id of the transaction, as `log` shows them; or a stream table (with --source: "
                "all it fed)",
            ),
            arg("--source", about="of stream tables: the name of the source"),
            arg("--file", about="of stream tables: one of its files"),
            arg("--digest", about="of stream tables: what was taken of this content only"),
            arg("--dry-run", about="of a transaction: only tell what would be done", action="store_true"), YES,
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
        "snapshot", "time", "list, add and drop names for moments of the whole catalog", "moments:snapshot",
        (
            arg("action", about="list, add or drop", nargs="?", default="list"),
            arg("name", about="the name of the snapshot", nargs="?"),
            arg("--table", about="of add: only this table (repeatable; all)", action="append", default=[]), YES,
        ),
        "one object a line: snapshot, slot, time, tables", like=(),
    ),
)  # fmt: skip
