"""The mirror of a metastore: a read-only `__manifest` beside it, for readers that know no other kind of catalog.

    commit ──> nudge ──> a thread of its own, at most once a second ──┐
    close(), the end of the process, the next opener ─────────────────┴──> update ──> one commit to `__manifest`

Each version of `__manifest` is the names of one slot, whole, and notes which: rows and note are one commit. It never
goes back. A writer flag keeps every writer out, and our own directory class does not take it for a catalog.

Whether there is one is a property of the root, and so part of a transaction. A file says that there is, or was, one:
where there is none, nobody looks further.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from dataclasses import dataclass

from headwater.clock import Clock
from headwater.errors import LanceNamespaceError, UnsupportedOperationError
from headwater.metastore import Metastore, Snapshot, Transaction
from headwater.metastore.commit.root_kinds import MANIFEST
from headwater.model import Table
from headwater.names import DELIMITER, ROOT
from headwater.namespace.versions import TableVersions
from headwater.registries.layout import MIRROR_MARKER
from headwater.registries.manifest.format import freshness_of
from headwater.registries.manifest.state import (
    MANAGEMENT,
    MIRROR,
    READER_FLAGS,
    UPGRADED,
    UPGRADING,
    WRITER_FLAGS,
    ManifestSnapshot,
)
from headwater.registries.manifest.table import ManifestTable
from headwater.registries.metastore.mapping import newest_version
from headwater.registries.metastore.registry import below
from headwater.retry import retry
from headwater.store import create

SLOT = "headwater.mirror.slot"
"""In the note of each commit to the mirror: the slot whose names it holds."""
RECORD = "headwater.mirror"
"""The property of the root that says whether there is a mirror. No text, so no user's."""
RECORDED = b"recorded"
"""The content of the marker file: there is, or was, a mirror, and the root says which."""
EVERY_SECONDS = 1.0
SHARE = 10
"""Following takes at most one part in so many of the time."""
ATTEMPTS = 20
FLAGS: dict[str, str | None] = {WRITER_FLAGS: str(MIRROR), READER_FLAGS: None, MANAGEMENT: None}
"""The metadata of a mirror: pylance reads it and refuses to write, and we do not take it for a catalog."""
CLEAN_UP_EVERY = 64


@dataclass(frozen=True)
class MirrorState:
    """State of the mirror: on or off, the slot it shows, and the newest slot of the catalog. It is true if it is on."""

    on: bool
    slot: int | None
    newest: int

    def __bool__(self) -> bool:
        return self.on


class Mirror:
    """The mirror of one open metastore. Thread-safe; nobody who commits waits for it."""

    def __init__(
        self, metastore: Metastore, versions: TableVersions, root: str, storage: dict[str, str], clock: Clock
    ) -> None:
        self.store = metastore.store
        self.clock = clock
        self._metastore = metastore
        self._versions = versions
        self._is_possible = not root.startswith("memory://")
        self._table = ManifestTable(self.store, f"{root}/{MANIFEST}", storage, clock, MIRROR | UPGRADING)
        self._finished: dict[str, int] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._nudged = False

    @property
    def is_on(self) -> bool:
        return self._is_on(None)

    def _is_on(self, tx: Transaction | None) -> bool:
        """Return True if there is a mirror, or is going to be one by a transaction."""
        is_marked = self._is_possible and self.store.head(MIRROR_MARKER) is not None
        if not is_marked and not (tx is not None and tx.changes_root):
            return False
        known = self._metastore.now().root_properties() if tx is None else tx.root_properties()
        return bool(known.get(RECORD))

    def state(self, tx: Transaction | None = None) -> MirrorState:
        """Return the state of the mirror, now or after an open transaction."""
        on = self._is_on(tx)
        newest = freshness_of(self.store).newest() if on else None
        shown = None if newest is None else self._slot(self._table.load(newest, None)[0])
        return MirrorState(on, shown, self._metastore.slot)

    def turn(self, on: bool, within: Transaction | None = None) -> None:
        """Turn the mirror on for every process that opens the catalog from now on, or off.

        `within`: a transaction to do it in. `prepare` goes before its commit, and `settle` comes after it. The files of
        a mirror that is off tell its readers that they are old.
        """
        if within is not None:
            self._record(within, on)
            return
        if self.is_on != on:
            self.prepare()
            self._metastore.run(lambda tx: self._record(tx, on), f"turn the mirror {'on' if on else 'off'}")
        self.settle()

    def _record(self, tx: Transaction, on: bool) -> None:
        if on and not self._is_possible:
            raise UnsupportedOperationError("A mirror is read by other programs: memory:// has none.")
        tx.update_root({**tx.root_properties(), RECORD: on})

    def prepare(self) -> None:
        """Have everybody look at the properties of the root from now on."""
        if self._is_possible and self.store.head(MIRROR_MARKER) is None:
            create(self.store, MIRROR_MARKER, RECORDED)

    def settle(self) -> None:
        """Make what is there what the root says: a process that turned the mirror may have died before it did."""
        if self.is_on:
            self.update()
            self.follow()
            return
        self._metastore.tell(None)
        self._retire()

    def _retire(self) -> None:
        newest = freshness_of(self.store).newest() if self._is_possible else None
        if newest is not None and not self._table.load(newest, None)[0].settings.reader_flags:
            self._table.update_metadata({READER_FLAGS: str(UPGRADED), WRITER_FLAGS: str(UPGRADING)})

    def follow(self) -> None:
        """Follow the commits of this process, from the newest slot on, if there is a mirror."""
        if self.is_on:
            self._metastore.tell(self.nudge)
            _FOLLOWED.add(self)
            self.nudge()
        elif self._is_possible and self.store.head(MIRROR_MARKER) is not None:
            with contextlib.suppress(LanceNamespaceError):
                self._retire()

    def nudge(self) -> None:
        """Wake the thread of the mirror: the catalog has changed. Returns at once."""
        with self._lock:
            self._nudged = True
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(target=self._work, name="headwater-mirror", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._nudged:
                    self._thread = None
                    return
                self._nudged = False
            begun = self.clock.now_ms()
            with contextlib.suppress(LanceNamespaceError):  # a reader without rights, or the next one does it
                self.update()
            took = (self.clock.now_ms() - begun) / 1000
            self._ending.wait(max(EVERY_SECONDS, SHARE * took))

    def close(self) -> None:
        """Bring it up to date, and wait for that."""
        self._ending.set()
        thread = self._thread
        if thread is not None:
            thread.join()
        with contextlib.suppress(LanceNamespaceError):
            self.update()
        self._ending.clear()

    def update(self) -> int | None:
        """Make the mirror show the newest slot; which it shows then. None: there is no mirror."""
        if not self.is_on:
            return None
        shown = retry(self.clock, ATTEMPTS, self._load, self._write)
        if not self.is_on:  # turned off meanwhile, and its readers told so perhaps before this wrote
            self._retire()
            return None
        return shown

    def _load(self) -> ManifestSnapshot:
        newest = freshness_of(self.store).newest()
        if newest is None:
            self._table.create()
            self._table.update_metadata(FLAGS)  # before there is anything to read
            newest = freshness_of(self.store).newest()
            assert newest is not None
        return self._table.load(newest, None)[0]

    def _slot(self, snapshot: ManifestSnapshot) -> int | None:
        noted = self._table.find_note(snapshot, SLOT)
        return None if noted is None or snapshot.settings.reader_flags else int(noted)

    def _write(self, base: ManifestSnapshot) -> int:
        """Commit the names of a newer slot exactly on top of what was loaded, or nothing."""
        now, shown = self._metastore.now(), self._slot(base)
        if shown is None or shown < now.slot:
            self._commit(base, now)
            shown = now.slot
        if base.settings.writer_flags != MIRROR or base.settings.reader_flags:
            self._table.update_metadata(FLAGS)
        return shown

    def _commit(self, base: ManifestSnapshot, now: Snapshot) -> None:
        wanted = {item.id.format(DELIMITER): item for item in below(now, ROOT)}
        self._finish(now, [item for item in wanted.values() if isinstance(item, Table)])
        rows = {key: row for fragment in base.fragments.values() for key, row in fragment.rows.items()}
        same = {key for key, row in rows.items() if key in wanted and base.codec.decode(row) == wanted[key]}
        time = self.clock.now_ms()
        added = [base.codec.encode(item, time, rows.get(key)) for key, item in wanted.items() if key not in same]
        made = self._table.commit(base, rows.keys() - same, added, {SLOT: str(now.slot)})
        if made.version % CLEAN_UP_EVERY == 0:
            self._table.clean_up(made)

    def _finish(self, now: Snapshot, tables: list[Table]) -> None:
        """Give the newest version of each table its final manifest, where other readers look for it."""
        for table in tables:
            newest = newest_version(now, table.id)
            if newest and self._finished.get(table.location) != newest and self._versions.managed is not None:
                with contextlib.suppress(LanceNamespaceError):
                    self._versions.managed.find(self._versions.line(table), newest)
                    self._finished[table.location] = newest


_FOLLOWED: weakref.WeakSet[Mirror] = weakref.WeakSet()


@atexit.register
def _bring_up_to_date() -> None:
    for mirror in list(_FOLLOWED):
        mirror.close()
