"""The namespace suite over every mode of the directory catalog, on local disk; its core also on S3."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance_namespace as api
import pytest

from headwater import DirectoryNamespace, MetastoreNamespace
from headwater.registry import Capabilities
from headwater.testing.namespace_suite import ODD_NAMES, NamespaceSuite, code_of

MODES: dict[str, dict[str, str]] = {
    "V1": {"manifest_enabled": "false"},
    "V2": {"dir_listing_enabled": "false"},
    "compat": {},
    "early": {"layout": "early"},
}
BUCKET_NAMES = ("é", "a%2Fb", "a#b?c")
"""The odd names that are tried on a bucket every time: one that is encoded, one that looks so, one that a URL cuts."""


class Directory(NamespaceSuite):
    @pytest.fixture
    def features(self, namespace: DirectoryNamespace) -> Capabilities:
        return namespace.registry.capabilities

    def test_properties_of_a_namespace_are_altered_and_two_alterations_at_once_both_stay(
        self, namespace: DirectoryNamespace, features: Capabilities
    ) -> None:
        if not features.namespaces:
            assert code_of(lambda: alter(namespace, {"k": "v"})) == 0
            return
        namespace.create_namespace(api.CreateNamespaceRequest(id=["a"], properties={"old": "1", "gone": "2"}))
        assert alter(namespace, {"k": "v"}, ["gone"]) == {"old": "1", "k": "v"}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: alter(namespace, {f"k{number}": "v"}), range(8)))
        found = namespace.describe_namespace(api.DescribeNamespaceRequest(id=["a"])).properties
        assert found == {"old": "1", "k": "v", **{f"k{number}": "v" for number in range(8)}}


def alter(namespace: Any, properties: dict[str, str], removed: Sequence[str] = ()) -> dict[str, str]:
    answer = namespace.alter_namespace_properties({"id": ["a"], "properties": properties, "removed": list(removed)})
    return dict(answer.properties)


class TestLocal(Directory):
    @pytest.fixture(params=MODES)
    def namespace(self, request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryNamespace:
        return DirectoryNamespace(root=str(tmp_path / "lake"), **MODES[request.param])


class TestMetastore(Directory):
    @pytest.fixture
    def namespace(self, tmp_path: Path) -> MetastoreNamespace:
        return MetastoreNamespace(root=str(tmp_path / "lake"))


class TestMetastoreS3(Directory):
    @pytest.fixture
    def namespace(self, s3_root: str, s3_options: dict[str, str]) -> MetastoreNamespace:
        return MetastoreNamespace(root=s3_root, **{f"storage.{key}": value for key, value in s3_options.items()})

    @pytest.mark.parametrize(
        "name", [name if name in BUCKET_NAMES else pytest.param(name, marks=pytest.mark.long) for name in ODD_NAMES]
    )
    def test_an_odd_name_is_found_again_exactly_as_written(
        self, namespace: Any, features: Capabilities, name: str
    ) -> None:
        super().test_an_odd_name_is_found_again_exactly_as_written(namespace, features, name)


@pytest.mark.long  # the metastore is asked on a bucket every time, and the registry of a directory in test_registry.py
class TestS3(Directory):
    @pytest.fixture(params=["V1", "V2", "compat"])
    def namespace(self, request: pytest.FixtureRequest, s3_root: str, s3_options: dict[str, str]) -> DirectoryNamespace:
        storage = {f"storage.{key}": value for key, value in s3_options.items()}
        return DirectoryNamespace(root=s3_root, **MODES[request.param], **storage)
