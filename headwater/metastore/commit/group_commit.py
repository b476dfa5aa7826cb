"""Group commit: the transactions that wait together are taken together, into one slot.

Whoever leads takes all that wait, checks each against the head, and takes the next slot for those that still
hold. No lock is held by anybody outside of this process, so a dead writer blocks nobody.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater import turns
from headwater.errors import CommitStateUnknownError, ConcurrentModificationError, LanceNamespaceError, ThrottlingError
from headwater.metastore.commit.draft import Draft
from headwater.metastore.commit.log import Claim, Files, Log, files_of
from headwater.metastore.commit.rules import Group, Header, compile_txn, conflict, refused
from headwater.metastore.records.disk_records import Slot, Txn
from headwater.retry import retry

MAX_CLAIMS = 10_000
MAX_GROUP = 256
GATHER_S = 0.001
PUBLISH_ATTEMPTS = 4


def aside(work: Callable[[], None]) -> threading.Thread | None:
    """Do work beside the caller, who does not wait for it; the process does not end before it is done."""
    thread = threading.Thread(target=work, name="headwater-checkpoint")
    thread.start()
    return thread


@dataclass(slots=True)
class Waiting:
    """A transaction on its way into a slot."""

    draft: Draft
    header: Header
    boundary: int = 0
    done: bool = False
    error: BaseException | None = None
    slot: int = 0
    made: Slot | None = None
    ordinal: int = 0
    txn: Txn | None = None
    published: bool = False


@dataclass(slots=True)
class Committer:
    """Commits transactions into the log."""

    log: Log
    max_key: int
    _group: turns.GroupedWork[Waiting] = field(
        default_factory=lambda: turns.GroupedWork(_as_commit_error, MAX_GROUP, GATHER_S)
    )
    _checkpointing: threading.Lock = field(default_factory=threading.Lock)
    _aside: threading.Thread | None = None

    def commit(self, draft: Draft, header: Header, boundary: int = 0) -> int:
        """Commit and publish; the slot. Conflict (14) if the head has moved in a way that matters."""
        mine = Waiting(draft, header, boundary)
        self._group.run(mine, self._lead, self._publish)
        if not mine.published:  # whoever led was interrupted
            self._publish([mine])
        if self.log.due:
            self._aside = aside(self._checkpoint)
        return mine.slot

    def wait(self) -> None:
        """Wait for a checkpoint that is being made beside."""
        if self._aside is not None:
            self._aside.join()

    def _publish(self, group: Sequence[Waiting]) -> None:
        """They are committed, whatever happens here: files the store does not take are left to repair."""
        taken = [waiting for waiting in group if waiting.made is not None and not waiting.published]
        files = [file for waiting in taken for file in _files(waiting)]

        def write(files: Files) -> None:
            self.log.store.put_all(files, durable=False)
            for waiting in taken:
                self.log.published(waiting.slot)

        try:
            retry(self.log.clock, PUBLISH_ATTEMPTS, lambda: files, write, on=LanceNamespaceError)
        except LanceNamespaceError:
            self.log.due = True  # a checkpoint repairs first
        for waiting in taken:
            waiting.published = True

    def _checkpoint(self) -> None:
        """Housekeeping: if it fails, the next one does its work, so a failure of the store is nobody's concern."""
        if self._checkpointing.acquire(blocking=False):
            try:
                with contextlib.suppress(LanceNamespaceError):
                    self.log.checkpoint()
            finally:
                self._checkpointing.release()

    def _lead(self, group: Sequence[Waiting]) -> None:
        self.log.prepare()
        self._commit_group(group)

    def _commit_group(self, group: Sequence[Waiting]) -> None:
        """Commit the valid transactions of a group in one slot; in the next slot if another writer has this one."""

        def claim(drawn: tuple[int, Slot, list[Waiting]]) -> None:
            number, slot, taken = drawn
            if not taken:
                return
            found = self.log.claim(number, slot, [key for waiting in taken for key in waiting.draft.unsynced])
            if found is not Claim.OURS:
                self._read_on(number, slot, found)
                raise ConcurrentModificationError(f"Slot {number} is another writer's.")
            self._settle(number, slot, taken)

        try:
            retry(self.log.clock, MAX_CLAIMS, lambda: self._draw_up(group), claim, longest=5, eager=3)
        except ConcurrentModificationError:
            raise ThrottlingError(
                f"Other writers took {MAX_CLAIMS} slots in a row: nothing was committed, try again later."
            ) from None

    def _read_on(self, number: int, slot: Slot, found: Claim) -> None:
        """Read the log on after a slot that is not ours, or is not seen to be.

        CommitStateUnknown is raised if it may have been collected before a lost answer was looked into. Times of slots
        never decrease: a boundary older than our slot is one behind which ours cannot be.
        """
        try:
            index = self.log.refresh()
        except LanceNamespaceError as error:
            if found is Claim.ANOTHERS:
                raise
            raise CommitStateUnknownError(
                f"Slot {number} is taken, and the log cannot be read ({error}). The transaction may have landed: look "
                "for its id in the log before repeating it."
            ) from error
        if found is Claim.NOT_SEEN and number <= index.boundary and slot.time <= index.times.of(index.boundary):
            raise CommitStateUnknownError(
                f"Slot {number} was collected before the store answered its write. The transaction may have landed: "
                "look at what it changed before repeating it."
            )

    def _draw_up(self, group: Sequence[Waiting]) -> tuple[int, Slot, list[Waiting]]:
        """Return the next slot, with those of the group that hold at the head and do not depend on each other."""
        log = self.log
        with log.lock:
            taken = self._compile(group)
            now = max(log.clock.now_ms(), log.index.times.last)
            transactions = tuple(waiting.txn for waiting in taken if waiting.txn is not None)
            boundary = max((waiting.boundary for waiting in taken), default=0)
            slot = Slot(log.clock.uuid(), now, log.index.published, boundary, transactions)
            log.index.look_up(slot)  # what cannot be read is told before the slot is taken, not after
            return log.index.slot + 1, slot, taken

    def _compile(self, group: Sequence[Waiting]) -> list[Waiting]:
        made = Group()
        taken: list[Waiting] = []
        for waiting in group:
            if waiting.done:
                continue
            reason = conflict(self.log.index, waiting.draft)
            if reason is not None:
                waiting.done, waiting.error = True, refused(reason)
                continue
            if taken and not made.written.isdisjoint(waiting.draft.reads):
                continue  # it depends on one before it, and is decided with the next slot
            try:
                waiting.txn = compile_txn(self.log.index, waiting.draft, waiting.header, made, self.max_key)
            except LanceNamespaceError as error:
                waiting.done, waiting.error = True, error
                return self._compile(group)
            taken.append(waiting)
        return taken

    def _settle(self, number: int, slot: Slot, taken: list[Waiting]) -> None:
        with self.log.lock:
            self.log.publishing(number, len(taken))
            if self.log.index.slot < number:  # another thread may have read our slot back and folded it
                with contextlib.suppress(LanceNamespaceError):  # it is committed: whoever looks next takes it in
                    self.log.fold(number, slot)
            self.log.due = self.log.due or self.log.sealed == number
        for ordinal, waiting in enumerate(taken):
            waiting.slot, waiting.made, waiting.ordinal, waiting.done = number, slot, ordinal, True


def _files(waiting: Waiting) -> Files:
    assert waiting.made is not None
    return files_of(waiting.slot, waiting.made, waiting.ordinal)


def _as_commit_error(error: BaseException) -> LanceNamespaceError:
    """A failure of the store is told to all of its group."""
    if isinstance(error, LanceNamespaceError):
        return error
    return CommitStateUnknownError(
        "The thread that was committing this transaction was interrupted. It may have landed: look before repeating it."
    )
