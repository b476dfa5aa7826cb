"""The seam of live sources: what a pipeline file says of one, how it is read, and what one batch of it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from headwater.streams.log.landing import LandingReport
from headwater.work import HERE, Runner

if TYPE_CHECKING:
    from headwater.catalog import Catalog
    from headwater.pipeline.grammar import TableSpec

Json = Any
"""A value that JSON holds."""
TABLE = "{table}"
"""The part of `into` that stands for the name of a table, topic or resource of the source."""


@dataclass(frozen=True)
class LiveState:
    """The state of a live source in the catalog, as of its last commit.

    `offset`: where the source is read from next; None: from its beginning.
    `journal`: lines that the source keeps beside its offset, such as a history of its schema.
    `tables`: the stream tables that it has filled so far.
    `commits`: counts its commits; another number than one has read means that somebody else takes from the source.
    """

    offset: Json | None = None
    journal: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    commits: int = 0
    is_partial: bool = False
    """True in the middle of a first copy. One that was broken off is begun again, with new tables: rows that were
    copied and deleted since would stay for ever."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """The table or topic of the source whose rows each of `tables` has, as far as the reader tells it."""


class LivePart(Protocol):
    """The rows of a batch for one stream table."""

    @property
    def table(self) -> str: ...

    @property
    def origin(self) -> str:
        """The whole name of the table or topic in the source; empty if several may go into one table."""

    @property
    def is_whole(self) -> bool:
        """True if the rows are all that the table has in the source, whatever came before."""

    def land(self, catalog: Catalog, source: str) -> LandingReport:
        """Land the rows inside the open transaction of `catalog`, and create the table if it is not there."""


@dataclass(frozen=True)
class LiveBatch:
    """Rows of a live source, and the offset after them: both are committed at once.

    `parts`: in the order in which they land. A batch without parts moves the offset only.
    `lines`: lines that are added to the journal of the source.
    """

    parts: Sequence[LivePart]
    offset: Json
    lines: tuple[str, ...] = ()
    is_partial: bool = False
    """True for a part of a first copy that is not the last one: nothing is published before that."""


class LiveReader(Protocol):
    """A live source that is open. Whoever holds it calls it from one thread."""

    @property
    def is_caught_up(self) -> bool:
        """True once all that the source had when the reader was opened has been returned."""

    def take(self, wait_s: float) -> LiveBatch | None:
        """Return the next batch; None if none came within `wait_s` seconds. Raises what the source failed with."""

    def acknowledge(self, batch: LiveBatch) -> None:
        """Let the source forget a batch: it is committed."""

    def close(self) -> None:
        """End the reader. A source that was not acknowledged gives the same rows again."""


@dataclass(frozen=True)
class LiveContext:
    """The arguments that a reader is opened with."""

    source: str
    into: str
    state: LiveState
    catalog: Catalog
    spec_of: Callable[[str], TableSpec]
    """Returns what the pipeline file says of a stream table."""
    runner: Runner = HERE
    say: Callable[[str], None] = lambda text: None
    folder: str = "."
    """The folder of the pipeline file: modules beside it can be imported."""

    def table(self, name: str) -> str:
        """Return the stream table for a table, topic or resource of the source."""
        return self.into.replace(TABLE, name)


class LiveSpec(Protocol):
    """A live source as the pipeline file says it: a value, made by the grammar without asking anybody."""

    @property
    def kind(self) -> str:
        """The name in [[source]] that it is written under, such as `debezium`."""

    @property
    def shown(self) -> str:
        """A few words for plans and errors, without secrets."""

    def opened(self, context: LiveContext) -> LiveReader:
        """Open the source after `context.state.offset`. InvalidInput (13) for what is wrong in the file."""


def feeds(into: str, table: str) -> bool:
    """Return True if `into` of a live source names a stream table, or stands for it."""
    return table_of(into, table) is not None


def table_of(into: str, table: str) -> str | None:
    """Return what `{table}` of `into` stands for in the name of a stream table; None if `into` is not for it."""
    begin, *end = map(re.escape, into.split(TABLE, 1))
    found = re.fullmatch(f"{begin}([^.]+){end[0].replace(re.escape(TABLE), '[^.]+')}" if end else f"{begin}()", table)
    return None if found is None else found[1]
