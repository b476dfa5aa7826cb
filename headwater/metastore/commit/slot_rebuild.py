"""Slots that were lost (a lifecycle rule, a careless `rm`), written anew from the published files: exactly or never.

The Transaction Log File of each transaction says its slot, its place in it and all it changed; the revision files hold
the bytes. A log file is only written after its slot, so whatever it says was committed.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from headwater.clock import Clock
from headwater.errors import CorruptFileError, InvalidTableStateError, LanceNamespaceError
from headwater.metastore.commit.root_kinds import foreign_root, has_transactions
from headwater.metastore.records.disk_records import (
    SLOT,
    Mapped,
    NewRevision,
    Slot,
    Txn,
    TxnBody,
    TxnChange,
    decode_body,
    decode_delta,
    decode_slot,
    decode_txn,
    encode,
    is_collected,
    seal,
)
from headwater.metastore.records.layout import (
    ROOT_NODE,
    SLOTS,
    TXNS,
    TxnFile,
    first_beside,
    parse_key,
    revision_key,
    slot_folder,
    slot_key,
    slot_number,
    snapshot_node,
    txn_key,
)
from headwater.metastore.state.index import NAMED, SlotIndex
from headwater.store import KeyExistsError, PutMode, Store

READ_AT_ONCE = 256
LOOK_BACK_MS = 600_000
LOOKED_AT = 8
SHOWN = 5
DEPTH = {"table_version": 2, "stream": 3, "partition": 4, "delta": 5}
"""How many of the last steps of a part's directory make its key: the table's id and what is below it."""


def beside(store: Store, number: int) -> set[int]:
    """Return the slots that are there in the folder of one. One listing."""
    found = (slot_number(entry.key) for entry in store.children(slot_folder(number)).entries)
    return {number for number in found if number is not None}


def gap(store: Store, last: int, boundary: int, there: Collection[int] | None = None) -> int | None:
    """Return a slot that is missing: the one after `last`, though a later one or a published transaction is there, or
    one before it in the same folder, which a checkpoint spares who opens the root from reading. Two listings, or one if
    the slots that are `there` in the folder of the next are known."""
    missing = last + 1
    here = slot_folder(missing)
    numbers = beside(store, missing) if there is None else there
    for before in range(max(boundary + 1, first_beside(missing)), missing):
        if before not in numbers:
            return before
    if any(number > missing for number in numbers):
        return missing
    if any(f"{SLOTS}/{folder}" > here for folder in store.children(SLOTS).folders):
        return missing
    return missing if last == 0 and has_transactions(store) else None


def published_slot(store: Store, index: SlotIndex, seen: Collection[str]) -> int:
    """Return the highest slot that the newest Transaction Log Files speak of, but for transactions that were `seen` in
    slots; 0 where there is none. One listing.

    A log file is only written after its slot, so this tells of slots that were lost from the end of the log. Looked at
    are the last few of the transactions that began not long before the newest slot that is known.
    """
    since = txn_key(max(index.times.last - LOOK_BACK_MS, 0), "")
    named = [(entry.key, parse_key(entry.key)) for entry in store.list(TXNS, since)]
    keys = [key for key, file in named[-LOOKED_AT:] if isinstance(file, TxnFile) and file.txn not in seen]
    found = 0
    for key, data in _read(store, keys):
        with contextlib.suppress(CorruptFileError):
            found = max(found, decode_txn(key, data or b"").slot)
    return found


def rebuild(store: Store, clock: Clock, index: SlotIndex, every: bool) -> list[str]:
    """Write every slot that was lost or damaged; their keys. InvalidTableState (19) if one cannot be told, or not be
    written. Of those that the index holds, all are looked at only if told so."""
    known = _transactions(store, index.boundary)  # first: a slot that others take meanwhile is not taken to be lost
    there = {number for entry in store.list(SLOTS) if (number := slot_number(entry.key)) is not None}
    missing = (number for number in range(index.boundary + 1, max((index.slot, *there, *known)) + 1))
    damaged = set(_damaged(store, sorted(there), index.boundary if every else max(index.slot, index.boundary)))
    gone = (number for number in missing if number not in there and store.head(slot_key(number)) is None)
    lost = sorted({*gone, *damaged})
    if not (index.slot or there or known) and has_transactions(store):
        raise foreign_root(store)
    slots, reasons = [], list[str]()
    for number in lost:
        reasons += _incomplete(number, known.get(number, []))
        if not reasons:
            slots.append((number, _slot(store, clock, known[number], reasons)))
    if reasons:
        raise _refused(lost, reasons)
    return [_write(store, number, slot, lost, number in damaged) for number, slot in slots]


def _damaged(store: Store, numbers: Sequence[int], after: int) -> Iterator[int]:
    """Yield the slots after one that are there and cannot be read as what they should be, emptied ones too."""
    found = [number for number in numbers if number > after]
    for number, (key, data) in zip(found, _read(store, [slot_key(number) for number in found]), strict=True):
        try:
            if data is not None and not is_collected(data):
                decode_slot(key, data)
        except CorruptFileError:
            yield number


def _transactions(store: Store, boundary: int) -> dict[int, list[TxnBody]]:
    """Return the published log files by slot. An unreadable file counts as missing."""
    found: dict[int, list[TxnBody]] = defaultdict(list)
    keys = [entry.key for entry in store.list(TXNS) if isinstance(parse_key(entry.key), TxnFile)]
    for key, data in _read(store, keys):
        try:
            body = decode_txn(key, data or b"")
        except CorruptFileError:
            continue
        if body.slot > boundary:
            found[body.slot].append(body)
    return found


def _read(store: Store, keys: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    for start in range(0, len(keys), READ_AT_ONCE):
        some = keys[start : start + READ_AT_ONCE]
        yield from zip(some, store.get_all(some), strict=True)


def _incomplete(number: int, found: list[TxnBody]) -> list[str]:
    """Return why the transactions found are not exactly those of a slot, or None."""
    if not found:
        return [f"of slot {number} no transaction log file is left"]
    found.sort(key=lambda body: body.ordinal)
    if [body.ordinal for body in found] != list(range(found[0].of)):
        return [f"slot {number} held {found[0].of} transactions, of {len(found)} a log file is left"]
    return []


def _slot(store: Store, clock: Clock, found: list[TxnBody], reasons: list[str]) -> Slot:
    first = found[0]
    transactions = tuple(_transaction(store, body, reasons) for body in found)
    return Slot(clock.uuid(), first.time, 0, first.boundary, transactions)


def _transaction(store: Store, body: TxnBody, reasons: list[str]) -> Txn:
    keys = [revision_key(change.home, change.revision, change.operation, body.id) for change in body.changes]
    changes: list[NewRevision] = []
    for change, (key, data) in zip(body.changes, _read(store, keys), strict=True):
        if data is None or not _belongs(key, data, change, body.id):
            reasons.append(f"{key} is missing or damaged")
        changes.append(
            NewRevision(
                change.kind,
                change.operation,
                key_of(change),
                change.home,
                change.revision,
                change.path,
                data or b"",
                change.link,
            )
        )
    mappings = tuple(
        Mapped(m.home.rsplit("/", 1)[-1], m.home, m.digest, m.number, m.operation, m.object_id) for m in body.mappings
    )
    return Txn(body.id, body.start, body.message, body.author, tuple(changes), mappings)


def _belongs(key: str, data: bytes, change: TxnChange, txn: str) -> bool:
    decoder = decode_delta if change.kind == "delta" else decode_body
    try:
        body = decoder(key, data)
    except CorruptFileError:
        return False
    return (body.kind, body.operation, body.revision, body.txn) == (change.kind, change.operation, change.revision, txn)


def key_of(change: TxnChange) -> str:
    """The key in the index of what a Transaction Log File says was changed."""
    steps = change.home.split("/")
    if change.kind == "root":
        return ROOT_NODE
    if change.kind == "snapshot":
        return snapshot_node(steps[-1])
    return steps[-1] if change.kind in NAMED else "/".join(steps[-DEPTH[change.kind] :])


def _write(store: Store, number: int, slot: Slot, lost: Sequence[int], damaged: bool) -> str:
    key = slot_key(number)
    try:
        store.put(key, seal(SLOT, encode(slot)), PutMode.OVERWRITE if damaged else PutMode.CREATE)
    except KeyExistsError:
        pass  # another opener was faster; what it wrote says the same
    except LanceNamespaceError as error:
        raise _refused(lost, [f"the root cannot be written: {error}"]) from None
    return key


def unreadable(key: str, reason: str) -> InvalidTableStateError:
    """Error 19: a slot that is needed is missing or damaged."""
    return InvalidTableStateError(
        f"The catalog's log has lost the slot {key!r}, which holds commits: {reason}. Run `headwater repair`, which "
        "writes it anew from the published files, or says what is missing."
    )


def _refused(lost: Sequence[int], reasons: Sequence[str]) -> InvalidTableStateError:
    named = ", ".join(str(number) for number in lost[:SHOWN]) + (", ..." if len(lost) > SHOWN else "")
    why = "; ".join(reasons[:SHOWN]) + ("; ..." if len(reasons) > SHOWN else "")
    return InvalidTableStateError(
        f"The catalog's log has lost {len(lost)} of its slots ({named}), which hold commits, and they cannot be "
        f"written anew: {why}. Bring these files back from a copy, then run `headwater repair`. Nothing was changed."
    )


def strays(store: Store, keys: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield those of some log files that decode under their own key, each with the slot that it names."""
    for key, data in _read(store, keys):
        try:
            body = decode_txn(key, data or b"")
        except CorruptFileError:
            continue
        if txn_key(body.start, body.id) == key:
            yield key, body.slot
