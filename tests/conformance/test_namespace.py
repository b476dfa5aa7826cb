"""The namespace suite over every mode of the directory catalog, on local disk; its core also on S3."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater import DirectoryNamespace
from headwater.registry import Capabilities
from headwater.testing.namespace_suite import NamespaceSuite

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "early": {"layout": "early"},
}


class Directory(NamespaceSuite):
    @pytest.fixture
    def features(self, namespace: DirectoryNamespace) -> Capabilities:
        return namespace.registry.capabilities


class TestLocal(Directory):
    @pytest.fixture(params=MODES)
    def namespace(self, request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
        return DirectoryNamespace(root=str(tmp_path / "lake"), **MODES[request.param])


class TestS3(Directory):
    @pytest.fixture(
        params=[pytest.param("V1", marks=pytest.mark.long), pytest.param("V2", marks=pytest.mark.long), "compat"]
    )
    def namespace(self, request: pytest.FixtureRequest, s3_root: str, s3_options: dict[str, str]) -> DirectoryNamespace:
        storage = {f"storage.{key}": value for key, value in s3_options.items()}
        return DirectoryNamespace(root=s3_root, **MODES[request.param], **storage)
