"""The lines of batches: below them an event is too late (streams.md, rule 4).

The watermark of a batch is the highest first sequence value of the batches before it. A batch that a publish has judged
stays judged: one that is undone later still counts for it, so that what was quarantined is not in the table as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwater.metastore import Delta, Reading
from headwater.store import Store
from headwater.streams.definition import Definition
from headwater.streams.fold.watermark import Watermark, decoded, line, reached
from headwater.streams.layout import HIGH
from headwater.streams.log.log_files import BatchLines, Logged, Share, calls_of, read_log
from headwater.streams.reading.position_views import PositionView, counted, newest_published
from headwater.streams.stream_lookup import Stream


def read_tail(
    store: Store,
    view: PositionView,
    columns: Sequence[str] | None = None,
    for_state: bool = False,
    share: Share | None = None,
) -> Logged:
    """The events after the base of a view, with the lines of their batches."""
    definition = view.stream.definition
    return read_log(definition, store, view.tail, columns, for_state, share, lines_of(store, view))


def lines_of(store: Store, view: PositionView) -> BatchLines | None:
    """The lines of the batches of a view's tail; None: the table has no lateness."""
    definition = view.stream.definition
    if definition.rules.lateness is None:
        return None
    start = view.base.watermark if view.base is not None else None
    voided = {at: delta.position for delta in reversed(view.after_base) for at in delta.properties.get("voids", ())}
    if not voided:
        return batch_lines(store, definition, start, view.tail)
    known = [delta for delta in view.after_base if "voids" not in delta.properties]
    highs = {delta.position: high_in(store, definition, delta) for delta in known}
    batch = {delta.position: call.batch for delta, call in zip(known, calls_of(known), strict=True)}
    found: dict[int, Watermark] = {}
    for delta, call in zip(view.tail, calls_of(view.tail), strict=True):
        judged = min((each.position for each in view.passed if each.position >= call.position), default=view.position)
        before = [at for at, number in batch.items() if number < batch[delta.position]]
        found[call.batch] = highest([start, *(highs[at] for at in before if voided.get(at, judged + 1) > judged)])
    lines = tuple(line(definition.rules, found[number]) for number in range(len(found)))
    return BatchLines(lines, highest([start, *(highs[delta.position] for delta in view.tail)]))


def watermark_at(store: Store, snapshot: Reading, stream: Stream) -> Watermark:
    """The watermark of a batch that lands after what a snapshot holds."""
    base = newest_published(snapshot, stream)
    after = snapshot.deltas(stream.path, base.position if base is not None else 0, version=stream.version)
    start = base.watermark if base is not None else None
    return batch_lines(store, stream.definition, start, counted(after)).watermark


def batch_lines(store: Store, definition: Definition, start: Watermark, deltas: Sequence[Delta]) -> BatchLines:
    """The lines of batches that follow one another."""
    highs: dict[int, Watermark] = {}
    for delta, call in zip(deltas, calls_of(deltas), strict=True):
        highs[call.batch] = highest([highs.get(call.batch), high_in(store, definition, delta)])
    lines, mark = [], start
    for number in range(len(highs)):
        lines.append(line(definition.rules, mark))
        mark = highest([mark, highs[number]])
    return BatchLines(tuple(lines), mark)


def high_in(store: Store, definition: Definition, delta: Delta) -> Watermark:
    """The highest first sequence value of a delta; of one that does not say it, by its rows."""
    if HIGH in delta.properties or not delta.files:
        return decoded(delta.properties.get(HIGH))
    return reached(definition.rules, None, [read_log(definition, store, [delta], []).events.rows])


def highest(marks: Iterable[Watermark]) -> Watermark:
    return max((mark for mark in marks if mark is not None), default=None)
