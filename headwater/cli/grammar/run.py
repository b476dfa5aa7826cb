"""Grammar of the verbs that set up, serve and keep house."""

from __future__ import annotations

from typing import Any

from headwater.cli.grammar.words import (
    TABLE,
    YES,
    Arg,
    Command,
    arg,
    number,
    port,
)

RUN = (
    Command(
        "init", "run", "make an empty catalog, also in a folder with other things", "housekeeping:init",
        (
            arg("--impl", about="metastore (default) or dir"),
            arg("--from", about="of `init pipeline`: write pipeline.toml for this folder", dest="folder"),
        ),
        "one object: catalog, kind; of `init pipeline` file",
    ),
    Command(
        "upgrade", "run", "turn a directory catalog into a metastore, in place",
        "moving:upgrade", (), "one object: what was moved",
    ),
    Command(
        "mirror", "run", "mirror a metastore for plain pylance, read-only", "moving:mirror",
        (
            arg("--off", about="no more", action="store_true"),
            arg("--show", about="only show whether there is one, and which commit it shows", action="store_true"),
        ),
        "one object: on, slot (the one it shows), newest",
    ),
    Command(
        "export", "run", "make a plain directory catalog elsewhere, with current rows",
        "moving:export",
        (
            arg("--to", about="a new folder or URI", required=True),
            arg("--all-versions", about="with every version, tag, branch and index", action="store_true"),
            arg("--to-property", about="a property of the new catalog (repeatable)", action="append", default=[],
                metavar="KEY=VALUE"),
        ),
        "one object: namespaces, tables, declared, slot",
    ),
    Command(
        "import", "run", "create a table from the Parquet files of a folder", "moving:import_files",
        (
            TABLE,
            arg("source", about="a folder, or a file"),
            arg("--mode", about="what to do when the table exists: create, exist_ok or overwrite", default="create"),
            arg("--no-hive", about="folders such as day=7 are not columns", action="store_true"),
        ),
        "one object: name, id, version, rows",
    ),
    Command(
        "from-deltacat", "run", "import a DeltaCAT 2.x root with its history", "moving:import_deltacat",
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
        "doctor", "run", "check this machine and the storage", "doctor:doctor",
        (), "one object a line: check, state, what, todo",
    ),
    Command(
        "mcp", "run", "serve read-only tools for agents over MCP, on stdio", "housekeeping:mcp",
        (arg("--timeout", about="seconds that a call may take (30, the most)", type=float),),
    ),
    Command(
        "completion", "run", "print the completion script of a shell: bash, zsh or fish", "completion:script",
        (arg("shell", about="bash, zsh or fish", choices=("bash", "zsh", "fish")),), catalog=False,
    ),
    Command(
        "clean-up", "run", "delete old versions of a table and free their disk", "change:clean_up",
        (
            TABLE,
            arg("--keep-versions", about="keep this many of the newest versions", type=number),
            arg("--keep-days", about="keep the versions of this many days", type=float),
            arg("--grace-seconds", about="keep versions replaced in the last seconds (600)", type=float),
        ),
    ),
    Command(
        "migrate", "run", "move a directory catalog from V1 to V2",
        "housekeeping:migrate",
    ),
)  # fmt: skip

DATA_WORKERS = 8


def _flag(name: str, about: str) -> Arg:
    return arg(name, about=about, action="store_true")


def _many(name: str, about: str, **options: Any) -> Arg:
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
