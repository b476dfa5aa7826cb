"""Compaction of a serving copy: few small fragments, few deleted rows, rows covered by their indices.

A publish joins small fragments when there are many, rewrites fragments that have lost a fifth of their rows, and
brings the indices up to date when they lag. It rewrites no more rows than it changes, so that it takes as long as its
change is large: the cheapest fragments first, and the rest in later publishes or by `maintain`.
One that has lost half of its rows has been paid for by those, and does not wait: one of them in a publish. Row ids stay
and no row is seen as changed. Lance does the same in four times as long: it filters every column that it reads, and
writes the ids of all rows as text. Lance is asked where a column is kept in a way that only its own writer knows.
Fragments with stale derived values are left to the backfill, which knows them by their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from headwater.imports import lance
from headwater.lance_manifest import message_of
from headwater.protobuf import as_number, parse
from headwater.streams.rows.row_keys import Codes
from headwater.streams.serving.row_ids import id_sequence, row_versions, runs
from headwater.streams.serving.serving_copy import Staging
from headwater.tables.columns.fields import ROW_ADDRESS, ROW_ID
from headwater.tables.commit.committer import renamed
from headwater.tables.handle import TableHandle
from headwater.tables.partitions import field_ids, key_of, partitioning
from headwater.tables.scan.data_file_rows import is_plain
from headwater.tables.scan.prune import live_batches
from headwater.tables.write.data_files import BYTES_PER_FILE, PartitionWriter, chunks

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from lance.optimize import CompactionTask

READ_ROWS = 1 << 16


def live_rows_of(
    dataset: Any, fragments: Sequence[FragmentMetadata], place: TableHandle, key: tuple[str, ...], rows_per_file: int
) -> list[FragmentMetadata] | None:
    """Return the live rows of fragments of one bucket as new ones; None: these do not say plainly when a row was
    changed."""
    if not is_plain(dataset.schema) or not all(_is_told(dataset, each) for each in fragments):
        return None
    writer = PartitionWriter(place, dataset.schema, (), staged=False, dataset=dataset)
    addresses, ids = list[Codes](), list[Codes]()
    parts = [dataset.get_fragment(each.id) for each in fragments]
    batches = live_batches(dataset, parts, with_row_id=True, with_row_address=True, batch_size=READ_ROWS)
    for rows in chunks(batches):
        addresses.append(rows.column(ROW_ADDRESS).to_numpy().astype(np.int64))
        ids.append(rows.column(ROW_ID).to_numpy().astype(np.int64))
        writer.write_one(key, rows.drop_columns([ROW_ADDRESS, ROW_ID]), rows_per_file, BYTES_PER_FILE)
    made = writer.finished()
    _identify(made, np.concatenate(ids))
    _date(made, {each.id: dataset.get_fragment(each.id).metadata for each in fragments}, np.concatenate(addresses))
    return made


def _is_told(dataset: Any, fragment: FragmentMetadata) -> bool:
    metadata = {fragment.id: dataset.get_fragment(fragment.id).metadata}
    first = np.array([fragment.id << 32], np.int64)
    return all(row_versions(metadata, first, name) is not None for name in VERSIONS)


VERSIONS = ("created_at_version_meta", "last_updated_at_version_meta")


def _identify(made: Sequence[FragmentMetadata], ids: Codes) -> None:
    """Note in the metadata of new fragments which ids their rows have."""
    start = 0
    for fragment in made:
        end = start + fragment.physical_rows
        told = id_sequence(ids[start:end])
        if told is not None:
            fragment.row_id_meta = lance.fragment.RowIdMeta.from_json(_text("Inline", told))
        else:
            fragment.row_id_meta = lance.fragment.RowIdSequence(ids[start:end].tolist()).to_inline_metadata()
        start = end


def _text(kind: str, told: bytes) -> str:
    return msgspec.json.encode({kind: list(told)}).decode()


def _date(made: Sequence[FragmentMetadata], before: dict[int, object], addresses: Codes) -> None:
    """Note in new fragments the versions in which their rows, once at these addresses, were created and changed."""
    for name in VERSIONS:
        versions = row_versions(before, addresses, name)
        assert versions is not None
        start = 0
        for fragment in made:
            end = start + fragment.physical_rows
            setattr(
                fragment,
                name,
                lance.fragment.RowDatasetVersionMeta.from_json(_text("inline", runs(versions[start:end]))),
            )
            start = end


SMALL_ROWS = 1 << 16
ROWS_PER_FRAGMENT = 1 << 20
MANY = 64
"""So many small fragments are joined by the next publish."""
LAGGING = 0.25
"""The part of the rows that an index may lack before a publish adds them."""
LACKING = 1 << 21
"""So many rows may lack in a BTREE, however large the table is: they are looked through by every publish."""
SMALL_LACKING = 100
"""The most rows that an index of a small table may lack: a search looks through them, and to index costs time."""
FEW = 8
"""So many segments a BTREE may have, of whatever sizes: a lookup of a few keys reads a page of each, and joining the
large ones takes longer than all else that a publish of many rows does. Where rows change everywhere, no more than six
come to be: fragments are written anew, and a segment that has none of them left is gone."""
WORN = 0.2
"""The part of a fragment's rows that may be deleted before it is written anew."""
WORN_OUT = 0.5
"""The part of a fragment's rows that may be deleted before it waits no longer for a publish that can afford it."""
PAID = 1
FREE = 4 * SMALL_ROWS
"""A publish writes so many rows anew for each that it changes; fewer than these in any case, where it joins small
fragments. What is written anew is new to the indices too, so it costs twice. Of a table that changes everywhere a
quarter is deleted rows then."""
BESIDE = 2
"""So many groups of fragments are written anew at the same time; each holds a chunk of its rows."""
MAX_FRAGMENT = 11
"""The field of a manifest with the highest number that a fragment ever had."""


def due(dataset: Any, stale_to: int = -1, many: int = MANY, changed: int | None = None) -> list[int]:
    """Return the fragments to write anew: the small ones when there are many, and those that have lost too many rows.

    Fragments up to the number `stale_to` stay as they are. `changed`: those only that a publish of so many rows pays.
    """
    found = [each.metadata for each in dataset.get_fragments() if each.fragment_id > stale_to]
    small = [each for each in found if each.physical_rows < SMALL_ROWS]
    worn = [each for each in found if each.num_deletions > WORN * each.physical_rows]
    joined = small if len(small) > many else []
    if changed is None:
        return sorted({each.id for each in (*worn, *joined)})
    chosen = affordable(joined, max(FREE, PAID * changed))
    chosen |= affordable(sorted(worn, key=_live), max(SMALL_ROWS, PAID * changed))
    out = [each for each in worn if each.num_deletions > WORN_OUT * each.physical_rows and each.id not in chosen]
    return sorted({*chosen, *(each.id for each in sorted(out, key=_live)[:1])})


def affordable(fragments: Sequence[FragmentMetadata], rows: int) -> set[int]:
    """Return the first of these that have so many rows together at most. Pure."""
    found: set[int] = set()
    for each in fragments:
        if each.id not in found:
            rows -= _live(each)
            if rows < 0:
                break
            found.add(each.id)
    return found


def _live(fragment: FragmentMetadata) -> int:
    return int(fragment.physical_rows - fragment.num_deletions)


def rewritten(
    dataset: lance.LanceDataset, manifest: bytes, fragments: Sequence[int], place: TableHandle
) -> lance.LanceOperation.Rewrite | None:
    """Return these fragments written anew without their deleted rows, those side by side together. No other is touched.

    Fragments of different buckets stay apart. The new ones get their numbers here: Lance would reserve them by a
    version of its own, which nobody needs.
    """
    everyone = {each.fragment_id for each in dataset.get_fragments()}
    options: Any = {"target_rows_per_fragment": ROWS_PER_FRAGMENT, "materialize_deletions_threshold": WORN}
    tasks: list[tuple[tuple[str, ...], CompactionTask]] = []
    for key, members in _by_bucket(dataset, fragments).items():
        others = everyone - members
        plan = lance.optimize.Compaction.plan(
            dataset, {**options, "excluded_fragment_ids": sorted(others)} if others else options
        )
        tasks += [(key, task) for task in plan.tasks]
    with ThreadPoolExecutor(BESIDE) as beside:
        groups = list(beside.map(lambda each: _group(dataset, each[1], place, each[0]), tasks))
    numbers = count(_last_number(manifest, everyone | set(fragments)) + 1)
    for fragment in (fragment for group in groups for fragment in group.new_fragments):
        fragment.id = next(numbers)
    return lance.LanceOperation.Rewrite(groups, []) if groups else None


def _group(
    dataset: Any, task: CompactionTask, place: TableHandle, key: tuple[str, ...]
) -> lance.LanceOperation.RewriteGroup:
    old = [dataset.get_fragment(id).metadata for id in numbers_of(task)]
    new = live_rows_of(dataset, old, place, key, ROWS_PER_FRAGMENT)
    return lance.LanceOperation.RewriteGroup(old, _by_lance(dataset, task, place, key) if new is None else new)


def numbers_of(task: CompactionTask) -> list[int]:
    """Return the fragments of a task, read from its text: as objects they bring along the ids of all their rows."""
    return [each.id for each in _PLANNED.decode(task.json()).task.fragments]


class _Numbered(msgspec.Struct):
    id: int


class _Fragments(msgspec.Struct):
    fragments: list[_Numbered]


class _Planned(msgspec.Struct):
    task: _Fragments


_PLANNED = msgspec.json.Decoder(_Planned)


def _by_lance(
    dataset: object, task: CompactionTask, place: TableHandle, key: tuple[str, ...]
) -> list[FragmentMetadata]:
    made = json.loads(task.execute(dataset).json())["new_fragments"]
    for file in (file for each in made for file in each["files"] if key):
        file["path"] = renamed(place, file["path"], key)
    return [lance.fragment.FragmentMetadata.from_json(json.dumps(each)) for each in made]


def _by_bucket(dataset: Any, fragments: Sequence[int]) -> dict[tuple[str, ...], set[int]]:
    """Fragments by the bucket that their files tell; () has those that tell none."""
    fields = partitioning(dataset.schema)
    ids = field_ids(dataset) if fields else {}
    wanted = [(ids[field.column], field) for field in fields]
    found: dict[tuple[str, ...], set[int]] = {}
    for number in fragments:
        key = key_of(dataset.get_fragment(number).metadata, wanted) if fields else None
        found.setdefault(key or (), set()).add(number)
    return found


def _last_number(manifest: bytes, fragments: set[int]) -> int:
    """Return the highest number that a fragment ever had: one that is used again would seem to be indexed."""
    told = (as_number(value) for field, value, _ in parse(message_of(manifest)) if field == MAX_FRAGMENT)
    return max((*told, *fragments), default=-1)


def rows_to_tidy(dataset: Any, fragments: Sequence[int]) -> int:
    """Return how many rows of these fragments are to be written again and how many an index is to be given."""
    written = sum(_live(dataset.get_fragment(number).metadata) for number in fragments)
    return max([written, *(lacking for _, lacking, _ in _lagging(dataset))])


def index_added(dataset: lance.LanceDataset, staging: Staging) -> None:
    """Add rows to the indices that lack too many."""
    for name, _, joined in _lagging(dataset):
        with staging.indexing(dataset):
            dataset.optimize.optimize_indices(num_indices_to_merge=joined, index_names=[name])


def _lagging(dataset: lance.LanceDataset) -> Iterator[tuple[str, int, int]]:
    """Yield the indices that lack too many rows, each with their number and that of the segments to join with them.

    A BTREE gets a segment of them, joined with the last ones where there are many and those are small: a look-up reads
    few segments and few rows that are in none, however large the table is, and adding rows costs what they are. Others
    are Lance's. Those of a small table lack few, unless it has but BTREEs.
    """
    live = {each.fragment_id: _live(each.metadata) for each in dataset.get_fragments()}
    rows, indices = sum(live.values()), dataset.describe_indices()
    whole = rows <= SMALL_ROWS and not all(_is_ordered(index) for index in indices)
    for index in indices:
        lacking = rows - index.num_rows_indexed
        ordered = _is_ordered(index)
        if not (is_lagging(lacking, rows, ordered) or (whole and lacking > SMALL_LACKING)):
            continue
        sizes = [sum(live.get(id, 0) for id in segment.fragment_ids) for segment in index.segments]
        yield index.name, lacking, last_to_join(sizes, lacking) if ordered else 1


def _is_ordered(index: Any) -> bool:
    return bool(index.index_type.upper() == "BTREE")


def is_lagging(lacking: int, rows: int, ordered: bool) -> bool:
    """Return True if an index lacks too many of a table's rows. An ordered index, which is cheap to extend, also has a
    limit on their number. Pure.
    """
    return lacking > rows * LAGGING or (ordered and lacking > LACKING)


def last_to_join(sizes: Sequence[int], added: int) -> int:
    """Return the number of last segments to merge with new rows: none while there are few, then as many as leave each
    segment with twice the rows of all after it. Pure.
    """
    if len(sizes) < FEW:
        return 0
    joined = 0
    while joined < len(sizes) and sizes[-1 - joined] < 2 * added:
        added += sizes[-1 - joined]
        joined += 1
    return joined


def coverage(dataset: lance.LanceDataset) -> dict[str, float]:
    """Return the share of rows that each index covers, by its name."""
    rows = dataset.count_rows()
    return {
        index.name: min(index.num_rows_indexed / rows, 1.0) if rows else 1.0 for index in dataset.describe_indices()
    }
