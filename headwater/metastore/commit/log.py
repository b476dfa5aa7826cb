"""The log of commit slots: reading on, taking the next slot, checkpoints. The only order there is.

A slot is an object created if absent; the number is the order. What a process knows is an index folded up to some slot.
A slot holds all that the files of the published layout need, so these may be written after the commit, by anybody, any
number of times.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import count
from weakref import ref

from headwater.clock import Clock
from headwater.errors import (
    CommitStateUnknownError,
    CorruptFileError,
    InvalidTableStateError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TransactionNotFoundError,
)
from headwater.metastore.commit.last_slot import LastSlot
from headwater.metastore.commit.root_kinds import check_not_lost, is_metastore
from headwater.metastore.commit.slot_rebuild import beside, gap, published_slot, rebuild, unreadable
from headwater.metastore.records.deltas import Segments
from headwater.metastore.records.disk_records import (
    CATALOG,
    SLOT,
    Slot,
    TxnBody,
    TxnChange,
    TxnMapping,
    decode_slot,
    encode,
    is_collected,
    seal,
    unseal,
)
from headwater.metastore.records.layout import (
    FORMAT,
    FORMAT_KEY,
    mapping_key,
    revision_key,
    slot_folder,
    slot_key,
    txn_key,
)
from headwater.metastore.state.checkpoints import Checkpoints
from headwater.metastore.state.index import SlotIndex
from headwater.retry import retry
from headwater.store import KeyNotFoundError, Store, create, probe
from headwater.weak_methods import weak

Files = list[tuple[str, bytes]]


def files_of(number: int, slot: Slot, ordinal: int) -> Files:
    """Return the revision files, the mapping files and last the transaction log file of one transaction of a slot."""
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
    """Return the content of a Transaction Log File."""
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
    """Return the files of a slot that are not there, or not whole. The log file is written last: it vouches for the
    others where a store writes in order, but not where it writes side by side, so every one is looked at."""
    lost: Files = []
    for key, data in files_of_slot(number, slot):
        entry = store.head(key)
        if entry is None or entry.size != len(data):
            lost.append((key, data))
    return lost


MAX_READ_AHEAD = 256
LOST_ANSWERS = 5
SEEN = 64
NOT_LOOKED = 0, b""


class Claim(Enum):
    """The result of taking a slot. NOT_SEEN: its bytes are not ours now, and an earlier write of it may have been."""

    OURS = "ours"
    ANOTHERS = "another's"
    NOT_SEEN = "not seen"


class Log:
    """The slots of one catalog, and the index they fold into. `lock` guards the index."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.lock = threading.RLock()
        self.segments = Segments(store)
        self.checkpoints = Checkpoints(store, clock)
        self.index = self._anew(SlotIndex())
        self.checkpointed = 0
        self.sealed = 0
        self.due = False
        self.lost: InvalidTableStateError | None = None
        self.rebuilt: list[str] = []
        """Slots that were written anew here, also while the root was opened, as far as nobody was told yet."""
        self._own: dict[int, int] = {}
        self._last_own = 0
        self._begun = 0
        self._looked = 0
        self._next = 0, ""
        self._probed = False
        self._looks_alone = store.abilities.path is not None
        self._folding = False
        self._seen: deque[str] = deque(maxlen=SEEN)
        """The transactions of the last slots that were folded here."""
        self._last = LastSlot(store)

    # Reading

    def open(self) -> None:
        """Load the newest readable checkpoint and fold what follows. Nothing is written unless a crash left work."""
        self._check_format()
        self._load()
        # What stops us here is named by reads of the present; the past before it stays readable.
        with contextlib.suppress(CorruptFileError):
            try:
                index, first = self.index, self.index.slot + 1
                there = beside(self.store, first)
                self.refresh(ahead=min(1 + sum(number >= first for number in there), MAX_READ_AHEAD))
                there.update(range(first, self.index.slot + 1))
                is_of_next = self.index is index and slot_folder(self.index.slot + 1) == slot_folder(first)
                self._require_whole(there if is_of_next else None)
            except InvalidTableStateError:  # a damaged slot
                with contextlib.suppress(InvalidTableStateError):
                    self.rebuild()
        self.repair()

    def _require_whole(self, there: Collection[int] | None) -> None:
        """Slots are taken in order, so one after a missing one says that the missing one was lost, and so does a
        published transaction of it. What was lost is written anew if that is exact."""
        published = published_slot(self.store, self.index, self._seen)
        if published > self.index.slot:
            self.refresh(ahead=32)
            there = None
        is_gone = published > self.index.slot
        missing = gap(self.store, self.index.slot, self.index.boundary, there)
        if not is_gone and (missing is None or (missing > self.index.slot and self._moved_on())):
            return
        with contextlib.suppress(InvalidTableStateError):
            self.rebuild()

    def _moved_on(self) -> bool:
        """Others may have committed since we looked: then there was no gap where we took one to be."""
        before = self.index.slot
        while self.refresh(ahead=32).slot > before:
            if gap(self.store, self.index.slot, self.index.boundary) is None:
                return True
            before = self.index.slot
        return False

    def rebuild(self, every: bool = False) -> list[str]:
        """Write lost slots anew; their keys. InvalidTableState (19), from now on, if that cannot be exact. `every`:
        also what is damaged of those that are known."""
        with self.lock:
            self.lost = None
            try:
                written = rebuild(self.store, self.clock, self.index, every)
            except InvalidTableStateError as lost:
                self.lost = lost
                raise
            self.rebuilt += written
            if written:
                self.prepare()
            self.refresh(ahead=32)
        return written

    def refresh(self, ahead: int = 1) -> SlotIndex:
        """Fold the slots that were taken since we last looked: one request when there are none.

        Who waited here for another thread's look that began after it came needs none of its own. On a local disk a
        look is quicker than to wait for one: there each thread looks for itself, and only a new slot is waited for."""
        seen = self._look() if ahead == 1 and self._looks_alone else NOT_LOOKED
        if seen is None:
            return self.known()
        came = self._begun
        with self.lock:
            if self.lost is not None:
                raise self.lost
            if self._looked > came:
                return self.index
            self._begun += 1
            begun = self._begun
            while True:
                first = self.index.slot + 1
                found = [seen[1]] if seen[0] == first else self._read(first, ahead)
                if found:
                    self._last.check(self.index.slot, self._seen)
                whole = not found or all(self._fold_bytes(number, data) for number, data in enumerate(found, first))
                if whole and len(found) < ahead:
                    if self.segments.pending:
                        self.segments.let_go()
                    self._looked = begun
                    return self.index
                if not self._looks_alone:
                    ahead = min(2 * ahead, MAX_READ_AHEAD)

    def _look(self) -> tuple[int, bytes] | None:
        """The slot after those that were folded, read without the lock; None: there is none, and no other work."""
        number = self.index.slot + 1
        found = self._read(number, 1)
        if found:
            return number, found[0]
        return NOT_LOOKED if self._folding or len(self.segments.pending) > 1 else None

    @property
    def is_likely_newest(self) -> bool:
        """True if a look is a request, and the last slot known here is one that this process took.

        Who plans a commit on that state need not look first: nobody can take the next slot with an older one.
        """
        return not self._looks_alone and self.index.slot == self._last_own > 0

    def known(self) -> SlotIndex:
        """Return the index as this process has it, which costs no request; refused like any read if slots were lost."""
        if self.lost is not None:
            raise self.lost
        return self.index

    def read_slot(self, number: int) -> Slot:
        try:
            data = self.store.get(slot_key(number))
        except KeyNotFoundError:
            raise unreadable(slot_key(number), "it is missing") from None
        if is_collected(data):
            raise TransactionNotFoundError(f"Slot {number} was collected: read the state and the log after it.")
        return _decoded(number, data)

    def _read(self, first: int, count: int) -> list[bytes]:
        if count == 1:
            number, key = self._next
            if number != first:
                key = slot_key(first)
                self._next = first, key
            try:
                return [self.store.get(key)]
            except KeyNotFoundError:
                return []
        keys = [slot_key(first + offset) for offset in range(count)]
        found: list[bytes] = []
        for data in self.store.get_all(keys):
            if data is None:
                break
            found.append(data)
        return found

    def _fold_bytes(self, number: int, data: bytes) -> bool:
        """False: the slot was collected, so the index was begun anew from a checkpoint that knows what it did."""
        if is_collected(data):
            self._load()
            if self.index.slot < number:
                raise CorruptFileError(slot_key(number), "it was collected, but no checkpoint holds what it did")
            return False
        self.fold(number, _decoded(number, data))
        return self.index.slot == number

    def fold(self, number: int, slot: Slot) -> None:
        """Take in the next slot. If it seals the tails, whoever took it writes the checkpoint."""
        self._folding = True
        try:
            sealed = self.index.fold(number, slot)
        except CorruptFileError:  # we stood on a checkpoint that is long gone
            self._load()
            if self.index.slot < number:
                raise
            return
        finally:
            self._folding = False
        self._seen.extend(txn.id for txn in slot.transactions)
        self._last.saw(number)
        if sealed is not None:
            self.sealed = number
        if sealed:
            self.segments.pending[number] = sealed

    def _check_format(self) -> None:
        try:
            unseal(FORMAT_KEY, self.store.get(FORMAT_KEY), CATALOG)
        except KeyNotFoundError:
            return

    def _load(self) -> None:
        """The newest checkpoint that can be read; if there is none, what is known stays."""
        found = self.checkpoints.newest()
        if found is None:
            return
        self.index = self._anew(found)
        self.checkpointed = found.slot
        self._own = {number: left for number, left in self._own.items() if number > found.slot}

    def _anew(self, index: SlotIndex) -> SlotIndex:
        index.book.mend_by(partial(weak(self._mend), ref(index)))
        return index

    def _mend(self, mended: ref[SlotIndex], damaged: CorruptFileError) -> None:
        """A file of a layer is missing or damaged: what the index stood on is made anew of an older checkpoint and the
        slots after it, or of a newer one. If that cannot be, the file is named."""
        lost, index = damaged, mended()
        if index is None:
            raise damaged
        while self.checkpoints.avoid(lost.key):
            found = self.checkpoints.newest(index.slot)
            if found is None and self._folding and self.checkpoints.newest() is not None:
                break  # the newest is begun anew from, which is quicker than to make this one anew
            other = found or SlotIndex()
            try:
                for number in range(other.slot + 1, index.slot + 1):
                    other.fold(number, self.read_slot(number))
                return index.take_over(other)
            except CorruptFileError as more:
                lost = more
            except LanceNamespaceError:
                break
        raise damaged

    # Writing

    def prepare(self) -> None:
        """Before the first write: refuse a store whose conditional put lies, and say which format this is."""
        if not self._probed:
            if not self.index.slot and not is_metastore(self.store):
                check_not_lost(self.store, self.store.children().folders)
            probe(self.store, self.clock)
            self.store.put(FORMAT_KEY, seal(CATALOG, encode({"format": FORMAT})))
            self._probed = True

    def claim(self, number: int, slot: Slot, unsynced: Sequence[str] = ()) -> Claim:
        """Take a slot, durably, with the files that it refers to. A lost answer is looked into, never guessed."""
        self._last.check(number - 1, self._seen)
        data, tries = seal(SLOT, encode(slot)), count()

        def take(key: str) -> Claim:
            is_first = next(tries) == 0 and self.store.abilities.path is not None  # other stores repeat by themselves
            if create(self.store, key, data, unsynced):
                return Claim.OURS
            return Claim.ANOTHERS if is_first else Claim.NOT_SEEN

        try:
            return retry(self.clock, LOST_ANSWERS, lambda: slot_key(number), take, on=ServiceUnavailableError)
        except CommitStateUnknownError:
            raise
        except ServiceUnavailableError:
            raise CommitStateUnknownError(
                f"The store does not answer the write of slot {number}. The transaction may have landed: look for its "
                "id in the log before repeating it."
            ) from None

    # Publishing

    def publishing(self, number: int, transactions: int) -> None:
        """Slot `number` is ours; so many transactions of it are still to be published."""
        self._own[number] = transactions
        self._last_own = number

    def published(self, number: int) -> None:
        """Note a published transaction of a slot, and move the mark behind which an opener need not look."""
        with self.lock:
            if number in self._own:
                self._own[number] -= 1
            while self._own.get(self.index.published + 1) == 0:
                self.index.published += 1
                del self._own[self.index.published]

    def repair(self) -> int:
        """Publish what a crash left unpublished; how many files that were. A reader without rights leaves it be."""
        with self.lock:
            first, last = self.index.published + 1, self.index.slot
        written = 0
        try:
            for number in range(max(first, self.index.boundary + 1), last + 1):
                lost = missing(self.store, number, self.read_slot(number))
                if lost:
                    self.store.put_all(lost, durable=False)
                    written += len(lost)
        except LanceNamespaceError:
            return written
        with self.lock:
            self.index.published = max(self.index.published, last)
        return written

    # Checkpoints

    def checkpoint(self) -> None:
        """Write the segments and a checkpoint of the index as it is now; all but the last few are deleted."""
        self.due = False
        self.repair()
        with self.lock:
            index = self.index
        self.checkpointed = self.checkpoints.write(index, self.lock, self.segments.flush)


def _decoded(number: int, data: bytes) -> Slot:
    """Return a slot, or InvalidTableState (19) that names it: what is behind a damaged one is not shown without it."""
    try:
        return decode_slot(slot_key(number), data)
    except CorruptFileError as damaged:
        raise unreadable(slot_key(number), damaged.reason) from None
