"""From a committed slot to the files of the published layout. Pure, but for `missing` which looks.

The slot holds all that is needed, so these files may be written after the commit, by anybody, any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.metastore.records.disk_records import Slot, TxnBody, TxnChange, TxnMapping, encode
from headwater.metastore.records.layout import FORMAT, mapping_key, revision_key, txn_key
from headwater.store import Store

Files = list[tuple[str, bytes]]


def files_of(number: int, slot: Slot, ordinal: int) -> Files:
    """The revision files, the mapping files and last the transaction log file of one transaction of a slot."""
    files: Files = []
    txn = slot.transactions[ordinal]
    for change in txn.changes:
        files.append((revision_key(change.home, change.number, change.operation, txn.id), change.body))
        if change.link:
            files.append((revision_key(change.link, change.number, change.operation, txn.id), change.body))
    for mapped in txn.mappings:
        key = mapping_key(mapped.home, mapped.digest, mapped.number, mapped.operation, txn.id, mapped.object_id)
        files.append((key, b""))
    files.append((txn_key(txn.start, txn.id), txn_body(number, slot, ordinal)))
    return files


def txn_body(number: int, slot: Slot, ordinal: int) -> bytes:
    """The content of a Transaction Log File."""
    txn = slot.transactions[ordinal]
    changes = tuple(TxnChange(c.operation, c.kind, c.home, c.number, c.path, c.link) for c in txn.changes)
    mappings = tuple(TxnMapping(m.home, m.digest, m.number, m.operation, m.object_id) for m in txn.mappings)
    body = TxnBody(
        FORMAT,
        txn.id,
        txn.start,
        number,
        ordinal,
        len(slot.transactions),
        slot.time,
        txn.message,
        txn.author,
        changes,
        mappings,
        slot.boundary,
    )
    return encode(body)


def files_of_slot(number: int, slot: Slot) -> Iterator[tuple[str, bytes]]:
    for ordinal in range(len(slot.transactions)):
        yield from files_of(number, slot, ordinal)


def missing(store: Store, number: int, slot: Slot) -> Files:
    """The files of a slot that are not there, or not whole. The log file is written last: it vouches for the others
    where a store writes in order, but not where it writes side by side, so every one is looked at."""
    lost: Files = []
    for key, data in files_of_slot(number, slot):
        entry = store.head(key)
        if entry is None or entry.size != len(data):
            lost.append((key, data))
    return lost
