"""Short-lived credentials for one table: what `--vend-scoped` hands out instead of the catalog's own keys.

A policy has the form of each storage and allows one table's folder alone. Names are hostile. Each language has
characters that would widen what a policy allows (`*` and `${` in IAM, quotes in CEL), so every name goes in through the
one function that writes it for that language. AWS STS and Google's token exchange are asked over https, or on loopback.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import threading
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit
from xml.etree import ElementTree

from headwater.clock import Clock
from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.imports import when_used
from headwater.namespace.vending.decision import FileAccess, places_of

MAX_POLICY_CHARS = 2048
SAS_VERSION = "2020-12-06"
_IAM = re.compile(r"[*?$]")
_PLAIN = re.compile(r"[A-Za-z0-9 ._/@=+,:~$()\-]")
_READ_S3 = ("s3:GetObject",)
_WRITE_S3 = (
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)


@dataclass(frozen=True)
class Folder:
    """A table's folder on an object store: the bucket or container, and the key prefix without a final slash."""

    scheme: str
    bucket: str
    prefix: str

    @staticmethod
    def parse(location: str, root: str) -> Folder | None:
        """Return the folder at a location below the catalog's root; None for a place that needs no credentials."""
        around = root.rstrip("/") + "/"
        if "://" not in root or not location.startswith(around) or not location.removeprefix(around).strip("/"):
            return None
        parts = urlsplit(location.replace("?", "%3F").replace("#", "%23"))
        prefix = unquote(parts.path).strip("/")
        if not parts.netloc or not prefix or any(part in ("", ".", "..") for part in prefix.split("/")):
            return None
        return Folder(parts.scheme.lower(), parts.netloc.partition("@")[0], prefix)


def s3_policy(folder: Folder, access: FileAccess, partition: str = "aws") -> str:
    """Return an IAM session policy: the objects below the folder, and lists of nothing else."""
    objects = f"arn:{partition}:s3:::{iam_text(folder.bucket)}/{iam_text(folder.prefix)}/*"
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": list(_WRITE_S3 if access is FileAccess.WRITE else _READ_S3),
                "Resource": [objects],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [f"arn:{partition}:s3:::{iam_text(folder.bucket)}"],
                "Condition": {"StringLike": {"s3:prefix": [f"{iam_text(folder.prefix)}/*"]}},
            },
        ],
    }
    text = json.dumps(policy, separators=(",", ":"))
    if len(text) > MAX_POLICY_CHARS:
        raise InvalidInputError(
            "The table's location is too long for a session policy: its folder needs a shorter name."
        )
    return text


def iam_text(text: str) -> str:
    """Return a text that means itself in a resource or a condition: `${*}`, `${?}` and `${$}` are IAM's ways to write
    them."""
    return _IAM.sub(lambda match: "${" + match[0] + "}", text)


def gcs_boundary(folder: Folder, access: FileAccess) -> dict[str, Any]:
    """Return a credential access boundary: objects below the folder, and lists of nothing else."""
    role = "objectUser" if access is FileAccess.WRITE else "objectViewer"
    objects = cel_text(f"projects/_/buckets/{folder.bucket}/objects/{folder.prefix}/")
    lists = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
    expression = f"resource.name.startsWith({objects}) || {lists}.startsWith({cel_text(folder.prefix + '/')})"
    rule = {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{folder.bucket}",
        "availablePermissions": [f"inRole:roles/storage.{role}"],
        "availabilityCondition": {"expression": expression},
    }
    return {"accessBoundary": {"accessBoundaryRules": [rule]}}


def cel_text(text: str) -> str:
    """Return a string literal of the Common Expression Language; what is not plain is written by its code point."""
    return "'" + "".join(char if _PLAIN.match(char) else _code_point(char) for char in text) + "'"


def _code_point(char: str) -> str:
    return f"\\U{ord(char):08x}"


def azure_sas(folder: Folder, access: FileAccess, account: str, key: str, expiry: str, https: bool) -> str:
    """Return a service SAS for one directory, signed with the account's key (it needs a hierarchical namespace)."""
    permissions = "racwdl" if access is FileAccess.WRITE else "rl"
    protocol = "https" if https else "https,http"
    resource = f"/blob/{account}/{folder.bucket}/{folder.prefix}"
    lines = (permissions, "", expiry, resource, "", "", protocol, SAS_VERSION, "d", "", "", "", "", "", "", "")
    if any("\n" in line for line in lines):
        raise InvalidInputError("The table's location has a line break: no credentials can be made for it.")
    try:
        secret = base64.b64decode(key, validate=True)
    except ValueError:
        raise InvalidInputError("storage.account_key is not the key of a storage account: it must be base64.") from None
    signature = base64.b64encode(hmac.new(secret, "\n".join(lines).encode(), hashlib.sha256).digest()).decode()
    fields = {
        "sv": SAS_VERSION,
        "sr": "d",
        "sdd": str(folder.prefix.count("/") + 1),
        "sp": permissions,
        "se": expiry,
        "spr": protocol,
        "sig": signature,
    }
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())


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
            check_endpoint(settings.endpoint, "--vend-endpoint")
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
        asked = AssumeRole(
            endpoint=self._settings.endpoint or f"https://sts.{region}.{domain}/",
            region=region,
            role_arn=role,
            policy=s3_policy(folder, access, partition),
            session=f"headwater-{hashlib.sha256(folder.prefix.encode()).hexdigest()[:32]}",
            seconds=self._settings.seconds,
            external_id=self._settings.external_id,
        )
        return assume_role(asked, AwsKeys.of(self._own), self._now())

    def _gs(self, folder: Folder, access: FileAccess, expires: int) -> dict[str, str]:
        endpoint = self._settings.endpoint or GOOGLE_STS
        own = google_token(self._own, self._now())
        token = exchange_google(gcs_boundary(folder, access), own, endpoint)
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


jwt = when_used("jwt")
TIMEOUT = 10
MAX_ANSWER = 256 * 1024
LOOPBACK = ("127.0.0.1", "localhost", "::1")
METADATA = "http://metadata.google.internal"
GOOGLE_STS = "https://sts.googleapis.com/v1/token"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


WITHOUT_REDIRECTS = urllib.request.build_opener(_NoRedirect)
"""Sends what holds a token: where a server says to go instead, nobody may see it."""


def check_endpoint(url: str, name: str) -> str:
    """A token service sees credentials: it is reached over https, or on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise InvalidInputError(f"{name}: a token service must be an https address.")
    return url


def ask(url: str, data: bytes | None, headers: Mapping[str, str]) -> bytes:
    """Return one request; ServiceUnavailable (17) that tells the status and not what was said."""
    request = urllib.request.Request(url, data, dict(headers))
    try:
        with WITHOUT_REDIRECTS.open(request, timeout=TIMEOUT) as answer:
            return bytes(answer.read(MAX_ANSWER))
    except urllib.error.HTTPError as error:
        error.close()
        reason = f"it answered with HTTP {error.code}"
    except OSError:
        reason = "it cannot be reached"
    raise ServiceUnavailableError(f"The token service gave no storage credentials: {reason}.") from None


@dataclass(frozen=True)
class AwsKeys:
    """Long-lived keys, or a session's."""

    id: str
    secret: str
    token: str | None = None

    @staticmethod
    def of(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> AwsKeys:
        """Return the credentials of the catalog's storage options, or of the environment."""

        def find(name: str) -> str | None:
            return options.get(name) or options.get(f"aws_{name}")

        if find("access_key_id"):
            return AwsKeys(find("access_key_id") or "", find("secret_access_key") or "", find("session_token"))
        id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
        if not id or not secret:
            raise InvalidInputError(
                "Vending scoped S3 credentials needs keys: storage.access_key_id or the environment."
            )
        return AwsKeys(id, secret, environment.get("AWS_SESSION_TOKEN"))


@dataclass(frozen=True)
class AssumeRole:
    """A request to AWS STS, and where to."""

    endpoint: str
    region: str
    role_arn: str
    policy: str
    session: str
    seconds: int
    external_id: str | None = None

    def fields(self) -> dict[str, str]:
        found = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self.role_arn,
            "RoleSessionName": self.session,
            "DurationSeconds": str(self.seconds),
            "Policy": self.policy,
        }
        return {**found, "ExternalId": self.external_id} if self.external_id else found


def assume_role(asked: AssumeRole, keys: AwsKeys, now: datetime) -> dict[str, str]:
    """Credentials of a role, narrowed by the session policy, as storage options."""
    body = urlencode(asked.fields()).encode()
    answer = ask(asked.endpoint, body, signed_headers(asked.endpoint, asked.region, "sts", body, keys, now))
    try:
        tree = ElementTree.fromstring(answer.decode())
        found = {item.tag.rpartition("}")[2]: item.text or "" for item in tree.iter()}
        return {
            "aws_access_key_id": found["AccessKeyId"],
            "aws_secret_access_key": found["SecretAccessKey"],
            "aws_session_token": found["SessionToken"],
        }
    except (ElementTree.ParseError, KeyError, UnicodeDecodeError):
        raise ServiceUnavailableError("The token service gave an answer that cannot be read.") from None


def signed_headers(url: str, region: str, service: str, body: bytes, keys: AwsKeys, now: datetime) -> dict[str, str]:
    """Return the headers of a POST, signed with AWS Signature Version 4. Pure."""
    parts = urlsplit(url)
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"content-type": "application/x-www-form-urlencoded", "host": parts.netloc, "x-amz-date": stamp}
    if keys.token:
        headers["x-amz-security-token"] = keys.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    path = quote(parts.path or "/", safe="/-_.~")
    canonical = f"POST\n{path}\n\n{lines}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def exchange_google(boundary: Mapping[str, object], subject: str, endpoint: str = GOOGLE_STS) -> str:
    """Return a Google access token that can do only what the boundary says, in exchange for one that can do more."""
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": _ACCESS_TOKEN,
        "subject_token_type": _ACCESS_TOKEN,
        "subject_token": subject,
        "options": quote(json.dumps(boundary, separators=(",", ":")), safe=""),
    }
    return _token(ask(endpoint, urlencode(fields).encode(), {"content-type": "application/x-www-form-urlencoded"}))


def google_token(options: Mapping[str, str], now: datetime) -> str:
    """Return the catalog's own access token: for its service account's key, or from the metadata service of the
    machine."""
    key = options.get("google_service_account_key") or options.get("service_account_key")
    if key is None:
        url = f"{METADATA}/computeMetadata/v1/instance/service-accounts/default/token"
        return _token(ask(url, None, {"metadata-flavor": "Google"}))
    try:
        account = json.loads(key)
        address = check_endpoint(account.get("token_uri", "https://oauth2.googleapis.com/token"), "token_uri")
        issued = int(now.timestamp())
        claims = {
            "iss": account["client_email"],
            "scope": "https://www.googleapis.com/auth/devstorage.read_write",
            "aud": address,
            "iat": issued,
            "exp": issued + 600,
        }
        assertion = jwt.encode(claims, account["private_key"], algorithm="RS256")
    except (ValueError, KeyError, TypeError, jwt.PyJWTError):
        raise InvalidInputError("storage.service_account_key is not the key of a service account.") from None
    fields = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": assertion}
    return _token(ask(address, urlencode(fields).encode(), {"content-type": "application/x-www-form-urlencoded"}))


def _token(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["access_token"])
    except (ValueError, KeyError, TypeError):
        raise ServiceUnavailableError("The token service gave an answer that cannot be read.") from None
