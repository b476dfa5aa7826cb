"""Versions that the catalog keeps: the directory catalog as an external manifest store (lance-objects.md).

Four steps make a version: the client *stages* a manifest, the catalog *commits* a record of it (from here on the
version exists), *finalizes* it (the manifest is put under its final name as well), and *points* the record at the
final name. A crash after any step leaves either no version or one that the next reader finishes: whoever sees a
record that still points at a staged manifest finalizes it on sight. Pointing is the only step that nobody waits for,
so it is done for many versions in one commit, or when DescribeTableVersion asks for one of them.

The staged manifest is on the disk before the record that points at it, and the record before the commit is
acknowledged. The data files are the client's, who must see to them.

A manifest under a final name above the newest record was written behind the catalog's back. Clients, which look for
newer manifests themselves before they commit, would build on it, so it is moved out of the table as soon as it is seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from headwater.clock import Clock
from headwater.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    CorruptFileError,
    LanceNamespaceError,
    ServiceUnavailableError,
    TableVersionNotFoundError,
)
from headwater.lance_manifest import manifest_digest
from headwater.model import Change, Replace, Table, Version
from headwater.names import ObjectId
from headwater.namespace.plans import plan_next_version
from headwater.namespace.versions.same_rows import changed_rows
from headwater.namespace.versions.stored_versions import SCHEMES, VersionLine, is_staged
from headwater.registries.layout import fed_by_its_log
from headwater.registry import VersionRecords
from headwater.retry import retry
from headwater.store import KeyNotFoundError, Store, claim, is_same_file
from headwater.tables.commit.exact import hide
from headwater.tables.layout import STAGED, UNRECORDED, hidden_manifest

POINT_EVERY = 64
"""So many finalized versions of this process are pointed at their final names by one commit."""
LOOKED_AT = 256
"""Among so many of the newest versions a process looks, once, for what writers that have exited left to do."""

KEEPING_ATTEMPTS = 40
"""The attempts, over some five seconds, to save the manifest of a version that may have landed."""


@dataclass(frozen=True)
class StagedVersion:
    """A version to be created: where, its record, and the bytes of its manifest."""

    line: VersionLine
    version: Version
    data: bytes


@dataclass(frozen=True)
class Finalized:
    """A version whose manifest has its final name, and whose record does not say so yet."""

    line: VersionLine
    staged: Version
    final: Version


class FinalizedVersions:
    """The finalized versions of a process, by id and by dataset folder. `durable`: ids whose final names are synced.

    A commit looks at its own folder alone, so it costs the same after thousands of tables.
    """

    def __init__(self) -> None:
        self.by_id: dict[ObjectId, Finalized] = {}
        self.durable: set[ObjectId] = set()
        self._ids: dict[str, dict[ObjectId, None]] = {}

    def in_folder(self, location: str) -> list[Finalized]:
        return [self.by_id[id] for id in self._ids.get(location, ())]

    def add(self, item: Finalized) -> None:
        self._unlist(item.staged.id)
        self.by_id[item.staged.id] = item
        self._ids.setdefault(item.line.table.location, {})[item.staged.id] = None

    def remove(self, id: ObjectId) -> None:
        self._unlist(id)
        self.by_id.pop(id, None)
        self.durable.discard(id)

    def take_all(self) -> dict[ObjectId, Finalized]:
        """Return all by id, and forget them."""
        taken = dict(self.by_id)
        for known in (self.by_id, self.durable, self._ids):
            known.clear()
        return taken

    def _unlist(self, id: ObjectId) -> None:
        if id in self.by_id:
            location = self.by_id[id].line.table.location
            self._ids[location].pop(id, None)
            if not self._ids[location]:
                del self._ids[location]


class ManagedVersions:
    """The version records of a catalog, and the manifests they point at. Thread-safe.

    `like` has those of the same catalog in another's name: what waits to be pointed at waits in both.
    """

    def __init__(self, records: VersionRecords, store: Store, like: ManagedVersions | None = None) -> None:
        self.records = records
        self.store = store
        self._finalized: FinalizedVersions = FinalizedVersions() if like is None else like._finalized
        self._looked_at: set[ObjectId] = set() if like is None else like._looked_at
        self._lock: threading.Lock = threading.Lock() if like is None else like._lock

    def find(self, line: VersionLine, number: int) -> Version | None:
        """Return the version with its final manifest, or None."""
        found = self.look(line, number)
        return self.synchronize(line, found) if found is not None else None

    def look(self, line: VersionLine, number: int) -> Version | None:
        """Return the record of a version, as it is."""
        id = line.table.id.child(str(number))
        found = self.records.find([id]).get(id)
        return found if isinstance(found, Version) else None

    def page(self, line: VersionLine, after: int | None, limit: int | None, descending: bool) -> Sequence[Version]:
        """At most `limit` versions that follow `after`, each with its final manifest."""
        numbers = self.records.version_page(line.table.id, after, limit, descending)
        ids = [line.table.id.child(str(number)) for number in numbers]
        found = self.records.find(ids)
        return [self.synchronize(line, item) for id in ids if isinstance(item := found.get(id), Version)]

    def newest(self, line: VersionLine) -> int:
        return self.records.newest_version(line.table.id)

    def set_aside(self, line: VersionLine, limit: int = 64) -> list[str]:
        """Move manifests written behind the catalog's back out of the way of its writers, and say where to.

        A record comes before its final manifest, so a manifest that was there before a look that finds no record of
        it is not the catalog's. Should a writer commit the version at this very moment, it is finalized again.
        """
        moved: list[str] = []
        if not self.records.is_newest:
            return moved  # what is newer than a transaction or the past knows of is not foreign
        number = (line.table.known.newest or self.newest(line)) + 1
        while len(moved) < limit and (key := self._foreign(line, number)) is not None:
            target = f"{UNRECORDED}/{line.table.location}/{key.rsplit('/', 1)[-1]}"
            try:
                self.store.put(target, self.store.get(key))
                if not self._is_unrecorded(line, number):
                    break  # A writer has committed the version meanwhile, and puts its own manifest there.
                self.store.delete(key)
            except (LanceNamespaceError, KeyNotFoundError):
                break  # No permission to write, or another process was faster: nothing of ours is lost.
            moved.append(target)
            id = line.table.id.child(str(number))
            with self._lock:
                self._finalized.remove(id)
            self.find(line, number)
            number += 1
        return moved

    def _foreign(self, line: VersionLine, number: int) -> str | None:
        for scheme in SCHEMES:
            key = line.key(line.manifest(number, scheme))
            if self.store.head(key) is not None:
                return key if self._is_unrecorded(line, number) else None
        return None

    def _is_unrecorded(self, line: VersionLine, number: int) -> bool:
        """Return True if one state of the catalog has the table without a record of a version. A table that was moved,
        dropped or made again since it was looked up is not judged.
        """
        found = self.records.find([line.table.id], newest=True).get(line.table.id)
        if not isinstance(found, Table) or found.location != line.table.location:
            return False
        return number > found.known.newest

    def secure(self, staged: StagedVersion) -> None:
        """Before the commit: no record may survive a power cut that its manifest does not survive.

        The sync of its folder makes the final names there durable that were given before: only these may be recorded,
        and only of these may the staged manifests go.
        """
        path, location = staged.version.manifest_path, staged.line.table.location
        with self._lock:
            beside = self._finalized.in_folder(location)
        self.store.sync([staged.line.key(path)])
        if path.startswith(f"{STAGED}/"):
            return  # a transaction hides its manifests in another folder
        with self._lock:
            self._finalized.durable.update(item.staged.id for item in beside)
        for item in beside:
            self.records.finalized(item.line.table, item.staged.number)

    def plan(self, staged: StagedVersion, newest: int) -> list[Change]:
        """Return the record of a version that follows the newest one: errors 13 (rows of a log), 14."""
        changes = plan_next_version(staged.line.table, staged.version, newest)
        self._judge(staged, newest)
        return changes

    def _judge(self, staged: StagedVersion, before: int) -> None:
        """Error 13 for a version that changes rows of a log. The commit requires that `before` is still the newest."""
        line, kept = staged.line, self.records.kept_columns(staged.line.table.id)
        if kept is None:
            return
        base = self.find(line, before) if before else None
        if base is None:
            raise fed_by_its_log(line.table.id, "this would be its first version, or one of several in a batch")
        try:
            old = self.store.get(line.key(base.manifest_path))
            reason = changed_rows(old, staged.data, kept, lambda key: self.store.get(line.key(key)))
        except ValueError as error:
            reason = f"its manifest cannot be understood: {error}"
        if reason is not None:
            raise fed_by_its_log(line.table.id, reason)

    @contextmanager
    def keeping(self, staged: StagedVersion, clock: Clock) -> Iterator[None]:
        """Commit the record of a version and finish it. Nobody may lose the manifest of one that may have landed.

        A client whose commit was not answered deletes the staged manifest, so it gets its final name before the client
        has its error, if the storage answers again within some seconds. Should the version not have landed after all,
        the next writer sets it aside.
        """
        try:
            yield
        except CommitStateUnknownError:
            final = staged.line.key(staged.line.manifest(staged.version.number, staged.version.naming_scheme))

            def save(data: bytes) -> None:
                try:
                    self._finalize(staged.line, staged.version, data)
                    self.store.sync([final])
                except CommitStateUnknownError as error:  # to put the same bytes again does no harm
                    raise ServiceUnavailableError(str(error)) from error

            with suppress(LanceNamespaceError, KeyNotFoundError):
                retry(clock, KEEPING_ATTEMPTS, lambda: staged.data, save, on=ServiceUnavailableError)
            raise

    def hidden(self, staged: StagedVersion) -> StagedVersion:
        """In an open transaction: the manifest under a name that only the transaction knows, until it commits."""
        open_in = self.records.transaction_id
        if open_in is None:
            return staged
        line, version = staged.line, staged.version
        path = hidden_manifest(open_in, version.number, version.naming_scheme)
        hide(self.store, line.key(version.manifest_path), line.key(path), staged.data)
        return replace(staged, version=replace(version, manifest_path=path))

    def _is_hidden(self, version: Version) -> bool:
        """Return True if it is a version of the open transaction that these records are collected in."""
        open_in = self.records.transaction_id
        return open_in is not None and version.manifest_path.startswith(f"{STAGED}/{open_in}/")

    def finish(self, staged: Sequence[StagedVersion]) -> list[Version]:
        """Finalize and point: the records are committed, so nothing here can undo them."""
        if self.records.transaction_id is not None:
            return [item.version for item in staged]
        done = [self._finish(item) for item in staged]
        if self.records.replaces_records:
            self._point_when_due({item.line.table.id: item.line for item in staged})
        else:
            self._tidy(staged)
        return done

    def synchronize(self, line: VersionLine, version: Version) -> Version:
        """Return a version as readers see it. One that is still staged is finalized, and pointed at later."""
        if not is_staged(version.manifest_path) or self._is_hidden(version):
            return version
        known = self._finalized.by_id.get(version.id)
        if known is not None and known.staged == version:
            return known.final
        final = line.key(line.manifest(version.number, version.naming_scheme))
        if not is_same_file(self.store, line.key(version.manifest_path), final):
            try:
                data = self.store.get(line.key(version.manifest_path))
            except KeyNotFoundError:
                self._check_final(line, version, final)
            else:
                self._finalize(line, version, data)
        return self._remember(line, version)

    def _check_final(self, line: VersionLine, version: Version, final: str) -> None:
        """Raise CorruptFile unless the recorded manifest is at its final name, where its staged one is gone."""
        data = self.store.get_all([final])[0]
        if data is None:
            raise CorruptFileError(final, f"version {version.number} is recorded, but has no manifest")
        if version.digest is None or manifest_digest(data) == version.digest:
            return
        if not self.records.is_newest:
            raise _reused(line, version)
        why = f"it is not the manifest that was recorded as version {version.number}: bring that back from a copy"
        raise CorruptFileError(final, why)

    def settle(self, line: VersionLine, point: bool = True) -> None:
        """Finalize every version of a table, so that it can be read without the catalog."""
        self.page(line, None, None, descending=True)
        if point:
            self.point()

    def point_described(self, version: Version) -> None:
        """Point the record of a version at its final manifest now (directory document, "DescribeTableVersion")."""
        waits = self.records.replaces_records and self.records.transaction_id is None
        if waits and version.id in self._finalized.by_id:
            self.point()

    def point(self) -> int:
        """Point the records of finalized versions at their final manifests; then the staged ones can go."""
        with self._lock:
            waiting = self._finalized.take_all()
        if not waiting:
            return 0
        current = self.records.find(waiting)
        due = [item for id, item in waiting.items() if current.get(id) == item.staged]
        try:
            self._sync_names(due)
            self.records.commit([Replace(item.staged, item.final) for item in due])
        except LanceNamespaceError:
            return 0  # A cleaned-up or dropped table was among them: the next reader of the others sees to it.
        for item in due:
            self.store.delete(item.line.key(item.staged.manifest_path))
        return len(due)

    def _sync_names(self, due: Sequence[Finalized]) -> None:
        """Their bytes are on the disk since they were staged; of the new names, one sync of each folder takes care."""
        keys = [item.line.key(item.final.manifest_path) for item in due]
        self.store.sync(list({key.rsplit("/", 1)[0]: key for key in keys}.values()))

    def _finish(self, item: StagedVersion) -> Version:
        if not is_staged(item.version.manifest_path):
            return item.version
        try:
            self._finalize(item.line, item.version, item.data)
            return self._remember(item.line, item.version)
        except ServiceUnavailableError as error:  # no error of a commit that had no effect: the record is there
            raise CommitStateUnknownError(f"Version {item.version.number} has no final name yet: {error}") from error

    def _finalize(self, line: VersionLine, version: Version, data: bytes) -> None:
        """Put the manifest under its final name. What another put there behind the catalog's back gives way.

        Others may have finalized the version meanwhile, committed later ones and deleted its staged manifest.
        """
        final = line.key(line.manifest(version.number, version.naming_scheme))
        with suppress(KeyNotFoundError):
            if claim(self.store, line.key(version.manifest_path), final, data, durable=False):
                return
        if self.store.get_all([final])[0] == data:  # None: another process has just set aside what was there
            return
        if not self.records.is_newest:
            raise _reused(line, version)
        found = self.records.find([version.id]).get(version.id)
        if not isinstance(found, Version) or not found.is_same_commit(version):
            raise ConcurrentModificationError(
                f"Version {version.number} of {line.table.id} was deleted by another writer, or its table was dropped."
            )
        if is_staged(found.manifest_path):
            self.store.put(final, data)

    def _remember(self, line: VersionLine, version: Version) -> Version:
        path = line.manifest(version.number, version.naming_scheme)
        entry = self.store.head(line.key(path))
        final = replace(version, manifest_path=path, e_tag=entry.etag if entry else None)
        with self._lock:
            self._finalized.add(Finalized(line, version, final))
        return final

    def _tidy(self, staged: Sequence[StagedVersion]) -> None:
        """Delete the staged manifests of earlier versions, where a record holds both names.

        Syncing the folder for these has made the final names durable that were there before.
        """
        first = {item.line.table.location: item.version.number for item in reversed(staged)}
        with self._lock:
            beside = [(item, number) for folder, number in first.items() for item in self._finalized.in_folder(folder)]
            durable = self._finalized.durable
            due = [item for item, number in beside if item.staged.id in durable and item.staged.number < number]
            for item in due:
                self._finalized.remove(item.staged.id)
        for item in due:
            self.store.delete(item.line.key(item.staged.manifest_path))

    def _point_when_due(self, written: Mapping[ObjectId, VersionLine]) -> None:
        """Point when many versions wait, or when processes that wrote these tables have exited and left some waiting.

        So writers that commit once and exit leave no more than one staged manifest behind.
        """
        for id, line in written.items():
            if id not in self._looked_at:
                self._looked_at.add(id)
                newest = self.page(line, None, LOOKED_AT, descending=True)
                if sum(item.id in self._finalized.by_id for item in newest) > 1:
                    self.point()
        if len(self._finalized.by_id) >= POINT_EVERY:
            self.point()


def _reused(line: VersionLine, version: Version) -> TableVersionNotFoundError:
    return TableVersionNotFoundError(
        f"Version {version.number} of {line.table.id} was deleted since, and another one has its number now."
    )
