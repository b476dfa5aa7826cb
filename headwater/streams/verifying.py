"""Proof of a serving copy: its rows have the digest that was published, and so has the fold of the log."""

from __future__ import annotations

from headwater.metastore import Snapshot
from headwater.streams.log_files import narrowed
from headwater.streams.opening import Stream
from headwater.streams.position_views import PositionView, Published, all_published, counted, is_base
from headwater.streams.reading import base_rows, whole_state
from headwater.streams.serving_copy import Lake
from headwater.streams.writing import rows_digest


def verify(lake: Lake, snapshot: Snapshot, stream: Stream) -> list[str]:
    """What is wrong with the newest published version of a table."""
    publishes = all_published(snapshot, stream)
    if not publishes:
        return []
    newest = publishes[-1]
    if newest.schema_id != stream.definition.schema_id:
        return [f"{stream.name} has evolved since version {newest.version}: publish it, then verify."]
    rows = base_rows(lake, PositionView(stream, newest.position, newest, (), ()), narrowed(stream.definition, None))
    problems = []
    if rows.num_rows != newest.rows or rows_digest(rows) != newest.digest:
        problems.append(f"The rows of version {newest.version} of {stream.name} are not those that were published.")
    view = oldest_view(snapshot, stream, publishes)
    if view is not None and rows_digest(whole_state(lake, view).rows) != newest.digest:
        problems.append(
            f"The log of {stream.name} from position {view.start} on does not give version {newest.version}."
        )
    return problems


def oldest_view(snapshot: Snapshot, stream: Stream, publishes: list[Published]) -> PositionView | None:
    """The newest published position on the oldest base that the kept deltas reach from; None: none was kept."""
    newest = publishes[-1]
    deltas = snapshot.deltas(stream.path, version=stream.version)
    for base in (None, *publishes[:-1]):
        start = base.position if base is not None else 0
        after = [delta for delta in deltas if start < delta.position <= newest.position]
        whole = [delta.position for delta in after] == list(range(start + 1, newest.position + 1))
        if whole and is_base(start, newest.position, deltas):
            return PositionView(stream, newest.position, base, tuple(counted(after)), tuple(after))
    return None
