"""Policies of scoped credentials: exactly one table's folder, whatever it is called."""

from __future__ import annotations

import ast
import base64
import json
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidInputError
from headwater.namespace.vending import FileAccess, Keep, Own, vend
from headwater.namespace.vending.decision import places_of
from headwater.namespace.vending.scoped import (
    AwsKeys,
    Folder,
    azure_sas,
    cel_text,
    check_endpoint,
    gcs_boundary,
    iam_text,
    s3_policy,
    signed_headers,
)

HOSTILE = (
    "*", "?", "a*b", "${aws:username}", "$", "a$b", "${*}", '"', "'", "\\", "x' || true || '", '","Resource":"*', "é",
    "a b", "%2F", "%", "#", "\u2028", "${", "}", "\U0001f600", "a\tb",
)  # fmt: skip


def matches(pattern: str, text: str) -> bool:
    """As IAM reads a resource or a StringLike condition: `*` and `?` are wild, `${x}` is the character x."""
    parts = re.split(r"(\$\{[*?$]\}|[*?])", pattern)
    wild = {"*": ".*", "?": "."}
    wanted = "".join(wild.get(part, re.escape(part[2] if part.startswith("${") else part)) for part in parts)
    return re.fullmatch(wanted, text, re.DOTALL) is not None


def objects(policy: str) -> str:
    return str(json.loads(policy)["Statement"][0]["Resource"][0])


def test_the_session_policy_for_a_table_on_s3() -> None:
    assert json.loads(s3_policy(Folder("s3", "b", "lake/6a53e01d_ns1$t2"), FileAccess.READ)) == {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["s3:GetObject"],
                "Resource": ["arn:aws:s3:::b/lake/6a53e01d_ns1${$}t2/*"],
            },
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": ["arn:aws:s3:::b"],
                "Condition": {"StringLike": {"s3:prefix": ["lake/6a53e01d_ns1${$}t2/*"]}},
            },
        ],
    }
    write = json.loads(s3_policy(Folder("s3", "b", "t"), FileAccess.WRITE, "aws-cn"))["Statement"][0]
    assert write["Resource"] == ["arn:aws-cn:s3:::b/t/*"]
    assert {"s3:PutObject", "s3:DeleteObject", "s3:GetObject"} <= set(write["Action"])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_widens_no_policy(name: str) -> None:
    folder = Folder("s3", "bucket", f"lake/{name}.lance")
    policy = s3_policy(folder, FileAccess.WRITE)
    assert [statement["Effect"] for statement in json.loads(policy)["Statement"]] == ["Allow", "Allow"]
    pattern = objects(policy)
    assert matches(pattern, f"arn:aws:s3:::bucket/lake/{name}.lance/data/x")
    for other in ("lake/private.lance/x", "lake/axb.lance/x", f"lake/{name}.lancex/x", "lake/x", "other/x"):
        assert not matches(pattern, f"arn:aws:s3:::bucket/{other}")
    expression = gcs_boundary(folder, FileAccess.READ)["accessBoundary"]["accessBoundaryRules"][0]
    texts = re.findall(
        r"startsWith\(('(?:[^'\\]|\\U[0-9a-f]{8})*')\)", expression["availabilityCondition"]["expression"]
    )
    found = [ast.literal_eval(text) for text in texts]
    assert found == [f"projects/_/buckets/bucket/objects/lake/{name}.lance/", f"lake/{name}.lance/"]


@given(name=st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40), key=st.text(max_size=40))
def test_whatever_the_names_only_keys_below_the_folder_match(name: str, key: str) -> None:
    pattern = f"{iam_text(name)}/*"
    assert matches(pattern, f"{name}/{key}")
    assert matches(pattern, key) == key.startswith(f"{name}/")
    assert ast.literal_eval(cel_text(name)) == name


def test_the_access_boundary_for_a_table_on_gcs() -> None:
    rule = gcs_boundary(Folder("gs", "b", "lake/t.lance"), FileAccess.WRITE)["accessBoundary"]["accessBoundaryRules"]
    assert rule == [
        {
            "availableResource": "//storage.googleapis.com/projects/_/buckets/b",
            "availablePermissions": ["inRole:roles/storage.objectUser"],
            "availabilityCondition": {
                "expression": "resource.name.startsWith('projects/_/buckets/b/objects/lake/t.lance/') || "
                "api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('lake/t.lance/')"
            },
        }
    ]


def test_the_sas_for_a_table_on_azure() -> None:
    key = base64.b64encode(b"0" * 32).decode()
    folder = Folder("az", "container", "lake/a&b=c.lance")
    found = parse_qs(azure_sas(folder, FileAccess.READ, "account", key, "2030-01-01T00:00:00Z", https=True))
    signature = found.pop("sig")
    assert found == {
        "sv": ["2020-12-06"], "sr": ["d"], "sdd": ["2"], "sp": ["rl"], "se": ["2030-01-01T00:00:00Z"], "spr": ["https"],
    }  # fmt: skip
    other = Folder("az", "container", "lake/a&b=d.lance")
    assert parse_qs(azure_sas(other, FileAccess.READ, "account", key, "2030-01-01T00:00:00Z", True))["sig"] != signature
    assert "racwdl" in azure_sas(folder, FileAccess.WRITE, "account", key, "2030-01-01T00:00:00Z", True)
    with pytest.raises(InvalidInputError):
        azure_sas(Folder("az", "c", "a\nracwdl"), FileAccess.READ, "account", key, "x", True)
    with pytest.raises(InvalidInputError):
        azure_sas(folder, FileAccess.READ, "account", "no key!", "x", True)


def test_a_signature_is_the_one_that_botocore_makes() -> None:
    from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
    from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
    from botocore.credentials import Credentials  # type: ignore[import-untyped]

    now, body = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), b"Action=AssumeRole&Policy=%7B%7D"
    keys = AwsKeys("AKIA", "secret", "token")
    ours = signed_headers("https://sts.eu-west-1.amazonaws.com/", "eu-west-1", "sts", body, keys, now)
    sent = {"content-type": ours["content-type"], "host": ours["host"]}
    request: Any = AWSRequest("POST", "https://sts.eu-west-1.amazonaws.com/", headers=sent, data=body)
    request.context["timestamp"] = "20300102T030405Z"
    auth = SigV4Auth(Credentials("AKIA", "secret", "token"), "sts", "eu-west-1")
    request.headers["X-Amz-Date"] = "20300102T030405Z"
    request.headers["X-Amz-Security-Token"] = "token"
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert ours["authorization"].endswith(f"Signature={signature}")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_is_read_from_a_location_as_the_catalog_writes_it(name: str) -> None:
    location = f"s3://bucket/lake/{quote(name + '.lance')}"
    assert Folder.parse(location, "s3://bucket/lake") == Folder("s3", "bucket", f"lake/{name}.lance")


@pytest.mark.parametrize(
    "location",
    [
        "s3://bucket/lake",
        "s3://bucket/lake/",
        "s3://bucket/other/t",
        "s3://other/lake/t",
        "/lake/t",
        "s3://bucket/lake/../x",
        "",
    ],
)
def test_what_is_not_below_the_root_gets_no_credentials(location: str) -> None:
    assert Folder.parse(location, "s3://bucket/lake") is None
    assert Folder.parse("/lake/t", "/lake") is None


def test_a_policy_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="shorter"):
        s3_policy(Folder("s3", "b", "*" * 800), FileAccess.READ)


def test_a_token_service_is_reached_over_https_or_on_this_machine() -> None:
    for url in ("http://sts.example/", "ftp://x", "file:///x", "http://127.0.0.1.example/"):
        with pytest.raises(InvalidInputError):
            check_endpoint(url, "--vend-endpoint")
    check_endpoint("https://sts.example/", "x")
    check_endpoint("http://127.0.0.1:1/", "x")


def test_only_places_are_told_beside_scoped_credentials() -> None:
    options = {
        "region": "eu",
        "AWS_ENDPOINT": "http://x",
        "secret_access_key": "s",
        "aws_session_token": "t",
        "new": "x",
    }
    assert places_of(options) == {"region": "eu", "AWS_ENDPOINT": "http://x"}


def test_options_are_decided_at_any_depth_and_nothing_else_is_touched() -> None:
    message = {"a": [{"storage_options": {"k": "v"}, "location": "/t", "names": ["x"]}], "b": ("y",)}
    assert vend(message, Keep(), FileAccess.WRITE)["a"][0] == {
        "storage_options": None,
        "location": "/t",
        "names": ["x"],
    }
    assert vend(message, Own(), FileAccess.READ) == message
    assert vend(message, Own(), FileAccess.NONE)["a"][0]["storage_options"] is None
    assert vend(message, Own(), FileAccess.READ, asked=False)["a"][0]["storage_options"] is None
    assert vend({"storage_options": {"k": "v"}}, Own(), FileAccess.READ) == {"storage_options": None}
