"""The serving copy: a Lance dataset whose versions are deltas of the table's `lance` stream.

Nothing here changes what a catalog shows: manifests are *staged*, several on top of each other if need be, and a
transaction of the metastore makes them versions. After that each gets its final name, by whoever sees it first.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import lance_namespace as api
from lance_namespace import LanceNamespace
from lance_namespace_urllib3_client.models.table_version import TableVersion

from headwater.clock import Clock, SystemClock
from headwater.errors import ConcurrentModificationError, CorruptFileError, UnsupportedOperationError
from headwater.imports import lance
from headwater.lance_manifest import manifest_digest
from headwater.metastore import DataFile, Delta, Metastore, Reading, Transaction
from headwater.names import ObjectId
from headwater.store import KeyNotFoundError, Store, claim, open_store
from headwater.streams.layout import LANCE
from headwater.streams.serving.row_ids import KeptIds, with_kept
from headwater.streams.stream_lookup import Stream, open_stream
from headwater.tables.commit.exact import hide, staged_key, told
from headwater.tables.handle import TableHandle
from headwater.tables.layout import UNRECORDED, VERSIONS, hidden_manifest, manifest_name
from headwater.tables.translate import kind_of, named_error

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Lake:
    """A catalog, and its root as Lance opens it; inside an open transaction, `own`, as that sees it."""

    metastore: Metastore
    uri: str
    storage_options: dict[str, str] = field(default_factory=dict)
    own: Transaction | None = None

    @property
    def store(self) -> Store:
        return self.metastore.store

    @property
    def clock(self) -> Clock:
        return self.metastore.clock

    def now(self) -> Reading:
        """Return the newest state, and in a transaction what that began with and has changed itself."""
        return self.metastore.now() if self.own is None else self.own

    def staged(self, stream: Stream, version: int, manifest: str) -> Staged | None:
        """Return the version, if the open transaction has made it: its manifest has no final name before the commit."""
        for each in self.own.appended() if self.own is not None else ():
            if each.wanted == version and manifest == f"{stream.serving}/{each.properties.get('staged')}":
                return Staged(version, manifest, each.files[0].bytes)
        return None


@dataclass(frozen=True)
class Workplace:
    """Store and clock of a catalog for a task on an executor."""

    store: Store
    clock: Clock


def lake_at(store: Store, clock: Clock, uri: str, storage_options: dict[str, str]) -> Lake:
    """Return the storage of a catalog without the catalog, for what only reads and writes files."""
    return Lake(cast(Metastore, Workplace(store, clock)), uri, storage_options)


@dataclass(frozen=True)
class CatalogLocation:
    """The address of a catalog's storage, as a task on an executor opens it."""

    root: str
    storage: Mapping[str, str]

    def lake(self) -> Lake:
        """Open the storage alone, for tasks that only read and write files."""
        return lake_at(open_store(self.root, dict(self.storage)), SystemClock(), self.root, dict(self.storage))

    def catalog(self) -> Lake:
        """Open the storage with the metastore in it, once per process."""
        return _catalog(self.root, tuple(sorted(self.storage.items())))


@functools.lru_cache(maxsize=16)
def _catalog(root: str, storage: tuple[tuple[str, str], ...]) -> Lake:
    return lake(Metastore(root, dict(storage)), root, dict(storage))


def catalog_location(lake: Lake) -> CatalogLocation:
    """Return the address of a catalog's storage."""
    root = lake.uri if "://" in lake.uri else os.path.abspath(lake.uri)
    return CatalogLocation(root, dict(lake.storage_options))


def lake(metastore: Metastore, uri: str | None = None, storage_options: dict[str, str] | None = None) -> Lake:
    """The root's address is that of the store, if it is a local one."""
    found = uri or metastore.store.abilities.path
    if found is None:
        raise UnsupportedOperationError("A stream table's serving copy needs the address of the catalog's root.")
    return Lake(metastore, found, dict(storage_options or {}))


@dataclass(frozen=True)
class Staged:
    """A manifest that a transaction may make a version."""

    version: int
    key: str
    size: int
    digest: str | None = None


class Staging(LanceNamespace):
    """The catalog as a commit of Lance sees it while versions are staged: it takes note of each, and says yes.

    Each manifest gets a hidden name at once, which Lance opens and nobody finds: a publish that is lost shows nothing.
    That of an open transaction is below its id, by which whoever reads there knows that it has no final name yet.
    """

    def __init__(self, lake: Lake, stream: Stream, version: int, manifest: str = "", own: str = "") -> None:
        """`version` with its manifest is the newest, if the open transaction has made it. `own`: the id of that."""
        self._base = lake.staged(stream, version, manifest)
        self._store = lake.store
        self.own = lake.own.id if lake.own is not None else own
        self._id = (f"{self.own}/" if self.own else "") + lake.metastore.clock.uuid()
        self._stream = stream
        self.version = version
        self.place = place_of(lake, stream)
        self._uri = self.place.uri
        self.overtaken = False
        self.failure: BaseException | None = None
        self.staged: list[Staged] = []
        self.rowless = 0
        """Up to which version only columns were changed, before the rows."""
        self.unfinished = 0
        """Up to which version it is a step to what is published, and has not all of its columns, or not its rows."""
        self.kept: Mapping[str, KeptIds] = {}
        self._syncing: list[Future[None]] = []
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="headwater-sync")

    @property
    def known(self) -> tuple[Staged, ...]:
        """The versions whose manifests have no final name yet."""
        return (*(() if self._base is None else (self._base,)), *self.staged)

    @property
    def newest(self) -> str:
        """The manifest of the newest version, staged or committed."""
        if self.staged:
            return self.staged[-1].key
        return self._base.key if self._base is not None else final_key(self._stream, self.version)

    def sync(self, keys: Sequence[str]) -> None:
        """Make files survive a power cut, beside what goes on meanwhile: nothing refers to them before the commit."""
        self._syncing.append(self._beside.submit(self._store.sync, keys))

    def synced(self) -> None:
        """Wait until all of them do."""
        for each in self._syncing:
            each.result()
        self._syncing = []

    @contextmanager
    def indexing(self, dataset: object) -> Iterator[None]:
        """The files of indices that are made here survive a power cut too."""
        known = _segments(dataset)
        yield
        if self._store.abilities.path is not None:
            made = (f"{self._stream.serving}/_indices/{segment}" for segment in sorted(_segments(dataset) - known))
            self.sync([entry.key for folder in made for entry in self._store.list(folder)])

    def namespace_id(self) -> str:
        return f"staging {self._stream.serving}"

    def describe_table(self, request: api.DescribeTableRequest) -> api.DescribeTableResponse:
        return api.DescribeTableResponse(location=self._uri, managed_versioning=True)

    def list_table_versions(self, request: api.ListTableVersionsRequest) -> api.ListTableVersionsResponse:
        newest = self.staged[-1].version if self.staged else self.version
        return api.ListTableVersionsResponse(versions=[self._version(newest)] if newest else [])

    def describe_table_version(self, request: api.DescribeTableVersionRequest) -> api.DescribeTableVersionResponse:
        return api.DescribeTableVersionResponse(version=self._version(int(dict(request)["version"])))

    def _version(self, number: int) -> TableVersion:
        staged = next((each for each in self.known if each.version == number), None)
        key = staged.key if staged is not None else final_key(self._stream, number)
        path = f"{_object_path(self._uri)}/{key.removeprefix(f'{self._stream.serving}/')}"
        return TableVersion(version=number, manifest_path=path, manifest_size=staged.size if staged else None)

    def create_table_version(self, request: api.CreateTableVersionRequest) -> api.CreateTableVersionResponse:
        asked = told(request)
        expected = (self.staged[-1].version if self.staged else self.version) + 1
        if int(asked["version"]) != expected:  # below: Lance goes on from what was staged; above: from another's
            self.overtaken |= int(asked["version"]) > expected
            raise ConcurrentModificationError(f"Version {expected} of {self._stream.name} is the next.")
        key = f"{self._stream.serving}/{hidden_manifest(self._id, expected)}"
        try:
            data = self._hide(staged_key(self._stream.serving, asked), key)
        except BaseException as error:
            self.failure = error  # what Lance would make of it says nothing
            raise
        self.staged.append(Staged(expected, key, len(data), manifest_digest(data)))
        self.sync([key])
        return api.CreateTableVersionResponse(version=self._version(expected))

    def _hide(self, staged: str, key: str) -> bytes:
        """Give the manifest its hidden name, with what its fragments keep; its bytes then."""
        data = self._store.get(staged)
        if not self.kept:
            hide(self._store, staged, key, data)
            return data
        data = with_kept(data, self.kept)
        self._store.put(key, data, durable=False)  # the caller syncs it beside what comes next
        self._store.delete(staged)
        return data


def _segments(dataset: Any) -> set[str]:
    return {str(segment.uuid) for index in dataset.describe_indices() for segment in index.segments}


@contextmanager
def on_top(staging: Staging, stream: Stream) -> Iterator[None]:
    """Let Lance commit in this block on top of the staged version, or raise a conflict (14)."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        if staging.failure is not None:
            raise staging.failure from None
        if staging.overtaken or kind_of(error) is ConcurrentModificationError:
            raise ConcurrentModificationError(
                f"{stream.name} was published by another writer meanwhile. Nothing was changed: look again."
            ) from None
        if isinstance(error, OSError):  # a disk that is full, a store that does not answer
            raise named_error(staging.place, "write the serving copy of", error) from None
        raise


def set_aside(lake: Lake, stream: Stream, version: int) -> None:
    """Move manifests that were written behind the catalog's back out of the way: Lance would build on them.

    A record comes before its final manifest, so one that was there before a look that finds no record is not ours.
    """
    while lake.store.head(final_key(stream, version + 1)) is not None:
        now = lake.metastore.now()
        newest = now.last_position(stream.path, format=LANCE, version=stream.version)
        is_same = open_stream(now, stream.path, stream.version).home == stream.home  # else another has the name
        if newest != version or not is_same:
            raise ConcurrentModificationError(f"{stream.name} was published by another writer meanwhile: look again.")
        for number in range(version + 1, version + 65):
            key = final_key(stream, number)
            if lake.store.head(key) is None:
                break
            lake.store.put(f"{UNRECORDED}/{key}", lake.store.get(key))
            lake.store.delete(key)


def _object_path(uri: str) -> str:
    """Return a folder as Lance's object store names it: the path inside the bucket, or below `/`."""
    return (urlsplit(uri).path if "://" in uri else uri).strip("/")


def final_key(stream: Stream, version: int) -> str:
    return f"{stream.serving}/{VERSIONS}/{manifest_name(version)}"


def manifest_of(stream: Stream, delta: Delta) -> str:
    """Return the key of a version's staged manifest, or its final key if it never was staged."""
    staged = delta.properties.get("staged")
    return f"{stream.serving}/{staged}" if staged else delta.files[0].path


def version_record(stream: Stream, staged: Staged, settled: int, time_ms: int) -> tuple[DataFile, dict[str, object]]:
    """Return the file and the properties of the delta that is a version, as every catalog-managed version has them."""
    properties = {
        "staged": staged.key.removeprefix(f"{stream.serving}/"),
        "time": time_ms,
        "settled": settled,
        "manifest_digest": staged.digest,
    }
    return DataFile(final_key(stream, staged.version), 0, staged.size), properties


def finalize(store: Store, stream: Stream, version: int, staged: str) -> None:
    """Put the manifest of a committed version under its final name. What another put there gives way."""
    final = final_key(stream, version)
    try:
        if staged == final or claim(store, staged, final, durable=False):
            return
        data = store.get(staged)
    except KeyNotFoundError:
        if store.head(final) is None:
            raise CorruptFileError(final, f"version {version} is recorded, but has no manifest") from None
        return
    if store.get(final) != data:
        store.put(final, data)


def open_version(lake: Lake, stream: Stream, version: int, manifest: str) -> lance.LanceDataset:
    """Return the dataset at a version of the catalog's, or of the open transaction."""
    staged = lake.staged(stream, version, manifest)
    if staged is not None:
        return open_staged(lake, stream, staged)
    finalize(lake.store, stream, version, manifest)
    return lance.dataset(
        f"{lake.uri}/{stream.serving}",
        version=version,
        storage_options=lake.storage_options or None,
        session=_session(),
    )


def manifest_bytes(lake: Lake, stream: Stream, version: int, manifest: str) -> bytes:
    """Return the manifest of a version that was opened: of the catalog's, or of the open transaction."""
    staged = lake.staged(stream, version, manifest)
    return lake.store.get(final_key(stream, version) if staged is None else staged.key)


def open_staged(lake: Lake, stream: Stream, staged: Staged) -> lance.LanceDataset:
    """Open the dataset at a version that has no final name yet."""
    staging = Staging(lake, stream, staged.version - 1)
    staging.staged.append(staged)
    return open_staging(lake, stream, staging)


@functools.cache
def _session() -> lance.Session:
    return lance.Session()


def open_staging(lake: Lake, stream: Stream, staging: Staging) -> lance.LanceDataset:
    """Return the dataset as staged so far, whose own methods stage versions on top."""
    return lance.dataset(
        namespace_client=staging, table_id=list(stream.path), storage_options=lake.storage_options or None
    )


def commit(
    lake: Lake,
    stream: Stream,
    staging: Staging,
    operation: lance.LanceOperation.BaseOperation,
    base: lance.LanceDataset | None,
    properties: dict[str, str],
    kept: Mapping[str, KeptIds] | None = None,
) -> Any:
    """Stage the version that follows `base` and return it as Lance has committed it.

    `kept`: what fragments keep, by their data files. Lance does not know of that: to read or change rows of this
    version, open it by `open_staging`.
    """
    transaction = lance.Transaction(0 if base is None else base.version, operation, transaction_properties=properties)
    new = True if base is None else None
    staging.kept = kept or {}
    try:
        return lance.LanceDataset.commit(
            f"{lake.uri}/{stream.serving}" if base is None else base,
            transaction,
            namespace_client=staging,
            table_id=list(stream.path),
            namespace_client_managed_versioning=True,
            storage_options=lake.storage_options or None,
            enable_stable_row_ids=new,
            enable_v2_manifest_paths=new,
        )
    finally:
        staging.kept = {}


def place_of(lake: Lake, stream: Stream) -> TableHandle:
    """Return the location of the serving copy's files."""
    return TableHandle(ObjectId(stream.path), f"{lake.uri}/{stream.serving}", dict(lake.storage_options))
