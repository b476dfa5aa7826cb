"""Rows that a transaction appends to Lance tables: data files at once, a version when somebody looks or it ends.

Lance looks for newer manifests before it commits, and goes on from what other writers made meanwhile. Where only data
files are written there is nothing to go on from, so however long a transaction is open, its appends fit.
At the commit these rows go on top of whatever version is newest then. Their data files stay; only manifests are
written. Everything else that the transaction read or wrote must be as it was, so it is as if it had begun later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace import InsertIntoTableResponse

from headwater.decoding.bounds import check_schema
from headwater.errors import ConcurrentModificationError
from headwater.imports import lance
from headwater.metastore.commit.draft import AppendedDelta
from headwater.metastore.sessions import NewRows, TransactionSession
from headwater.model import Table
from headwater.names import ObjectId
from headwater.namespace.registered import RegisteredNamespace
from headwater.registries.metastore.registry import MetastoreRegistry
from headwater.retry import retry
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
    """Rows with the version they go on top of; 14 if the table is another one now."""
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
    """The columns by id, name and type. Not their metadata, nor the table's: Lance tells those in any order."""
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
    """A fragment as it was before a commit gave it an id and row ids."""
    return lance.fragment.FragmentMetadata(0, metadata.files, metadata.physical_rows)
