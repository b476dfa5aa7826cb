"""The verbs that set up and keep house."""

from __future__ import annotations

from headwater.cli.grammar.words import TABLE, YES, Command, arg, number

RUN = (
    Command(
        "init", "run", "make an empty catalog, also in a folder with other things", "housekeeping:init",
        (arg("--impl", about="metastore (default) or dir"),), "one object: catalog, kind",
    ),
    Command(
        "upgrade", "run", "make a directory catalog a metastore, in place; again if it was interrupted",
        "moving:upgrade", (), "one object: what was moved",
    ),
    Command(
        "mirror", "run", "keep a read-only __manifest beside a metastore that plain pylance can read", "moving:mirror",
        (
            arg("--off", about="no more", action="store_true"),
            arg("--show", about="only show whether there is one, and which slot it shows", action="store_true"),
        ),
        "one object: on, slot (the one it shows), newest",
    ),
    Command(
        "export", "run", "make a plain directory catalog elsewhere: current rows, stream tables as published",
        "moving:export",
        (
            arg("--to", about="a new folder or URI", required=True),
            arg("--all-versions", about="with every version, tag, branch and index", action="store_true"),
            arg("--to-property", about="as `connect` takes them, of the new catalog", action="append", default=[],
                metavar="KEY=VALUE"),
        ),
        "one object: namespaces, tables, declared, slot",
    ),
    Command(
        "import", "run", "make a table of the Parquet files in a folder, in one commit", "moving:import_files",
        (
            TABLE,
            arg("source", about="a folder, or a file"),
            arg("--mode", about="what to do when the table exists: create, exist_ok or overwrite", default="create"),
            arg("--no-hive", about="folders such as day=7 are not columns", action="store_true"),
        ),
        "one object: name, id, version, rows",
    ),
    Command(
        "from-deltacat", "run", "make everything anew that a DeltaCAT 2.x root holds, with its history; "
        "again if it was interrupted", "moving:import_deltacat",
        (
            arg("source", about="the folder or URI of the root"),
            arg("--into", about="a namespace for all of it"),
            arg("--skip-unreadable", about="leave out, and name, what cannot be read", action="store_true"),
            arg("--plain", about="plain tables also of those with merge keys", action="store_true"),
        ),
        "one object: transactions, namespaces, tables, stream_tables, unreadable, slot",
    ),
    Command(
        "verify", "run", "check that a catalog is whole; exit 1 if not", "housekeeping:verify",
        (), "one object a line for each finding: kind, name, id, key, message, note",
    ),
    Command(
        "repair", "run", "write anew what a metastore has lost and its other files still say", "housekeeping:repair",
        (), "a list of the files written",
    ),
    Command(
        "collect", "run", "forget what is past retention, remove what dead writers left, and free the disk",
        "housekeeping:collect",
        (
            arg("--keep-days", about="history of so many days stays (7)", type=float),
            arg("--keep-slots", about="the newest so many slots stay", type=number),
            arg("--grace-days", about="what dead writers left goes after so many days (7)", type=float),
            arg("--dry-run", about="only tell what would go", action="store_true"), YES,
        ),
        "one object: boundary, and how many files of each kind were deleted",
    ),
    Command(
        "doctor", "run", "check this machine and the storage: what works, what is missing, what to do", "doctor:doctor",
        (), "one object a line: check, state, what, todo",
    ),
    Command(
        "mcp", "run", "let agents look at a catalog: read-only tools over MCP, on stdin and stdout", "housekeeping:mcp",
        (arg("--timeout", about="a call may take so many seconds (30, the most)", type=float),),
    ),
    Command(
        "completion", "run", "print the completion script of a shell: bash, zsh or fish", "completion:script",
        (arg("shell", about="bash, zsh or fish", choices=("bash", "zsh", "fish")),), catalog=False,
    ),
)  # fmt: skip

HOUSE = (
    Command(
        "clean-up", "", "remove old versions and free their disk", "change:clean_up",
        (
            TABLE,
            arg("--keep-versions", about="the newest so many stay", type=number),
            arg("--keep-days", about="those of so many days stay", type=float),
            arg("--grace-seconds", about="those replaced so recently stay (600)", type=float),
        ),
    ),
    Command(
        "migrate", "", "give each table that is only a folder a row in __manifest (V1 to V2)", "housekeeping:migrate",
    ),
)  # fmt: skip
"""Old spellings that are no operation of the protocol."""
