"""`headwater serve`, `headwater token` and `headwater role`: what needs the server extra or the catalog's store."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from lance_namespace import LanceNamespace

from headwater.adapter import AdaptedNamespace, check_answers
from headwater.cli.output import confirm, show
from headwater.cli.target import properties_of, say
from headwater.clock import Clock, SystemClock
from headwater.config import Opening, is_own, load_profile, resolve
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.metastore.records.objects import time_of
from headwater.names import format_name
from headwater.namespace.abilities import abilities_of
from headwater.namespace.vending import ScopedSettings
from headwater.references import read_secret
from headwater.rest.auth.keys import (
    ROLES,
    KeyRecord,
    change_key,
    create_key,
    define_role,
    defined_roles,
    list_keys,
    names_of,
    remove_role,
    revoke_key,
)
from headwater.rest.settings import MIB, JwtSettings, Limits, Settings
from headwater.store import Store, open_store

MIN_KEY_CHARS = 16
MIN_DATA_MEMORY = 256
_BASE_NAME = re.compile(r"[A-Za-z0-9._~-]+")
_DURATION = re.compile(r"^(\d+)([smhd])$")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def scoped_of(args: argparse.Namespace) -> ScopedSettings | None:
    if not args.vend_scoped:
        return None
    if args.vend_credentials:
        raise InvalidInputError("--vend-credentials hands out everything, --vend-scoped one table: choose one.")
    return ScopedSettings(args.vend_role_arn, args.vend_external_id, args.vend_seconds, args.vend_endpoint)


def open_served(target: str | None, properties: dict[str, str]) -> LanceNamespace:
    """The catalog to serve, which must be there: a server of a misspelt path would answer with nothing for ever."""
    namespace = Opening(target, properties, say).reading()
    if isinstance(namespace, AdaptedNamespace):
        check_answers(namespace)
    return namespace


def run_serve(args: argparse.Namespace) -> int:
    try:
        from headwater.rest.serve import ServePlan, serve
        from headwater.web import page
    except ModuleNotFoundError as missing:
        raise UnsupportedOperationError(f"`headwater serve` needs {missing.name}: install headwater[server].") from None
    if args.workers < 1:
        raise InvalidInputError("--workers must be at least 1.")
    if args.data_workers < 0 or min(args.data_memory, args.long_memory or args.data_memory) < MIN_DATA_MEMORY:
        raise InvalidInputError(
            f"--data-workers is 0 or more, --data-memory and --long-memory at least {MIN_DATA_MEMORY} MiB."
        )
    profile = (load_profile(args.catalog) if args.catalog else None) or {}
    told = {"impl": args.impl} if args.impl is not None else {}
    plan = ServePlan(
        target=args.catalog,
        properties={**properties_of(args.property), **told},
        open=open_served,
        settings=settings_of(args, profile),
        host=args.host,
        port=args.port,
        workers=args.workers,
        insecure=args.insecure,
        data_workers=args.data_workers,
        data_memory=args.data_memory * MIB,
        face=None if args.no_page else page,
        keys=args.keys,
        far=_back_end(args.catalog, {**properties_of(args.property), **told}),
        long_memory=args.long_memory * MIB,
    )
    shown = args.catalog or args.impl or "the default profile"
    return serve(plan, lambda url: print(f"Headwater serves {shown} at {url}", flush=True))


def _back_end(target: str | None, properties: dict[str, str]) -> str:
    """Return the back end of others that is to be served; nothing for a catalog of ours."""
    impl = resolve(target, properties).impl
    return "" if not impl or is_own(impl) else impl


def settings_of(args: argparse.Namespace, profile: dict[str, object]) -> Settings:
    """Return the settings of a server: the command line first, then the profile."""
    told: dict[str, Any] = {
        "arrow_body": args.max_body,
        "page": args.max_page,
        "request_seconds": args.timeout,
        "requests_per_second": args.rate_limit,
        "spooled": args.max_spool,
        "spooled_per_caller": args.max_spool // 2 if args.max_spool is not None else None,
        "connections": args.max_connections,
        "running_per_caller": args.max_concurrent,
    }
    limits = Limits(**{key: value for key, value in told.items() if value is not None})
    return Settings(
        limits=limits,
        jwt=jwt_of(args, profile),
        api_key=server_key(args.api_key_file),
        scoped=scoped_of(args),
        audit_log=args.audit_log,
        access_log=not args.no_access_log,
        vend_credentials=args.vend_credentials,
        host_names=tuple(args.host_name),
        any_address=args.insecure,
        proxies=tuple(args.proxy),
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        read_only=args.read_only,
        base_path=base_path(args.base_path),
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
    """Return the key in a file, which is its only content."""
    key = read_secret(path, "--api-key-file").strip() if path is not None else None
    if key is not None and len(key) < MIN_KEY_CHARS:
        raise InvalidInputError(f"--api-key-file: a key has at least {MIN_KEY_CHARS} characters.")
    return key


def jwt_of(args: argparse.Namespace, profile: dict[str, Any]) -> JwtSettings | None:
    def chosen(name: str) -> Any:
        value = getattr(args, name)
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
        [part.strip() for part in args.split(",")] if isinstance(args, str) else list(args) for args in (issuers, jwks)
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


def run_token(args: argparse.Namespace) -> int:
    store, clock = _store(args), SystemClock()
    if args.action == "create":
        return _create(args, store, clock)
    if args.action == "change":
        scope = None if args.scope is None else _scope(args)
        changed = change_key(store, args.id, args.role, scope, _expiry(args.expires, clock))
        show(shown(changed, clock.now_ms()), args.json)
        return 0
    if args.action == "revoke":
        confirm(args, f"This will revoke the key {args.id} for good.")
        show({"revoked": revoke_key(store, clock, args.id).id}, args.json)
        return 0
    records = [shown(record, clock.now_ms()) for record in list_keys(store)]
    if records or args.json:
        show(records, args.json)
    return 0


def _create(args: argparse.Namespace, store: Store, clock: Clock) -> int:
    scope = [] if args.scope is None else _scope(args)
    record, text = create_key(store, clock, args.role, scope, args.name, _expiry(args.expires, clock))
    if args.json:
        show({"key": text, **shown(record, clock.now_ms())}, True)
        return 0
    print(text)
    print(f"This is the only time the key is shown. Its id is {record.id}.", file=sys.stderr)
    return 0


def _scope(args: argparse.Namespace) -> list[str]:
    """Return the scope as names; everything is said by leaving --scope out, so that a slip does not mean it."""
    scope = list(args.name_of(args.scope))
    if not scope:
        raise InvalidInputError(f"--scope {args.scope!r} names nothing: leave --scope out for the whole catalog.")
    return scope


def run_role(args: argparse.Namespace) -> int:
    store = _store(args)
    if args.action == "set":
        permissions = define_role(store, args.name, args.permissions)
        show({"role": args.name, "permissions": names_of(permissions)}, args.json)
    elif args.action == "remove":
        remove_role(store, args.name)
        show({"removed": args.name}, args.json)
    else:
        known = {**ROLES, **defined_roles(store)}
        show([{"role": name, "permissions": ",".join(names_of(role))} for name, role in known.items()], args.json)
    return 0


def shown(record: KeyRecord, now_ms: int) -> dict[str, Any]:
    """Return the record of a key without its hash."""
    state = "valid" if record.is_valid(now_ms) else "revoked" if record.revoked_ms else "expired"
    return {
        "id": record.id,
        "role": record.role,
        "scope": format_name(record.scope) or "(everything)",
        "state": state,
        "name": record.name,
        "created": time_of(record.created_ms),
        "expires": None if record.expires_ms is None else time_of(record.expires_ms),
    }


def _expiry(text: str | None, clock: Clock) -> int | None:
    if text is None:
        return None
    match = _DURATION.match(text)
    if not match:
        raise InvalidInputError(f"--expires {text!r} is not a time such as 90m, 12h or 30d.")
    return clock.now_ms() + int(match[1]) * _SECONDS[match[2]] * 1000


def _store(args: argparse.Namespace) -> Store:
    if args.keys is not None:
        return open_store(args.keys)
    opening = args.target.opening
    namespace = opening.writing() if args.action == "create" else opening.reading()
    store = abilities_of(namespace).store
    if store is None:
        raise UnsupportedOperationError(
            f"{args.target.shown} has no storage of its own for keys: create them where the catalog is, not through "
            "REST, or in a folder that its server is told (--keys DIR)."
        )
    return store
