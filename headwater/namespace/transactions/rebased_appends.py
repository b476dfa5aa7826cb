"""The end of a transaction: rows that it only appends to Lance tables go on top of whatever is newest then.

Their data files stay; only manifests are written. Everything else that the transaction read or wrote must be as it was,
so it is as if it had begun later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import ConcurrentModificationError
from headwater.imports import lance
from headwater.metastore.commit.draft import AppendedDelta
from headwater.metastore.sessions import NewRows, TransactionSession
from headwater.names import ObjectId
from headwater.namespace.transactions.appended_rows import Fitted, fields_of, fit_rows, session_of, stage_rows
from headwater.retry import retry

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from headwater.namespace.metastore import MetastoreNamespace

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
    """The same transaction over the newest state, without the rows that it only appends; 14 if others were first."""
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
