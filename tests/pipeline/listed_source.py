"""A live source of a test: rows in a list, whose offset is the number of batches that were taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.errors import ServiceUnavailableError
from headwater.pipeline.grammar import Pipeline, read_pipeline
from headwater.pipeline.live import source_specs
from headwater.pipeline.live.live_source import LiveBatch, LiveContext
from headwater.pipeline.live.live_tables import RowsPart

COLUMNS: dict[str, Any] = {"id": pa.int64(), "n": pa.int64()}
Row = dict[str, Any]
Batch = dict[str, list[Row]]
"""Rows by the name of a table of the source."""


@dataclass
class Listed:
    """The rows of the source, and its history. `fails_at`: the batch that cannot be read; `why`: the reason."""

    batches: list[Batch] = field(default_factory=list)
    acknowledged: list[int] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    fails_at: int | None = None
    why: str = "The list cannot be read."
    partial_until: int = 0
    columns: dict[str, Any] = field(default_factory=lambda: dict(COLUMNS))
    kind = "listed"
    shown = "a list"

    def opened_at(self, context: LiveContext) -> ListedReader:
        start = context.state.offset or 0
        self.opened.append(start)
        return ListedReader(self, context, start)


@dataclass
class ListedReader:
    source: Listed
    context: LiveContext
    at: int

    @property
    def is_caught_up(self) -> bool:
        return self.at >= len(self.source.batches)

    def take(self, wait_s: float) -> LiveBatch | None:
        if self.at == self.source.fails_at:
            raise ServiceUnavailableError(self.source.why)
        if self.is_caught_up:
            return None
        found = self.source.batches[self.at]
        self.at += 1
        parts = [self._part(name, rows) for name, rows in found.items()]
        return LiveBatch(parts, self.at, (f"line {self.at}",), self.at < self.source.partial_until)

    def _part(self, name: str, rows: list[Row]) -> RowsPart:
        table = self.context.table(name)
        spec = self.context.spec_of(table)
        return RowsPart(table, rows, columns=self.source.columns, keys=("id",), spec=spec)

    def acknowledge(self, batch: LiveBatch) -> None:
        self.source.acknowledged.append(batch.offset)

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class ListedSpec:
    """The spec that the grammar makes: it names a list of `LISTS`."""

    name: str
    kind = "listed"

    @property
    def shown(self) -> str:
        return f"the list {self.name}"

    def opened(self, context: LiveContext) -> ListedReader:
        return LISTS[self.name].opened_at(context)


LISTS: dict[str, Listed] = {}
TEXT = """
[pipeline]
name = "live"
catalog = "./lake"
engine = "embedded"
[[source]]
name = "shop"
listed = "shop"
into = "raw.{table}"
"""


@contextmanager
def listed(folder: Path, text: str = TEXT, **lists: Listed) -> Iterator[Pipeline]:
    """Write a pipeline file of these lists, and let the grammar know their kind."""
    parse = source_specs.KINDS
    LISTS.update(lists)
    source_specs.KINDS["listed"] = lambda where, value, into: ListedSpec(value)  # type: ignore[index]
    try:
        (folder / "pipeline.toml").write_text(text)
        yield read_pipeline(folder / "pipeline.toml")
    finally:
        del parse["listed"]  # type: ignore[attr-defined]
        LISTS.clear()
