"""The `__manifest` table on storage: loads it, follows commits of others, commits right after the version read.

A commit is one data file and one manifest, which is created if absent. A plain table (`Manifest.is_plain`) is
committed to by writing the manifest here; any other by pylance, through `commit_exactly`, which ends in the same step.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from headwater.clock import Clock
from headwater.errors import ConcurrentModificationError, CorruptFileError, InternalError
from headwater.imports import lance
from headwater.metastore.commit.root_kinds import MANIFEST
from headwater.names import ObjectId
from headwater.registries.manifest.format import FragmentFile, Manifest, freshness_of, parse_manifest
from headwater.registries.manifest.rows import SCHEMA, Codec, Row
from headwater.registries.manifest.state import (
    MANAGED,
    ManifestFragment,
    ManifestSnapshot,
    Rewrite,
    RowDifference,
    after_commit,
    difference,
    follow,
    join,
    note_changes,
    parse_settings,
    plan_commit,
)
from headwater.retry import ATTEMPTS, retry
from headwater.store import KeyNotFoundError, Store, create, probe, write_with
from headwater.tables.commit.exact import OneCommit, claiming, commit_exactly, data_keys
from headwater.tables.expressions import quoted
from headwater.tables.handle import TableHandle, fragment_of
from headwater.tables.layout import VERSIONS, has_version, manifest_name
from headwater.tables.translate import first_line, is_panic, kind_of, message_of

if TYPE_CHECKING:
    from lance.file import LanceFileSession
    from lance.fragment import FragmentMetadata

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")
SIDE_BY_SIDE = 16


def on_own_thread(work: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Return the function wrapped to run on a thread that Python started; panics of pylance become RuntimeError.

    A client's commit calls the catalog back on a thread of pylance's runtime. pylance's functions, called from there,
    can return without the interpreter's lock and crash the process (pylance 14.0.2, `LanceFragment.to_table`).
    """

    @wraps(work)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        try:
            if isinstance(threading.current_thread(), threading._DummyThread):
                return _pool().submit(work, *args, **kwargs).result()
            return work(*args, **kwargs)
        except BaseException as error:
            if is_panic(error):
                raise RuntimeError(message_of(error)) from None
            raise

    return run


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=SIDE_BY_SIDE, thread_name_prefix="headwater-manifest")


FILE_FORMAT = "2.2"
KEPT_VERSIONS = 64
FOLLOWED_VERSIONS = 16
"""A reader that is further behind than this loads the whole table."""


class ManifestTable:
    """The `__manifest` table of one root."""

    def __init__(self, store: Store, uri: str, storage_options: dict[str, str], clock: Clock, passes: int = 0) -> None:
        self.store = store
        self.uri = uri
        self.storage_options = storage_options
        self.clock = clock
        self._handle = TableHandle(ObjectId((MANIFEST,)), uri, storage_options)
        self.passes = passes
        """Writer flags that keep others out, and not the one that sets them."""
        self._layouts: dict[bytes, FragmentFile] = {}
        self._session: tuple[str, LanceFileSession] | None = None

    @on_own_thread
    def create(self) -> None:
        """Create the empty table, after `probe` of the store.

        It becomes version 1, or the call raises a conflict: another writer may be creating it, with its own columns.
        """
        probe(self.store, self.clock)
        try:
            empty = lance.fragment.write_fragments(
                SCHEMA.empty_table(),
                self.uri,
                schema=SCHEMA,
                mode="create",
                return_transaction=True,
                data_storage_version=FILE_FORMAT,
                storage_options=self.storage_options or None,
            ).operation
            assert isinstance(empty, lance.LanceOperation.Overwrite)
            operation = lance.LanceOperation.Overwrite(empty.new_schema, empty.fragments)
        except (OSError, ValueError, RuntimeError) as error:
            if has_version(self.store, MANIFEST):
                return
            raise _not_written(error) from None
        with contextlib.suppress(ConcurrentModificationError):
            once = OneCommit(self._handle, 1, claiming(self.store, self._handle, MANIFEST, ()))
            transaction, exists = lance.Transaction(0, operation), lambda: has_version(self.store, MANIFEST)
            commit_exactly(once, self._handle, self.uri, transaction, exists, max_retries=0)

    def manage_versions(self) -> None:
        """Record in the table's metadata that the catalog manages table versions. Idempotent."""
        self.update_metadata(MANAGED)

    @on_own_thread
    def update_metadata(self, changes: Mapping[str, str | None]) -> None:
        """Set keys of the table's metadata, and remove those that are None. Concurrent calls merge."""
        retry(self.clock, ATTEMPTS, self._open, lambda dataset: _set(dataset, changes))

    def _open(self) -> lance.LanceDataset:
        """Open the newest version, if this catalog may write it."""
        try:
            dataset = lance.dataset(self.uri, storage_options=self.storage_options or None)
            parse_settings(dataset.metadata).check_writable(self.passes)
        except (OSError, ValueError, RuntimeError) as error:
            raise _damaged(error) from None
        return dataset

    def load(self, newest: tuple[int, str], before: ManifestSnapshot | None) -> tuple[ManifestSnapshot, RowDifference]:
        """Return the newest snapshot, and its difference from an earlier one.

        A few commits of Headwater are followed by their manifests alone. Otherwise unknown fragments are read.
        """
        try:
            followed = self._follow(newest[0], before) if before and before.scheme == newest[1] else None
            return followed or self._load(newest, before)
        except (OSError, ValueError, RuntimeError, KeyNotFoundError) as error:
            raise self._overtaken(newest[0]) or _damaged(error) from None

    def _overtaken(self, version: int) -> ConcurrentModificationError | None:
        """Return the error to raise for what failed at a version, if that is not the newest any more.

        Another kind of writer may have rewritten the table with columns of its own, or cleaned the version up.
        """
        newest = freshness_of(self.store).newest()
        if newest is not None and newest[0] == version:
            return None
        return ConcurrentModificationError(f"Another writer committed to {MANIFEST} first.")

    def _follow(self, newest: int, before: ManifestSnapshot) -> tuple[ManifestSnapshot, RowDifference] | None:
        if not before.version <= newest <= before.version + FOLLOWED_VERSIONS:
            return None
        snapshot, changed = before, RowDifference()
        while snapshot.version < newest:
            try:
                step = follow(snapshot, self._manifest(snapshot.version + 1, before.scheme))
            except KeyNotFoundError:
                return None
            if step is None:
                return None
            snapshot, changed = step[0], join(changed, step[1])
        snapshot.settings.check_readable(self.passes)
        return snapshot, changed

    @on_own_thread
    def _load(self, newest: tuple[int, str], before: ManifestSnapshot | None) -> tuple[ManifestSnapshot, RowDifference]:
        manifest = self._manifest(*newest)
        settings = parse_settings(manifest.metadata)
        settings.check_readable(self.passes)
        dataset = self._at(manifest.version)
        codec = Codec(dataset.schema)
        known = before.fragments if before and before.manifest.schema == manifest.schema else {}
        fragments: dict[int, ManifestFragment] = {}
        for id, signature in manifest.fragments.items():
            found = known.get(id)
            if found is None or found.signature != signature:
                rows = codec.from_arrow(fragment_of(dataset, id).to_table())
                found = ManifestFragment(signature, {codec.object_id(row): row for row in rows})
            fragments[id] = found
        snapshot = ManifestSnapshot(manifest, newest[1], codec, fragments, settings)
        return snapshot, difference(before.fragments if before else {}, fragments)

    @on_own_thread
    def commit(
        self, base: ManifestSnapshot, removed: Iterable[str], added: Sequence[Row], note: Mapping[str, str]
    ) -> ManifestSnapshot:
        """Remove rows and add others, as the version right after `base`; ConcurrentModification (14).

        The note is kept with the commit, for `find_note`.
        """
        base.settings.check_writable(self.passes)
        gone = frozenset(removed)
        plan = plan_commit(base.fragments, gone, len(added))
        rows = plan.rows(base, gone, added)
        properties = note_changes(base, note, gone, added)
        if base.manifest.is_plain and not plan.punctured:
            manifest = self._commit(base, plan, rows, properties)
        else:
            manifest = self._commit_through_pylance(base, plan, gone, rows, properties)
        return after_commit(base, manifest, gone, rows)

    def find_note(self, snapshot: ManifestSnapshot, key: str) -> str | None:
        """Return the note of a recent commit under the key; None if there is none."""
        for version in range(snapshot.version, max(snapshot.version - KEPT_VERSIONS, 0), -1):
            try:
                made = self._manifest(version, snapshot.scheme).transaction
            except (KeyNotFoundError, ValueError):
                return None
            if made is not None and key in made.properties:
                return made.properties[key]
        return None

    @on_own_thread
    def clean_up(self, snapshot: ManifestSnapshot) -> None:
        """Delete old versions, so that the table grows with the catalog and not with its history."""
        try:
            self._at(snapshot.version).cleanup_old_versions(older_than=timedelta(0), retain_versions=KEPT_VERSIONS)
        except (OSError, ValueError, RuntimeError):
            return  # Another writer may be cleaning up as well; the next one of us finishes it.

    def _commit(self, base: ManifestSnapshot, plan: Rewrite, rows: Sequence[Row], note: Mapping[str, str]) -> Manifest:
        try:
            file = self._write(base, rows) if rows else None
        except (OSError, ValueError, RuntimeError) as error:
            raise self._overtaken(base.version) or _not_written(error) from None
        manifest, data = base.manifest.successor(
            plan.merged, file, len(rows), note, str(uuid.UUID(self.clock.hex(32), version=4)), self.clock.now_ms()
        )
        if not create(self.store, _key(base.version + 1, base.scheme), data):
            # Only now it is sure that no manifest names the file. After any other failure one may, late, and it stays.
            if file is not None:
                self.store.delete(f"{MANIFEST}/data/{file.path}")
            raise ConcurrentModificationError(f"Another writer committed to {MANIFEST} first.")
        return manifest

    def _commit_through_pylance(
        self, base: ManifestSnapshot, plan: Rewrite, gone: frozenset[str], rows: Sequence[Row], note: Mapping[str, str]
    ) -> Manifest:
        try:
            dataset = self._at(base.version)
            new = [self._write_fragment(base, rows)] if rows else []
            updated, emptied = _delete(dataset, {id: gone & base.fragments[id].rows.keys() for id in plan.punctured})
        except (OSError, ValueError, RuntimeError) as error:
            raise self._overtaken(base.version) or _not_written(error) from None
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=[*plan.merged, *emptied], updated_fragments=updated, new_fragments=new
        )
        keys = [*data_keys(MANIFEST, new), *_deletion_keys(updated)]
        transaction = lance.Transaction(base.version, operation, transaction_properties=dict(note))
        try:
            take = claiming(self.store, self._handle, MANIFEST, keys)
            once = OneCommit(self._handle, base.version + 1, take)
            commit_exactly(once, self._handle, dataset, transaction, max_retries=0)
        except ConcurrentModificationError:
            for key in keys:
                self.store.delete(key)
            raise
        return self._manifest(base.version + 1, base.scheme)

    def _write(self, base: ManifestSnapshot, rows: Sequence[Row]) -> FragmentFile:
        """Write a durable data file. The file layout is learned from pylance, once for each schema."""
        layout = self._layouts.get(base.manifest.schema)
        if layout is None:
            file = self._write_fragment(base, rows).files[0]
            self.store.sync([f"{MANIFEST}/data/{file.path}"])
            layout = self._layouts[base.manifest.schema] = FragmentFile(
                file.path,
                tuple(file.fields),
                tuple(file.column_indices),
                file.file_major_version,
                file.file_minor_version,
                file.file_size_bytes or 0,
            )
            return layout
        path = f"{self.clock.hex(16)}.lance"
        size = 0

        def write(file: str) -> None:
            nonlocal size
            folder, _, name = file.rpartition("/")
            size = self._write_file(folder, name, base, rows)

        write_with(self.store, f"{MANIFEST}/data/{path}", write)
        return replace(layout, path=path, size=size)

    def _write_file(self, folder: str, name: str, base: ManifestSnapshot, rows: Sequence[Row]) -> int:
        """Write rows as a Lance file and return its size. The session caches the storage client."""
        if self._session is None or self._session[0] != folder:
            self._session = folder, lance.file.LanceFileSession(folder)
        writer = self._session[1].open_writer(name, schema=base.codec.schema, version=base.manifest.data_version)
        with writer:
            writer.write_batch(base.codec.to_arrow(rows))
        return writer.size_bytes or 0

    def _write_fragment(self, base: ManifestSnapshot, rows: Sequence[Row]) -> FragmentMetadata:
        return lance.fragment.LanceFragment.create(
            self.uri,
            base.codec.to_arrow(rows),
            data_storage_version=base.manifest.data_version,
            storage_options=self.storage_options or None,
        )

    def _manifest(self, version: int, scheme: str) -> Manifest:
        found = parse_manifest(self.store.get(_key(version, scheme)))
        if found.version != version:
            raise ValueError(f"the manifest of version {version} says that it is version {found.version}")
        return found

    def _at(self, version: int) -> lance.LanceDataset:
        """Open a version by pylance, without caches: the table may have been dropped and created again."""
        return lance.dataset(self.uri, version, storage_options=self.storage_options or None)


def _key(version: int, scheme: str) -> str:
    return f"{MANIFEST}/{VERSIONS}/{manifest_name(version, scheme)}"


def _delete(dataset: lance.LanceDataset, dead: Mapping[int, Iterable[str]]) -> tuple[list[FragmentMetadata], list[int]]:
    updated: list[FragmentMetadata] = []
    emptied: list[int] = []
    for id, keys in dead.items():
        listed = ", ".join(quoted(key) for key in sorted(keys))
        metadata = fragment_of(dataset, id).delete(f"object_id IN ({listed})")
        if metadata is None:
            emptied.append(id)
        else:
            updated.append(metadata)
    return updated, emptied


def _deletion_keys(updated: Sequence[FragmentMetadata]) -> list[str]:
    return [f"{MANIFEST}/{item.deletion_file.path(item.id)}" for item in updated if item.deletion_file]


def _set(dataset: lance.LanceDataset, changes: Mapping[str, str | None]) -> None:
    try:
        dataset.update_metadata(dict(changes))
    except (OSError, ValueError, RuntimeError) as error:
        if kind_of(error) is ConcurrentModificationError:
            raise ConcurrentModificationError(f"Another writer changed the metadata of {MANIFEST} first.") from None
        raise _damaged(error) from None


def _damaged(error: BaseException) -> CorruptFileError:
    return CorruptFileError(MANIFEST, f"it cannot be read as a Lance table ({first_line(error)})")


def _not_written(error: BaseException) -> InternalError:
    return InternalError(f"The storage failed at {MANIFEST!r}, and nothing was committed: {first_line(error)}.")
