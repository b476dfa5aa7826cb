"""An oracle of stream tables, written apart from the product: dictionaries and loops, straight from the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]
Place = tuple[Any, ...]
"""A place in the order of the sequence; () in a table without one."""


@dataclass(frozen=True)
class Event:
    """One change: `row` has only the columns that are present. A truncation has no key, `read` is never too late."""

    row: Row
    delete: bool = False
    read: bool = False
    truncate: bool = False


@dataclass
class Known:
    """What is known of a key: its newest event, the newest delete of it, and its cells above that."""

    top: Place | None = None
    alive: bool = False
    deleted: Place | None = None
    cells: dict[str, tuple[Place, Any]] = field(default_factory=dict)


@dataclass
class Oracle:
    """A stream table as the rules say it. `take` is one batch."""

    columns: Sequence[str]
    keys: Sequence[str] = ()
    sequence: Sequence[str] = ()
    lateness: Any = None
    known: dict[Key, Known] = field(default_factory=dict)
    truncation: Place | None = None
    appended: list[Row] = field(default_factory=list)
    watermark: Any = None
    late: int = 0
    too_late: int = 0

    def take(self, events: Iterable[Event]) -> Oracle:
        batch = list(events)
        line = None if self.lateness is None or self.watermark is None else self.watermark - self.lateness
        for event in batch:
            if line is not None and not event.read and event.row[self.sequence[0]] < line:
                self.too_late += not event.truncate
            elif not self._apply(event, line):
                self.late += not event.truncate
        if self.lateness is not None:
            firsts = [event.row[self.sequence[0]] for event in batch]
            self.watermark = max(
                firsts if self.watermark is None else [*firsts, self.watermark], default=self.watermark
            )
        return self

    def _apply(self, event: Event, line: Any) -> bool:
        """Whether a write of the event stands."""
        if not self.keys:
            self.appended.append({name: event.row.get(name) for name in self.columns})
            return True
        place = tuple(_comparable(event.row[name]) for name in self.sequence)
        if event.truncate:
            before = self._counted(self.truncation, line)
            if before is not None and place < before:
                return False
            self.truncation = place
            for known in self.known.values():
                self._delete(known, place, line)
            return True
        known = self.known.setdefault(tuple(event.row[name] for name in self.keys), Known())
        if event.delete:
            return self._delete(known, place, line)
        if self._counted(known.deleted, line) is None and not (known.alive and known.deleted == known.top):
            known.deleted = None
        stands = False
        for name in event.row:
            at = self._at(known, name, line)
            if at is None or place >= at:
                known.cells[name] = place, event.row[name]
                stands = True
        if stands and self._wins(known, place, line):
            known.top, known.alive = place, True
        return stands

    def _delete(self, known: Known, place: Place, line: Any) -> bool:
        stands = self._wins(known, place, line)
        for name in [*self.columns, *known.cells]:
            at = self._at(known, name, line)
            if at is None or place >= at:
                known.cells.pop(name, None)
                stands = True
        if self._wins(known, place, line):
            known.top, known.alive = place, False
        if known.deleted is None or known.deleted < place or self._counted(known.deleted, line) is None:
            known.deleted = place
        return stands

    def _wins(self, known: Known, place: Place, line: Any) -> bool:
        """Whether it decides if the row is there."""
        top = known.top if known.alive else self._counted(known.top, line)
        return all(at is None or place >= at for at in (top, self._counted(self.truncation, line)))

    def _at(self, known: Known, name: str, line: Any) -> Place | None:
        """The place of the write that a cell has, as it counts for a batch with this line."""
        own = _highest(known.cells[name][0] if name in known.cells else None, known.deleted)
        if not (known.alive and own == known.top):  # a row without marks has every cell at its own sequence
            own = self._counted(own, line)
        return _highest(own, self._counted(self.truncation, line))

    def _counted(self, place: Place | None, line: Any) -> Place | None:
        """Tombstones, marks and truncations below the line of a batch count as absent."""
        return None if place is not None and line is not None and place[0] < line else place

    @property
    def rows(self) -> dict[Key, Row]:
        found: dict[Key, Row] = {}
        for key, known in self.known.items():
            if known.alive:
                found[key] = {name: known.cells[name][1] if name in known.cells else None for name in self.columns}
        return found

    def state(self) -> list[Row]:
        return list(self.rows.values()) if self.keys else list(self.appended)


def in_sequence(oracle: Oracle, events: Iterable[Event]) -> list[Row]:
    """The rows by the simplest fold there is: events with distinct sequences, one after another in their order."""
    rows: dict[Key, Row] = {}
    for event in sorted(events, key=lambda each: tuple(_comparable(each.row[name]) for name in oracle.sequence)):
        if event.truncate:
            rows.clear()
            continue
        key = tuple(event.row[name] for name in oracle.keys)
        if event.delete:
            rows.pop(key, None)
        else:
            rows[key] = {**rows.get(key, dict.fromkeys(oracle.columns)), **event.row}
    return list(rows.values())


def _highest(*places: Place | None) -> Place | None:
    return max((place for place in places if place is not None), default=None)


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def sorted_rows(rows: Iterable[Row]) -> list[str]:
    """Rows as texts that can be compared whatever their order."""
    return sorted(repr(sorted(row.items())) for row in rows)
