"""`TableHandle`: the location of a Lance table, opened at a version, a tag or a branch, with errors of ours."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
)
from headwater.imports import lance, when_used
from headwater.lance_manifest import outside
from headwater.metastore.records.ref_record import KnownRefs
from headwater.names import ObjectId, format_name
from headwater.table_refs import branch_of, check_version
from headwater.tables.translate import is_unanswered, named_error, translating

if TYPE_CHECKING:
    from lance.fragment import LanceFragment
    from lance_namespace import DescribeTableResponse, LanceNamespace

protocol = when_used("lance_namespace")


class CommitClient:
    """The methods of `LanceNamespace` that pylance calls during a commit. Remembers the catalog's last refusal.

    After a refusal pylance reads the version to learn who made it. In a table that was moved or dropped meanwhile it
    cannot, and reports that the commit may have landed. The refusal recorded here is certain.
    """

    def __init__(self, catalog: LanceNamespace) -> None:
        self._catalog = catalog
        self._last: LanceNamespaceError | None = None
        self._is_unknown = False

    @property
    def refusal(self) -> LanceNamespaceError | None:
        """The error that refused the last version; None if the fate of any request is unknown."""
        return None if self._is_unknown else self._last

    def namespace_id(self) -> str:
        return str(self._catalog.namespace_id())

    def create_table_version(self, request: Any) -> Any:
        try:
            answer = self._catalog.create_table_version(request)
        except Exception as error:
            self._is_unknown |= is_unanswered(error) or not isinstance(error, LanceNamespaceError)
            self._last = error if isinstance(error, LanceNamespaceError) else None
            raise
        self._last = None
        return answer

    def describe_table(self, request: Any) -> DescribeTableResponse:
        return self._catalog.describe_table(request)

    def list_table_versions(self, request: Any) -> object:
        return self._catalog.list_table_versions(request)

    def describe_table_version(self, request: Any) -> object:
        return self._catalog.describe_table_version(request)


MAX_KEPT = 16
"""Datasets that a moment of the past keeps open."""
SCATTERED_BYTES = 64 << 10
"""Reads nearer to each other than this are one where scattered rows are fetched: what Lance does on object storage. Its
4 KiB of local files make a request of every row that an index finds, and a thousand of them take twice as long. A scan
with a filter reads too much by it: TPC-H q3 takes a fifth longer."""


@functools.cache
def shared_session() -> lance.Session:
    """Return the Lance session of handles decoded from JSON: it caches manifests, file metadata and index pages.

    An open still asks whether the manifest is the one it was: one dropped and made again is not served from memory.
    """
    return lance.Session()


def opened_through(client: LanceNamespace | CommitClient, names: Sequence[str], **options: Any) -> lance.LanceDataset:
    """Open the newest version of a table through its catalog, to which the dataset then commits if it is managed.

    `lance.dataset(namespace_client=...)` does the same, and imports the models of all requests: 0.1 s of CPU.
    """
    found = client.describe_table(protocol.DescribeTableRequest(id=list(names)))
    return lance.LanceDataset(
        found.location or "",
        storage_options=found.storage_options,
        namespace_client=client,
        table_id=list(names),
        namespace_client_managed_versioning=found.managed_versioning is True,
        **options,
    )


def fragment_of(dataset: lance.LanceDataset, number: int) -> LanceFragment:
    """Return a fragment of a dataset. Raise InvalidTableState (19) if it has none of that number."""
    found = dataset.get_fragment(number)
    if found is None:
        raise InvalidTableStateError(f"Version {dataset.version} of the table has no fragment {number}: look again.")
    return found


class UnreadRowsWarning(UserWarning):
    """A table that was opened has a write-ahead log of Lance's (MemWAL), whose rows are in no version."""


_noted: ContextVar[set[str] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_unread(names: set[str]) -> Iterator[None]:
    """Collect in `names`, instead of warning, the tables with a write-ahead log that this block opens."""
    token = _noted.set(names)
    try:
        yield
    finally:
        _noted.reset(token)


def unread_rows(table: str) -> str:
    """Return the warning for a table with a write-ahead log of Lance's."""
    return (
        f"{table} has a write-ahead log (MemWAL): rows that were written there, and are in no version yet, are not "
        "shown. Merge them into the table (LanceDB: checkpoint_lsm and compact_lsm)."
    )


@dataclass(frozen=True)
class TableHandle:
    """A table found by the catalog: its name, location, storage options and, if pinned, its version.

    `managed`: the catalog orders its versions, not the storage. `client`: that catalog, where it can be asked. As JSON
    a handle has no client: it holds the location and the storage options that the catalog gave out, so an executor
    can read and write data files and cannot talk to the catalog.
    """

    id: ObjectId
    uri: str
    storage_options: dict[str, str] = field(default_factory=dict)
    client: LanceNamespace | None = None
    version: int | None = None
    managed: bool = False
    in_transaction: bool = False
    """True for versions of an open transaction: no commit to them can have landed unseen."""
    session: lance.Session | None = field(default=None, repr=False, compare=False)
    _asked: list[CommitClient] = field(default_factory=list, init=False, repr=False, compare=False)
    """The catalog as it was asked for what was opened last, if anything was."""
    refs: Callable[[], KnownRefs | None] | None = field(default=None, repr=False, compare=False)
    """Asks the catalog for tags and branches of which the table's folder may not know yet."""
    kept: dict[Any, lance.LanceDataset] | None = field(default=None, repr=False, compare=False)
    """Datasets that were opened at the moment of the past which the catalog stands at: no version is added to it."""

    @property
    def name(self) -> str:
        """The qualified name of the table, quoted as in SQL."""
        return format_name(self.id.names)

    @property
    def known_refs(self) -> KnownRefs | None:
        """Tags and branches recorded by the catalog; None if only the table's folder knows them."""
        return self.refs() if self.refs is not None else None

    @property
    def refusal(self) -> LanceNamespaceError | None:
        """The error with which the catalog refused the last commit of this handle; None if its fate is unknown."""
        return self._asked[0].refusal if self._asked else None

    def at(self, version: int | None) -> TableHandle:
        return dataclasses.replace(self, version=version)

    def through(self, client: LanceNamespace) -> TableHandle:
        """Return a handle on the newest version. A managed table is then opened through the catalog `client`."""
        return dataclasses.replace(self, client=client if self.managed else None, version=None)

    def open(
        self, version: int | str | None = None, branch: str | None = None, scattered: bool = False
    ) -> lance.LanceDataset:
        """Open the dataset at a version or tag of a branch. Default: the handle's own version, else the newest.

        `scattered`: True to fetch single rows that are far from each other.
        Errors 11 TableVersionNotFound, 22 TableBranchNotFound, 19 InvalidTableState (no readable data).
        """
        branch, version = self._made(branch_of(branch), version)
        wanted = self.version if version is None and branch is None else version
        if not isinstance(wanted, str):
            check_version(self.id, wanted)
        with translating(self, "open", otherwise=InvalidTableStateError):
            try:
                dataset = self._kept_or_opened(wanted, branch, scattered)
            except Exception as error:
                raise self._not_opened(error, wanted, branch) from None
            return self.checked(dataset)

    def _kept_or_opened(self, version: int | str | None, branch: str | None, scattered: bool) -> lance.LanceDataset:
        if self.kept is None or self.client is None or branch is not None or isinstance(version, str):
            return self._open(version, branch, scattered)
        key = (self.id, version, scattered)
        found = self.kept.get(key)
        if found is None:
            found = self._open(version, branch, scattered)
            if len(self.kept) >= MAX_KEPT:
                self.kept.clear()
            self.kept[key] = found
        return found

    def _made(self, branch: str | None, version: int | str | None) -> tuple[str | None, int | str | None]:
        """Return the branch and version to open. A branch that a transaction is to create is read at its start."""
        known = self.known_refs if branch is not None else None
        if branch is None or known is None:
            return branch, version
        if branch not in known.branches:
            raise TableBranchNotFoundError(f"Table {self.id} has no branch {branch!r}.")
        begins = known.unmade.get(branch)
        if begins is None:
            return branch, version
        if version not in (None, begins.version):
            raise TableVersionNotFoundError(f"Table {self.id} has no version {version} of branch {branch!r}.")
        return self._made(begins.branch, begins.version)

    def checked(self, dataset: lance.LanceDataset) -> lance.LanceDataset:
        """Return the dataset; InvalidTableState (19) if its files are outside the table: the caller may lack rights."""
        elsewhere = outside((base.path for base in dataset.base_paths().values()), self.uri)
        if elsewhere is not None:
            raise InvalidTableStateError(
                f"Table {self.id} is a shallow clone: its files are outside its own folder, and are not read there. "
                "Make a copy of its rows instead."
            )
        if dataset.mem_wal_index_details() is not None:
            noted = _noted.get()
            if noted is None:
                warnings.warn(unread_rows(self.name), UnreadRowsWarning, stacklevel=2)
            else:
                noted.add(self.name)
        return dataset

    def _open(self, version: int | str | None, branch: str | None, scattered: bool) -> lance.LanceDataset:
        block, options = SCATTERED_BYTES if scattered else None, self.storage_options or None
        if self.client is None:
            dataset = lance.dataset(
                self.uri,
                version=version if branch is None else None,
                session=self.session,
                block_size=block,
                storage_options=options,
            )
            if branch is None:
                return dataset
        else:
            self._asked[:] = [CommitClient(self.client)]
            dataset = opened_through(self._asked[0], self.id.names, session=self.session, block_size=block)
        if branch is not None:
            return dataset.checkout_version((branch, version))  # type: ignore[arg-type]  # a tag is taken too
        return dataset if version is None else dataset.checkout_version(version)

    def _not_opened(self, error: Exception, version: int | str | None, branch: str | None) -> LanceNamespaceError:
        found = named_error(self, "open", error, otherwise=InvalidTableStateError)
        if isinstance(found, TableBranchNotFoundError):
            return TableBranchNotFoundError(f"Table {self.id} has no branch {branch!r}.")
        if isinstance(found, TableVersionNotFoundError) and version is not None:
            where = f" of branch {branch!r}" if branch else ""
            return TableVersionNotFoundError(
                f"Table {self.id} has no version {version}{where}; it may have been cleaned up."
            )
        return found

    def to_json(self) -> dict[str, object]:
        return {
            "id": list(self.id.names),
            "uri": self.uri,
            "version": self.version,
            "managed": self.managed,
            "storage_options": dict(self.storage_options),
        }
