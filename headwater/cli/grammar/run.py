"""Grammar of the verbs of the pipeline, and of those that set up, serve and keep house."""

from __future__ import annotations

from headwater.cli.grammar.words import (
    ENGINE,
    KEEP,
    TABLE,
    YES,
    Arg,
    Command,
    arg,
    number,
    pair,
    port,
    seconds,
)

RUN = (
    Command(
        "init", "run", "make an empty catalog, also in a folder with other things", "housekeeping:init",
        (
            arg("--impl", about="metastore (default) or dir"),
            arg("--from", about="of `init pipeline`: write pipeline.toml for this folder or database", dest="folder"),
        ),
        "one object: catalog, kind; of `init pipeline` file",
    ),
    Command(
        "upgrade", "run", "turn a directory catalog into a metastore, in place",
        "housekeeping:upgrade", (), "one object: what was moved",
    ),
    Command(
        "mirror", "run", "mirror a metastore for plain pylance, read-only", "housekeeping:mirror",
        (
            arg("--off", about="no more", action="store_true"),
            arg("--show", about="only show whether there is one, and which commit it shows", action="store_true"),
        ),
        "one object: on, slot (the one it shows), newest",
    ),
    Command(
        "export", "run", "make a plain directory catalog elsewhere, with current rows",
        "housekeeping:export",
        (
            arg("--to", about="a new folder or URI", required=True),
            arg("--all-versions", about="with every version, tag, branch and index", action="store_true"),
            arg("--to-property", about="a property of the new catalog (repeatable)", action="append", default=[],
                metavar="KEY=VALUE"),
        ),
        "one object: namespaces, tables, declared, slot",
    ),
    Command(
        "import", "run", "create a table from the Parquet files of a folder", "housekeeping:import_files",
        (
            TABLE,
            arg("source", about="a folder, or a file"),
            arg("--mode", about="what to do when the table exists: create, exist_ok or overwrite", default="create"),
            arg("--no-hive", about="folders such as day=7 are not columns", action="store_true"),
        ),
        "one object: name, id, version, rows",
    ),
    Command(
        "from-deltacat", "run", "import a DeltaCAT 2.x root with its history", "housekeeping:import_deltacat",
        (
            arg("source", about="the folder or URI of the root"),
            arg("--into", about="a namespace for all of it"),
            arg("--skip-unreadable", about="leave out, and name, what cannot be read", action="store_true"),
            arg("--plain", about="plain tables also of those with merge keys", action="store_true"),
        ),
        "one object: transactions, namespaces, tables, stream_tables, unreadable, slot",
    ),
    Command(
        "verify", "run", "check a catalog against its storage; exit 1 on damage", "housekeeping:verify",
        (), "one object a line for each finding: kind, name, id, key, message, note",
    ),
    Command(
        "repair", "run", "rebuild lost records of a metastore from its other files", "housekeeping:repair",
        (), "a list of the files written",
    ),
    Command(
        "collect", "run", "delete history past retention, and files of dead writers",
        "housekeeping:collect",
        (
            arg("--keep-days", about="keep the history of this many days (7)", type=float),
            arg("--keep-slots", about="keep this many of the newest commits", type=number),
            arg("--grace-days", about="delete files of dead writers after this many days (7)", type=float),
            arg("--dry-run", about="only show what would be deleted", action="store_true"), YES,
        ),
        "one object: boundary, and how many files of each kind were deleted",
    ),
    Command(
        "doctor", "run", "check this machine and the storage", "housekeeping:doctor",
        (), "one object a line: check, state, what, todo",
    ),
    Command(
        "simulate", "run", "run a catalog with faults chosen by a seed",
        "housekeeping:simulate",
        (
            arg("--seed", about="the seed of the first run (1)", type=number, default=1),
            arg("--runs", about="this many runs, with the seeds that follow (1)", type=number, default=1),
            arg("--steps", about="operations of all clients of a run (40)", type=number, default=40),
            arg("--profile", about="commits, streams, versions or mixed (commits)", default="commits",
                choices=("commits", "streams", "versions", "mixed")),
        ),
        catalog=False,
    ),
    Command(
        "mcp", "run", "serve read-only tools for agents over MCP, on stdio", "housekeeping:mcp",
        (arg("--timeout", about="seconds that a call may take (30, the most)", type=float),),
    ),
    Command(
        "completion", "run", "print the completion script of a shell: bash, zsh or fish", "main:script",
        (arg("shell", about="bash, zsh or fish", choices=("bash", "zsh", "fish")),), catalog=False,
    ),
    Command(
        "clean-up", "run", "delete old versions of a table and free their disk", "change:clean_up",
        (TABLE, *KEEP),
    ),
    Command(
        "migrate", "run", "move a directory catalog from V1 to V2",
        "housekeeping:migrate",
    ),
)  # fmt: skip

DATA_WORKERS = 8


def _flag(name: str, about: str) -> Arg:
    return arg(name, about=about, action="store_true")


def _many(name: str, about: str, **options: object) -> Arg:
    return arg(name, about=about, action="append", **options)


KEYS = arg("--keys", about="where keys and roles are, for a catalog without storage of its own", metavar="DIR")
SERVE = (
    arg("--impl", about="a back end by name (glue, hive3, unity ...) or class; --property says how to reach it"),
    KEYS,
    arg("--host", about="the address to listen on (127.0.0.1)", default="127.0.0.1"),
    arg("--port", about="the port to listen on (8080); 0 picks one", type=port, default=8080),
    arg("--workers", about="number of server processes (1)", type=int, default=1),
    arg("--data-workers", about="worker processes for requests on rows (8); 0: none", type=int, default=DATA_WORKERS),
    arg("--data-memory", about="memory of each of them, in MiB (4096)", type=int, default=4096),
    arg("--long-memory", about="the same for long work: publish, ingest, optimize ... (as above)", type=int, default=0),
    _flag("--insecure", "serve other machines without keys"),
    arg("--max-body", about="largest Arrow body, in bytes", type=int),
    arg("--max-spool", about="bytes of bodies held at a time, in all (and half for a caller)", type=int),
    arg("--max-connections", about="connections at a time (half of the descriptors)", type=int),
    arg("--max-concurrent", about="requests of one caller at a time", type=int),
    _many("--host-name", "a name the server is served by (repeatable)", default=[]),
    _many("--proxy", "an address or network to believe (repeatable)", default=[]),
    arg("--tls-cert", about="serve https with this certificate, a PEM file"),
    arg("--tls-key", about="the certificate's key, a PEM file without a password"),
    arg("--max-page", about="largest page of a list", type=int),
    arg("--rate-limit", about="requests a second and caller (no limit)", type=float, default=0.0),
    arg("--timeout", about="longest time for a request, in seconds", type=float),
    arg("--api-key-file", about="a file with one more key, which may do everything"),
    _flag("--vend-credentials", "hand the storage options to clients"),
    _flag("--vend-scoped", "hand out short-lived credentials for one table each"),
    arg("--vend-role-arn", about="on S3: the role that is narrowed to the table"),
    arg("--vend-external-id", about="on S3: the external id that the role asks for"),
    arg("--vend-seconds", about="how long the credentials are valid (3600)", type=int, default=3600),
    arg("--vend-endpoint", about="another token service than the storage's own"),
    arg("--audit-log", about="a file for the audit log: who asked for what, and whether it was allowed"),
    _flag("--no-access-log", "log only failures"),
    _flag("--no-page", "serve the API without the web page"),
    _flag("--read-only", "refuse every change"),
    arg("--base-path", about="where a proxy shows the server, such as /lake", default=""),
    _many("--jwt-issuer", "a token issuer to believe (repeatable)"),
    arg("--jwt-audience", about="the audience that tokens must be for"),
    _many("--jwt-jwks", "an issuer's key set: [ISSUER=] a file or an https URL"),
    arg("--jwt-algorithms", about="accepted algorithms (RS256,ES256,EdDSA)"),
    arg("--jwt-role-claim", about="the claim with the role (role)"),
    arg("--jwt-scope-claim", about="the claim with the scopes (none: the whole catalog)"),
)
KEY = arg("id", about="the id of the key, as `token list` shows it")
ROLE = "viewer, reader, editor, writer, admin, one of the catalog's own, or permissions"
RIGHTS = (
    arg("--scope", about="only this namespace and what is below it (everything)"),
    arg("--expires", about="how long it is valid, such as 12h or 30d"),
)
NOTE = arg("--name", about="a note on what the key is for", default="")
ROLE_NAME = arg("name", about="the name of the role")
PERMISSIONS = arg("permissions", about="joined by commas: describe, select, write, drop, manage, or built-in roles")
_RECORD = "one object: id, role, scope, state, name, created, expires"

SERVING = (
    Command("serve", "run", "serve a catalog over the Lance REST protocol", "serving:run_serve", SERVE),
    Command(
        "token create", "run", "create an API key and print it, once", "serving:run_token",
        (arg("--role", about=ROLE, required=True), *RIGHTS, NOTE, KEYS), f"{_RECORD}, and key",
        fixed={"action": "create"},
    ),
    Command(
        "token list", "run", "list API keys", "serving:run_token", (KEYS,), "a list of keys", fixed={"action": "list"}
    ),
    Command(
        "token change", "run", "change the role, scope or expiry of a key",
        "serving:run_token", (KEY, arg("--role", about=ROLE), *RIGHTS, KEYS), _RECORD, like=(),
        fixed={"action": "change"},
    ),
    Command(
        "token revoke", "run", "revoke a key", "serving:run_token", (KEY, YES, KEYS), "one object: revoked", like=(),
        fixed={"action": "revoke"},
    ),
    Command(
        "role set", "run", "define or redefine a role", "serving:run_role",
        (ROLE_NAME, PERMISSIONS, KEYS), "one object: role, permissions", like=(), fixed={"action": "set"},
    ),
    Command(
        "role list", "run", "list the built-in roles and the catalog's own", "serving:run_role", (KEYS,),
        "a list of roles", fixed={"action": "list"},
    ),
    Command(
        "role remove", "run", "remove a role of the catalog's own", "serving:run_role", (ROLE_NAME, KEYS),
        "one object: removed", like=(), fixed={"action": "remove"},
    ),
)  # fmt: skip


FORMATS = ("rows", "op", "debezium", "snapshot")
"""What files hold; a test compares it with the sources' own list."""
NAMED_TABLES = arg("tables", about="stream tables, such as raw.orders", nargs="*")
TABLES = arg("tables", about="stream tables, such as raw.orders (all)", nargs="*")
JSON = arg("--json", about="print JSON", action="store_true")
ENV = arg("--env", about="with the overlay [env.NAME] of the file", metavar="NAME")
_REPORT = "one object: what the job did, as the Python API reports it"

PIPELINE = (
    Command(
        "run", "pipeline", "run a pipeline file: ingest, publish, compute what is new", "pipeline:run",
        (
            arg("file", about="a pipeline file, such as pipeline.toml"),
            ENV, arg("--check", about="only check the file: no data, no catalog", action="store_true"),
            arg("--plan", about="only show the steps, the reasons, and the plan's id", action="store_true"),
            arg("--plan-id", about="do exactly the plan of this id, or nothing"),
            arg("--select", about="only this one (repeatable)", action="append", default=[], metavar="TABLE"),
            arg("--full-refresh", about="rebuild this one (repeatable)", action="append", default=[], metavar="TABLE"),
            arg("--again", about="take files that were undone, too", action="store_true"),
            arg("--watch", about="keep running until Ctrl-C", action="store_true"),
            arg("--every", about="with --watch: the interval (30s)", type=seconds, default=30.0),
            arg("--metrics", about="with --watch: Prometheus metrics at this [HOST:]PORT (off)", metavar="PORT"),
            *ENGINE, JSON,
        ),
        "one object: run, plan, reports; with --plan the plan", catalog=False,
    ),
    Command(
        "test", "pipeline", "run the tests of views in a pipeline file", "pipeline:try_file",
        (arg("file", about="a pipeline file, such as pipeline.toml"), ENV, *ENGINE, JSON),
        "one object a test: name, view, lacks, extra, error, passed", catalog=False,
    ),
    Command(
        "ingest", "pipeline", "ingest change data from files into a stream table", "pipeline:ingest",
        (
            TABLE, arg("source", about="files, by path, address (s3://...) or glob"),
            arg("--format", about="what the files hold (rows)", choices=FORMATS, default="rows"),
            arg("--name", about="the name of the source"),
            arg("--option", about="of the format, name=value (repeatable)", action="append", type=pair, default=[]),
            arg("--strict", about="refuse the whole batch if a row is bad", action="store_true"),
            arg("--again", about="take files that were undone, too", action="store_true"),
            arg("--watch", about="keep taking new files until Ctrl-C", action="store_true"),
            arg("--every", about="with --watch: the interval (2s)", type=seconds, default=2.0),
            arg("--publish", about="with --watch: publish what was taken", action="store_true"),
            *ENGINE,
        ),
        _REPORT,
    ),
    Command(
        "publish", "pipeline", "publish stream tables in one commit", "pipeline:publish",
        (NAMED_TABLES, *ENGINE), _REPORT,
    ),
    Command(
        "backfill", "pipeline", "recompute stale derived values of a stream table", "pipeline:backfill",
        (
            TABLE, arg("--rows", about="about this many rows, in one version (all)", type=number),
            arg("--batch", about="on Spark: rows that are computed together", type=number), *ENGINE,
        ),
        _REPORT,
    ),
    Command(
        "reindex", "pipeline", "index a column of a stream table, or update its indices",
        "pipeline:index",
        (
            TABLE, arg("column", about="the column (all that have an index)", nargs="?"),
            arg("--type", about="of the index, such as IVF_FLAT (by what the column holds)"), *ENGINE,
        ),
        _REPORT,
    ),
    Command(
        "maintain", "pipeline", "compact stream tables, and delete logs past retention", "pipeline:maintain",
        (TABLES, *ENGINE), _REPORT,
    ),
    Command(
        "runs", "pipeline", "list the runs of pipelines, or show one with its steps", "pipeline:show_runs",
        (
            arg("action", about="show, to see one run", nargs="?"),
            arg("id", about="the id of a run, or its beginning", nargs="?"),
            arg("--pipeline", about="only the runs of this pipeline", metavar="NAME"),
            arg("--limit", about="this many, the newest (20)", type=number, default=20),
        ),
        "one object a line: run, pipeline, state, began, seconds, rows, quarantined, late, who, where, error; "
        "of show one object",
        like=(),
    ),
    Command(
        "quarantine", "pipeline", "show rows that were refused; take or drop them", "pipeline:quarantine",
        (
            TABLE, arg("--retry", about="take those again that fit now", action="store_true"),
            arg("--drop", about="drop them", action="store_true"),
            arg("--reason", about="only the rows with this reason, such as bad_value"),
            arg("--source", about="only the rows of this source or file"),
            arg("--pipeline", about="with --retry: judge by the expectations of this file", metavar="FILE"), YES,
        ),
        "one object a row: row, reason, column, source, time, position; with --retry or --drop one object: the counts",
    ),
    Command(
        "lineage", "pipeline", "show the sources of a table, or the tables made from it", "pipeline:lineage",
        (
            TABLE, arg("--upstream", about="its sources (the default)", action="store_true"),
            arg("--downstream", about="the tables made from it", action="store_true"),
            arg("--open-lineage", about="write OpenLineage events to a file or URL", metavar="TO"),
            arg("--token", about="for the URL: a bearer token, as env:NAME or file:PATH"),
        ),
        "one object: the table and, nested, what it comes from",
    ),
)  # fmt: skip
