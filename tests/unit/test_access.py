"""How Spark reaches a catalog stands in a file that only its owner can read; no setting and no variable is a secret."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidInputError, PermissionDeniedError, UnsupportedOperationError

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from headwater.spark import configure, java_runtime, session
from headwater.spark.access_file import ENVIRONMENT, read_access, write_access

SECRET = "a-canary-of-a-token"


def test_settings_and_variables_hold_no_secret() -> None:
    given: dict[str, Any] = {"header.x-tenant": SECRET, "delimiter": "."}
    found = session.settings("far", uri="http://127.0.0.1:1", token=SECRET, **given)
    assert SECRET not in repr(found)
    assert SECRET not in repr(dict(os.environ))
    file = Path(found["spark.sql.catalog.far.access_file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert os.environ[ENVIRONMENT + "far"] == str(file)
    assert read_access(str(file)) == {"uri": "http://127.0.0.1:1", "token": SECRET, **given}


def test_an_access_file_that_others_could_have_touched_is_refused(tmp_path: Path) -> None:
    file = Path(write_access({"uri": "http://x"}))
    for mode in (0o640, 0o604, 0o660, 0o666):
        file.chmod(mode)
        with pytest.raises(PermissionDeniedError, match="mode 0600"):
            read_access(str(file))
    file.chmod(0o600)
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe", 0o600)
    refused: list[tuple[Any, type[Exception]]] = [
        (tmp_path / "link", InvalidInputError),
        (tmp_path / "pipe", PermissionDeniedError),
        (tmp_path, PermissionDeniedError),
        (tmp_path / "none", InvalidInputError),
    ]
    for content in (b"", b"{}", b'{"kind":"other","options":{}}', b'{"uri":"http://x"}', b"root:x:0:0"):
        other = tmp_path / f"other-{len(refused)}"
        other.write_bytes(content)
        other.chmod(0o600)
        refused.append((other, InvalidInputError))
    for path, kind in refused:
        with pytest.raises(kind) as told:
            read_access(str(path))
        assert "root:x" not in str(told.value)
    assert read_access(str(file)) == {"uri": "http://x"}


def test_a_profile_names_a_catalog_or_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headwater.toml").write_text(
        '[catalog.prod]\nroot = "there"\ntable_version_management = true\n'
        f'[catalog.far]\nuri = "http://127.0.0.1:1"\nheaders.x-api-key = "{SECRET}"\n'
    )
    far = session.settings("c", root="far")["spark.sql.catalog.c.access_file"]
    assert read_access(far) == {"uri": "http://127.0.0.1:1", "headers.x-api-key": SECRET}
    session.settings("c", path=tmp_path / "by-path")
    session.settings("c", root="prod", delimiter=".")
    running = list(session._servers.values())[-1][0]
    served = running.app.namespace.properties
    assert (served.root, served.table_version_management, served.delimiter) == (str(tmp_path / "there"), True, ".")
    with pytest.raises(InvalidInputError, match="not a property"):
        session.settings("c", root="prod", rooot="x")


def test_a_machine_without_java_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_runtime, "wheel_runtime", lambda: None)
    for home, where in ((None, "none here"), (str(tmp_path), "none in JAVA_HOME")):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        if home:
            monkeypatch.setenv("JAVA_HOME", home)
        with pytest.raises(UnsupportedOperationError, match="Java 17") as told:
            configure(SparkSession.builder.master("local[1]"), "lake", root=str(tmp_path / "lake"))
        assert "\n" not in str(told.value)
        assert where.split()[-1] in str(told.value) or home is None
