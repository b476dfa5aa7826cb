"""The rows of a publish: events folded and written in this process, or in shares by tasks on executors.

A task needs the store and no catalog. What it writes belongs to no version until the publish commits it, so a task that
runs twice, or for nothing, leaves files that nothing refers to.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headwater.metastore import DataFile
from headwater.streams.definition import Definition
from headwater.streams.fold.events import Folded, Watermark, decoded, encode_lines, encoded
from headwater.streams.fold.fold import small_pages
from headwater.streams.fold.tombstones import TombstonesAndMarks, add_remembered, read_remembered, write_remembered
from headwater.streams.log.batches import Quarantined, RejectedRows, write_rejected
from headwater.streams.log.log_files import Logged, bucket_count, least_events
from headwater.streams.log.stored_events import LogShard, narrowed
from headwater.streams.reading.position_views import PositionView, Published, read_tail
from headwater.streams.rows.hashing import MODULUS
from headwater.streams.rows.input_rows import DELETE, READ, UPSERT, as_json
from headwater.streams.rows.row_keys import Codes, Mask
from headwater.streams.serving.copy_rows import Deletions, are_few
from headwater.streams.serving.derived_columns import modules_of, with_derived
from headwater.streams.serving.merge import (
    InFragments,
    OfNewKeys,
    appended,
    events_of,
    fragment_parts,
    joined_masks,
    merged,
    packed_mask,
    refolded,
)
from headwater.streams.serving.serving_copy import (
    CatalogLocation,
    Lake,
    Staged,
    Staging,
    catalog_location,
    on_top,
    open_staged,
    open_version,
)
from headwater.streams.serving.staged_rows import Changes, NewFragments, commit_rows, index_keys, tidied, write_rows_of
from headwater.work import HERE, Json, Runner, Task

TASK_ROWS, FUNCTION_ROWS = 1 << 17, 1 << 12
"""A task folds about this many events; fewer where it calls functions of users, which are slow."""
TASKS_PER_CORE = 4
ONE_BASE = 1 << 21
"""A task folds its events into a base of so many rows sooner than several do with the driver between them."""
Part = LogShard | InFragments | OfNewKeys | None
"""The events of a task: a share of the keys, those of some fragments, those of new keys, or all."""


@dataclass(frozen=True)
class Publish:
    """A publish as planned at a slot: the view to make the serving copy equal to, what it is equal to now, and its
    newest version."""

    view: PositionView
    before: Published | None
    head: tuple[int, str] | None
    slot: int
    staged: Staged | None = None
    """The version with the table's present columns, if the publish has staged one on top of `head`."""

    @property
    def current(self) -> Published | None:
        """The last publish, at the newest version of the serving copy."""
        if self.before is None or self.head is None:
            return self.before
        return replace(self.before, version=self.head[0], manifest=self.head[1])

    @property
    def rows(self) -> int:
        """The events it takes in."""
        deltas = self.view.after_base if self.is_refolded else self.view.tail
        return sum(file.rows or 0 for delta in deltas for file in delta.files)

    @property
    def is_refolded(self) -> bool:
        """True after an undo: events before the last publish are folded again."""
        return self.view.start != (self.before.position if self.before is not None else 0)

    def dataset(self, lake: Lake) -> Any:
        """Open the serving copy that the publish goes on top of; None before the first."""
        if self.staged is not None:
            return open_staged(lake, self.view.stream, self.staged)
        return open_version(lake, self.view.stream, *self.head) if self.head else None


@dataclass(frozen=True)
class Done:
    """Output of a publish: fragments, addresses of rows to remove, and the counts after it."""

    fragments: NewFragments
    addresses: Codes
    digest: int
    count: int
    watermark: Watermark = None
    late: int = 0
    too_late: int = 0
    rejected: tuple[RejectedRows, ...] = ()
    tombstones: tuple[DataFile, ...] = ()
    lines: str | None = None
    deletions: Deletions | None = None
    """The deletion vectors in place of `addresses`, where tasks have written them."""
    known: Mask | None = None
    """Of a part, the events that are its own."""

    @property
    def changed(self) -> int:
        """The number of rows written or removed."""
        removed = self.deletions.rows if self.deletions is not None else len(self.addresses)
        return max(sum(int(each.physical_rows) for each in self.fragments.metadata), removed)


def stage_rows(
    lake: Lake, work: Publish, staging: Staging, dataset: object, runner: Runner, stale_to: int = -1
) -> Done:
    """Fold the events of a publish and stage the versions that the serving copy gets by them.

    `stale_to`: fragments up to this number wait for a backfill of derived columns.
    """
    if is_one_task(work, runner):
        return _staged_there(lake, work, staging, runner)
    stream = work.view.stream
    done = fold_and_write(lake, work, dataset, runner)
    position = work.view.position
    made = commit_rows(lake, stream, staging, dataset, done.fragments, done.addresses, position, done.deletions)
    index_keys(lake, stream, staging, made, done.count, runner)
    tidied(lake, stream, staging, made, stale_to, done.changed, runner)
    return done


def is_one_task(work: Publish, runner: Runner) -> bool:
    """Return True if one task does the whole publish: the driver need not wait between fold, commit and compaction.

    Not where functions of users compute columns, and not on top of a version that was staged for new columns.
    """
    definition, rows = work.view.stream.definition, work.rows
    if runner.in_driver(rows) or definition.derived or work.staged is not None:
        return False
    if work.is_refolded or work.view.truncates:
        return True
    base = work.current.rows if definition.keys and work.current is not None else 0
    return rows <= TASK_ROWS and (base <= ONE_BASE or are_few(rows, base))


def _staged_there(lake: Lake, work: Publish, staging: Staging, runner: Runner) -> Done:
    about = (catalog_location(lake), work, staging.own)
    task = Task("headwater.streams.serving.publish_tasks:run_publish", about, plain=True)
    (answer,) = runner.run([task], f"fold and write {work.view.stream.name}")
    staging.staged += [Staged(*each) for each in answer["staged"]]
    return together(work, [answer])


def fold_and_write(lake: Lake, work: Publish, dataset: object, runner: Runner) -> Done:
    """Fold the events of a publish and write the changed rows, here or by tasks of the runner."""
    definition = work.view.stream.definition
    if runner.in_driver(work.rows, bool(definition.derived)):
        return folded_share(lake, work, dataset)
    divides = not work.is_refolded and not work.view.truncates
    if divides and definition.keys and not definition.derived and work.current is not None:
        parts = fragment_parts(dataset, work.rows, work.current.rows, runner.cores)
        if parts:
            return _joined(lake, work, _by_fragments(lake, work, parts, runner), runner)
    base = work.current.rows if definition.keys and work.current is not None else 0
    count = task_count(work.rows, runner.cores, bool(definition.derived), base) if divides else 1
    shares = [LogShard(number, count) for number in range(count)] if count > 1 else [None]
    at, modules = catalog_location(lake), modules_of(definition.derived)
    tasks = [Task("headwater.streams.serving.publish_tasks:run_share", (at, work, share), modules) for share in shares]
    done = together(work, runner.run(tasks, f"fold and write {work.view.stream.name}"))
    return done if count == 1 else _joined(lake, work, done, runner)


def _by_fragments(lake: Lake, work: Publish, parts: Sequence[InFragments], runner: Runner) -> Done:
    """Fold the events by the fragments that have their keys, and then those of new keys."""
    at, one = catalog_location(lake), "headwater.streams.serving.publish_tasks:run_share"
    name = work.view.stream.name
    answers = runner.run([Task(one, (at, work, part)) for part in parts], f"fold and write {name}")
    known = joined_masks([each["known"] for each in answers], work.rows)
    new = work.rows - int(known.sum())
    if new:
        count, told = task_count(new, runner.cores, False), packed_mask(known)
        shares = [LogShard(number, count) for number in range(count)] if count > 1 else [None]
        tasks = [Task(one, (at, work, OfNewKeys(told, share))) for share in shares]
        answers += runner.run(tasks, f"new keys of {name}")
    return together(work, answers)


def _joined(lake: Lake, work: Publish, done: Done, runner: Runner) -> Done:
    """Join the tombstones and marks that shares wrote with those that are published."""
    if not done.tombstones:
        return replace(done, tombstones=_known(work))
    about = (catalog_location(lake), work, done.tombstones, encoded(done.watermark))
    join = Task("headwater.streams.serving.publish_tasks:join_tombstones", about, plain=True)
    small = runner.in_driver(sum(file.rows or 0 for file in done.tombstones))
    (answer,) = [join.run()] if small else runner.run([join], f"tombstones of {work.view.stream.name}")
    for file in done.tombstones:
        lake.store.delete(file.path)
    return replace(done, tombstones=tuple(DataFile(*file) for file in answer))


def task_count(rows: int, cores: int, calls_functions: bool, base: int = 0) -> int:
    """Return the number of tasks that fold this many events: a power of two, by rows and by buckets. Pure.

    `base`: the rows of the serving copy. Each task looks through all their keys, so fewer tasks do it less often.
    """
    least = FUNCTION_ROWS if calls_functions else max(TASK_ROWS, least_events(base))
    wanted = min(TASKS_PER_CORE * cores, -(-rows // least))
    count = 1
    while count < wanted:
        count *= 2
    return max(count, bucket_count(rows, rows))


def _known(work: Publish) -> tuple[DataFile, ...]:
    return tuple(work.current.tombstones) if work.current is not None else ()


def folded_share(lake: Lake, work: Publish, dataset: object, part: Part = None) -> Done:
    """Fold a part of the events and write its rows. `tombstones` are all files, of a part only the new ones."""
    definition, current = work.view.stream.definition, work.current
    rules = narrowed(definition, None)
    share = part if isinstance(part, LogShard) else None
    log = read_tail(lake.store, work.view, for_state=share is None and not definition.quarantines_late, share=share)
    files: tuple[DataFile, ...] = ()
    touched, known = None, None
    if isinstance(part, (InFragments, OfNewKeys)) and current is not None:
        log, touched, known = events_of(lake, work.view, rules, log, current, part)
    if not rules.keys:
        changes, folded = appended(lake, work.view, rules, log, current)
    elif work.is_refolded and current is not None:
        changes, folded, files = refolded(lake, work.view, rules, log, current)
    else:
        changes, folded = merged(lake, work.view, rules, log, current, touched)
        new, place = TombstonesAndMarks(folded.tombstones, folded.marks), (lake.store, lake.clock, work.view.stream)
        if part is None:
            files = add_remembered(*place, _known(work), new, folded.watermark)
        else:
            files = write_remembered(*place, new, folded.watermark)
    return replace(written(lake, work, dataset, log, changes, folded), tombstones=files, known=known)


def written(lake: Lake, work: Publish, dataset: object, log: Logged, changes: Changes, folded: Folded) -> Done:
    """Write the changed rows, with their derived columns, as fragments."""
    definition = work.view.stream.definition
    counted = log.positions > (work.before.position if work.before is not None else 0)
    if definition.derived:
        rows = with_derived(definition, dataset, changes, work.before.derived if work.before is not None else ())
        changes = replace(changes, rows=rows)
    passed = _passed_over(definition, log, folded, counted, work.view)
    return Done(
        write_rows_of(lake, work.view.stream, dataset, changes),
        changes.addresses,
        changes.digest,
        changes.count,
        folded.watermark,
        int((folded.late & counted).sum()),
        int((folded.too_late & counted).sum()),
        tuple(write_rejected(lake.store, lake.clock, work.view.stream.home, passed, definition)) if passed else (),
        lines=encode_lines(definition, folded.lines),
    )


def _passed_over(
    definition: Definition, log: Logged, folded: Folded, counted: Any, view: PositionView
) -> list[Quarantined]:
    """Return events that did not apply, as the quarantine keeps them."""
    nobody = np.zeros(len(counted), bool)
    unplaced = nobody if folded.unplaced is None else folded.unplaced & counted
    late = folded.late & counted & ~unplaced if definition.quarantines_late else nobody
    reads = log.events.reads
    rows: list[Quarantined] = []
    for mask, reason in ((late, "late"), (unplaced, "late_partial"), (folded.too_late & counted, "too_late")):
        places = np.flatnonzero(mask)
        found = log.events.rows.take(places).to_pylist()
        for row, place in zip(found, places.tolist(), strict=True):
            delta = view.tail[log.deltas[place]]
            source = delta.properties.get("file") or delta.properties.get("source")
            lacks = {name for name, mask in log.events.present.items() if not mask[place]}
            text = as_json({name: value for name, value in row.items() if name not in lacks})
            kind = DELETE if log.events.deletes[place] else READ if reads is not None and reads[place] else UPSERT
            rows.append(Quarantined(text, reason, None, source, int(log.positions[place]), kind))
    return rows


# Tasks ---------------------------------------------------------------------------------------------------------------


@small_pages
def run_share(location: CatalogLocation, work: Publish, part: Part) -> Json:
    """Do a part of a publish on an executor. Counts and digest are differences to what is published.

    A task that has all rows to remove of a fragment writes its deletion vector. Of a share of the keys it only tells
    their addresses.
    """
    lake = location.lake()
    dataset = work.dataset(lake)
    done = folded_share(lake, work, dataset, part)
    whole = dataset is not None and not isinstance(part, LogShard)
    return {
        **done.fragments.to_json(),
        "addresses": "" if whole else packed(done.addresses),
        "deletions": Deletions.of(dataset, done.addresses).to_json() if whole else None,
        "known": packed_mask(done.known) if isinstance(part, InFragments) and done.known is not None else "",
        **_counts(work, done),
    }


@small_pages
def run_publish(location: CatalogLocation, work: Publish, own: str) -> Json:
    """Do a whole publish on an executor but for its commit; return the versions that it has staged, and its counts."""
    lake, stream = location.lake(), work.view.stream
    staging = Staging(lake, stream, *(work.head or (0, "")), own=own)
    with on_top(staging, stream):
        done = stage_rows(lake, work, staging, work.dataset(lake), HERE)
    staging.synced()
    staged = [[each.version, each.key, each.size, each.digest] for each in staging.staged]
    return {"staged": staged, **_counts(work, done)}


def _counts(work: Publish, done: Done) -> Json:
    """Return the counts of a publish as differences to what is published, and the files that it wrote for its table."""
    known = work.current or Published(0, 0, "")
    return {
        "digest": str((done.digest - known.digest) % MODULUS),
        "count": done.count - known.rows,
        "watermark": encoded(done.watermark),
        "late": done.late,
        "too_late": done.too_late,
        "rejected": [each.to_json() for each in done.rejected],
        "tombstones": [[file.path, file.rows, file.bytes] for file in done.tombstones],
        "lines": done.lines,
    }


def together(work: Publish, answers: Sequence[Json]) -> Done:
    """Return what all shares have done. The tombstones and marks stay in the files that the shares wrote."""
    known = work.current or Published(0, 0, "")
    addresses = [unpacked(each["addresses"]) for each in answers if each.get("addresses")]
    deletions = [each["deletions"] for each in answers if each.get("deletions") is not None]
    return Done(
        NewFragments.from_json(answers),
        np.concatenate([np.empty(0, np.int64), *addresses]),
        (known.digest + sum(int(each["digest"]) for each in answers)) % MODULUS,
        known.rows + sum(each["count"] for each in answers),
        decoded(answers[0]["watermark"]),
        sum(each["late"] for each in answers),
        sum(each["too_late"] for each in answers),
        tuple(RejectedRows.from_json(rows) for each in answers for rows in each["rejected"]),
        tuple(DataFile(*file) for each in answers for file in each["tombstones"]),
        answers[0]["lines"],
        Deletions.from_json(deletions) if deletions else None,
    )


def join_tombstones(
    location: CatalogLocation, work: Publish, files: Sequence[DataFile], watermark: object
) -> list[list[object]]:
    """Merge the tombstones and marks that shares wrote with those that are published; return all files after it."""
    lake, stream = location.lake(), work.view.stream
    new = read_remembered(lake.store, stream.definition, narrowed(stream.definition, None), files)
    found = add_remembered(lake.store, lake.clock, stream, _known(work), new, decoded(watermark))
    return [[file.path, file.rows, file.bytes] for file in found]


def packed(addresses: Codes) -> str:
    """Addresses as text; they are close together, so their differences are small."""
    steps = np.diff(np.sort(addresses), prepend=0).astype("<i8")
    return base64.b64encode(zlib.compress(steps.tobytes(), 1)).decode()


def unpacked(text: str) -> Codes:
    steps = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<i8")
    found: Codes = np.cumsum(steps).astype(np.int64)
    return found
