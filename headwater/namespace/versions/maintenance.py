"""The long view: migrate a catalog, check it, clean up old versions.

`verify` only looks. What it reports is harmless to catalog users, who do not see it, unless data is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headwater.errors import InvalidInputError
from headwater.lance_manifest import MEM_WAL
from headwater.metastore.records.objects import Removal
from headwater.model import Add, CatalogObject, Change, Remove, Table, Version
from headwater.names import ObjectId
from headwater.namespace.versions.file_removal import find_leftovers, free_files, lost_files
from headwater.namespace.versions.managed import ManagedVersions
from headwater.namespace.versions.operations import TableVersions, require_managed
from headwater.namespace.versions.ranges import KeepPolicy, check_policy, choose_outdated
from headwater.namespace.versions.stored_versions import VersionLine, is_staged, staged_version
from headwater.registries.folders import folder_status, is_place
from headwater.registries.layout import is_reserved
from headwater.table_refs import read_refs
from headwater.tables.handle import unread_rows
from headwater.tables.layout import TRASH, UNRECORDED, VERSIONS, manifest_version

MAX_ROWS_PER_COMMIT = 100_000
FED_UNREAD = " Its rows come from its change log, which never has those: land them with `upsert` or `append`."


@dataclass(frozen=True)
class VersionProblem:
    """One thing that storage and catalog do not agree on."""

    kind: str
    """missing_folder, missing_manifest, other_manifest, missing_version, missing_file, damaged_file, shared_location,
    unusable_location, unrecorded_version, staged_leftover, unreferenced_folder, unfinished_creation,
    unfinished_drop, unread_rows or serving_copy."""
    id: ObjectId | None
    key: str
    message: str
    note: bool = False
    """True for a finding that only waits for `collect`: the catalog is healthy."""


@dataclass(frozen=True)
class Cleaned:
    """Result of a clean-up. `files`: files that only removed versions named; `bytes`: their size."""

    records: int = 0
    manifests: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Optimized:
    """Result of `optimize_table`: fragments before and after, and the clean-up that followed."""

    fragments_removed: int
    fragments_added: int
    cleaned: Cleaned


class Maintenance:
    """Work on all versions of a table, or all tables of a catalog."""

    def __init__(self, versions: TableVersions) -> None:
        self.versions = versions
        self.store = versions.store

    def adopt(self, table: Table) -> list[Change]:
        """Return records of the versions that a table has on storage and the catalog has not, and no more of those
        gone."""
        versions = self.versions
        if versions.records is None or not versions.records.manages_versions:
            return []
        return self._differences(table)

    def enable(self) -> int:
        """Make the catalog manage versions, with records of all versions its tables have. How many were recorded.

        The records are there before the catalog says that it goes by them, so no reader sees a table without its
        versions; what was written in between is recorded by a second look.
        """
        records = require_managed(self.versions).records
        count = self._record_all()
        records.manage_versions()
        return count + self._record_all()

    def migrate(self) -> list[Table]:
        """Give every table that is only a folder its row in the manifest, all in one commit; those that got one."""
        require_managed(self.versions)
        registry = self.versions.registry
        known = registry.find([table.id for table in self._listed()], seen=False)
        listed = [table for table in self._listed() if table.id not in known and self._is_table(table)]
        changes = [change for table in listed for change in (Add(table), *self.adopt(table))]
        if changes:
            registry.commit(changes)
        return listed

    def clean_up(self, table: Table, policy: KeepPolicy) -> Cleaned:
        """Remove the records, the manifests, and then the files, of versions that no rule of the policy keeps.

        A version that a tag or a branch stands on stays. A file goes only if a removed version named it and none that
        is left does, so what a writer is about to commit is never touched.
        """
        self.versions.registry.check_writable()
        line = self.versions.line(table)
        keeper = self.versions.keeper(line)
        gone: list[Version] = []
        manifests: list[bytes] = []

        def look() -> list[Version]:
            found = list(keeper.page(line, None, None, descending=False))
            held = self.versions.held(line) if len(found) > 1 else {}
            gone[:] = choose_outdated(found, policy, held, self.versions.clock.now_ms()) if len(found) > 1 else []
            there = self.store.get_all([line.key(item.manifest_path) for item in gone])
            manifests[:] = [data for data in there if data is not None]
            return self._recorded(keeper, gone) if isinstance(keeper, ManagedVersions) else []

        if isinstance(keeper, ManagedVersions):
            recorded = self.versions.forget(table.id, look)
            self.versions.delete_manifests(line, recorded)
        else:
            recorded = look()
            self.versions.storage.delete(line, [item.number for item in gone])
        files, size = free_files(self.store, line, manifests) if gone else (0, 0)
        return Cleaned(len(recorded), len(gone), files, size)

    @staticmethod
    def _recorded(keeper: ManagedVersions, versions: Sequence[Version]) -> list[Version]:
        """Return the records of these versions that there are now."""
        current = keeper.records.find(item.id for item in versions)
        return [item for item in current.values() if isinstance(item, Version)]

    def verify(self) -> list[VersionProblem]:
        """Return everything on which the catalog and its storage disagree."""
        tables = self.versions.records.tables() if self.versions.records is not None else []
        found = [problem for table in tables for problem in self._verify_table(table)]
        found += [problem for table in self._listed() for problem in self._verify_files(table)]
        return [*found, *self._unfinished_drops(), *self._unreferenced_folders({item.location for item in tables})]

    def verify_table(self, table: Table) -> list[VersionProblem]:
        """Return everything on which the record of one table and its storage disagree."""
        return [*self._verify_table(table), *self._verify_files(table)]

    def _verify_files(self, table: Table) -> list[VersionProblem]:
        if not is_place(table.location):
            return []
        return [*self._missing_versions(table), *self._missing_files(table), *self._unread_rows(table)]

    def leftovers(self, before_ms: int) -> list[Removal]:
        """Return leftovers of dead writers and interrupted drops that are older than a time."""
        tables = self._listed()
        managed = [table for table in tables if table.known.managed] if self.versions.records is not None else []
        recorded = {
            self.versions.line(table).key(item.manifest_path)
            for table in managed
            for item in self._known(table.id).values()
        }
        return find_leftovers(self.store, [table.location for table in tables], recorded, before_ms)

    def _is_table(self, table: Table) -> bool:
        status = folder_status(self.store, table.location)
        return status.versions or status.reserved

    def _record_all(self) -> int:
        records = require_managed(self.versions).records
        rows = {table.id for table in records.tables()}
        changes: list[Change] = []
        for table in self._listed():  # also those that are only seen as folders: they get their row with their records
            changes += [] if table.id in rows else [Add(table)]
            changes += self._differences(table)
        for start in range(0, len(changes), MAX_ROWS_PER_COMMIT):
            records.commit(changes[start : start + MAX_ROWS_PER_COMMIT])
        return sum(isinstance(change, Add) and isinstance(change.object, Version) for change in changes)

    def _differences(self, table: Table) -> list[Change]:
        records = require_managed(self.versions).records
        row = records.find([table.id]).get(table.id)
        same = isinstance(row, Table) and row.location == table.location
        known = self._known(table.id) if same else {}
        there = {item.id: item for item in self.versions.storage.all(self.versions.line(table))}
        new = [item for id, item in there.items() if id not in known]
        added: list[Change] = [Add(item) for item in self.versions.storage.dated(self.versions.line(table), new)]
        gone: list[Change] = [
            Remove(item) for id, item in known.items() if id not in there and not is_staged(item.manifest_path)
        ]
        return [*gone, *added]

    def _known(self, table: ObjectId) -> Mapping[ObjectId, Version]:
        records = require_managed(self.versions).records
        ids = [table.child(str(number)) for number in records.versions(table)]
        found: Mapping[ObjectId, CatalogObject] = records.find(ids)
        return {id: item for id, item in found.items() if isinstance(item, Version)}

    def _verify_table(self, table: Table) -> Iterator[VersionProblem]:
        registry = self.versions.registry
        others = registry.location_holders(table.location) - {table.id}
        if others:
            text = f"Table {table.id} is at, inside or around the table {min(others)}: dropping either keeps the files."
            yield VersionProblem("shared_location", table.id, table.location, text)
        if not is_place(table.location):
            text = f"The record of table {table.id} has a location that is no place for a table: deregister it."
            yield VersionProblem("unusable_location", table.id, table.location, text)
            return
        if not folder_status(self.store, table.location).exists:
            if registry.capabilities.markers is None and not self._known(table.id):
                return  # only declared: nothing has been written yet
            yield VersionProblem(
                "missing_folder", table.id, table.location, f"Table {table.id} has no folder: drop it."
            )
            return
        if table.known.managed:
            yield from self._verify_versions(self.versions.line(table))

    @property
    def records_are_replaced(self) -> bool:
        records = self.versions.records
        return records is None or records.replaces_records

    def _verify_versions(self, line: VersionLine) -> Iterator[VersionProblem]:
        table, known = line.table.id, self._known(line.table.id)
        names = {entry.key.rsplit("/", 1)[-1] for entry in self.store.children(line.folder).entries}
        for item in known.values():
            final = line.manifest(item.number, item.naming_scheme).rsplit("/", 1)[-1]
            staged = line.key(item.manifest_path)
            if not names & {final, staged.rsplit("/", 1)[-1]} and self.store.head(staged) is None:
                text = f"Version {item.number} of {table} is recorded and its manifest is gone."
                yield VersionProblem("missing_manifest", table, line.key(item.manifest_path), text)
        for version in self.versions.storage.all(line):
            if version.id not in known:
                text = f"Version {version.number} of {table} was written without the catalog, which does not show it."
                yield VersionProblem("unrecorded_version", table, line.key(version.manifest_path), text)
        for entry in self.store.children(f"{UNRECORDED}/{line.table.location}").entries:
            text = f"A version of {table} was written without the catalog; its manifest was moved out of the table."
            yield VersionProblem("unrecorded_version", table, entry.key, text)
        used = {item.manifest_path.rsplit("/", 1)[-1] for item in known.values()}
        recorded = {item.number for item in known.values()} if not self.records_are_replaced else set()
        for name in sorted(names - used):
            number = staged_version(name)
            if number is not None and number not in recorded:  # one of a recorded version goes with the next commit
                text = f"A writer of {table} was refused, died before its commit, or is about to commit this manifest."
                yield VersionProblem("staged_leftover", table, f"{line.folder}/{name}", text, note=True)

    def _missing_versions(self, table: Table) -> Iterator[VersionProblem]:
        """Tags and branches that stand on a version which is gone."""
        for ref in read_refs(self.store, table.location):
            line = self.versions.line(table, ref.branch)
            keeper = self.versions.keeper(line)
            there = keeper.look(line, ref.version)
            if there is None:
                text = f"Version {ref.version} of {table.id} is gone, and {ref} stands on it: delete or move that."
                yield VersionProblem("missing_version", table.id, ref.key, text)

    def _missing_files(self, table: Table) -> Iterator[VersionProblem]:
        """Yield files that a version names and that are not there, or are cut: reads of it fail, or will."""
        line = self.versions.line(table)
        managed = table.known.managed and self.versions.records is not None
        recorded = self._known(table.id).values() if managed else ()
        manifests = {item.number: line.key(item.manifest_path) for item in recorded}
        manifests |= {item.number: line.key(item.manifest_path) for item in self.versions.storage.all(line)}
        digests = {item.number: item.digest for item in recorded}
        for file, lost in lost_files(self.store, table.location, manifests, digests).items():
            numbers, what = lost.versions, "gone" if lost.is_gone else "damaged"
            if lost.is_other:
                text = f"The manifest of version {numbers[0]} of {table.id} is not the recorded one: bring that back"
                text = f"{text} from a copy, or restore another version."
                yield VersionProblem("other_manifest", table.id, f"{table.location}/{file}", text)
                continue
            of = f"Version {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} versions, the newest {numbers[-1]},"
            text = f"{of} of {table.id} names {file}, which is {what}: bring it back from a copy, or restore another."
            kind = "missing_file" if lost.is_gone else "damaged_file"
            yield VersionProblem(kind, table.id, f"{table.location}/{file}", text)

    def _unread_rows(self, table: Table) -> Iterator[VersionProblem]:
        """Yield a write-ahead log of Lance's (MemWAL) beside a table: acknowledged rows that no version has yet.

        A table fed by its change log never gets them.
        """
        folder = f"{table.location}/{MEM_WAL}"
        if not self.store.children(folder).folders:
            return
        records = self.versions.records
        fed = records is not None and records.kept_columns(table.id) is not None
        text = f"{unread_rows(str(table.id))}{FED_UNREAD if fed else ''}"
        yield VersionProblem("unread_rows", table.id, folder, text, note=not fed)

    def _unfinished_drops(self) -> Iterator[VersionProblem]:
        for name in self.store.children(TRASH).folders:
            yield unfinished_drop(f"{TRASH}/{name}")

    def _unreferenced_folders(self, used: set[str]) -> Iterator[VersionProblem]:
        """Yield folders of the root with versions in them that no table of the catalog is at."""
        listed = {item.location for item in self._listed()}
        for folder in self.store.children("").folders:
            if is_reserved(folder) or folder in used | listed or any(one.startswith(f"{folder}/") for one in used):
                continue
            status = folder_status(self.store, folder)
            if status.versions and not status.deregistered and any(True for _ in self.store.list(folder)):
                # Some S3 servers (SeaweedFS) list a folder for a while after its last object was deleted.
                names = (entry.key.rsplit("/", 1)[-1] for entry in self.store.children(f"{folder}/{VERSIONS}").entries)
                if any(manifest_version(name) for name in names):
                    text = f"No table is at {folder}: it was deregistered, or a creation was interrupted."
                    yield VersionProblem("unreferenced_folder", None, folder, text)
                else:
                    text = f"No table is at {folder}, and none of its versions is finished: its creation was rolled "
                    text += "back, was interrupted or goes on, or the table was deregistered."
                    yield VersionProblem("unfinished_creation", None, folder, text, note=True)

    def _listed(self) -> Sequence[Table]:
        found = self.versions.registry.descendants(ObjectId())
        return [item for item in found if isinstance(item, Table)]


def unfinished_drop(folder: str) -> VersionProblem:
    text = "A dropped table's folder was not wholly deleted: collect() or empty_trash() deletes it."
    return VersionProblem("unfinished_drop", None, folder, text, note=True)


def keep_policy(versions: int | None, days: float | None, grace_seconds: float) -> KeepPolicy:
    """A policy that keeps something on purpose; one that says nothing would be taken to mean anything."""
    if versions is None and days is None:
        raise InvalidInputError("Say which versions to keep: a number of versions, or a number of days, or both.")
    policy = KeepPolicy(versions, days, grace_seconds)
    check_policy(policy)
    return policy
