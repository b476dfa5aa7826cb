"""Rows that a transaction appends to Lance tables: data files at once, a version when somebody looks or it ends.

Lance looks for newer manifests before it commits, and goes on from what other writers made meanwhile. Where only data
files are written there is nothing to go on from, so however long a transaction is open, its appends fit.
At the commit these rows go on top of whatever version is newest then. Their data files stay; only manifests are
written. Everything else that the transaction read or wrote must be as it was, so it is as if it had begun later.

Transactions of callers who are not in this process: kept in the store between their operations.

A server has several processes, and there may be several servers on one root; the next operation of a transaction may
come to any of them. So none of them holds it: after each operation the transaction is written to the store as
`open/<caller>/<id>/<step>`, the next step created if absent, and who comes next goes on from there. Two operations at
once in one transaction are a conflict of the second; `end` is created before a transaction ends, and what was still
going on then is told so. Who was not heard of for a while is forgotten; nothing of an open transaction can be seen, so
there is nothing to undo.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from lance_namespace import InsertIntoTableResponse

from headwater.decoding.bounds import check_schema
from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    ThrottlingError,
    TransactionNotFoundError,
)
from headwater.imports import lance
from headwater.metastore.commit.draft import AppendedDelta
from headwater.metastore.commit.transaction import SavedTransaction
from headwater.metastore.records.layout import OPEN
from headwater.metastore.sessions import NewRows, Postponed, TransactionSession
from headwater.model import Table
from headwater.names import ObjectId
from headwater.namespace.registered import RegisteredNamespace
from headwater.registries.metastore.registry import MetastoreRegistry
from headwater.retry import retry
from headwater.store import Entry, KeyNotFoundError, create
from headwater.tables.commit.committer import fragment_from
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating
from headwater.tables.write.arrow import Counted
from headwater.tables.write.data_files import BYTES_PER_FILE, ROWS_PER_FILE
from headwater.tables.write.input_rows import fit
from headwater.types import written_schema

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from headwater.namespace.metastore import MetastoreNamespace


def collect_rows(
    inside: RegisteredNamespace, id: ObjectId, reader: pa.RecordBatchReader
) -> InsertIntoTableResponse | None:
    """Write rows as data files of a table; None for a table that has no version to fit them to."""
    session = session_of(inside)
    table = inside.operations.find_table(id)
    inside.registry.check_writable()
    inside.check_rows(table.id)
    check_schema(reader.schema)
    handle = inside.handle(table)
    with session.unbound():
        if not newest_of(inside, table):
            return None
        dataset = handle.open()
    counted = Counted(fit(reader, written_schema(dataset.schema)))
    with counted.raising(), translating(handle, "insert into"):
        fragments = lance.fragment.write_fragments(
            counted.reader,
            dataset,
            schema=counted.reader.schema,
            mode="append",
            max_rows_per_file=ROWS_PER_FILE,
            max_bytes_per_file=BYTES_PER_FILE,
            storage_options=handle.storage_options or None,
        )
    written = tuple(fragment.to_json() for fragment in fragments)
    if written:
        session.add(NewRows(table.id, table.location, written, fields_of(dataset)))
    return InsertIntoTableResponse(num_inserted_rows=counted.rows, version=dataset.version + bool(written))


@dataclass(frozen=True)
class Fitted:
    """Rows, and the newest version of their table that the transaction knows, which they fit."""

    rows: NewRows
    handle: TableHandle
    newest: lance.LanceDataset


def fit_rows(inside: RegisteredNamespace, rows: NewRows) -> Fitted:
    """Return rows with the version they go on top of; 14 if the table is another one now."""
    table = inside.operations.find_table(rows.id)
    if table.location != rows.location:
        raise ConcurrentModificationError(
            f"{rows.id} was made anew by another writer, and the appended rows are not in it. Nothing was changed: "
            "look again."
        )
    handle = inside.handle(table)
    with session_of(inside).unbound():
        newest = handle.open()
    if fields_of(newest) != rows.fields:
        raise ConcurrentModificationError(
            f"The columns of {rows.id} were changed by another writer, and the appended rows do not fit them any "
            "more. Nothing was changed: look again."
        )
    return Fitted(rows, handle, newest)


def stage_rows(inside: RegisteredNamespace, fitted: Fitted) -> None:
    """Make a version of the open transaction that has these rows; or 14, if others have made one meanwhile."""
    rows, handle = fitted.rows, fitted.handle
    with session_of(inside).appending(), translating(handle, "append to"):
        lance.LanceDataset.commit(
            handle.uri,
            lance.LanceOperation.Append([fragment_from(value) for value in rows.fragments]),
            read_version=fitted.newest.version,
            namespace_client=inside,
            table_id=list(rows.id.names),
            namespace_client_managed_versioning=True,
            storage_options=handle.storage_options or None,
        )


def session_of(inside: RegisteredNamespace) -> TransactionSession:
    """Return the session of a catalog inside an open transaction."""
    registry = inside.registry
    assert isinstance(registry, MetastoreRegistry)
    return registry.session.opened()


def restore_version(inside: RegisteredNamespace, id: ObjectId, version: int) -> None:
    """Make a version of the open transaction that is like an older one, whatever was done since; or 14."""
    handle = inside.handle(inside.operations.find_table(id))
    with translating(handle, "restore"):
        handle.open(version).restore()


def fields_of(dataset: lance.LanceDataset) -> str:
    """Return the columns by id, name and type. Not their metadata, nor the table's: Lance tells those in any order."""
    columns = [(each.name, str(each.type), each.nullable) for each in dataset.schema]
    return f"{columns} {_ids(dataset.lance_schema.fields())}"


def _ids(fields: Any) -> list[object]:
    return [(each.id(), each.name(), _ids(each.children())) for each in fields]


def newest_of(inside: RegisteredNamespace, table: Table) -> int:
    records = inside.versions.records
    return records.newest_version(table.id) if records is not None else 0


MAX_REBASES = 50
Ready = tuple["MetastoreNamespace", list[Fitted]]


def commit(namespace: MetastoreNamespace, inside: MetastoreNamespace) -> MetastoreNamespace:
    """Commit a transaction; the catalog inside it as it was committed at last. 14 names what others changed."""
    if session_of(inside).tx.changes_root:
        namespace.mirror.prepare()
    done = _commit(namespace, inside)
    namespace.catch_up(session_of(done))
    return done


def _commit(namespace: MetastoreNamespace, inside: MetastoreNamespace) -> MetastoreNamespace:
    begun = session_of(inside)
    if not begun.unstaged:
        try:
            begun.tx.commit()
            return inside
        except ConcurrentModificationError:
            if not begun.appended:
                raise

    def look() -> Ready:
        after = rebased(namespace, begun)
        rows = (*_staged_rows(namespace, begun), *begun.unstaged.values())
        return after, [fit_rows(after, each) for each in rows]

    def act(ready: Ready) -> MetastoreNamespace:
        after, fitted = ready
        for each in fitted:
            stage_rows(after, each)
        session_of(after).tx.commit()
        begun.tx.rollback()
        return after

    return retry(namespace.clock, MAX_REBASES, look, act, longest=6)


def rebased(namespace: MetastoreNamespace, begun: TransactionSession) -> MetastoreNamespace:
    """Return the transaction over the newest state, without rows that it only appends; 14 after a conflict."""
    again = namespace.metastore.resume(begun.tx, newest=True, without=begun.appended)
    return namespace.within(again, begun.postponed)


def _staged_rows(namespace: MetastoreNamespace, begun: TransactionSession) -> list[NewRows]:
    """Return the rows that the transaction's versions append to tables, as Lance wrote them."""
    if not begun.appended:
        return []
    before = namespace.within(namespace.metastore.resume(begun.tx, newest=False))
    appends = [each for each in begun.tx.appended() if each.stream in begun.appended]
    return [_new_rows(before, each) for each in appends]


def _new_rows(before: MetastoreNamespace, append: AppendedDelta) -> NewRows:
    id = ObjectId(tuple(append.path))
    table = before.operations.find_table(id)
    handle = before.handle(table)
    assert append.wanted is not None
    known = {fragment.fragment_id for fragment in handle.open(append.wanted - 1).get_fragments()}
    dataset = handle.open(append.wanted)
    new = (item.metadata for item in dataset.get_fragments() if item.fragment_id not in known)
    return NewRows(id, table.location, tuple(_unnumbered(metadata).to_json() for metadata in new), fields_of(dataset))


def _unnumbered(metadata: FragmentMetadata) -> FragmentMetadata:
    """Return a fragment as it was before a commit gave it an id and row ids."""
    return lance.fragment.FragmentMetadata(0, metadata.files, metadata.physical_rows)


IDLE_SECONDS = 600.0
"""A transaction that was not heard of for so long has ended."""
REPEATED_SECONDS = 3600.0
"""A commit may be asked for again for so long. Any caller may ask, of any id: the log is read back no further."""
MAX_OPEN = 32
"""So many transactions a caller may have open."""
MAX_STATE = 64 << 20
"""So many bytes a transaction may be written as: what it read and changed, without its rows."""
MAX_STAGED = 64 << 30
"""So many bytes of rows a transaction may have been sent."""
END = "end"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class OpenTransaction(msgspec.Struct):
    """A transaction between two operations."""

    transaction: SavedTransaction
    appended: list[str] = []
    unstaged: list[NewRows] = []
    staged: int = 0
    postponed: list[Postponed] = []


_transactions = msgspec.msgpack.Decoder(OpenTransaction)
"""Made here and not where it is used: two threads of a server that are the first to decode a type crash it."""


class OpenTransactions:
    """The open transactions of one catalog, by who began them. An id of another's is not found."""

    def __init__(self, namespace: MetastoreNamespace) -> None:
        self._namespace = namespace
        self._store = namespace.store
        self._clock = namespace.clock

    def begin(self, caller: str, message: str, author: str | None = None) -> str:
        """Return a new transaction over the newest state; its id. Error 21 if the caller has too many."""
        open_now = self._sweep(_folder(caller))
        if len(open_now) >= MAX_OPEN:
            raise ThrottlingError(f"{caller} has {len(open_now)} transactions open: end some of them first.")
        tx = self._namespace.metastore.transaction(message, author)
        self._write(f"{_folder(caller)}/{tx.id}", 0, OpenTransaction(tx.saved()))
        return tx.id

    @contextmanager
    def using(self, caller: str, id: str, sent: int = 0) -> Iterator[MetastoreNamespace]:
        """The catalog inside a transaction, for one operation with `sent` bytes of rows. What it read counts also
        when it is refused."""
        folder = _path(caller, id)
        step, known = self._read(folder)
        if known.staged + sent > MAX_STAGED:
            raise InvalidInputError(f"This transaction was sent {known.staged} bytes of rows: it takes no more.")
        inside = self._inside(known)
        try:
            yield inside
        except LanceNamespaceError:
            self._save(folder, step, known, session_of(inside), 0)
            raise
        self._save(folder, step, known, session_of(inside), sent)

    def seen(self, caller: str, id: str) -> MetastoreNamespace:
        """Return the catalog inside a transaction, to look at: nothing of it is kept."""
        return self._inside(self._read(_path(caller, id))[1])

    def commit(self, caller: str, id: str) -> int:
        """End a transaction; its slot. A repeat after a lost answer gets the same one. 14 names what others changed."""
        folder = _path(caller, id)
        try:
            self._steps(folder)
            if not create(self._store, f"{folder}/{END}", self._clock.uuid().encode()):
                return self._committed_elsewhere(id)
            _, known = self._read(folder)  # an operation may have ended meanwhile, or another request this transaction
        except TransactionNotFoundError:
            return self._committed(id)
        try:
            done = session_of(commit(self._namespace, self._inside(known))).tx.slot
        except CommitStateUnknownError:
            raise
        except LanceNamespaceError:
            self._forget(folder)
            raise
        self._forget(folder)
        return done

    def abort(self, caller: str, id: str) -> None:
        """Forget a transaction. One that has ended is forgotten already."""
        self._forget(_path(caller, id))

    def _inside(self, known: OpenTransaction) -> MetastoreNamespace:
        inside = self._namespace.within(self._namespace.metastore.reopen(known.transaction))
        unstaged = {ObjectId(tuple(rows.id.names)): rows for rows in known.unstaged}
        session_of(inside).go_on(known.appended, unstaged, known.postponed)
        return inside

    def _save(self, folder: str, step: int, known: OpenTransaction, session: TransactionSession, sent: int) -> None:
        after = OpenTransaction(
            session.tx.saved(), session.noted, list(session.unstaged.values()), known.staged + sent, session.postponed
        )
        if not self._write(folder, step + 1, after):
            raise _at_once()
        self._check_held(folder, step)
        self._store.delete(f"{folder}/{step:08d}")

    def _check_held(self, folder: str, step: int) -> None:
        """An operation counts if the step it went on from is still there, and no end was begun, once its own is.

        Else others have gone on from that step, and may have deleted what they went on to, or the transaction ended.
        """
        found = {entry.key.rsplit("/", 1)[-1] for entry in self._store.list(folder)}
        if END not in found and f"{step:08d}" in found:
            return
        self._store.delete(f"{folder}/{step + 1:08d}")
        if END in found:
            raise CommitStateUnknownError(
                "Another request is ending this transaction: this operation may be part of it. Look when it has ended."
            )
        raise _at_once()

    def _write(self, folder: str, step: int, state: OpenTransaction) -> bool:
        """Return True if the saved state is the one at the step; two operations that reach one state both succeed."""
        data = msgspec.msgpack.encode(state)
        if len(data) > MAX_STATE:
            raise InvalidInputError(f"This transaction would take {len(data)} bytes: commit it, and begin another.")
        return create(self._store, f"{folder}/{step:08d}", data)

    def _read(self, folder: str) -> tuple[int, OpenTransaction]:
        """Return the newest step there is, and its state. One that was refused may be gone by now."""
        for entry in self._steps(folder):
            with suppress(KeyNotFoundError):
                return int(entry.key.rsplit("/", 1)[-1]), _transactions.decode(self._store.get(entry.key))
        raise _at_once()

    def _steps(self, folder: str) -> list[Entry]:
        """Return the saved steps of a transaction, newest first; raise TransactionNotFound (10) if it is not open."""
        found = [entry for entry in self._store.list(folder) if not entry.key.endswith(END)]
        found.sort(key=lambda entry: entry.key, reverse=True)
        if not found or self._is_idle(found[0]):
            self._forget(folder)
            raise _not_open()
        return found

    def _sweep(self, own: str) -> set[str]:
        """Forget the transactions of all callers that were not heard of; the folders of those of one that were."""
        heard: dict[str, bool] = {}
        for entry in self._store.list(OPEN):
            folder = entry.key.rsplit("/", 1)[0]
            heard[folder] = heard.get(folder, False) or not self._is_idle(entry)
        for folder, is_open in heard.items():
            if not is_open:
                self._forget(folder)
        return {folder for folder, is_open in heard.items() if is_open and folder.startswith(f"{own}/")}

    def _is_idle(self, entry: Entry) -> bool:
        return self._clock.now_ms() - entry.modified_ms > IDLE_SECONDS * 1000

    def _forget(self, folder: str) -> None:
        """Delete the files of a transaction, its end last: who can create the end again finds no step."""
        for entry in sorted(self._store.list(folder), key=lambda entry: entry.key.endswith(END)):
            self._store.delete(entry.key)

    def _committed_elsewhere(self, id: str) -> int:
        """Return the slot of a transaction whose commit another request began, if that has landed."""
        try:
            return self._slot_of(id)
        except TransactionNotFoundError:
            raise CommitStateUnknownError(
                "This transaction is being committed by another request: it may have landed. Ask again, or look for it "
                "in the log."
            ) from None

    def _committed(self, id: str) -> int:
        try:
            return self._slot_of(id)
        except TransactionNotFoundError:
            raise _not_open() from None

    def _slot_of(self, id: str) -> int:
        return self._namespace.metastore.slot_of(id, self._clock.now_ms() - int(REPEATED_SECONDS * 1000))


def _folder(caller: str) -> str:
    return f"{OPEN}/{hashlib.sha256(caller.encode()).hexdigest()[:32]}"


def _path(caller: str, id: str) -> str:
    if _ID.fullmatch(id) is None:
        raise InvalidInputError(f"{id[:80]!r} is not the id of a transaction.")
    return f"{_folder(caller)}/{id}"


def _at_once() -> ConcurrentModificationError:
    return ConcurrentModificationError("Another operation of this transaction was made at once: begin it anew.")


def _not_open() -> TransactionNotFoundError:
    return TransactionNotFoundError(
        "There is no such open transaction: it has ended, was not heard of for too long, or is another caller's. "
        "Begin a new one."
    )
