"""The end of a transaction: rows that it only appends to Lance tables are staged again when others were first.

Their data files stay; only manifests are written, on top of the newest versions. Everything else that the transaction
read or wrote must be as it was, so it is as if it had begun later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lance
from lance.fragment import FragmentMetadata

from headwater.errors import ConcurrentModificationError
from headwater.metastore.draft import Appended
from headwater.names import ObjectId
from headwater.namespace.metastore import MetastoreNamespace
from headwater.registries.metastore.sessions import Within
from headwater.retry import retry
from headwater.tables.handle import TableHandle
from headwater.tables.translate import translating

MAX_REBASES = 50


def session_of(inside: MetastoreNamespace) -> Within:
    session = inside.session
    assert isinstance(session, Within)
    return session


def commit(namespace: MetastoreNamespace, inside: MetastoreNamespace) -> MetastoreNamespace:
    """Commit a transaction; the catalog inside it as it was committed at last. 14 names what others changed."""
    tried: list[MetastoreNamespace] = []

    def look() -> MetastoreNamespace:
        tried.append(rebased(namespace, tried[-1]) if tried else inside)
        return tried[-1]

    def act(now: MetastoreNamespace) -> MetastoreNamespace:
        session_of(now).tx.commit()
        return now

    attempts = MAX_REBASES if session_of(inside).appended else 1
    return retry(namespace.clock, attempts, look, act, longest=6)


def rebased(namespace: MetastoreNamespace, inside: MetastoreNamespace) -> MetastoreNamespace:
    """The same transaction over the newest state, its appended rows on top of the newest versions."""
    session, metastore = session_of(inside), namespace.metastore
    before = namespace.within(metastore.resume(session.tx, newest=False))
    appends = [each for each in session.tx.draft.appends if each.stream in session.appended]
    new_rows = [_new_rows(before, each) for each in appends]
    again = metastore.resume(session.tx, newest=True)
    again.draft.appends = [each for each in again.draft.appends if each.stream not in session.appended]
    after = namespace.within(again)
    for rows in new_rows:
        _append(after, rows)
    return after


@dataclass(frozen=True)
class NewRows:
    """What one of a transaction's versions adds to the one before it."""

    id: ObjectId
    fragments: list[FragmentMetadata]
    fields: str
    """The columns with their ids, which data files are read by."""


def _new_rows(before: MetastoreNamespace, append: Appended) -> NewRows:
    id = ObjectId(tuple(append.path))
    handle = _handle(before, id)
    assert append.wanted is not None
    known = {fragment.fragment_id for fragment in handle.open(append.wanted - 1).get_fragments()}
    dataset = handle.open(append.wanted)
    new = (item.metadata for item in dataset.get_fragments() if item.fragment_id not in known)
    return NewRows(id, [_unnumbered(metadata) for metadata in new], _fields(dataset))


def _unnumbered(metadata: FragmentMetadata) -> FragmentMetadata:
    """A fragment as it was before a commit gave it an id and row ids."""
    return FragmentMetadata(0, metadata.files, metadata.physical_rows)


def _fields(dataset: Any) -> str:
    return str(dataset.lance_schema)


def _append(after: MetastoreNamespace, rows: NewRows) -> None:
    handle = _handle(after, rows.id)
    with session_of(after).appending():
        newest = handle.open()
        if _fields(newest) != rows.fields:
            raise ConcurrentModificationError(
                f"The columns of {rows.id} were changed by another writer, and the appended rows do not fit them any "
                "more. Nothing was changed: look again."
            )
        with translating(handle, "append to"):
            lance.LanceDataset.commit(
                handle.uri,
                lance.LanceOperation.Append(rows.fragments),
                read_version=newest.version,
                namespace_client=after,
                table_id=list(rows.id.names),
                namespace_client_managed_versioning=True,
                storage_options=handle.storage_options or None,
            )


def _handle(namespace: MetastoreNamespace, id: ObjectId) -> TableHandle:
    return namespace.handle(namespace.operations.find_table(id))
