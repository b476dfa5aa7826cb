"""The Registry suite over every kind of catalog, on local disk, in memory and on S3."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.clock import SystemClock
from headwater.metastore import Metastore
from headwater.registries.compat import CompatRegistry
from headwater.registries.listing import ListingRegistry
from headwater.registries.manifest import ManifestRegistry
from headwater.registries.metastore import MetastoreRegistry
from headwater.registry import Registry
from headwater.store import PlainStore, Store, WrappedStore, memory_store, open_store
from headwater.testing.registry_suite import RegistrySuite

Maker = Callable[[Store, str, dict[str, str]], Registry]


def listing(store: Store, root: str, options: dict[str, str]) -> Registry:
    return ListingRegistry(store, SystemClock())


def early(store: Store, root: str, options: dict[str, str]) -> Registry:
    return ListingRegistry(store, SystemClock(), early=True)


def manifest(store: Store, root: str, options: dict[str, str]) -> Registry:
    return ManifestRegistry(store, root, options, SystemClock())


def compat(store: Store, root: str, options: dict[str, str]) -> Registry:
    return CompatRegistry(ManifestRegistry(store, root, options, SystemClock()), ListingRegistry(store, SystemClock()))


def wrapped(root: str) -> Store:
    return WrappedStore(open_store(root))


def plain(root: str) -> Store:
    return PlainStore(open_store(root))


def metastore(store: Store, root: str, options: dict[str, str]) -> Registry:
    return MetastoreRegistry(Metastore(store), SystemClock())


class Reopened(RegistrySuite):
    @pytest.fixture
    def registry(self, reopen: Callable[[], Registry]) -> Registry:
        return reopen()


class TestLocal(Reopened):
    """Local disk as it is, behind a wrapper that passes its abilities on, and behind one that hides them."""

    @pytest.fixture(params=[open_store, wrapped, plain], ids=lambda opener: opener.__name__)
    def opener(self, request: pytest.FixtureRequest) -> Callable[[str], Store]:
        opener: Callable[[str], Store] = request.param
        return opener

    @pytest.fixture(params=[listing, early, manifest, compat, metastore], ids=lambda maker: maker.__name__)
    def reopen(
        self, request: pytest.FixtureRequest, tmp_path: Path, opener: Callable[[str], Store]
    ) -> Callable[[], Registry]:
        maker: Maker = request.param
        return lambda: maker(opener(str(tmp_path)), str(tmp_path), {})


class TestMemory(Reopened):
    """Lance tables cannot be shared with another library in memory, so the kinds that need one are not there."""

    @pytest.fixture(params=[listing, early, metastore], ids=lambda maker: maker.__name__)
    def reopen(self, request: pytest.FixtureRequest) -> Callable[[], Registry]:
        maker: Maker = request.param
        store = memory_store()
        return lambda: maker(store, "memory://", {})


class TestS3(Reopened):
    @pytest.fixture(params=[listing, manifest, compat, metastore], ids=lambda maker: maker.__name__)
    def reopen(
        self, request: pytest.FixtureRequest, s3_root: str, s3_options: dict[str, str]
    ) -> Callable[[], Registry]:
        maker: Maker = request.param
        return lambda: maker(open_store(s3_root, s3_options), s3_root, s3_options)
