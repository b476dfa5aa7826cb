"""Views of a position: a published base, the deltas after it, and the lines below which their events are too late.

An undo voids earlier deltas, so a base that holds rows of a voided delta is of no use from the undo on: an older
one is taken, or none, and the log from there.
The watermark of a batch is the highest first sequence value of the batches before it (streams.md, rule 4). A batch that
a publish has judged stays judged: one that is undone later still counts for it, so that what was quarantined is not in
the table as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headwater.errors import InvalidInputError, InvalidTableStateError, TableVersionNotFoundError
from headwater.metastore import DataFile, Delta, Reading
from headwater.store import Store
from headwater.streams.definition import Definition
from headwater.streams.fold.events import MARKED, VERSION, Watermark, decoded, encoded, line, reached
from headwater.streams.layout import HIGH, LANCE, TRUNCATES
from headwater.streams.log.log_files import BatchLines, Logged, calls_of, read_log, readable_positions
from headwater.streams.log.stored_events import LogShard
from headwater.streams.serving.serving_copy import manifest_of
from headwater.streams.stream_lookup import Stream


@dataclass(frozen=True)
class Computed:
    """A derived column as published: by which function, and up to which fragment its values are of an older one."""

    name: str
    identity: str
    stale_to: int = -1


class AtPosition:
    """Position and schema of a stream table that a serving copy is equal to."""

    position: int
    schema_id: int

    def is_of(self, position: int, schema_id: int) -> bool:
        """Return True if the serving copy is the table at this position, under these columns."""
        return (self.position, self.schema_id) == (position, schema_id)


@dataclass(frozen=True)
class Published(AtPosition):
    """A version of the serving copy, and the position of the log that it is equal to."""

    version: int
    position: int
    manifest: str
    rows: int = 0
    digest: int = 0
    schema_id: int = 1
    columns: tuple[tuple[int, str], ...] = ()
    watermark: Watermark = None
    tombstones: tuple[DataFile, ...] = ()
    late: int = 0
    too_late: int = 0
    derived: tuple[Computed, ...] = ()
    lines: str | None = None
    rules: int = VERSION
    """The version of the fold's rules that it was made by."""
    stale: int = 0
    """Rows that wait for a backfill: a derived column has a value of an older function in them, or none yet."""

    def __repr__(self) -> str:
        return f"Published(version={self.version}, position={self.position}, rows={self.rows})"

    @property
    def stale_to(self) -> int:
        """The last fragment whose values of a derived column are of an older function; -1 without one."""
        return max((each.stale_to for each in self.derived), default=-1)

    def to_properties(self) -> dict[str, object]:
        """Return a publish as the properties of its delta in the `lance` stream."""
        return {
            "position": self.position,
            "rows": self.rows,
            "digest": f"{self.digest:032x}",
            "schema": self.schema_id,
            "columns": [list(column) for column in self.columns],
            "watermark": encoded(self.watermark),
            "tombstones": [[file.path, file.rows, file.bytes] for file in self.tombstones],
            "late": self.late,
            "too_late": self.too_late,
            "derived": [[each.name, each.identity, each.stale_to] for each in self.derived],
            "rules": self.rules,
            **({} if self.lines is None else {"lines": self.lines}),
            **({"stale": self.stale} if self.stale else {}),
        }


@dataclass(frozen=True)
class PositionView:
    """A position of a stream table: its base, and of the deltas after that those that count."""

    stream: Stream
    position: int
    base: Published | None
    tail: tuple[Delta, ...]
    after_base: tuple[Delta, ...]
    passed: tuple[Published, ...] = ()
    """The publishes after the base, up to the position."""

    @property
    def start(self) -> int:
        return self.base.position if self.base is not None else 0

    @property
    def truncates(self) -> bool:
        return any(TRUNCATES in delta.properties for delta in self.tail)


def published_of(stream: Stream, delta: Delta) -> Published | None:
    """Return a publish, from its delta; None for a version that a Lance client made (an index, a compaction)."""
    known = delta.properties
    if "position" not in known:
        return None
    return Published(
        delta.position,
        known["position"],
        manifest_of(stream, delta),
        known["rows"],
        int(known["digest"], 16),
        known["schema"],
        tuple((id, name) for id, name in known["columns"]),
        decoded(known["watermark"]),
        tuple(DataFile(*file) for file in known["tombstones"]),
        known["late"],
        known["too_late"],
        tuple(Computed(*each) for each in known["derived"]),
        known.get("lines"),
        known.get("rules", 1),
        known.get("stale", 0),
    )


def newest_published(snapshot: Reading, stream: Stream) -> Published | None:
    """Return the last publish, at the newest version of the serving copy: versions of clients hold the same rows."""
    last = snapshot.last_position(stream.path, format=LANCE, version=stream.version)
    found = _publishes(snapshot, stream, last - 1)
    step = 1
    while not found and step < last:
        step *= 8
        found = _publishes(snapshot, stream, max(last - step, 0))
    return found[-1] if found else None


def all_published(snapshot: Reading, stream: Stream) -> list[Published]:
    """Return every publish that is kept, oldest first."""
    return _publishes(snapshot, stream, 0)


def _publishes(snapshot: Reading, stream: Stream, after: int) -> list[Published]:
    found: list[Published] = []
    for delta in snapshot.deltas(stream.path, max(after, 0), format=LANCE, version=stream.version):
        made = published_of(stream, delta)
        if made is not None:
            found.append(made)
    return found


def view_at(snapshot: Reading, stream: Stream, position: int | None = None) -> PositionView:
    """Return the view of a position, the newest one unless told. 13: not a position that can be read; 11: collected."""
    last = snapshot.last_position(stream.path, version=stream.version)
    wanted = last if position is None else position
    if type(wanted) is not int or not 0 <= wanted <= last:
        raise InvalidInputError(f"{stream.name} can be read at the positions 0 to {last}, not at {position!r}.")
    newest = newest_published(snapshot, stream)
    if newest is not None and newest.position <= wanted:
        deltas = snapshot.deltas(stream.path, newest.position, version=stream.version)
        if is_base(newest.position, wanted, deltas):
            return _view(stream, wanted, newest, deltas)
    return _older_view(snapshot, stream, wanted)


def _older_view(snapshot: Reading, stream: Stream, wanted: int) -> PositionView:
    deltas, publishes = snapshot.deltas(stream.path, version=stream.version), all_published(snapshot, stream)
    up_to = [each for each in publishes if each.position <= wanted]
    bases = [each for each in up_to if is_base(each.position, wanted, deltas)]
    base = bases[-1] if bases else None
    passed = tuple(each for each in up_to if base is None or each.position > base.position)
    if any(each.rules < MARKED for each in passed):
        raise InvalidTableStateError(
            f"Position {wanted} of {stream.name} cannot be read: what it was undone from was published by older rules "
            "of the fold, and no state is folded across a change of them."
        )
    return replace(_view(stream, wanted, base, deltas), passed=passed)


def is_base(base: int, position: int, deltas: Sequence[Delta]) -> bool:
    """Return True if the state at `base` can be built on: nothing up to the position voids what is in it."""
    later = (delta for delta in deltas if base < delta.position <= position)
    return not any(voided <= base for delta in later for voided in delta.properties.get("voids", ()))


def _view(stream: Stream, position: int, base: Published | None, deltas: Sequence[Delta]) -> PositionView:
    start = base.position if base is not None else 0
    _check_readable(stream, position, start, deltas)
    after = [delta for delta in deltas if start < delta.position <= position]
    if [delta.position for delta in after] != list(range(start + 1, position + 1)):
        raise collected(stream.name, position)
    return PositionView(stream, position, base, tuple(counted(after)), tuple(after))


def collected(name: str, position: int) -> TableVersionNotFoundError:
    return TableVersionNotFoundError(
        f"Position {position} of {name} cannot be read any more: deltas it needs were collected."
    )


def counted(deltas: Sequence[Delta]) -> list[Delta]:
    """Return the deltas without those that are voided among them, and without the voiding ones, which hold no rows."""
    voided = {position for delta in deltas for position in delta.properties.get("voids", ())}
    return [delta for delta in deltas if delta.position not in voided and "voids" not in delta.properties]


def _check_readable(stream: Stream, position: int, start: int, deltas: Sequence[Delta]) -> None:
    if position in (0, start):
        return
    for delta, readable in zip(deltas, readable_positions(deltas), strict=True):
        if delta.position == position and readable != position:
            raise InvalidInputError(
                f"Position {position} of {stream.name} is inside a transaction: read at {readable}, where it ends."
            )


def read_tail(
    store: Store,
    view: PositionView,
    columns: Sequence[str] | None = None,
    for_state: bool = False,
    share: LogShard | None = None,
) -> Logged:
    """Return the events after the base of a view, with the lines of their batches."""
    definition = view.stream.definition
    return read_log(definition, store, view.tail, columns, for_state, share, lines_of(store, view))


def lines_of(store: Store, view: PositionView) -> BatchLines | None:
    """Return the lines of the batches of a view's tail; None: the table has no lateness."""
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
    """Return the watermark of a batch that lands after what a snapshot holds."""
    base = newest_published(snapshot, stream)
    after = snapshot.deltas(stream.path, base.position if base is not None else 0, version=stream.version)
    start = base.watermark if base is not None else None
    return batch_lines(store, stream.definition, start, counted(after)).watermark


def batch_lines(store: Store, definition: Definition, start: Watermark, deltas: Sequence[Delta]) -> BatchLines:
    """Return the lines of batches that follow one another."""
    highs: dict[int, Watermark] = {}
    for delta, call in zip(deltas, calls_of(deltas), strict=True):
        highs[call.batch] = highest([highs.get(call.batch), high_in(store, definition, delta)])
    lines, mark = [], start
    for number in range(len(highs)):
        lines.append(line(definition.rules, mark))
        mark = highest([mark, highs[number]])
    return BatchLines(tuple(lines), mark)


def high_in(store: Store, definition: Definition, delta: Delta) -> Watermark:
    """Return the highest first sequence value of a delta; of one that does not say it, by its rows."""
    if HIGH in delta.properties or not delta.files:
        return decoded(delta.properties.get(HIGH))
    return reached(definition.rules, None, [read_log(definition, store, [delta], []).events.rows])


def highest(marks: Iterable[Watermark]) -> Watermark:
    return max((mark for mark in marks if mark is not None), default=None)
