"""Asking token services for short-lived credentials: AWS STS, Google's token exchange. Over https, or on loopback."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

from headwater.errors import InvalidInputError, ServiceUnavailableError
from headwater.imports import when_used

jwt = when_used("jwt")
TIMEOUT = 10
MAX_ANSWER = 256 * 1024
LOOPBACK = ("127.0.0.1", "localhost", "::1")
METADATA = "http://metadata.google.internal"
GOOGLE_STS = "https://sts.googleapis.com/v1/token"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
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
    """One request; ServiceUnavailable (17) that tells the status and not what was said."""
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
        """Those of the catalog's storage options, or of the environment."""

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
    """The headers of a POST, signed with AWS Signature Version 4. Pure."""
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


def exchange_google(boundary: Mapping[str, Any], subject: str, endpoint: str = GOOGLE_STS) -> str:
    """A Google access token that can do only what the boundary says, in exchange for one that can do more."""
    fields = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": _ACCESS_TOKEN,
        "subject_token_type": _ACCESS_TOKEN,
        "subject_token": subject,
        "options": quote(json.dumps(boundary, separators=(",", ":")), safe=""),
    }
    return _token(ask(endpoint, urlencode(fields).encode(), {"content-type": "application/x-www-form-urlencoded"}))


def google_token(options: Mapping[str, str], now: datetime) -> str:
    """The catalog's own access token: for its service account's key, or from the metadata service of the machine."""
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
