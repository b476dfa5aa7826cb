"""Values that set up a server: limits, timeouts, authentication; and its on-disk names (docs/formats/directory.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.namespace.vending import ScopedSettings
from headwater.store.seam import OWN_FOLDER

MIB = 1024 * 1024
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


@dataclass(frozen=True)
class Limits:
    """An upper bound on everything a caller can make the server hold or do.

    Bodies count as what they unpack to. `spooled` and `spooled_per_caller` bound the bytes of bodies held at a time.
    `connections` 0 means half of the descriptors that the process may have.
    """

    arrow_body: int = 64 * 1024 * MIB
    json_body: int = 16 * MIB
    in_memory_body: int = 4 * MIB
    depth: int = 32
    properties: int = MIB
    page: int = 100_000
    requests_per_second: float = 0.0
    burst: int = 50
    body_idle_seconds: float = 60.0
    request_seconds: float = 600.0
    threads: int = 24
    memory_bodies: int = 256 * MIB
    spooled: int = 128 * 1024 * MIB
    spooled_per_caller: int = 64 * 1024 * MIB
    waiting: int = 1536
    running_per_caller: int = 512
    connections: int = 0
    head: int = 64 * 1024
    head_seconds: float = 20.0
    keep_alive_seconds: float = 75.0
    write_idle_seconds: float = 60.0
    bad_keys_per_second: float = 0.5
    bad_keys_burst: int = 20


@dataclass(frozen=True)
class JwtSettings:
    """Bearer JWT: which issuers are believed, for which audience, with which keys and algorithms.

    `jwks` is a file or an https URL (http only on loopback), one for each issuer: the keys of one issuer prove nothing
    about the tokens of another. With one issuer it may be the source alone.
    `role_claim` and `scope_claim` may be dotted paths. Without a `scope_claim` the role holds for the whole catalog;
    with one, a token that lacks it may do nothing.
    """

    issuers: tuple[str, ...]
    audience: str
    jwks: str | Mapping[str, str]
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    role_claim: str = "role"
    scope_claim: str | None = None
    leeway_seconds: int = 30

    def sources(self) -> dict[str, str]:
        """The key set of each issuer."""
        if isinstance(self.jwks, str):
            return dict.fromkeys(self.issuers, self.jwks) if len(self.issuers) == 1 else {}
        return {issuer: self.jwks[issuer] for issuer in self.issuers if issuer in self.jwks}


@dataclass(frozen=True)
class Settings:
    """One server's settings. `api_key`, if set, is one more key, with every right (embedded servers use it).

    With `key_is_owner` the holder of that key acts for the process that serves: the log names the process's author.
    `vend_credentials` hands the catalog's own storage options, which may hold secrets, to whoever may read a table;
    `scoped` hands out short-lived ones for that table instead. `audit_log` is a file: see `auth.audit`.
    `host_names` are the names it is served by, `any_address` says that an open one is served by address too (see
    `origin.check_site`); only `proxies` are believed about whom they speak for. `tls_cert` and `tls_key` are PEM files.
    `read_only` refuses every change. `base_path` (`/lake`) is where a proxy shows the server: requests may come with it
    or without, links have it.
    """

    limits: Limits = field(default_factory=Limits)
    jwt: JwtSettings | None = None
    api_key: str | None = None
    key_is_owner: bool = False
    catalog_keys: bool = True
    access_log: bool = False
    vend_credentials: bool = False
    scoped: ScopedSettings | None = None
    audit_log: str | None = None
    metrics_folder: str | None = None
    host_names: tuple[str, ...] = ()
    any_address: bool = False
    proxies: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    read_only: bool = False
    base_path: str = ""


TOKENS = f"{OWN_FOLDER}/tokens"
OWN_ROLES = f"{OWN_FOLDER}/roles"
IDEMPOTENCY = f"{OWN_FOLDER}/idempotency"
