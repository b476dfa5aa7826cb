"""Changed rows as the next staged version of a serving copy, and staged versions as deltas of its `lance` stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headwater.errors import InvalidInputError, TableNotFoundError
from headwater.imports import lance
from headwater.metastore import Reading, Transaction
from headwater.metastore.commit.draft import AppendedDelta
from headwater.metastore.records.ref_record import REFS_FORMAT, parse_record
from headwater.metastore.records.serving_copy import PUBLISHED
from headwater.streams.layout import LANCE, LINEAGE
from headwater.streams.reading.position_views import Computed, Published
from headwater.streams.rows.hashing import digest_of, hash_rows
from headwater.streams.rows.row_keys import Codes
from headwater.streams.serving.compaction import due, index_added, rewritten, rows_to_tidy
from headwater.streams.serving.copy_rows import Deletions, delete_rows, files_of, write_rows
from headwater.streams.serving.row_ids import KeptIds, created_versions, kept
from headwater.streams.serving.schema_evolution import is_widened
from headwater.streams.serving.serving_copy import (
    CatalogLocation,
    Lake,
    Staged,
    Staging,
    catalog_location,
    commit,
    manifest_of,
    on_top,
    open_staged,
    open_staging,
    place_of,
    version_record,
)
from headwater.streams.stream_lookup import Stream
from headwater.table_refs import BRANCH, TAG
from headwater.tables.commit.committer import fragment_from
from headwater.tables.indices import NewIndex, default_name, divided, segment_from_json, segment_of
from headwater.wording import many
from headwater.work import Runner, Task, named

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata


KEY_SEGMENTS = 8
"""A BTREE on a key is built in at most this many segments: a look-up reads a page of each."""


@dataclass(frozen=True)
class Changes:
    """Changes of a publish to the serving copy: rows to write with their row ids (-1: new), and rows to remove.

    `before` are the rows as they were, of those that keep their id, in the order of these; only a table with derived
    columns needs them. `addresses` of rows to take away begin with theirs, in that order too.
    """

    rows: pa.Table
    ids: Codes
    before: pa.Table
    addresses: Codes
    digest: int
    count: int


def head_of(snapshot: Reading, stream: Stream) -> tuple[int, str] | None:
    """Return the newest version of the serving copy, whoever made it, and its manifest."""
    newest = snapshot.newest_delta(stream.path, format=LANCE, version=stream.version)
    return (newest.position, manifest_of(stream, newest)) if newest is not None else None


def last_final_version(snapshot: Reading, stream: Stream, own: str = "") -> int:
    """Up to which version all manifests have their final names: the newest one was given its own when it was opened,
    unless it is of the open transaction."""
    newest = snapshot.newest_delta(stream.path, format=LANCE, version=stream.version)
    known = int(newest.properties.get("settled", 0)) if newest is not None else 0
    if newest is not None and newest.txn == own:
        return known
    return newest.position if newest is not None and known >= newest.position - 1 else known


@dataclass(frozen=True)
class NewFragments:
    """Fragments that belong to no version yet, and by their data files what rows keep that were there before."""

    metadata: list[FragmentMetadata]
    kept: Mapping[str, KeptIds]

    def to_json(self) -> dict[str, Any]:
        kept = {path: each.to_json() for path, each in self.kept.items()}
        return {"fragments": [each.to_json() for each in self.metadata], "kept": kept}

    @staticmethod
    def from_json(parts: Sequence[Mapping[str, Any]]) -> NewFragments:
        """Those of several parts, as they were told."""
        return NewFragments(
            [fragment_from(value) for part in parts for value in part.get("fragments", ())],
            {path: KeptIds.from_json(value) for part in parts for path, value in part.get("kept", {}).items()},
        )


def write_rows_of(lake: Lake, stream: Stream, dataset: Any, changes: Changes) -> NewFragments:
    """Return the changed rows as fragments: the new ones, then those that keep their ids, in the order of the ids.

    Ids in order take few bytes in the manifest, and rows that were created together stand together.
    """
    rows = pa.Table.from_arrays(changes.rows.columns, schema=stream.definition.published)
    if dataset is None:
        return NewFragments(write_rows(lake, stream, None, rows, None), {})
    new, old = np.flatnonzero(changes.ids < 0), np.flatnonzero(changes.ids >= 0)
    order = np.argsort(changes.ids[old], kind="stable")
    ids, addresses = changes.ids[old][order], changes.addresses[: len(old)][order]
    fragments = write_rows(lake, stream, dataset, rows if len(new) == len(changes.ids) else rows.take(new), None)
    replacing = write_rows(lake, stream, dataset, rows.take(old[order]), ids)
    return NewFragments(fragments + replacing, _kept(dataset, replacing, ids, addresses))


def _kept(dataset: Any, fragments: list[FragmentMetadata], ids: Codes, addresses: Codes) -> dict[str, KeptIds]:
    """Return the row ids and versions that fragments keep of the rows at these addresses; those unchanged are left to
    Lance.
    """
    if any(fragment.row_id_meta is not None for fragment in fragments):
        return {}
    metadata = {id: dataset.get_fragment(id).metadata for id in np.unique(addresses >> 32).tolist()}
    versions = created_versions(metadata, addresses)
    found: dict[str, KeptIds] = {}
    start = 0
    for fragment in fragments:
        end = start + fragment.physical_rows
        if versions is None:
            fragment.row_id_meta = lance.fragment.RowIdSequence(ids[start:end].tolist()).to_inline_metadata()
        else:
            found[fragment.files[0].path] = kept(ids[start:end], versions[start:end])
        start = end
    return found


def commit_rows(
    lake: Lake,
    stream: Stream,
    staging: Staging,
    dataset: Any,
    new: NewFragments,
    addresses: Codes,
    position: int,
    deletions: Deletions | None = None,
) -> Any:
    """Stage the version with these fragments and without the rows at these addresses; the version, see `commit`.

    `deletions`: what removes these rows, where tasks have written it.
    """
    properties = {"headwater.position": str(position)}
    fragments = new.metadata
    last = staging.staged[-1].version if staging.staged else 0
    if staging.staged and not fragments and not len(addresses) and not (deletions and deletions.rows):
        staging.unfinished = last - 1
        return dataset  # only the columns changed
    if dataset is None:
        schema = stream.definition.published
        staging.sync(list(files_of(stream, fragments)))
        return commit(lake, stream, staging, lance.LanceOperation.Overwrite(schema, fragments), None, properties)
    staging.rowless = staging.unfinished = last
    removed, changed = delete_rows(dataset, addresses) if deletions is None else deletions.applied(dataset)
    fragments = sorted(fragments, key=lambda each: each.files[0].path in new.kept)  # ids are given out in their order
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=removed, updated_fragments=changed, new_fragments=fragments
    )
    staging.sync(list(files_of(stream, [*changed, *fragments])))
    return commit(lake, stream, staging, operation, dataset, properties, new.kept)


def index_keys(lake: Lake, stream: Stream, staging: Staging, dataset: Any, rows: int, runner: Runner) -> None:
    """Make a BTREE on each key column, at the first publish with rows: here or by tasks, one segment of each."""
    if not rows:
        return
    known = {tuple(index.field_names) for index in dataset.describe_indices()}
    missing = [name for name in stream.definition.keys if (name,) not in known]
    if missing and staging.staged:
        dataset = open_staging(lake, stream, staging)
    for name in missing:
        with staging.indexing(dataset):
            if runner.in_driver(rows) or not staging.staged:
                dataset.create_scalar_index(name, "BTREE")
                continue
            index, at = NewIndex(name, "BTREE", default_name(name), {}), catalog_location(lake)
            parts = divided(dataset, min(runner.cores, KEY_SEGMENTS))
            one, staged = "headwater.streams.serving.staged_rows:index_segment", staging.staged[-1]
            found = runner.run([Task(one, (at, stream, staged, index, part)) for part in parts], f"index {name}")
            segments = [segment_from_json(each) for each in found]
            dataset.commit_existing_index_segments(index.name, name, segments)


def index_segment(
    location: CatalogLocation, stream: Stream, staged: Staged, index: NewIndex, fragments: list[int]
) -> dict[str, Any]:
    """Build the part of an index that covers some fragments of a staged version, on an executor."""
    return segment_of(open_staged(location.lake(), stream, staged), index, fragments)


def stage_on(
    runner: Runner,
    lake: Lake,
    stream: Stream,
    staging: Staging,
    dataset: object,
    rows: int,
    stage: str,
    *arguments: object,
) -> Any:
    """Stage versions on top of the newest one, here or by one task of the runner; return the dataset after it.

    `rows`: the number of rows that the work reads. `stage`: a function of this package by name, which takes the lake,
    the stream, the staging, the dataset and the arguments.
    """
    if not rows or runner.in_driver(rows):
        named(stage)(lake, stream, staging, dataset, *arguments)
        return dataset
    known = staging.known
    version = known[0].version - 1 if known else staging.version
    about = (catalog_location(lake), stream, version, known, staging.own, stage, arguments)
    what = f"{stage.rpartition(':')[2].replace('_', ' ')} of {stream.name}"
    (answer,) = runner.run([Task("headwater.streams.serving.staged_rows:stage_there", about, plain=True)], what)
    staging.staged += [Staged(*each) for each in answer]
    return open_staging(lake, stream, staging)


def stage_there(
    location: CatalogLocation,
    stream: Stream,
    version: int,
    known: Sequence[Staged],
    own: str,
    stage: str,
    arguments: Sequence[object],
) -> list[list[object]]:
    """Stage versions on an executor and return them: the driver commits their manifests with its own."""
    lake = location.lake()
    staging = Staging(lake, stream, version, own=own)
    staging.staged += known
    with on_top(staging, stream):
        named(stage)(lake, stream, staging, open_staging(lake, stream, staging), *arguments)
    staging.synced()
    return [[each.version, each.key, each.size, each.digest] for each in staging.staged[len(known) :]]


def stage_columns(lake: Lake, stream: Stream, staging: Staging, before: Published, runner: Runner) -> Any:
    """Give the copy the present columns of its table, and return it; a task casts the values of widened ones."""
    dataset = open_staging(lake, stream, staging)
    rows = before.rows if is_widened(stream, dataset, before) else 0
    work = "headwater.streams.serving.schema_evolution:evolve_copy"
    return stage_on(runner, lake, stream, staging, dataset, rows, work, before)


def tidied(
    lake: Lake, stream: Stream, staging: Staging, dataset: object, stale_to: int, changed: int | None, runner: Runner
) -> None:
    """Tidy the staged copy, here or by a task. `dataset`: the version, see `commit`.

    `changed`: as much as a publish of so many rows pays.
    """
    rows = rows_to_tidy(dataset, due(dataset, stale_to, changed=changed))
    if rows:
        stage_on(
            runner,
            lake,
            stream,
            staging,
            open_staging(lake, stream, staging),
            rows,
            "headwater.streams.serving.staged_rows:tidy",
            stale_to,
            changed,
        )


def tidy(
    lake: Lake, stream: Stream, staging: Staging, dataset: lance.LanceDataset, stale_to: int, changed: int | None
) -> None:
    """Write worn and small fragments again as one version on top, and rows for the indices as another."""
    fragments = due(dataset, stale_to, changed=changed)
    place = place_of(lake, stream)
    operation = rewritten(dataset, lake.store.get(staging.newest), fragments, place) if fragments else None
    if operation is not None:
        staging.sync([key for group in operation.groups for key in files_of(stream, list(group.new_fragments))])
        dataset = commit(lake, stream, staging, operation, dataset, {})
    index_added(dataset, staging)


def withdraw(tx: Transaction, stream: Stream, staging: Staging, log: Stream, position: int) -> None:
    """Of the versions that the transaction has staged before, keep none of a position inside of it, before the one that
    is published now: half of what it lands would be seen there. The next version has all that they hold, and their
    numbers are left out. `log`: the table whose positions they are."""
    own = tx.appended(stream.path, format=LANCE, version=stream.version)
    if all(each.properties.get(PUBLISHED, position) == position for each in own):
        return
    landed = tx.appended(log.path, version=log.version)
    begun = at = tx.last_position(log.path, version=log.version) - len(landed)
    kept: list[AppendedDelta] = []
    gone: list[int] = []
    for each in tx.appended():
        if each.stream != own[0].stream or each.wanted is None:
            kept.append(each)
            continue
        at = int(each.properties.get(PUBLISHED, at))  # what a client did there since is of the same position
        if begun < at < position or (gone and each.wanted <= staging.rowless):
            gone.append(each.wanted)
        elif gone and each.properties["settled"] == gone[0] - 1:  # a number that is left out needs no final manifest
            kept.append(replace(each, properties={**each.properties, "settled": gone[-1]}))
        else:
            kept.append(each)
    _check_unnamed(tx, stream, gone)
    tx.replace_appended(kept)


def _check_unnamed(tx: Transaction, stream: Stream, gone: Sequence[int]) -> None:
    """Error 13 if the transaction has put a tag or branch on a version that does not stay."""
    try:
        record = parse_record(tx.get_stream(stream.path, format=REFS_FORMAT, version=stream.version).properties)
    except TableNotFoundError:
        return
    for kind in (TAG, BRANCH):
        for name, entry in record.of(kind).items():
            if entry.to is not None and entry.to.branch is None and entry.to.version in gone:
                raise InvalidInputError(
                    f"The {kind} {name!r} stands on version {entry.to.version} of {stream.name}, which shows half of "
                    f"what this transaction lands and gives way to what is published now: make the {kind} afterwards."
                )


def record(
    lake: Lake,
    tx: Transaction,
    stream: Stream,
    staging: Staging,
    made: Published,
    lineage: Mapping[str, object] | None = None,
) -> Published:
    """Return the staged versions as deltas of the `lance` stream, in the transaction; the last one has the lineage.

    Steps on the way to it (columns come before rows) are no publish: nothing is ever read or folded from them.
    """
    staging.synced()
    made = replace(made, stale=_stale(lake, stream, staging, made))
    known = last_final_version(lake.now(), stream, tx.id) if staging.version else 0
    noted = {LINEAGE: dict(lineage)} if lineage else {}
    for staged in staging.staged:
        made = replace(made, version=staged.version, manifest=staged.key)
        file, record = version_record(stream, staged, known, lake.metastore.clock.now_ms())
        is_step = staged.version <= staging.unfinished
        published = {} if is_step else {**made.to_properties(), "change": f"publish {many(made.rows, 'row')}"}
        tx.append_delta(
            stream.path,
            [file] if is_step else [file, *made.tombstones],
            "append",
            format=LANCE,
            version=stream.version,
            properties={**published, **record, **(noted if staged is staging.staged[-1] else {})},
            position=staged.version,
        )
    return made


def _stale(lake: Lake, stream: Stream, staging: Staging, made: Published) -> int:
    """Return how many rows of the newest staged version wait for a backfill."""
    if made.stale_to < 0:
        return 0
    dataset, wanted = open_staging(lake, stream, staging), {each.name for each in stream.definition.derived}
    return max((stale_rows(dataset, each) for each in made.derived if each.name in wanted), default=0)


def stale_rows(dataset: lance.LanceDataset, column: Computed) -> int:
    """Return how many rows have a value of an older function, or none yet."""
    fragments = (fragment.metadata for fragment in dataset.get_fragments() if fragment.fragment_id <= column.stale_to)
    return sum(fragment.physical_rows - fragment.num_deletions for fragment in fragments)


def rows_digest(rows: pa.Table) -> int:
    return digest_of(hash_rows(rows.columns, rows.num_rows))
