"""Policies of short-lived credentials in the form of each storage: one table's folder alone. Pure.

Names are hostile. Each language has characters that would widen what a policy allows (`*` and `${` in IAM, quotes in
CEL), so every name goes in through the one function that writes it for that language.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from headwater.errors import InvalidInputError
from headwater.namespace.vending.decision import FileAccess

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
        """The folder at a location below the catalog's root; None for a place that needs no credentials."""
        around = root.rstrip("/") + "/"
        if "://" not in root or not location.startswith(around) or not location.removeprefix(around).strip("/"):
            return None
        parts = urlsplit(location.replace("?", "%3F").replace("#", "%23"))
        prefix = unquote(parts.path).strip("/")
        if not parts.netloc or not prefix or any(part in ("", ".", "..") for part in prefix.split("/")):
            return None
        return Folder(parts.scheme.lower(), parts.netloc.partition("@")[0], prefix)


def s3_policy(folder: Folder, access: FileAccess, partition: str = "aws") -> str:
    """An IAM session policy: the objects below the folder, and lists of nothing else."""
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
    """A text that means itself in a resource or a condition: `${*}`, `${?}` and `${$}` are IAM's ways to write them."""
    return _IAM.sub(lambda match: "${" + match[0] + "}", text)


def gcs_boundary(folder: Folder, access: FileAccess) -> dict[str, Any]:
    """A credential access boundary: objects below the folder, and lists of nothing else."""
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
    """A string literal of the Common Expression Language; what is not plain is written by its code point."""
    return "'" + "".join(char if _PLAIN.match(char) else _code_point(char) for char in text) + "'"


def _code_point(char: str) -> str:
    return f"\\U{ord(char):08x}"


def azure_sas(folder: Folder, access: FileAccess, account: str, key: str, expiry: str, https: bool) -> str:
    """A service SAS for one directory, signed with the account's key (it needs a hierarchical namespace)."""
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
