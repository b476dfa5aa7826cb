"""Tags and branches of a metastore's tables: changed by a transaction, then made so in the table's folder.

The change is an entry of the table's record (`metastore/records/ref_record.py`), and so in one slot with all else that
its transaction does, and a conflict (14) of two that change those of one table at once. Then the files are written. A
process that dies before has it done by whoever looks next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance_namespace as api
import msgspec

from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)
from headwater.metastore import Transaction
from headwater.metastore.records.ref_record import (
    REFS_FORMAT,
    KnownRefs,
    RefEntry,
    RefRecord,
    RefTarget,
    format_record,
    parse_record,
    was_before,
    with_change,
)
from headwater.metastore.records.serving_copy import LANCE_FORMAT
from headwater.metastore.sessions import TransactionSession
from headwater.model import Table
from headwater.namespace.transactions.open_transactions import newest_of, session_of
from headwater.namespace.versions import TableVersions
from headwater.registries.metastore.mapping import RecordedRefs, ref_record_of
from headwater.table_refs import (
    BRANCH,
    BRANCH_TREE,
    MAIN,
    TAG,
    branch_of,
    check_branch,
    check_tag,
    check_version,
    is_written,
    ref_key,
    tag_file,
)
from headwater.tables.handle import TableHandle
from headwater.tables.layout import TRANSACTIONS, VERSIONS
from headwater.tables.translate import translating

if TYPE_CHECKING:
    from headwater.namespace.metastore import MetastoreNamespace


@dataclass(frozen=True)
class RefEdit:
    """A change of one table's tags or branches, inside an open transaction that nobody else sees."""

    inside: MetastoreNamespace
    table: Table
    known: KnownRefs

    def create_tag(self, request: api.CreateTableTagRequest) -> api.CreateTableTagResponse:
        """CreateTableTag: errors 9 TableTagAlreadyExists, 11 version, 13 InvalidInput, 22 branch."""
        tag, target = check_tag(request.tag), self._target(request.version, request.branch)
        if tag in self.known.tags:
            raise TableTagAlreadyExistsError(f"Table {self.table.id} already has a tag {tag!r}: update it instead.")
        self._change(TAG, tag, target)
        return api.CreateTableTagResponse()

    def update_tag(self, request: api.UpdateTableTagRequest) -> api.UpdateTableTagResponse:
        """UpdateTableTag: errors 8 TableTagNotFound, 11 version, 13 InvalidInput, 22 branch."""
        tag = self._known_tag(request.tag, ": create it first")
        self._change(TAG, tag, self._target(request.version, request.branch))
        return api.UpdateTableTagResponse()

    def delete_tag(self, request: api.DeleteTableTagRequest) -> api.DeleteTableTagResponse:
        """DeleteTableTag: errors 8 TableTagNotFound, 13 InvalidInput."""
        self._change(TAG, self._known_tag(request.tag), None)
        return api.DeleteTableTagResponse()

    def create_branch(self, request: api.CreateTableBranchRequest) -> api.CreateTableBranchResponse:
        """CreateTableBranch: errors 11 version, 13 InvalidInput, 22 source not found, 23 already exists."""
        name = check_branch(request.name)
        if name == MAIN:
            raise InvalidInputError(f"{MAIN!r} is the branch that every table has: choose another name.")
        target = self._target(request.from_version, request.from_branch)
        if name in self.known.branches:
            raise TableBranchAlreadyExistsError(f"Table {self.table.id} already has a branch {name!r}.")
        if name in self.known.leaving:
            raise InvalidInputError(
                f"The branch {name!r} of {self.table.id} is deleted when the transaction ends: create it afterwards."
            )
        self._change(BRANCH, name, target)
        return api.CreateTableBranchResponse()

    def delete_branch(self, request: api.DeleteTableBranchRequest) -> api.DeleteTableBranchResponse:
        """DeleteTableBranch: errors 13 InvalidInput (in use, or the main one), 22 TableBranchNotFound."""
        name = check_branch(request.name)
        if name == MAIN:
            raise InvalidInputError(f"The branch {MAIN!r} cannot be deleted: drop the table instead.")
        self._require_branch(name)
        standing = [f"the tag {tag!r}" for tag, to in self.known.tags.items() if to.branch == name]
        standing += [f"the branch {other!r}" for other, to in self.known.branches.items() if to.branch == name]
        if standing:
            raise InvalidInputError(f"The branch {name!r} of {self.table.id} is in use by {', '.join(standing)}.")
        self._change(BRANCH, name, None, is_written(self.inside.store, self.table.location, name))
        return api.DeleteTableBranchResponse()

    def _known_tag(self, name: str | None, hint: str = "") -> str:
        tag = check_tag(name)
        if tag not in self.known.tags:
            raise TableTagNotFoundError(f"Table {self.table.id} has no tag {tag!r}{hint}.")
        return tag

    def _require_branch(self, name: str) -> None:
        if name not in self.known.branches:
            raise TableBranchNotFoundError(f"Table {self.table.id} has no branch {name!r}.")

    def _target(self, version: int | None, branch: str | None) -> RefTarget:
        """Return a version that is there, and stays: who deletes it meanwhile makes this a conflict. Not bound is the
        transaction by what others append, unless it has written to the table itself."""
        table, on = self.table, branch_of(branch)
        check_version(table.id, version)
        if on is not None:
            self._require_branch(on)
            begins = self.known.unmade.get(on)
            if begins is not None:
                return self._on_unmade(version, on, begins)
        session, versions = session_of(self.inside), self.inside.versions
        is_free = on is None and not self._writes(session)
        with session.tx.unbound_logs() if is_free else nullcontext():
            number = version if version is not None or on is not None else newest_of(self.inside, table)
            found = versions.describe(table, number, on).version
        if is_free:
            session.tx.depend_on_delta(table.id.names, found.number, format=LANCE_FORMAT)
        return RefTarget(found.number, on, found.manifest_size or 0, self.inside.clock.now_ms())

    def _on_unmade(self, version: int | None, on: str, begins: RefTarget) -> RefTarget:
        """Return the one version of a branch of the same transaction. The size of its manifest is read later."""
        if version not in (None, begins.version):
            raise TableVersionNotFoundError(f"Table {self.table.id} has no version {version} on branch {on!r}.")
        return RefTarget(begins.version, on, 0, self.inside.clock.now_ms())

    def _writes(self, session: TransactionSession) -> bool:
        """Return True if the transaction has versions of the table that it makes itself."""
        own = any(tuple(each.path) == self.table.id.names for each in session.tx.appended())
        return own or self.table.id in session.unstaged

    def _change(self, kind: str, name: str, to: RefTarget | None, lost: bool = False) -> None:
        tx, names = session_of(self.inside).tx, self.table.id.names
        record = ref_record_of(self.inside.session.state(), self.table.id)
        if record is None:
            tx.create_stream(names, REFS_FORMAT)
            record = RefRecord(self.inside.clock.uuid())
        now = (self.known.tags if kind == TAG else self.known.branches).get(name)
        was = was_before(record, self._begun(tx, record), kind, name, now)
        changed = with_change(record, kind, name, to, was, self.known.applied, lost)
        tx.update_stream(names, REFS_FORMAT, format_record(changed))

    def _begun(self, tx: Transaction, record: RefRecord) -> int:
        """Return the number of changes in the record before the transaction."""
        table = tx.get(self.table.id.names).id
        own = [key for key in record_keys(tx) if key.split("/")[0] == table]
        if not own:
            return record.count
        before = tx.properties_before(own[0])
        return parse_record(before).count if before is not None else 0


def changed_tables(session: TransactionSession) -> list[str]:
    """Return the tables whose tags or branches a transaction changes, by their ids."""
    return [key.split("/")[0] for key in record_keys(session.tx)]


def record_keys(tx: Transaction) -> list[str]:
    """Return the records that a transaction changes, by their keys."""
    return tx.changed_streams(REFS_FORMAT)


@dataclass(frozen=True)
class RefFiles:
    """Makes the files in a table's folder what its record says. Doing it twice, or by two at once, is no harm."""

    recorded: RecordedRefs
    handle: TableHandle
    table: Table
    versions: TableVersions
    newest: Callable[[], RefRecord | None]
    """What the record says by now."""

    def settle(self, known: KnownRefs, record: RefRecord) -> None:
        """Branches first, as tags may be on them, each after the one that it begins at; what goes, goes after that."""
        for kind, name, entry in sorted(known.due, key=_order):
            # what somebody else beside the catalog has made impossible is not made: the folder is theirs as well
            with suppress(InvalidInputError, TableBranchAlreadyExistsError, TableBranchNotFoundError):
                if kind == TAG:
                    self._tag(name, self._shown(entry.to), record.stamp(entry.number))
                else:
                    self._branch(name, entry.to)
                if (kind == TAG) is (entry.to is None):  # no stamp tells others that this was done late
                    self._check(kind, name, entry)
        self.recorded.mark(self.table, record)

    def _check(self, kind: str, name: str, entry: RefEntry) -> None:
        """Put right what was done late, if the record has a later change of the same name by now.

        A tag that was deleted late is written again. A branch that was made late is deleted again, unless somebody has
        written to it.
        """
        now = self.newest()
        later = now.of(kind).get(name) if now is not None else None
        if now is None or later is None or later.number <= entry.number or (kind == TAG) is (later.to is None):
            return
        if kind == TAG:
            self._tag(name, self._shown(later.to), now.stamp(later.number))
        elif not is_written(self.recorded.store, self.table.location, name):
            self._branch(name, None)

    def _shown(self, to: RefTarget | None) -> RefTarget | None:
        """A version of the same transaction has its final name, by which a Lance client finds it, once it is seen. On
        a branch of the same transaction it has a size once that is made."""
        if to is not None and (to.branch is None or not to.size):
            with suppress(TableVersionNotFoundError):
                size = self.versions.describe(self.table, to.version, to.branch).version.manifest_size
                return msgspec.structs.replace(to, size=to.size or size or 0)
        return to

    def _tag(self, name: str, to: RefTarget | None, stamp: str) -> None:
        store, key = self.recorded.store, ref_key(TAG, self.table.location, name)
        if to is None:
            store.delete(key)
        else:
            store.put(key, tag_file(to.version, to.branch, to.size, to.time, stamp))

    def _branch(self, name: str, to: RefTarget | None) -> None:
        with translating(self.handle, f"delete the branch {name!r} of", otherwise=InvalidInputError):
            if to is None:
                self.handle.open().branches.delete(name)
                return
        self._clear(name)
        source = self.handle.open(to.version, to.branch)
        with translating(self.handle, f"create the branch {name!r} of"):
            source.create_branch(name, (to.branch, to.version))

    def _clear(self, name: str) -> None:
        """Remove the leftovers of a writer that died while it made or deleted the branch."""
        store, folder = self.recorded.store, f"{self.table.location}/{BRANCH_TREE}/{name}"
        for part in (VERSIONS, TRANSACTIONS):
            for entry in list(store.list(f"{folder}/{part}")):
                store.delete(entry.key)


def _order(due: tuple[str, str, RefEntry]) -> tuple[bool, bool, int]:
    kind, _, entry = due
    goes = entry.to is None
    return goes, (kind == BRANCH) is goes, entry.number


def refs_at_rest(files: RefFiles, record: RefRecord) -> KnownRefs:
    """Return the refs after their files were brought up to date, if that is possible."""
    recorded, table = files.recorded, files.table
    known = recorded.read(table, record)
    if not known.due and recorded.applied(table, record) >= record.count:
        return known
    with suppress(LanceNamespaceError):  # who cannot write here leaves it to others: the record counts until then
        files.settle(known, record)
        return recorded.read(table, record)
    return known
