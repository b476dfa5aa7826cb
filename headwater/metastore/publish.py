"""From a committed slot to the files of the published layout. Pure, but for `missing` which looks.

The slot holds all that is needed, so these files may be written after the commit, by anybody, any number of times.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwater.metastore.layout import FORMAT, mapping_key, revision_key, txn_key
from headwater.metastore.records import Slot, Txn, encode
from headwater.store import Store

Files = list[tuple[str, bytes]]


def files_of(number: int, time: int, txn: Txn) -> Files:
    """The revision files, the mapping files and last the transaction log file of one transaction."""
    files: Files = []
    for change in txn.changes:
        files.append((revision_key(change.home, change.number, change.operation, txn.id), change.body))
        if change.link:
            files.append((revision_key(change.link, change.number, change.operation, txn.id), change.body))
    for mapped in txn.mappings:
        key = mapping_key(mapped.home, mapped.digest, mapped.number, mapped.operation, txn.id, mapped.object_id)
        files.append((key, b""))
    files.append((txn_key(txn.start, txn.id), txn_body(number, time, txn)))
    return files


def txn_body(number: int, time: int, txn: Txn) -> bytes:
    """The content of a Transaction Log File."""
    changes = [
        {"operation": change.operation, "kind": change.kind, "home": change.home, "revision": change.number}
        for change in txn.changes
    ]
    return encode(
        {
            "format": FORMAT,
            "id": txn.id,
            "start": txn.start,
            "slot": number,
            "time": time,
            "message": txn.message,
            "author": txn.author,
            "changes": changes,
        }
    )


def files_of_slot(number: int, slot: Slot) -> Iterator[tuple[str, bytes]]:
    for txn in slot.transactions:
        yield from files_of(number, slot.time, txn)


def missing(store: Store, number: int, slot: Slot) -> Files:
    """The files of a slot that are not there, or not whole. The log file is written last: it vouches for the others
    where a store writes in order, but not where it writes side by side, so every one is looked at."""
    lost: Files = []
    for key, data in files_of_slot(number, slot):
        entry = store.head(key)
        if entry is None or entry.size != len(data):
            lost.append((key, data))
    return lost
