"""The deltas of change logs that are past their retention, in all stream tables there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.records.objects import Removal
from headwater.metastore.records.serving_copy import LANCE_FORMAT, READER_FORMAT, STREAM_TABLE
from headwater.metastore.state.slot_views import place_at
from headwater.metastore.state.snapshot import Snapshot
from headwater.metastore.upkeep.retention import expired, log_retention
from headwater.names import format_name

Run = Callable[[Callable[[Transaction], None], str], None]
WHY = "it was published longer ago than log_retention"


class ChangeLog(NamedTuple):
    """The change log of a stream table's version, and where its readers' positions are kept."""

    path: tuple[str, ...]
    version: str
    readers: tuple[str, ...]
    expired: tuple[int, ...]


def expire(run: Run, now: Callable[[], Snapshot], now_ms: int, dry_run: bool) -> list[Removal]:
    """Drop them, a transaction for each table; their files go once the drop is behind the boundary as well."""
    done: list[Removal] = []
    for log in expired_logs(now(), now_ms):
        if not dry_run:
            run(partial(_drop, now, log, now_ms), f"collect the log of {format_name(log.path)}")
        done += (Removal("delta", f"{format_name(log.path)}@{position}", WHY) for position in log.expired)
    return done


def _drop(now: Callable[[], Snapshot], log: ChangeLog, now_ms: int, tx: Transaction) -> None:
    for reader in log.readers:
        tx.get_stream(log.path, reader, version=log.version)  # one that steps back meanwhile is a conflict
    for position in expired_log(now(), log.path, log.version, now_ms).expired:
        tx.drop_delta(log.path, position, version=log.version)


def expired_logs(snapshot: Snapshot, now_ms: int) -> Iterator[ChangeLog]:
    """Every stream table's change log of which something may go."""
    view = snapshot.view
    for node in view.index.nodes():
        if node.kind == "table_version" and STREAM_TABLE in node.versions[-1].properties and view.item(node.key):
            place = place_at(view, node.key.split("/")[0])
            if place is not None:
                found = expired_log(snapshot, place.path, node.id, now_ms)
                if found.expired:
                    yield found


def expired_log(snapshot: Snapshot, path: tuple[str, ...], version: str, now_ms: int) -> ChangeLog:
    """The deltas of one log that nothing needs any more."""
    streams = {stream.id: stream for stream in snapshot.streams(path, version)}
    formats = {str(stream.parts[1]) for stream in streams.values()}
    readers = [stream for stream in streams.values() if stream.parts[1] == READER_FORMAT]
    if LANCE_FORMAT not in formats or "delta" not in formats:
        return ChangeLog(path, version, (), ())
    kept = log_retention(snapshot.get_table_version(path, version).properties)
    positions = [int(position) for reader in readers for position in reader.properties.values()]
    found = expired(
        snapshot.deltas(path, format=LANCE_FORMAT, version=version),
        snapshot.deltas(path, version=version),
        now_ms - int(kept.total_seconds() * 1000),
        positions,
    )
    return ChangeLog(path, version, tuple(reader.id for reader in readers), tuple(found))
