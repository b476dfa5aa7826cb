"""Short-lived credentials for one table: what `--vend-scoped` hands out instead of the catalog's own keys."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from headwater.clock import Clock
from headwater.errors import InvalidInputError
from headwater.namespace.vending import tokens
from headwater.namespace.vending.decision import FileAccess
from headwater.namespace.vending.options import places_of
from headwater.namespace.vending.policies import Folder, azure_sas, gcs_boundary, s3_policy

MIN_SECONDS, MAX_SECONDS = 900, 43_200
MAX_KEPT = 1024
EXPIRES = "expires_at_millis"
"""The option by which Lance clients know when to ask again."""
Key = tuple[str, FileAccess]


@dataclass(frozen=True)
class ScopedSettings:
    """Settings of scoped credentials. `endpoint`: a token service other than the storage's own."""

    role_arn: str | None = None
    external_id: str | None = None
    seconds: int = 3600
    endpoint: str | None = None


class Scoped:
    """A vendor of credentials that reach one table's folder for a while. They are kept for half of their time."""

    is_silent = False

    def __init__(self, root: str, own: Mapping[str, str], settings: ScopedSettings, clock: Clock) -> None:
        self._root, self._own, self._settings, self._clock = root, dict(own), settings, clock
        self._kept: OrderedDict[Key, dict[str, str]] = OrderedDict()
        self._lock = threading.Lock()
        if not MIN_SECONDS <= settings.seconds <= MAX_SECONDS:
            raise InvalidInputError(f"--vend-seconds must be from {MIN_SECONDS} to {MAX_SECONDS}.")
        if settings.endpoint is not None:
            tokens.check_endpoint(settings.endpoint, "--vend-endpoint")
        if root.startswith(("s3://", "s3a://")) and not settings.role_arn:
            raise InvalidInputError("Vending scoped S3 credentials needs --vend-role-arn: the role that is narrowed.")

    def options(self, location: str, access: FileAccess, own: Mapping[str, str] | None) -> dict[str, str] | None:
        """Credentials for the table there; None where there is nothing to vend (local disk)."""
        folder = Folder.parse(location, self._root)
        if folder is None or access is FileAccess.NONE:
            return None
        now, fresh = self._clock.now_ms(), self._settings.seconds * 500
        with self._lock:
            kept = self._kept.get((location, access))
        if kept is None or int(kept[EXPIRES]) - now < fresh:
            kept = self._mint(folder, access, now)
            self._keep((location, access), kept)
        return dict(kept)

    def _mint(self, folder: Folder, access: FileAccess, now: int) -> dict[str, str]:
        expires = now + self._settings.seconds * 1000
        made = {"s3": self._s3, "s3a": self._s3, "gs": self._gs}.get(folder.scheme, self._az)(folder, access, expires)
        return {**places_of(self._own), **made, EXPIRES: str(expires)}

    def _s3(self, folder: Folder, access: FileAccess, expires: int) -> dict[str, str]:
        role = self._settings.role_arn or ""
        region = next((self._own[key] for key in ("region", "aws_region") if key in self._own), "us-east-1")
        partition = role.split(":")[1] if role.count(":") >= 5 else "aws"
        domain = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
        asked = tokens.AssumeRole(
            endpoint=self._settings.endpoint or f"https://sts.{region}.{domain}/",
            region=region,
            role_arn=role,
            policy=s3_policy(folder, access, partition),
            session=f"headwater-{hashlib.sha256(folder.prefix.encode()).hexdigest()[:32]}",
            seconds=self._settings.seconds,
            external_id=self._settings.external_id,
        )
        return tokens.assume_role(asked, tokens.AwsKeys.of(self._own), self._now())

    def _gs(self, folder: Folder, access: FileAccess, expires: int) -> dict[str, str]:
        endpoint = self._settings.endpoint or tokens.GOOGLE_STS
        own = tokens.google_token(self._own, self._now())
        token = tokens.exchange_google(gcs_boundary(folder, access), own, endpoint)
        return {"google_storage_token": token}

    def _az(self, folder: Folder, access: FileAccess, expires: int) -> dict[str, str]:
        account, key = (
            next((self._own[prefix + name] for prefix in ("azure_storage_", "") if prefix + name in self._own), None)
            for name in ("account_name", "account_key")
        )
        if account is None or key is None:
            raise InvalidInputError(
                "Vending scoped Azure credentials needs storage.account_name and storage.account_key."
            )
        until = datetime.fromtimestamp(expires / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        https = self._own.get("allow_http", "false").lower() != "true"
        sas = azure_sas(folder, access, account, key, until, https)
        return {"azure_storage_account_name": account, "azure_storage_sas_token": sas}

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def _keep(self, key: Key, made: dict[str, str]) -> None:
        with self._lock:
            self._kept[key] = made
            self._kept.move_to_end(key)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
