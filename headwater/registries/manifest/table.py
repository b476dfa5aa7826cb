"""The `__manifest` table on storage: load it, follow what others commit, commit at exactly the version read.

Fragments are kept like a binary counter: a commit writes its rows together with those of every fragment
not much larger than what it writes, so a table of n rows has about log n fragments, each commit rewrites
about log n rows, and a reader that is one commit behind reads one small file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import lance
from lance.fragment import FragmentMetadata, LanceFragment

from headwater.clock import Clock
from headwater.errors import CommitStateUnknownError, CorruptFileError, InternalError, LanceNamespaceError
from headwater.registries.layout import MANIFEST
from headwater.registries.manifest.rows import SCHEMA, Codec, Row
from headwater.registries.manifest.settings import MANAGED, Settings, parse_settings
from headwater.registries.manifest.threads import on_own_thread
from headwater.registries.slot import commit_exactly, data_keys
from headwater.store import Store, probe

FILE_FORMAT = "2.2"
KEPT_VERSIONS = 64
REWRITE_ROWS = 1024
"""A fragment of at most so many rows is written anew without its dead rows; a larger one gets a deletion file."""


@dataclass(frozen=True)
class Fragment:
    """One fragment: what identifies its content, and its live rows by object id."""

    signature: tuple[Any, ...]
    rows: Mapping[str, Row]


@dataclass(frozen=True)
class Snapshot:
    """The table at one version, wholly in memory."""

    dataset: lance.LanceDataset
    codec: Codec
    fragments: Mapping[int, Fragment]
    settings: Settings

    @property
    def version(self) -> int:
        return int(self.dataset.version)


@dataclass(frozen=True)
class Difference:
    """What changed between two snapshots. A row that was rewritten elsewhere unchanged is in neither."""

    removed: frozenset[str] = frozenset()
    added: Mapping[str, Row] = field(default_factory=dict)


class ManifestTable:
    """The Lance table that holds a V2 catalog's names."""

    def __init__(self, store: Store, uri: str, storage_options: dict[str, str], clock: Clock) -> None:
        self.store = store
        self.uri = uri
        self.storage_options = storage_options
        self.clock = clock

    @on_own_thread
    def create(self) -> None:
        """Make the empty table, on a store that has shown it can exclude a second writer."""
        probe(self.store, self.clock)
        try:
            lance.write_dataset(
                SCHEMA.empty_table(),
                self.uri,
                mode="create",
                data_storage_version=FILE_FORMAT,
                storage_options=self.storage_options or None,
            )
        except (OSError, ValueError) as error:
            if "already exists" not in str(error) and "onflict" not in str(error):
                raise _not_written(error) from None

    @on_own_thread
    def manage_versions(self, base: Snapshot) -> None:
        """Say in the table's metadata that the catalog manages table versions. Doing it twice changes nothing."""
        base.settings.check_writable()
        try:
            dataset = self._newest(base)
            parse_settings(dataset.metadata).check_writable()
            dataset.update_metadata(MANAGED)
        except (OSError, ValueError, RuntimeError) as error:
            raise _damaged(error) from None

    @on_own_thread
    def load(self, before: Snapshot | None) -> tuple[Snapshot, Difference]:
        """The newest state, and how it differs from an earlier one. Fragments known from it are not read again."""
        try:
            dataset = self._newest(before)
            settings = parse_settings(dataset.metadata)
            settings.check_readable()
            codec = Codec(dataset.schema)
            known = before.fragments if before and before.codec.schema == codec.schema else {}
            fragments = {
                item.fragment_id: _read(item, known.get(item.fragment_id), codec) for item in dataset.get_fragments()
            }
        except (OSError, ValueError, RuntimeError) as error:
            raise _damaged(error) from None
        snapshot = Snapshot(dataset, codec, fragments, settings)
        return snapshot, _difference(before.fragments if before else {}, fragments)

    @on_own_thread
    def commit(self, base: Snapshot, removed: Iterable[str], added: Sequence[Row], note: Mapping[str, str]) -> Snapshot:
        """Take rows away and add others, exactly on top of `base`, or ConcurrentModification (14).

        The note is kept with the commit, for `find_note`.
        """
        base.settings.check_writable()
        gone = frozenset(removed)
        plan = _plan(base.fragments, gone, len(added))
        rows = [*added, *(row for id in plan.merged for key, row in base.fragments[id].rows.items() if key not in gone)]
        try:
            new = [self._write(base, rows)] if rows else []
            updated, emptied = self._delete(base, {id: gone & base.fragments[id].rows.keys() for id in plan.punctured})
        except (OSError, ValueError, RuntimeError) as error:
            raise _not_written(error) from None
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=[*plan.merged, *emptied], updated_fragments=updated, new_fragments=new
        )
        keys = [*data_keys(MANIFEST, new), *_deletion_keys(updated)]
        transaction = lance.Transaction(base.version, operation, transaction_properties=dict(note))
        try:
            dataset = commit_exactly(
                self.store, MANIFEST, base.dataset, transaction, keys, self.storage_options or None
            )
        except CommitStateUnknownError:
            raise  # It may have landed, and then these files are the catalog.
        except LanceNamespaceError:
            for key in keys:
                self.store.delete(key)
            raise
        return self._after(base, dataset, gone, rows)

    @on_own_thread
    def find_note(self, snapshot: Snapshot, key: str) -> str | None:
        """What a recent commit noted under the key; None if none did."""
        for version in range(snapshot.version, max(snapshot.version - KEPT_VERSIONS, 0), -1):
            try:
                transaction = snapshot.dataset.read_transaction(version)
            except (OSError, ValueError, RuntimeError):
                return None
            properties = (transaction.transaction_properties if transaction else None) or {}
            if key in properties:
                return str(properties[key])
        return None

    @on_own_thread
    def clean_up(self, snapshot: Snapshot) -> None:
        """Forget old versions, so that the table's size follows the catalog's and not its history."""
        try:
            snapshot.dataset.cleanup_old_versions(older_than=timedelta(0), retain_versions=KEPT_VERSIONS)
        except (OSError, ValueError, RuntimeError):
            return  # Another writer may be cleaning up as well; the next one of us finishes it.

    def _newest(self, before: Snapshot | None) -> lance.LanceDataset:
        if before is not None:
            latest = before.dataset.latest_version
            if latest >= before.version:
                return before.dataset.checkout_version(latest)
        return lance.dataset(self.uri, storage_options=self.storage_options or None)

    def _write(self, base: Snapshot, rows: Sequence[Row]) -> FragmentMetadata:
        return LanceFragment.create(
            self.uri,
            base.codec.to_arrow(rows),
            data_storage_version=base.dataset.data_storage_version,
            storage_options=self.storage_options or None,
        )

    def _delete(self, base: Snapshot, dead: Mapping[int, Iterable[str]]) -> tuple[list[FragmentMetadata], list[int]]:
        updated: list[FragmentMetadata] = []
        emptied: list[int] = []
        for id, keys in dead.items():
            listed = ", ".join("'" + key.replace("'", "''") + "'" for key in sorted(keys))
            metadata = base.dataset.get_fragment(id).delete(f"object_id IN ({listed})")
            if metadata is None:
                emptied.append(id)
            else:
                updated.append(metadata)
        return updated, emptied

    def _after(
        self, base: Snapshot, dataset: lance.LanceDataset, gone: frozenset[str], rows: Sequence[Row]
    ) -> Snapshot:
        """The snapshot of our own commit, from memory."""
        written = {base.codec.object_id(row): row for row in rows}
        fragments: dict[int, Fragment] = {}
        for item in dataset.get_fragments():
            signature = _signature(item.metadata)
            known = base.fragments.get(item.fragment_id)
            if known is None:
                fragments[item.fragment_id] = Fragment(signature, written)
            elif known.signature == signature:
                fragments[item.fragment_id] = known
            else:
                alive = {key: row for key, row in known.rows.items() if key not in gone}
                fragments[item.fragment_id] = Fragment(signature, alive)
        return Snapshot(dataset, base.codec, fragments, base.settings)


@dataclass(frozen=True)
class _Plan:
    merged: tuple[int, ...]
    punctured: tuple[int, ...]


def _plan(fragments: Mapping[int, Fragment], gone: frozenset[str], new_rows: int) -> _Plan:
    """Which fragments a commit writes anew, and which large ones only get a deletion file. Pure."""
    touched = {id for id, item in fragments.items() if gone and not gone.isdisjoint(item.rows)}
    merged = {id for id in touched if len(fragments[id].rows) <= REWRITE_ROWS}
    total = new_rows + sum(len(fragments[id].rows) for id in merged)
    for id, item in sorted(fragments.items(), key=lambda pair: len(pair[1].rows)):
        if id not in touched and len(item.rows) <= 2 * total:
            merged.add(id)
            total += len(item.rows)
    return _Plan(tuple(sorted(merged)), tuple(sorted(touched - merged)))


def _difference(before: Mapping[int, Fragment], after: Mapping[int, Fragment]) -> Difference:
    fresh = [item for id, item in after.items() if before.get(id) is not item]
    stale = [item for id, item in before.items() if after.get(id) is not item]
    added = {key: row for item in fresh for key, row in item.rows.items()}
    removed = frozenset(key for item in stale for key in item.rows if key not in added)
    return Difference(removed, added)


def _read(item: LanceFragment, known: Fragment | None, codec: Codec) -> Fragment:
    signature = _signature(item.metadata)
    if known is not None and known.signature == signature:
        return known
    rows = codec.from_arrow(item.to_table())
    return Fragment(signature, {codec.object_id(row): row for row in rows})


def _signature(metadata: FragmentMetadata) -> tuple[Any, ...]:
    deletion = metadata.deletion_file
    dead = None if deletion is None else (deletion.id, deletion.read_version, deletion.num_deleted_rows)
    return (*(file.path for file in metadata.files), dead)


def _deletion_keys(updated: Sequence[FragmentMetadata]) -> list[str]:
    return [f"{MANIFEST}/{item.deletion_file.path(item.id)}" for item in updated if item.deletion_file]


def _damaged(error: BaseException) -> CorruptFileError:
    return CorruptFileError(MANIFEST, f"it cannot be read as a Lance table ({_reason(error)})")


def _not_written(error: BaseException) -> InternalError:
    return InternalError(f"The storage failed at {MANIFEST!r}, and nothing was committed: {_reason(error)}.")


def _reason(error: BaseException) -> str:
    lines = str(error).splitlines() or ["no reason given"]
    return lines[0].split(", /")[0][:200]
