"""`headwater serve`, `headwater token` and `headwater role`: what needs the server extra or the catalog's store."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from lance_namespace import LanceNamespace

from headwater.cli.output import show
from headwater.clock import Clock, SystemClock
from headwater.config import Opening, load_profile
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import parse
from headwater.namespace.vending import ScopedSettings
from headwater.references import is_bare_secret, read_secret
from headwater.rest.auth.keys import KeyRecord, change_key, create_key, list_keys, revoke_key
from headwater.rest.auth.roles import PERMISSIONS, ROLES, define_role, defined_roles, names_of, remove_role
from headwater.rest.settings import MIB, JwtSettings, Limits, Settings
from headwater.store import Store

MIN_KEY_CHARS = 16
DATA_WORKERS = 8
MIN_DATA_MEMORY = 256
_BASE_NAME = re.compile(r"[A-Za-z0-9._~-]+")
_DURATION = re.compile(r"^(\d+)([smhd])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_serving(verbs: Any) -> None:
    """The arguments of `serve` and `token`."""
    serve = verbs.add_parser("serve", help="serve a catalog over the Lance REST protocol")
    serve.add_argument("catalog", nargs="?", help="a path, a URI, or the name of a profile")
    serve.add_argument("--property", action="append", default=[], metavar="KEY=VALUE", help="as `connect` takes them")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen on (127.0.0.1)")
    serve.add_argument("--port", type=int, default=8080, help="the port to listen on (8080); 0 picks one")
    serve.add_argument("--workers", type=int, default=1, help="so many processes (1)")
    serve.add_argument(
        "--data-workers", type=int, default=DATA_WORKERS, help="disposable processes for data work (8); 0: none"
    )
    serve.add_argument("--data-memory", type=int, default=4096, help="memory of each of them, in MiB (4096)")
    serve.add_argument("--insecure", action="store_true", help="serve others without asking who they are")
    serve.add_argument("--max-body", type=int, help="largest Arrow body, in bytes")
    serve.add_argument("--max-spool", type=int, help="bytes of bodies held at a time, in all (and half for a caller)")
    serve.add_argument("--max-connections", type=int, help="connections at a time (half of the descriptors)")
    serve.add_argument("--max-concurrent", type=int, help="requests of one caller at a time")
    serve.add_argument("--host-name", action="append", default=[], help="a name the server is served by (repeatable)")
    serve.add_argument("--proxy", action="append", default=[], help="an address or network to believe (repeatable)")
    serve.add_argument("--tls-cert", help="serve https with this certificate, a PEM file")
    serve.add_argument("--tls-key", help="the certificate's key, a PEM file without a password")
    serve.add_argument("--max-page", type=int, help="largest page of a list")
    serve.add_argument("--rate-limit", type=float, default=0.0, help="requests a second and caller (no limit)")
    serve.add_argument("--timeout", type=float, help="longest time for a request, in seconds")
    serve.add_argument("--api-key-file", help="a file with one more key, which may do everything")
    serve.add_argument("--vend-credentials", action="store_true", help="hand the storage options to clients")
    _add_vending(serve)
    serve.add_argument("--audit-log", help="a file for the audit log: who asked for what, and whether it was allowed")
    serve.add_argument("--no-access-log", action="store_true", help="log only failures")
    serve.add_argument("--no-page", action="store_true", help="serve the API without the web page")
    serve.add_argument("--read-only", action="store_true", help="refuse every change")
    serve.add_argument("--base-path", default="", help="where a proxy shows the server, such as /lake")
    serve.add_argument("--jwt-issuer", action="append", help="a token issuer to believe (repeatable)")
    serve.add_argument("--jwt-audience", help="the audience that tokens must be for")
    serve.add_argument("--jwt-jwks", action="append", help="an issuer's key set: [ISSUER=] a file or an https URL")
    serve.add_argument("--jwt-algorithms", help="accepted algorithms (RS256,ES256,EdDSA)")
    serve.add_argument("--jwt-role-claim", help="the claim with the role (role)")
    serve.add_argument("--jwt-scope-claim", help="the claim with the scopes (none: the whole catalog)")
    serve.set_defaults(run=run_serve, json=False)
    _add_token(verbs)
    _add_role(verbs)


def _add_vending(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--vend-scoped", action="store_true", help="hand out short-lived credentials for one table each")
    serve.add_argument("--vend-role-arn", help="on S3: the role that is narrowed to the table")
    serve.add_argument("--vend-external-id", help="on S3: the external id that the role asks for")
    serve.add_argument("--vend-seconds", type=int, default=3600, help="how long the credentials are valid (3600)")
    serve.add_argument("--vend-endpoint", help="another token service than the storage's own")


def scoped_of(given: argparse.Namespace) -> ScopedSettings | None:
    if not given.vend_scoped:
        return None
    if given.vend_credentials:
        raise InvalidInputError("--vend-credentials hands out everything, --vend-scoped one table: choose one.")
    return ScopedSettings(given.vend_role_arn, given.vend_external_id, given.vend_seconds, given.vend_endpoint)


def _add_token(verbs: Any) -> None:
    token = verbs.add_parser("token", help="API keys of a catalog").add_subparsers(dest="action", required=True)
    actions = (
        ("create", "make a key and print it, once"),
        ("list", "list keys"),
        ("change", "give a key another role, scope or end; servers that run take it up"),
        ("revoke", "revoke a key"),
    )
    for name, about in actions:
        action = token.add_parser(name, help=about)
        action.add_argument("catalog", help="a path, a URI, or the name of a profile")
        action.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run_token)
        if name in ("change", "revoke"):
            action.add_argument("id", help="the id of the key, as `token list` shows it")
        if name in ("create", "change"):
            roles = f"{', '.join(ROLES)}, one of the catalog's own, or permissions ({', '.join(PERMISSIONS)})"
            action.add_argument("--role", required=name == "create", help=roles)
            action.add_argument("--scope", help="only this namespace and what is below it (everything)")
            action.add_argument("--delimiter", default=".", help="between the names of the scope (.)")
            action.add_argument("--expires", help="how long it is valid, such as 12h or 30d")
        if name == "create":
            action.add_argument("--name", default="", help="a note on what the key is for")


def _add_role(verbs: Any) -> None:
    role = verbs.add_parser("role", help="a catalog's own roles").add_subparsers(dest="action", required=True)
    actions = (
        ("set", "define a role, or define it anew; servers that run take it up"),
        ("list", "list the built-in roles and the catalog's own"),
        ("remove", "remove a role of the catalog's own"),
    )
    for name, about in actions:
        action = role.add_parser(name, help=about)
        action.add_argument("catalog", help="a path, a URI, or the name of a profile")
        action.add_argument("--property", action="append", default=[], metavar="KEY=VALUE")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run_role)
        if name != "list":
            action.add_argument("name", help="the name of the role")
        if name == "set":
            action.add_argument("permissions", help=f"joined by commas: {', '.join(PERMISSIONS)}, or built-in roles")


def properties_of(pairs: list[str]) -> dict[str, str]:
    """`key=value` texts as properties."""
    found: dict[str, str] = {}
    for text in pairs:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidInputError(f"--property {text!r} is not key=value.")
        found[key] = value
        if is_bare_secret(key, value):
            say(f"--property {key}: others on this machine can see it; write {key}=env:VARIABLE or {key}=file:PATH.")
    return found


def say(text: str) -> None:
    print(f"headwater: {text}", file=sys.stderr)


def open_served(target: str | None, properties: dict[str, str]) -> LanceNamespace:
    """The catalog to serve, which must be there: a server of a misspelt path would answer with nothing for ever."""
    return Opening(target, properties, say).reading()


def run_serve(given: argparse.Namespace) -> int:
    try:
        from headwater.rest.serve import ServePlan, serve
        from headwater.web import page
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(f"`headwater serve` needs {missing.name}: install headwater[server].") from None
    if given.workers < 1:
        raise InvalidInputError("--workers must be at least 1.")
    if given.data_workers < 0 or given.data_memory < MIN_DATA_MEMORY:
        raise InvalidInputError(f"--data-workers is 0 or more, --data-memory at least {MIN_DATA_MEMORY} MiB.")
    profile = (load_profile(given.catalog) if given.catalog else None) or {}
    plan = ServePlan(
        target=given.catalog,
        properties=properties_of(given.property),
        open=open_served,
        settings=settings_of(given, profile),
        host=given.host,
        port=given.port,
        workers=given.workers,
        insecure=given.insecure,
        data_workers=given.data_workers,
        data_memory=given.data_memory * MIB,
        face=None if given.no_page else page,
    )
    return serve(
        plan, lambda url: print(f"Headwater serves {given.catalog or 'the default profile'} at {url}", flush=True)
    )


def settings_of(given: argparse.Namespace, profile: dict[str, Any]) -> Settings:
    """The settings of a server: the command line first, then the profile."""
    told: dict[str, Any] = {
        "arrow_body": given.max_body,
        "page": given.max_page,
        "request_seconds": given.timeout,
        "requests_per_second": given.rate_limit,
        "spooled": given.max_spool,
        "spooled_per_caller": given.max_spool // 2 if given.max_spool is not None else None,
        "connections": given.max_connections,
        "running_per_caller": given.max_concurrent,
    }
    limits = Limits(**{key: value for key, value in told.items() if value is not None})
    return Settings(
        limits=limits,
        jwt=jwt_of(given, profile),
        api_key=server_key(given.api_key_file),
        scoped=scoped_of(given),
        audit_log=given.audit_log,
        access_log=not given.no_access_log,
        vend_credentials=given.vend_credentials,
        host_names=tuple(given.host_name),
        any_address=given.insecure,
        proxies=tuple(given.proxy),
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        read_only=given.read_only,
        base_path=base_path(given.base_path),
    )


def base_path(text: str) -> str:
    """`/lake` as it is written or without its slashes; nothing for the root."""
    names = [name for name in text.split("/") if name]
    if not all(_BASE_NAME.fullmatch(name) for name in names) or any(name in (".", "..") for name in names):
        raise InvalidInputError(
            f"--base-path {text[:200]!r} is not a path such as /lake: letters, digits and ._~- only."
        )
    return "".join(f"/{name}" for name in names)


def server_key(path: str | None) -> str | None:
    """The key in a file, which is its only content."""
    key = read_secret(path, "--api-key-file").strip() if path is not None else None
    if key is not None and len(key) < MIN_KEY_CHARS:
        raise InvalidInputError(f"--api-key-file: a key has at least {MIN_KEY_CHARS} characters.")
    return key


def jwt_of(given: argparse.Namespace, profile: dict[str, Any]) -> JwtSettings | None:
    def chosen(name: str) -> Any:
        value = getattr(given, name)
        return profile.get(name) if value is None else value

    issuers, audience, jwks = chosen("jwt_issuer"), chosen("jwt_audience"), chosen("jwt_jwks")
    if not (issuers or audience or jwks):
        return None
    if not (issuers and audience and jwks):
        raise InvalidInputError("JWT authentication needs --jwt-issuer, --jwt-audience and --jwt-jwks, all three.")
    more: dict[str, Any] = {"role_claim": chosen("jwt_role_claim"), "scope_claim": chosen("jwt_scope_claim")}
    algorithms = chosen("jwt_algorithms")
    if algorithms:
        more["algorithms"] = tuple(name.strip() for name in algorithms.split(","))
    listed, sources = (
        [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
        for given in (issuers, jwks)
    )
    kept = {key: value for key, value in more.items() if value is not None}
    return JwtSettings(tuple(listed), audience, key_sets(listed, sources), **kept)


def key_sets(issuers: list[str], sources: list[str]) -> str | dict[str, str]:
    """Key sets as they are written: `SOURCE` when there is one issuer, `ISSUER=SOURCE` for each of several."""
    found: dict[str, str] = {}
    for text in sources:
        issuer = next((name for name in issuers if text.startswith(f"{name}=")), None)
        if issuer is None and len(issuers) == len(sources) == 1:
            return text
        if issuer is None or issuer in found:
            raise InvalidInputError(f"--jwt-jwks {text[:200]!r}: write ISSUER=SOURCE, once for each --jwt-issuer.")
        found[issuer] = text[len(issuer) + 1 :]
    return found


def run_token(given: argparse.Namespace) -> int:
    store, clock = _store(given), SystemClock()
    if given.action == "create":
        return _create(given, store, clock)
    if given.action == "change":
        scope = None if given.scope is None else _scope(given)
        changed = change_key(store, given.id, given.role, scope, _expiry(given.expires, clock))
        show(shown(changed, clock.now_ms()), given.json)
        return 0
    if given.action == "revoke":
        show({"revoked": revoke_key(store, clock, given.id).id}, given.json)
        return 0
    records = [shown(record, clock.now_ms()) for record in list_keys(store)]
    if records or given.json:
        show(records, given.json)
    return 0


def _create(given: argparse.Namespace, store: Store, clock: Clock) -> int:
    scope = [] if given.scope is None else _scope(given)
    record, text = create_key(store, clock, given.role, scope, given.name, _expiry(given.expires, clock))
    if given.json:
        show({"key": text, **shown(record, clock.now_ms())}, True)
        return 0
    print(text)
    print(f"This is the only time the key is shown. Its id is {record.id}.", file=sys.stderr)
    return 0


def _scope(given: argparse.Namespace) -> list[str]:
    """The scope as names; everything is said by leaving --scope out, so that a slip does not mean it."""
    scope = list(parse(given.scope, given.delimiter).names)
    if not scope:
        raise InvalidInputError(f"--scope {given.scope!r} names nothing: leave --scope out for the whole catalog.")
    return scope


def run_role(given: argparse.Namespace) -> int:
    store = _store(given)
    if given.action == "set":
        permissions = define_role(store, given.name, given.permissions)
        show({"role": given.name, "permissions": names_of(permissions)}, given.json)
    elif given.action == "remove":
        remove_role(store, given.name)
        show({"removed": given.name}, given.json)
    else:
        known = {**ROLES, **defined_roles(store)}
        show([{"role": name, "permissions": ",".join(names_of(role))} for name, role in known.items()], given.json)
    return 0


def shown(record: KeyRecord, now_ms: int) -> dict[str, Any]:
    """What may be shown of a key: never its hash."""
    state = "valid" if record.is_valid(now_ms) else "revoked" if record.revoked_ms else "expired"
    return {
        "id": record.id,
        "role": record.role,
        "scope": ".".join(record.scope) or "(everything)",
        "state": state,
        "name": record.name,
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
    }


def _expiry(text: str | None, clock: Clock) -> int | None:
    if text is None:
        return None
    match = _DURATION.match(text)
    if not match:
        raise InvalidInputError(f"--expires {text!r} is not a time such as 90m, 12h or 30d.")
    return clock.now_ms() + int(match[1]) * _SECONDS[match[2]] * 1000


def _store(given: argparse.Namespace) -> Store:
    opening = Opening(given.catalog, properties_of(given.property), say)
    namespace = opening.writing() if given.action == "create" else opening.reading()
    store = getattr(namespace, "store", None)
    if store is None:
        raise UnsupportedOperationError(
            f"{given.catalog} has no storage of its own for keys: create them where the catalog is, not through REST."
        )
    return store  # type: ignore[no-any-return]
