"""How a table's data is reached, and opening it at a version, a tag or a branch with named errors."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwater.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
)
from headwater.imports import lance
from headwater.metastore.ref_record import KnownRefs
from headwater.names import ObjectId, format_name
from headwater.tables.bases import outside
from headwater.tables.refs import branch_of, check_version
from headwater.tables.translate import named_error, translating

if TYPE_CHECKING:
    from lance_namespace import LanceNamespace

    from headwater.tables.asked import AskedCatalog

MAX_KEPT = 16
"""Datasets that a moment of the past keeps open."""
SCATTERED_BYTES = 64 << 10
"""Reads nearer to each other than this are one where scattered rows are fetched: what Lance does on object storage. Its
4 KiB of local files make a request of every row that an index finds, and a thousand of them take twice as long. A scan
with a filter reads too much by it: TPC-H q3 takes a fifth longer."""


@functools.cache
def shared_session() -> lance.Session:
    """The session of handles that came as JSON: manifests, file metadata and index pages are read once per process.

    An open still asks whether the manifest is the one it was: one dropped and made again is not served from memory.
    """
    return lance.Session()


class UnreadRowsWarning(UserWarning):
    """A table that was opened has a write-ahead log of Lance's (MemWAL), whose rows are in no version."""


def unread_rows(table: str) -> str:
    """Return what to say of a table with a write-ahead log of Lance's."""
    return (
        f"{table} has a write-ahead log (MemWAL): rows that were written there, and are in no version yet, are not "
        "shown. Merge them into the table (LanceDB: checkpoint_lsm and compact_lsm)."
    )


@dataclass(frozen=True)
class TableHandle:
    """A table that the catalog has found, at one version when it names one.

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
    """Whether its versions are those of an open transaction: then no commit to it can have landed unseen."""
    session: lance.Session | None = field(default=None, repr=False, compare=False)
    _asked: list[AskedCatalog] = field(default_factory=list, init=False, repr=False, compare=False)
    """The catalog as it was asked for what was opened last, if anything was."""
    refs: Callable[[], KnownRefs | None] | None = field(default=None, repr=False, compare=False)
    """Asks the catalog for tags and branches of which the table's folder may not know yet."""
    kept: dict[Any, lance.LanceDataset] | None = field(default=None, repr=False, compare=False)
    """Datasets that were opened at the moment of the past which the catalog stands at: no version is added to it."""

    @property
    def name(self) -> str:
        """The table as SQL writes it."""
        return format_name(self.id.names)

    @property
    def known_refs(self) -> KnownRefs | None:
        """What the catalog knows of tags and branches; None: what is in the folder is all."""
        return self.refs() if self.refs is not None else None

    @property
    def refusal(self) -> LanceNamespaceError | None:
        """Why the catalog took no version of what was opened last through this handle, if that is certain."""
        return self._asked[0].refusal if self._asked else None

    def at(self, version: int | None) -> TableHandle:
        return dataclasses.replace(self, version=version)

    def through(self, client: LanceNamespace) -> TableHandle:
        """The same table with its newest version as the catalog tells it, if it is the catalog that orders them."""
        return dataclasses.replace(self, client=client if self.managed else None, version=None)

    def open(
        self, version: int | str | None = None, branch: str | None = None, scattered: bool = False
    ) -> lance.LanceDataset:
        """The dataset at a version or tag of a branch: the handle's own version, else the newest, when not told.

        `scattered`: to fetch rows that are far from each other.
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
        """A branch with its version; of one that a transaction is going to make, the version that it begins at."""
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
        """Error 19 for a version whose files are elsewhere: it would make us read another's table for the caller."""
        elsewhere = outside((base.path for base in dataset.base_paths().values()), self.uri)
        if elsewhere is not None:
            raise InvalidTableStateError(
                f"Table {self.id} is a shallow clone: its files are outside its own folder, and are not read there. "
                "Make a copy of its rows instead."
            )
        if dataset.mem_wal_index_details() is not None:
            warnings.warn(unread_rows(self.name), UnreadRowsWarning, stacklevel=2)
        return dataset

    def _open(self, version: int | str | None, branch: str | None, scattered: bool) -> lance.LanceDataset:
        how: dict[str, Any] = {"session": self.session, "block_size": SCATTERED_BYTES if scattered else None}
        if self.client is None:
            how["storage_options"] = self.storage_options or None
            if branch is None:
                return lance.dataset(self.uri, version=version, **how)
            dataset = lance.dataset(self.uri, **how)
        else:
            from headwater.tables.asked import AskedCatalog  # with lance_namespace, which look-ups do without

            self._asked[:] = [AskedCatalog(self.client)]
            dataset = lance.dataset(namespace_client=self._asked[0], table_id=list(self.id.names), **how)
        if branch is not None:
            return dataset.checkout_version((branch, version))
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

    def to_json(self) -> dict[str, Any]:
        return {
            "id": list(self.id.names),
            "uri": self.uri,
            "version": self.version,
            "managed": self.managed,
            "storage_options": dict(self.storage_options),
        }
