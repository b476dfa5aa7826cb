"""Proof of a serving copy: its rows have the digest that was published, and so has the fold of the log. What was not
published yet is read.

The rows are those of its newest version: a client may have rewritten them since they were published.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headwater.errors import LanceNamespaceError
from headwater.metastore import Reading
from headwater.streams.fold.events import VERSION
from headwater.streams.fold.state_digest import remembered_digest
from headwater.streams.log.log_files import narrowed, read_log
from headwater.streams.reading.fresh_reads import base_rows, base_state, whole_state
from headwater.streams.reading.position_views import PositionView, Published, all_published, counted, is_base
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.serving.staged_rows import head_of, rows_digest
from headwater.streams.stream_lookup import Stream

UNREADABLE = (LanceNamespaceError, pa.ArrowException, OSError, ValueError)
"""What a file that is damaged or gone makes of a reader."""


def verify(lake: Lake, snapshot: Reading, stream: Stream) -> list[str]:
    """Return the problems of a table's newest published version, and the unreadable deltas after it."""
    publishes = all_published(snapshot, stream)
    unread = _unread(lake, snapshot, stream, publishes[-1].position if publishes else 0)
    if not publishes:
        return unread
    try:
        return [*_compared(lake, snapshot, stream, publishes), *unread]
    except UNREADABLE as error:
        told = f"The rows of version {publishes[-1].version} of {stream.name}, or its log, cannot be read: "
        return [f"{told}{_told(error)}.", *unread]


def _unread(lake: Lake, snapshot: Reading, stream: Stream, after: int) -> list[str]:
    """The deltas that no version holds yet, where their rows cannot be read. Files that are gone are told by the
    metastore's own proof."""
    problems = []
    for delta in snapshot.deltas(stream.path, after, version=stream.version):
        try:
            read_log(stream.definition, lake.store, [delta])
        except UNREADABLE as error:
            if all(lake.store.head(file.path) for file in delta.files):
                problems.append(f"Position {delta.position} of {stream.name} cannot be read: {_told(error)}.")
    return problems


def _told(error: BaseException) -> str:
    return str(error).split(", /")[0][:200]


def _compared(lake: Lake, snapshot: Reading, stream: Stream, publishes: list[Published]) -> list[str]:
    newest = publishes[-1]
    version, manifest = head_of(snapshot, stream) or (newest.version, newest.manifest)
    held = PositionView(stream, newest.position, replace(newest, version=version, manifest=manifest), (), ())
    rows = base_rows(lake, held, narrowed(stream.definition, None))
    digest = rows_digest(rows)
    evolved = newest.schema_id != stream.definition.schema_id  # what was published is compared in the columns of now
    published = digest if evolved else newest.digest
    problems = []
    if rows.num_rows != newest.rows or digest != published:
        problems.append(f"The rows of version {version} of {stream.name} are not those that were published.")
    view = oldest_view(snapshot, stream, publishes)
    if view is None:
        return problems
    state = whole_state(lake, view, whole=True)
    if rows_digest(state.rows) != published:
        problems.append(
            f"The log of {stream.name} from position {view.start} on does not give version {newest.version}."
        )
    else:
        rules = narrowed(stream.definition, None)
        known = base_state(lake, held, rules, rows, None, True)
        if remembered_digest(rules, known) != remembered_digest(rules, state):
            problems.append(
                f"The tombstones or marks of version {newest.version} of {stream.name} are not those that its log "
                f"from position {view.start} on gives."
            )
    return problems


def oldest_view(snapshot: Reading, stream: Stream, publishes: list[Published]) -> PositionView | None:
    """The newest published position on the oldest base that the kept deltas reach from; None: none was kept.

    A state is folded across no change of the fold's rules: it begins at the last version that was made by others.
    """
    newest = publishes[-1]
    deltas = snapshot.deltas(stream.path, version=stream.version)
    older = [place for place, each in enumerate(publishes) if each.rules != VERSION]
    if older and older[-1] == len(publishes) - 1:
        return None
    bases = [None, *publishes[:-1]]
    for base in bases[older[-1] + 1 :] if older else bases:
        start = base.position if base is not None else 0
        after = [delta for delta in deltas if start < delta.position <= newest.position]
        whole = [delta.position for delta in after] == list(range(start + 1, newest.position + 1))
        if whole and is_base(start, newest.position, deltas):
            passed = tuple(each for each in publishes if each.position > start)
            return PositionView(stream, newest.position, base, tuple(counted(after)), tuple(after), passed)
    return None
