"""The version operations, for tables whose versions the catalog keeps and for those whose storage does.

    TableVersions ──> ManagedVersions  records in __manifest, manifests finalized on sight
                  └─> StorageVersions  manifests in _versions/

A branch is always kept by the storage: the documents give the records of a catalog no place for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.clock import Clock
from headwater.errors import (
    InvalidInputError,
    LanceNamespaceError,
    TableVersionNotFoundError,
    UnsupportedOperationError,
)
from headwater.lance_manifest import change_made, committed_ms, manifest_digest, needs_before, read_contents
from headwater.model import Change, Table, Version
from headwater.names import ObjectId, format_name
from headwater.namespace.plans import plan_forget_versions, same_table, taken
from headwater.namespace.versions.managed import ManagedVersions, StagedVersion
from headwater.namespace.versions.ranges import VersionRange, choose_deleted
from headwater.namespace.versions.schemas import SchemaCache
from headwater.namespace.versions.stored_versions import (
    SCHEMES,
    StorageVersions,
    VersionLine,
    check_inside,
    check_manifest,
    check_scheme,
    is_staged,
    same_etag,
    staged_version,
)
from headwater.namespace.versions.writer_queue import WriterTurns
from headwater.paging import after, check_limit, token_after
from headwater.registries.folders import require_place, table_uri
from headwater.registry import Registry, VersionRecords
from headwater.retry import ATTEMPTS, retry
from headwater.store import Store
from headwater.table_refs import MAIN, Ref, check_branch, held_versions, read_refs, snapshot_refs
from headwater.tables.layout import DATA

if TYPE_CHECKING:
    from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

MAX_VERSION = 2**63 - 1


@dataclass(frozen=True)
class NewVersion:
    """A version to create, as an untrusted request describes it."""

    version: int
    manifest_path: str
    manifest_size: int | None = None
    e_tag: str | None = None
    naming_scheme: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FoundVersion:
    """A version, and the line of versions it is on."""

    line: VersionLine
    version: Version


class TableVersions:
    """The version operations of one catalog. `records` is None where no catalog could keep any (V1). `like` are those
    of the same catalog in another's name: they take turns with each other, and know what either knows."""

    def __init__(
        self,
        registry: Registry,
        records: VersionRecords | None,
        store: Store,
        root_uri: str,
        clock: Clock,
        refs: Callable[[Table], Iterable[Ref]] | None = None,
        like: TableVersions | None = None,
    ) -> None:
        self.registry = registry
        self.store = store
        self.root_uri = root_uri
        self.clock = clock
        self._refs = refs or (lambda table: read_refs(store, table.location))
        self.storage = StorageVersions(store)
        self.schemas: SchemaCache = SchemaCache() if like is None else like.schemas
        self.turns: WriterTurns = WriterTurns(store, clock) if like is None else like.turns
        self.records = records
        known: ManagedVersions | None = None if like is None else like.managed
        self.managed: ManagedVersions | None = ManagedVersions(records, store, known) if records is not None else None

    @property
    def manages_new(self) -> bool:
        """True if the catalog keeps the versions of a table that was just recorded."""
        return self.records is not None and self.records.manages_new

    def line(self, table: Table, branch: str | None = None) -> VersionLine:
        require_place(table)
        return VersionLine(table, self.root_uri, None if branch in (None, "", MAIN) else check_branch(branch))

    @property
    def in_transaction(self) -> bool:
        """True if versions are collected in an open transaction, where nobody else sees them."""
        return self.records is not None and self.records.transaction_id is not None

    def keeper(self, line: VersionLine) -> ManagedVersions | StorageVersions:
        """Return the keeper of a line's versions: the catalog or the storage."""
        if self.managed is not None and line.branch is None and line.table.known.managed:
            return self.managed
        return self.storage

    def describe(self, table: Table, version: int | None, branch: str | None) -> FoundVersion:
        """DescribeTableVersion: error 11. No version means the newest."""
        line = self.line(table, branch)
        keeper = self.keeper(line)
        number = keeper.newest(line) if version is None else _check_number(version)
        found = keeper.find(line, number) if 0 < number <= MAX_VERSION else None
        if found is None:
            what = "versions" if version is None else f"version {number}"
            raise TableVersionNotFoundError(f"Table {table.id} has no {what}{_on(branch)}.")
        return FoundVersion(line, found)

    def schema(self, table: Table) -> JsonArrowSchema | None:
        """Return the schema of the newest version, if the catalog records it: from memory, or from its manifest.

        None in a transaction, where the look-up would be a dependency, and for a manifest that cannot be understood.
        """
        digest = table.known.digest
        if digest is None:
            return None
        return self.schemas.find(digest) or self._read_schema(table, digest)

    def lacks_schema(self, table: Table) -> bool:
        """Return True if `schema` would read a manifest."""
        return table.known.digest is not None and self.schemas.find(table.known.digest) is None

    def _read_schema(self, table: Table, digest: str) -> JsonArrowSchema | None:
        """Read the manifest, which is under its staged or its final name."""
        line, id = self.line(table), table.id.child(str(table.known.newest))
        found = self.records.find([id]).get(id) if self.records is not None else None
        if not isinstance(found, Version):
            return None
        paths = (found.manifest_path, line.manifest(found.number, found.naming_scheme))
        for data in self.store.get_all([line.key(path) for path in dict.fromkeys(paths)]):
            if data is not None and manifest_digest(data) == digest:
                return self.schemas.learn(digest, data)
        return None

    def begin_append(self, table: Table, branch: str | None) -> None:
        """A client has asked for the newest version alone, which is how its append begins.

        It gets its turn, and what was written behind the catalog's back is out of its way before it looks at the
        storage: there is no later call in which that could be done (docs/design/004-table-versions.md).
        """
        line = self.line(table, branch)
        keeper = self.keeper(line)
        if isinstance(keeper, ManagedVersions) and keeper.records.is_newest:
            self.turns.expect(table.location, lambda: keeper.newest(line))
            if not self._adopt(keeper, line):
                keeper.set_aside(line)

    def _adopt(self, keeper: ManagedVersions, line: VersionLine) -> bool:
        """Record version 1 of a declared table that a client wrote past the catalog; True if that was done.

        lance-spark's CREATE TABLE without AS does so: it declares the table and writes the empty version by itself.
        A version with rows, or of a stream table, is never taken in.
        """
        if line.table.known.newest or keeper.newest(line) or keeper.records.kept_columns(line.table.id) is not None:
            return False
        for scheme in SCHEMES:
            final = line.manifest(1, scheme)
            (data,) = self.store.get_all([line.key(final)])
            if data is None:
                continue
            staged = f"{final}-{self.clock.uuid()}"
            try:
                if any(name.startswith(f"{DATA}/") for name in read_contents(data).files):
                    return False
                self.registry.check_writable()
                self.store.put(line.key(staged), data)
                self.create(line.table, NewVersion(1, line.object_path(staged), naming_scheme=scheme), None)
            except (LanceNamespaceError, ValueError):
                return False  # No manifest, no permission to write, or another version 1 was faster.
            return True
        return False

    def page(
        self, table: Table, branch: str | None, token: str | None, limit: int | None, descending: bool
    ) -> tuple[list[FoundVersion], str | None]:
        """ListTableVersions: the newest first, a page at a time. Waits for nobody, and moves nothing."""
        line, count = self.line(table, branch), check_limit(limit)
        keeper = self.keeper(line)
        more = None if count is None else count + 1
        found = [FoundVersion(line, item) for item in keeper.page(line, _parse_token(token), more, descending)]
        if count is None or len(found) <= count:
            return found, None
        return found[:count], token_after(str(found[count - 1].version.number))

    def create(self, table: Table, asked: NewVersion, branch: str | None) -> FoundVersion:
        """CreateTableVersion: put if not exists. Errors 13 (the manifest), 14 (the version exists)."""
        self.registry.check_writable()
        _check_new(asked.version)
        line = self.line(table, branch)
        keeper = self.keeper(line)
        newest = keeper.newest(line) if isinstance(keeper, ManagedVersions) else MAX_VERSION
        repeated = self._repeated(line, keeper, asked) if asked.version <= newest else None
        if repeated is not None:
            return FoundVersion(line, repeated)
        staged = self._read(line, asked)
        if isinstance(keeper, ManagedVersions):
            if asked.version > newest + 1:
                keeper.set_aside(line)
            with self.turns.creating(table.location), keeper.keeping(staged, self.clock):
                self._record(keeper, staged, newest)
                return FoundVersion(line, keeper.finish([staged])[0])
        return FoundVersion(line, self._put(keeper, staged))

    def check_create(self, table: Table, asked: NewVersion, newest: int | None) -> int:
        """Raise the error (13, 14) with which `create` would refuse the version after `newest`, by default the newest
        stored.
        """
        _check_new(asked.version)
        line = self.line(table)
        keeper = self.keeper(line)
        if newest is None and self._repeated(line, keeper, asked) is not None:
            return asked.version
        self._read(line, asked)
        before = keeper.newest(line) if newest is None else newest
        if before and asked.version != before + 1:
            raise taken(line.table.id, asked.version, before)
        return asked.version

    def check_delete(self, table: Table, ranges: Sequence[VersionRange]) -> None:
        """Return True if `delete` would refuse these versions: error 13."""
        line = self.line(table)
        numbers = [item.number for item in self.storage.all(line)]
        choose_deleted(numbers, ranges, True, table.id, self.held(line))

    def read_all(self, asked: Sequence[tuple[Table, NewVersion]]) -> list[StagedVersion]:
        """Return the staged manifests of a batch, each checked before anything is committed."""
        return [self._read(self.line(table), item) for table, item in asked]

    def delete(self, table: Table, ranges: Sequence[VersionRange], branch: str | None, ignore_missing: bool) -> int:
        """BatchDeleteTableVersions: the records first, then the manifests; never data files. Errors 11, 13, 14."""
        self.registry.check_writable()
        line = self.line(table, branch)
        if isinstance(self.keeper(line), ManagedVersions):
            gone = self.forget(table.id, lambda: self.records_of(line, ranges, ignore_missing))
            self.delete_manifests(line, gone)
            return len(gone)
        numbers = [item.number for item in self.storage.all(line)]
        chosen = choose_deleted(numbers, ranges, ignore_missing, table.id, self.held(line))
        self.storage.delete(line, chosen)
        return len(chosen)

    def records_of(
        self, line: VersionLine, ranges: Sequence[VersionRange], ignore_missing: bool = True
    ) -> list[Version]:
        """Return the records of a managed table that a request to delete means."""
        assert self.records is not None
        numbers = self.records.versions(line.table.id)
        chosen = choose_deleted(numbers, ranges, ignore_missing, line.table.id, self.held(line))
        found = self.records.find(line.table.id.child(str(number)) for number in chosen)
        return [item for item in found.values() if isinstance(item, Version)]

    def held(self, line: VersionLine) -> Mapping[int, Ref]:
        """Return the versions of a line that a tag, a stream's tag, a branch or a named snapshot stands on."""
        pinned = self.registry.capabilities.pinned
        pins = snapshot_refs(pinned(line.table.location)) if pinned is not None else ()
        return held_versions((*pins, *self._refs(line.table)), line.branch)

    def forget(self, table: ObjectId, look: Callable[[], list[Version]]) -> list[Version]:
        """Take away the records that are found, all in one commit; those that went.

        What stands on versions is looked at with them: where tags and branches are recorded, they must still be so.
        """

        def gather() -> tuple[list[Change], list[Version]]:
            conditions = self.registry.require_refs(table)
            return conditions, look()

        def commit(found: tuple[list[Change], list[Version]]) -> list[Version]:
            conditions, versions = found
            if versions:
                assert self.records is not None
                self.records.commit([*conditions, *plan_forget_versions(versions)])
            return versions

        return retry(self.clock, ATTEMPTS, gather, commit)

    def delete_manifests(self, line: VersionLine, versions: Sequence[Version]) -> None:
        """The manifests of versions whose records are gone; in a transaction, once it is committed."""
        numbers = [item.number for item in versions]
        staged = [item.manifest_path for item in versions if is_staged(item.manifest_path)]
        if self.records is not None and self.records.keep_manifests(line.table.id, numbers, staged):
            return
        self._delete(line, numbers, staged)

    def _delete(self, line: VersionLine, numbers: Sequence[int], staged: Iterable[str]) -> None:
        """Delete versions. Where a record holds both names, staged manifests wait for the next commit."""
        keys = [line.key(path) for path in staged]
        if self.records is not None and not self.records.replaces_records and numbers:
            names = {entry.key: entry.key.rsplit("/", 1)[-1] for entry in self.store.children(line.folder).entries}
            keys += [key for key, name in names.items() if staged_version(name) in numbers]
        self.storage.delete(line, numbers)
        for key in dict.fromkeys(keys):
            self.store.delete(key)

    def tidy(self, table: Table, numbers: Sequence[int], staged: Sequence[str]) -> None:
        """Delete the manifests of versions that a transaction forgot, but of none whose number is used again."""
        line = self.line(table)
        used = set(self.records.versions(table.id)) if self.records is not None else set()
        self._delete(line, [number for number in numbers if number not in used], staged)

    def _repeated(
        self, line: VersionLine, keeper: ManagedVersions | StorageVersions, asked: NewVersion
    ) -> Version | None:
        """Return the version, if it exists and is the very one asked for: a client that lost an answer asks again."""
        number = asked.version
        found = keeper.find(line, number)
        if found is None:
            return None
        if not self._is_same(line, found, asked):
            raise taken(line.table.id, number, max(keeper.newest(line), number))
        return found

    def _is_same(self, line: VersionLine, found: Version, asked: NewVersion) -> bool:
        """Return True if the manifest of `found` is the one that was staged for `asked`.

        The bytes decide. Once the staged manifest is gone, size and e_tag do, if both sides have both: two appends to
        one version have manifests of one size, so what is absent cannot make another's version one's own.
        """
        path = line.parse(asked.manifest_path, asked.version, check_scheme(asked.naming_scheme))
        ours, theirs = self.store.get_all([line.key(path), line.key(found.manifest_path)])
        if ours is not None and is_staged(path):
            return ours == theirs
        return same_etag(found.e_tag, asked.e_tag) and found.manifest_size == asked.manifest_size

    def _read(self, line: VersionLine, asked: NewVersion) -> StagedVersion:
        """Return the staged manifest after its path, size, e_tag and content are checked. Raises InvalidInput (13)."""
        scheme = check_scheme(asked.naming_scheme)
        path = line.parse(asked.manifest_path, _check_number(asked.version), scheme)
        entry = self.store.head(line.key(path))
        if entry is None:
            raise InvalidInputError(f"manifest_path {asked.manifest_path[:200]!r} cannot be used: no file is there.")
        check_inside(self.store, line, path, asked.manifest_path)
        if asked.manifest_size is not None and asked.manifest_size != entry.size:
            raise InvalidInputError(f"The manifest has {entry.size} bytes, not {asked.manifest_size}.")
        if asked.e_tag and entry.etag and not same_etag(asked.e_tag, entry.etag):
            raise InvalidInputError("The manifest is not the one with that e_tag: it was written again since.")
        data = self.store.get(line.key(path))
        check_manifest(data, asked.manifest_path, table_uri(self.root_uri, line.table.location))
        id = line.table.id.child(str(asked.version))
        time = committed_ms(data) or self.clock.now_ms()
        before = self._before(line, asked.version, scheme) if needs_before(data) else None
        words = change_made(data, format_name(line.table.id.names), before)
        found = (len(data), entry.etag, scheme, time, dict(asked.metadata), manifest_digest(data), *words)
        version = Version(id, path, *found)
        if version.digest is not None:
            self.schemas.learn(version.digest, data)
        staged = StagedVersion(line, version, data)
        return self.managed.hidden(staged) if self.managed is not None and line.branch is None else staged

    def _before(self, line: VersionLine, number: int, scheme: str) -> bytes | None:
        """Return the manifest of the version before, or None if it has no final name yet: only words depend on it."""
        return self.store.get_all([line.key(line.manifest(number - 1, scheme))])[0] if number > 1 else None

    def _record(self, keeper: ManagedVersions, staged: StagedVersion, newest: int) -> None:
        """Facts, plan, commit. A conflict that is not about this version is looked into again.

        The commit requires the table and the newest version that it was planned for, so what the caller has just seen
        is enough to begin with where the version follows it."""
        table = staged.line.table
        keeper.secure(staged)
        follows = iter([newest] if newest and staged.version.number == newest + 1 else [])

        def look() -> list[Change]:
            if (before := next(follows, None)) is not None:
                return keeper.plan(staged, before)
            found = same_table(keeper.records.find([table.id], newest=True), table)
            return keeper.plan(staged, found.known.newest)

        retry(self.clock, ATTEMPTS, look, keeper.records.commit)

    def _put(self, keeper: StorageVersions, staged: StagedVersion) -> Version:
        """Not managed: copy to the final name if nothing is there, then delete the staged manifest."""
        line, version = staged.line, staged.version
        if not is_staged(version.manifest_path):
            raise taken(line.table.id, version.number, version.number)
        if version.number > 1 and not keeper.look(line, version.number - 1) and (newest := keeper.newest(line)):
            raise taken(line.table.id, version.number, newest)
        if not keeper.create(line, version, staged.data):
            raise taken(line.table.id, version.number, version.number)
        self.store.delete(line.key(version.manifest_path))
        return keeper.find(line, version.number) or version


def require_managed(versions: TableVersions) -> ManagedVersions:
    """Return the catalog's version records, or raise Unsupported (0) for a catalog without a manifest."""
    if versions.managed is None:
        raise UnsupportedOperationError(
            "A directory catalog without a manifest cannot manage table versions: set manifest_enabled=true."
        )
    return versions.managed


def _check_number(version: int) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= MAX_VERSION:
        raise InvalidInputError(f"version must be a whole number, at least 1, not {str(version)[:40]!r}.")
    return version


def _check_new(version: int) -> None:
    if _check_number(version) < 1:
        raise InvalidInputError("Versions are counted from 1.")


def _parse_token(token: str | None) -> int | None:
    if not token:
        return None
    text = after(token)
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidInputError("page_token is not one this catalog gave out: start again without a page_token.")
    return int(text)


def _on(branch: str | None) -> str:
    return f" on branch {branch!r}" if branch else ""
