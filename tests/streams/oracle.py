"""An oracle of stream tables, written apart from the product: dictionaries and loops, straight from the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Event:
    """One change: `row` has only the columns that are present."""

    row: Row
    delete: bool = False


@dataclass
class Oracle:
    """A stream table as the rules say it."""

    columns: Sequence[str]
    keys: Sequence[str] = ()
    sequence: Sequence[str] = ()
    lateness: Any = None
    rows: dict[Key, Row] = field(default_factory=dict)
    order: dict[Key, Key] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)
    watermark: Any = None
    late: int = 0
    too_late: int = 0
    history: list[tuple[Key, str, Row | None]] = field(default_factory=list)

    def take(self, events: Iterable[Event]) -> Oracle:
        for event in events:
            self._take(event)
        return self

    def _take(self, event: Event) -> None:
        first = event.row[self.sequence[0]] if self.sequence else None
        behind = self.lateness is not None and self.watermark is not None and first < self.watermark - self.lateness
        if self.lateness is not None and (self.watermark is None or first > self.watermark):
            self.watermark = first
        if behind:
            self.too_late += 1
            return
        if not self.keys:
            self.appended.append({name: event.row.get(name) for name in self.columns})
            return
        key = tuple(event.row[name] for name in self.keys)
        place = tuple(_comparable(event.row[name]) for name in self.sequence)
        if key in self.order and place < self.order[key]:
            self.late += 1
            return
        self.order[key] = place
        if event.delete:
            self.rows.pop(key, None)
            return
        before = self.rows.get(key, dict.fromkeys(self.columns))
        self.rows[key] = {**before, **event.row}

    def state(self) -> list[Row]:
        return list(self.rows.values()) if self.keys else list(self.appended)


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def sorted_rows(rows: Iterable[Row]) -> list[str]:
    """Rows as texts that can be compared whatever their order."""
    return sorted(repr(sorted(row.items())) for row in rows)
