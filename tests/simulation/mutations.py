"""Planted faults: each takes one rule out of the real code, and the simulator must find that within a budget of runs.

    python -m tests.simulation.mutations [NAME...] [--budget 300]

`make mutate` runs them all. Faults that no run finds are listed as such, with the reason in NOT_FOUND.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from headwater.errors import CommitStateUnknownError, LanceNamespaceError, ServiceUnavailableError
from headwater.metastore import Metastore, Transaction
from headwater.metastore.commit import draft, group_commit, rules
from headwater.metastore.commit import log as log_module
from headwater.metastore.commit.group_commit import Committer
from headwater.metastore.commit.log import Claim, Log
from headwater.metastore.records.deltas import Segments
from headwater.metastore.records.disk_records import is_collected
from headwater.metastore.state import checkpoints
from headwater.metastore.state.slot_views import IndexView
from headwater.metastore.state.snapshot import Snapshot
from headwater.metastore.upkeep import collect
from headwater.model import Add
from headwater.namespace.plans import taken
from headwater.namespace.versions import managed, operations
from headwater.namespace.versions.managed import ManagedVersions
from headwater.namespace.versions.operations import TableVersions
from headwater.store import KeyExistsError, PutMode, claim
from headwater.streams.log import undo
from headwater.streams.log.landing import Landing
from headwater.streams.log.source_ledger import Ledger
from headwater.streams.reading import change_feed, position_views, table_reads
from headwater.streams.serving import publication, publish_tasks, staged_rows
from headwater.testing.simulation import RunSettings, simulate, streams
from headwater.testing.simulation.streams import StreamTables

Plant = Callable[[], Iterator[None]]
MUTATIONS: dict[str, tuple[str, Any]] = {}
NOT_FOUND = {
    "a version without its condition": "the position of its record is refused as well: two rules guard one promise",
    "a manifest set aside meanwhile takes the version back": "the second look at the records leaves one request for it",
    "a lost answer of a publish is not repeated": "what is unpublished is written by the next opener or checkpoint",
    "the record of a source is no dependency": "two batches change one page of the record, and that is a conflict too",
    "what a lost publish left is not set aside": "nobody in the profile writes to a serving copy beside the catalog",
    "an undo needs no delta of the log": "a collection must fall into an undo; tests/streams/test_undoing.py has both",
}


def planted(name: str, profile: str = "commits") -> Callable[[Any], Any]:
    def plant(function: Any) -> Any:
        MUTATIONS[name] = profile, contextmanager(function)
        return function

    return plant


def replaced(name: str, target: object, attribute: str, value: Any, profile: str = "commits") -> None:
    @planted(name, profile)
    def plant() -> Iterator[None]:
        with mock.patch.object(target, attribute, value):
            yield


def nothing(*_: Any, **__: Any) -> None:
    return None


# The claim of a slot


def put_plainly(store: Any, key: str, data: bytes, others: Any = ()) -> bool:
    store.put(key, data)
    return True


def put_without_reading_back(store: Any, key: str, data: bytes, others: Any = ()) -> bool:
    try:
        store.put(key, data, PutMode.CREATE)
    except KeyExistsError:
        return False
    return True


def put_unsynced(store: Any, key: str, data: bytes, others: Any = ()) -> bool:
    try:
        store.put(key, data, PutMode.CREATE, durable=False)
    except KeyExistsError:
        return bool(store.get(key) == data)
    return True


def exists_means_ours(store: Any, key: str, data: bytes, others: Any = ()) -> bool:
    try:
        store.put(key, data, PutMode.CREATE)
    except KeyExistsError:
        return True
    return True


_claim = Log.claim


def unknown_as_failed(self: Log, *asked: Any) -> Claim:
    try:
        return _claim(self, *asked)
    except CommitStateUnknownError:
        raise ServiceUnavailableError("not committed") from None


replaced("a slot by a plain put", log_module, "create", put_plainly)
replaced("a slot is not read back after a lost answer", log_module, "create", put_without_reading_back)
replaced("a slot without a sync", log_module, "create", put_unsynced)
replaced("a slot that exists is taken for ours", log_module, "create", exists_means_ours)
replaced("an unknown fate told as a failure", Log, "claim", unknown_as_failed)
replaced("a collected slot is another's", Committer, "_read_on", lambda self, *_: self.log.refresh())

# Conflicts

_conflict = rules.conflict


def only_collected(found: Any, one: Any) -> str | None:
    reason = _conflict(found, one)
    return reason if reason is not None and "collected" in reason else None


replaced("every conflict ignored", group_commit, "conflict", nothing)
replaced("conflicts ignored but for collected snapshots", group_commit, "conflict", only_collected)
replaced("a forgotten read dependency on an object", draft.ObjectRead, "last_change", lambda self, index: 0)
replaced("a forgotten read dependency on a log", draft.LogRead, "last_change", lambda self, index: 0)
replaced("transactions of a group are not compared", rules, "_written", lambda *_: set())


def position_of_the_index(found: Any, append: Any, group: Any) -> int:
    log = found.stream(append.stream)
    return append.wanted or (log.last if log is not None else 0) + 1


replaced("positions of a group are not counted", rules, "_position", position_of_the_index)

# Reading


def refresh_never(self: Log, ahead: int = 1) -> Any:
    return self.index if self.index.slot and ahead == 1 else _refresh(self, ahead)


_refresh = Log.refresh
_fold_bytes = Log._fold_bytes


def collected_is_empty(self: Log, number: int, data: bytes) -> bool:
    if is_collected(data):
        self.index.times.add(0)
        return True
    return _fold_bytes(self, number, data)


def one_slot_early(self: Metastore, moment: Any) -> Snapshot:
    if isinstance(moment, int) and moment > 1:
        return Snapshot(self._log, IndexView(self._log.refresh(), moment - 1))
    return _at(self, moment)


_at = Metastore.at
_log = Metastore.log


def log_skips(self: Metastore, after: Any = None) -> Any:
    return _log(self, after + 1 if isinstance(after, int) else after)


replaced("reads of an old state", Log, "refresh", refresh_never)
replaced("a collected slot is folded as an empty one", Log, "_fold_bytes", collected_is_empty)
replaced("the past is read a slot too early", Metastore, "at", one_slot_early)
replaced("the feed skips a slot", Metastore, "log", log_skips)

# Checkpoints and collection


def delete_slots(self: collect.Collection, removals: Any) -> None:
    for removal in removals:
        (self.log.store.delete_tree if removal.kind == "folder" else self.log.store.delete)(removal.key)


_boundary = collect.Collection._slots


def slots_up_to_the_head(self: collect.Collection, boundary: int) -> Any:
    return _boundary(self, max(self.log.index.slot - 1, boundary))


def segments_first(self: Log) -> None:
    self.repair()
    with self.lock:
        self.segments.flush()
    self.checkpointed = self.checkpoints.write(self.index, self.lock, nothing)


replaced("a checkpoint without its segments", Segments, "flush", nothing, "segments")
replaced(
    "segments are written before the state of a checkpoint is taken", Log, "checkpoint", segments_first, "segments"
)
replaced("slots are collected before there is a checkpoint", collect, "_fresh_checkpoint", nothing)
replaced("collected slots are deleted", collect.Collection, "_delete", delete_slots)
replaced("slots beyond the boundary are collected", collect.Collection, "_slots", slots_up_to_the_head)
replaced("log files are not synced before their slot is collected", collect.Collection, "_secure", nothing)
replaced("no checkpoint is kept", checkpoints, "KEPT_CHECKPOINTS", 0)


def published_early(self: Log, number: int, transactions: int) -> None:
    self._own[number] = 0
    self.index.published = max(self.index.published, number)


replaced("published before it is written", Log, "publishing", published_early)
replaced("a lost answer of a publish is not repeated", group_commit, "PUBLISH_ATTEMPTS", 1)

# Managed versions


def absent_is_equal(self: TableVersions, line: Any, found: Any, asked: Any) -> bool:
    agrees = not found.e_tag or not asked.e_tag or found.e_tag == asked.e_tag
    return bool(agrees and found.manifest_size == asked.manifest_size)


def plan_without_condition(table: Any, version: Any, newest: int) -> list[Any]:
    return [Add(version)]


def finalize_or_leave(self: ManagedVersions, line: Any, version: Any, data: bytes) -> None:
    claim(self.store, line.key(version.manifest_path), line.key(line.manifest(version.number)), data)


def finalize_or_raise(self: ManagedVersions, line: Any, version: Any, data: bytes) -> None:
    final = line.key(line.manifest(version.number, version.naming_scheme))
    ours = claim(self.store, line.key(version.manifest_path), final, data, durable=False)
    if not ours and self.store.get(final) != data:
        self.store.put(final, data)


def final_without_a_look(self: ManagedVersions, line: Any, version: Any) -> Any:
    return replace(version, manifest_path=line.manifest(version.number, version.naming_scheme))


def secure_all(self: ManagedVersions, staged: Any) -> None:
    self.store.sync([staged.line.key(staged.version.manifest_path)])
    self._finalized.durable.update(self._finalized.by_id)
    for item in self._finalized.by_id.values():
        self.records.finalized(item.line.table, item.staged.number)


_finish = ManagedVersions._finish


def tidy_at_once(self: ManagedVersions, item: Any) -> Any:
    done = _finish(self, item)
    self.store.delete(item.line.key(item.version.manifest_path))
    return done


def never_repeated(self: TableVersions, line: Any, keeper: Any, asked: Any) -> None:
    if keeper.find(line, asked.version) is not None:
        raise taken(line.table.id, asked.version, asked.version)


_aside = ManagedVersions.set_aside


def aside_for_good(self: ManagedVersions, line: Any, limit: int = 64) -> list[str]:
    with mock.patch.object(self, "find", nothing):
        return _aside(self, line, limit)


_create = TableVersions._record


def acknowledged_first(self: TableVersions, keeper: Any, staged: Any, newest: int) -> None:
    try:
        _create(self, keeper, staged, newest)
    except LanceNamespaceError:
        return


for name, target, attribute, value in (
    ("an absent e_tag taken as equal", TableVersions, "_is_same", absent_is_equal),
    ("a version without its condition", managed, "plan_next_version", plan_without_condition),
    ("a foreign manifest stays under the final name", ManagedVersions, "_finalize", finalize_or_leave),
    ("a manifest set aside meanwhile takes the version back", ManagedVersions, "_finalize", finalize_or_raise),
    ("a version is not finalized on sight", ManagedVersions, "synchronize", final_without_a_look),
    ("a staged manifest without a sync", ManagedVersions, "secure", nothing),
    ("final names recorded before they are synced", ManagedVersions, "secure", secure_all),
    ("staged manifests deleted at once", ManagedVersions, "_finish", tidy_at_once),
    ("one's own version is another's", TableVersions, "_repeated", never_repeated),
    ("set aside, and not finalized again", ManagedVersions, "set_aside", aside_for_good),
    ("set aside without a look at the records", ManagedVersions, "_is_unrecorded", lambda *_: True),
    ("a refused record is acknowledged", TableVersions, "_record", acknowledged_first),
    ("a version that may have landed keeps only its staged name", ManagedVersions, "keeping", lambda *_: ExitStack()),
    ("e_tags are compared without quotes only", operations, "same_etag", lambda first, second: first == second),
):
    replaced(name, target, attribute, value, "versions")


# Stream tables


def known_to_nobody(self: Landing, ledger: Any, digest: str) -> None:
    return None


_read_record = Ledger._read


def read_record_unbound(self: Ledger, id: str) -> dict[str, Any]:
    with self._tx.unbound():
        return _read_record(self, id)


_record = staged_rows.record


@planted("a publish tells a position that it has not folded", "streams")
def position_of_the_head() -> Iterator[None]:
    def record(lake: Any, tx: Any, stream: Any, staging: Any, made: Any, lineage: Any = None) -> Any:
        newest = lake.metastore.now().last_position(stream.path, version=stream.version)
        return _record(lake, tx, stream, staging, replace(made, position=newest), lineage)

    with mock.patch.object(publication, "record", record), mock.patch.object(publication, "withdraw", nothing):
        yield


def all_expired(versions: Any, deltas: Any, before_ms: int, needed: Any) -> list[int]:
    return [delta.position for delta in deltas[:-1]]


def remember_nothing(*args: Any) -> tuple[Any, ...]:
    return ()


def each_of_its_own(self: StreamTables, catalog: Metastore, client: str, chance: Any, operation: Any) -> None:
    """Land in two transactions, as a client without transactions over tables would."""
    token = f"T{operation.id}"
    self._begin(token, {name: self._events(chance) for name in streams.TABLES})
    with self._noted(token):
        for name in streams.TABLES:
            self._send(self._table(catalog, name), self.batches[token][name], token, None)


OF_STREAMS: tuple[tuple[str, object, str, Any], ...] = (
    ("a token is taken again", Landing, "_known", known_to_nobody),
    ("the record of a source is no dependency", Ledger, "_read", read_record_unbound),
    ("an undo needs no delta of the log", Transaction, "depend_on_delta", nothing),
    ("an undo leaves the record of its source", undo, "give_back", lambda *_: []),
    ("an undone batch is folded", position_views, "counted", list),
    ("followers are not told of an undone batch", change_feed, "_voided", lambda *_: []),
    ("deletes are forgotten by a publish", publish_tasks, "add_remembered", remember_nothing),
    ("a log is collected up to its last delta", change_feed, "expired", all_expired),
    ("what a lost publish left is not set aside", publication, "set_aside", nothing),
    ("a batch for two tables lands in two commits", StreamTables, "_both", each_of_its_own),
)
for fault in OF_STREAMS:
    replaced(*fault, "streams")
replaced("a collection of the log looks at no reader", change_feed, "readers", lambda *_: {}, "mixed")


@planted("a reader is moved on before it was handed its changes", "mixed")
def moved_on() -> Iterator[None]:
    hand_out = change_feed.hand_out

    def moved(holder: Any, stream: Any, name: str, position: int) -> None:
        holder.run(lambda tx: change_feed.set_reader(tx, stream, name, position + 1), "moved on")
        hand_out(holder, stream, name, position)

    with mock.patch.object(table_reads, "hand_out", moved):
        yield


def search(name: str, budget: int) -> tuple[int, str] | None:
    """Return the first seed that finds a planted fault, and what it violates; None if none of the budget does."""
    profile, plant = MUTATIONS[name]
    with plant():
        for seed in range(budget):
            found = simulate(RunSettings(seed, profile=profile))
            if found.violations:
                return seed, found.violations[0]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", type=int, default=300)
    args = parser.parse_args()
    missed = []
    for name in args.names or MUTATIONS:
        began = time.process_time()
        found = search(name, 20 if name in NOT_FOUND else args.budget)
        told = f"seed {found[0]}: {found[1][:100]}" if found else "NOT FOUND"
        print(f"{MUTATIONS[name][0]:9}{name:58} {time.process_time() - began:6.1f} s  {told}", flush=True)
        if found is None:
            missed.append(name)
    print(f"{len(MUTATIONS)} planted, {len(missed)} not found: {', '.join(missed) or 'none'}")
    return int(any(name not in NOT_FOUND for name in missed))


if __name__ == "__main__":
    sys.exit(main())
