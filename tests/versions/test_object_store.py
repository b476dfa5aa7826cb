"""Versions on an object store, where paths are keys of a bucket and e_tags are the store's own."""

from __future__ import annotations

from typing import Any

import lance
import pytest

from headwater.errors import InvalidInputError
from headwater.namespace.directory import DirectoryNamespace
from tests.versions.samples import KINDS, MANAGED, append, numbers, opened, rows, stream


@pytest.fixture(params=("compat", *MANAGED))
def catalog(request: pytest.FixtureRequest, s3_root: str, s3_options: dict[str, str]) -> DirectoryNamespace:
    storage = {f"storage.{key}": value for key, value in s3_options.items()}
    properties: dict[str, Any] = {**KINDS[str(request.param)], **storage}
    return DirectoryNamespace(root=s3_root, **properties)


def test_plain_clients_commit_on_an_object_store(catalog: DirectoryNamespace) -> None:
    catalog.create_table({"id": ["t"]}, stream(rows()))  # type: ignore[arg-type]
    append(catalog, value=4)
    opened(catalog).insert(rows(5), mode="append")
    assert numbers(catalog) == [3, 2, 1]
    assert numbers(catalog, limit=2) == [3, 2]
    assert opened(catalog).count_rows() == 5
    again = DirectoryNamespace(**catalog._given)
    assert lance.dataset(namespace_client=again, table_id=["t"], version=2).count_rows() == 4
    assert again.verify() == []
    assert again.clean_up_table_versions(["t"], keep_versions=1, grace_seconds=0).manifests == 2
    assert numbers(catalog) == [3]


def test_paths_are_keys_of_the_bucket_and_checked(catalog: DirectoryNamespace) -> None:
    catalog.create_table({"id": ["t"]}, stream(rows()))  # type: ignore[arg-type]
    first = catalog.describe_table_version({"id": ["t"], "version": 1}).version  # type: ignore[arg-type]
    assert first.manifest_path.startswith("lake/")
    key = first.manifest_path.removeprefix("lake/")
    body = catalog.store.get(key)
    folder = key.rsplit("/", 1)[0]
    staged = f"{folder}/18446744073709551613.manifest-0"
    catalog.store.put(staged, body)
    entry = catalog.store.head(staged)
    assert entry is not None
    request: Any = {"id": ["t"], "version": 2, "manifest_path": f"lake/{staged}", "e_tag": entry.etag}
    for bad in ({"e_tag": '"other"'}, {"manifest_path": f"other/{staged}"}, {"manifest_path": staged}):
        with pytest.raises(InvalidInputError):
            catalog.create_table_version({**request, **bad})  # type: ignore[arg-type]
    assert catalog.create_table_version(request).version is not None
    assert numbers(catalog) == [2, 1]
