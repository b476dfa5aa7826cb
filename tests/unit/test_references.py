"""Secrets by reference, and files that may not bring keys where they like."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

import headwater
from headwater import DirectoryNamespace, config
from headwater.cli.main import main
from headwater.cli.serving import server_key
from headwater.errors import InvalidInputError
from headwater.references import MAX_SECRET_BYTES, follow, followed
from headwater.rest.client import headers_of

SECRET = "s3cret-s3cret"


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(("HEADWATER_", "AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_a_secret_may_stand_in_a_file_or_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(SECRET + "\n")
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    for reference in ("env:LAKE_SECRET", f"file:{tmp_path}/key", "file:key"):
        catalog = headwater.connect("dir", {"root": str(tmp_path), "storage.secret_access_key": reference})
        assert isinstance(catalog, DirectoryNamespace)
        assert catalog.storage_options == {"secret_access_key": SECRET}
        assert SECRET.encode() not in pickle.dumps(catalog)
        assert pickle.loads(pickle.dumps(catalog)).storage_options == catalog.storage_options
        assert headers_of({"headers.x-api-key": reference}) == {"x-api-key": SECRET}


def test_only_properties_that_hold_secrets_are_references() -> None:
    plain = {"root": "file:/data", "uri": "env:X", "storage.region": "eu", "delimiter": "env:"}
    assert followed(plain) == plain


@pytest.mark.parametrize(
    "reference", ["env:NOT_SET", "env:", "file:", "file:none", "file:empty", "file:binary", "file:huge", "file:."]
)
def test_a_reference_that_leads_nowhere_says_so_and_shows_nothing(reference: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe" + SECRET.encode())
    (tmp_path / "huge").write_text(SECRET * (MAX_SECRET_BYTES // 8))
    with pytest.raises(InvalidInputError, match=r"storage\.x is in the") as refused:
        follow(reference, "storage.x")
    assert SECRET not in str(refused.value)


def test_the_key_of_a_server_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a-long-enough-key-of-ours\n")
    assert server_key(str(tmp_path / "key")) == "a-long-enough-key-of-ours"
    assert server_key(None) is None
    (tmp_path / "key").write_text("short")
    with pytest.raises(InvalidInputError):
        server_key(str(tmp_path / "key"))


def test_a_secret_on_the_command_line_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", SECRET)
    root = str(tmp_path / "lake")
    main(["create", root, "a", "--namespace", "--property", f"storage.secret_access_key={SECRET}"])
    said = capsys.readouterr()
    assert "storage.secret_access_key=env:VARIABLE" in said.err
    assert SECRET not in said.err + said.out
    main(
        [
            "create",
            root,
            "b",
            "--namespace",
            "--property",
            "storage.secret_access_key=env:K",
            "--property",
            "storage.region=eu",
        ]
    )
    assert "env:VARIABLE" not in capsys.readouterr().err


def foreign(text: str) -> None:
    Path("headwater.toml").write_text("[catalog.lake]\n" + text)


EVIL = 'root = "s3://evil/x"\n'


@pytest.mark.parametrize(
    "text",
    [EVIL, 'uri = "http://evil"\n', 'root = "./x"\nstorage.endpoint = "http://evil"\n', 'impl = "rest"\nroot = "x"\n'],
)
@pytest.mark.parametrize("key", ["STORAGE__SECRET_ACCESS_KEY", "HEADERS__X-API-KEY", "HEADER__AUTHORIZATION"])
def test_a_file_of_the_working_directory_does_not_redirect_keys_of_the_environment(
    text: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(text)
    monkeypatch.setenv(f"HEADWATER_CATALOG__LAKE__{key}", SECRET)
    with pytest.raises(InvalidInputError, match="HEADWATER_CONFIG") as refused:
        headwater.open_catalog("lake")
    assert SECRET not in str(refused.value)
    monkeypatch.setenv("HEADWATER_CONFIG", "headwater.toml")
    assert config.load_profile("lake") is not None


def test_nor_keys_of_the_call() -> None:
    foreign(EVIL)
    with pytest.raises(InvalidInputError, match="HEADWATER_CONFIG"):
        headwater.open_catalog("lake", {"storage.secret_access_key": SECRET})


def test_nor_does_it_hold_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    for reference in ("env:AWS_SECRET_ACCESS_KEY", "file:~/.aws/credentials"):
        foreign(EVIL + f'storage.secret_access_key = "{reference}"\n')
        with pytest.raises(InvalidInputError, match="reference to a secret"):
            headwater.open_catalog("lake")


@pytest.mark.parametrize("option", ["endpoint", "AWS_ENDPOINT", "proxy_url", 'region = "x.evil/#" #', "account_name"])
@pytest.mark.parametrize("own", ["", 'storage.access_key_id = "a"\nstorage.secret_access_key = "b"\n'])
def test_nor_does_it_say_where_requests_signed_with_ambient_keys_go(
    option: str, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    foreign(f'root = "s3://b/x"\n{own}storage.{option} = "http://evil"\n')
    with pytest.raises(InvalidInputError, match="HEADWATER_CONFIG"):
        headwater.open_catalog("lake")


def test_a_file_of_the_working_directory_with_keys_of_its_own_or_none_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    own = 'storage.access_key_id = "a"\nstorage.secret_access_key = "b"\n'
    foreign('root = "s3://b/x"\nstorage.endpoint = "http://e"\n' + own)
    assert config.load_profile("lake") is not None
    foreign('root = "s3://b/x"\nstorage.endpoint = "http://e"\n')
    with pytest.raises(InvalidInputError, match="without keys of its own"):
        config.load_profile("lake")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    foreign('root = "s3://b/x"\nstorage.region = "eu-west-1"\n')
    assert config.load_profile("lake") == {"root": "s3://b/x", "storage.region": "eu-west-1"}


def test_a_path_or_a_uri_is_never_the_name_of_a_profile(tmp_path: Path) -> None:
    Path("headwater.toml").write_text(
        '[catalog."./lake"]\nroot = "./evil"\n[catalog."http://good"]\nuri = "http://evil"\n'
    )
    assert config.load_profile("./lake") is None
    assert config.load_profile("http://good") is None
