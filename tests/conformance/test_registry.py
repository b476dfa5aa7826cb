"""The Registry suite over every kind of catalog, on local disk, in memory and on S3."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from headwater.clock import SystemClock
from headwater.metastore import Metastore
from headwater.model import CatalogObject, Change
from headwater.names import ObjectId
from headwater.registries.compat import CompatRegistry
from headwater.registries.listing import ListingRegistry
from headwater.registries.manifest import ManifestRegistry
from headwater.registries.manifest.rows import RowIndex
from headwater.registries.metastore import MetastoreRegistry
from headwater.registry import Capabilities, Kind, Proposal, Registry
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


class ThreeMethods(Registry):
    """Another kind of catalog is find, children and commit: here over an index in memory."""

    capabilities = Capabilities(namespaces=True, properties=True, rename=True, register_anywhere=True)

    def __init__(self) -> None:
        self.index, self.lock = RowIndex(), threading.Lock()

    def find(
        self, ids: Iterable[ObjectId], seen: bool = True, newest: bool = False
    ) -> Mapping[ObjectId, CatalogObject]:
        with self.lock:
            return {id: item for id in ids if (item := self.index.get(id)) is not None}

    def children(self, parent: ObjectId, kind: Kind, after: str, limit: int | None) -> Sequence[str]:
        with self.lock:
            return self.index.children(parent, kind, after, limit)

    def commit(self, changes: Sequence[Change]) -> None:
        with self.lock:
            proposal = Proposal(self.index)
            proposal.apply(changes)
            for id, item in proposal.changed.items():
                self.index.remove(id)
                if item is not None:
                    self.index.put(item)


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


ON_BUCKETS = (
    pytest.param(listing, marks=pytest.mark.long),  # what is below compat is asked there every time
    pytest.param(manifest, marks=pytest.mark.long),
    compat,
    metastore,
)


class TestS3(Reopened):
    @pytest.fixture(params=ON_BUCKETS, ids=lambda maker: maker.__name__)
    def reopen(
        self, request: pytest.FixtureRequest, s3_root: str, s3_options: dict[str, str]
    ) -> Callable[[], Registry]:
        maker: Maker = request.param
        return lambda: maker(open_store(s3_root, s3_options), s3_root, s3_options)


class TestAnotherKind(Reopened):
    """What a kind of catalog does not say for itself follows from its three methods."""

    @pytest.fixture
    def reopen(self) -> Callable[[], Registry]:
        registry = ThreeMethods()
        return lambda: registry
