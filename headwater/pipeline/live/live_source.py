"""The seam of live sources: what a pipeline file says of one, how it is read, and what one batch of it is.

Offsets of live sources in the catalog: a record of the table `system.sources` for each source.

A record is a stream without deltas, whose properties are rewritten in the commit that lands the rows. Whoever commits
has read it in the same transaction, so two that take from one source conflict, and others never meet. The journal of a
source is kept on pages, so that a commit rewrites a few kilobytes however long it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError, NamespaceNotFoundError, TableNotFoundError
from headwater.metastore import Reading, Transaction
from headwater.names import format_name
from headwater.streams import layout
from headwater.streams.layout import RECORD, live_page, live_record
from headwater.streams.log.landing import LandingReport
from headwater.tables.expressions import quoted
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


SOURCES = format_name(layout.SOURCES)
_COLUMNS: dict[str, Any] = {"source": pa.string(), "kind": pa.string(), "shown": pa.string(), "into": pa.string()}
SCHEMA = pa.schema(_COLUMNS)
"""A row for each live source, written with its first commit. Its record is kept beside, not in the row."""
PAGE_BYTES = 1 << 15
ABSENT = (NamespaceNotFoundError, TableNotFoundError)


def live_state(catalog: Catalog, source: str, journal: bool = True) -> LiveState:
    """Return the state of a source as the catalog has it, or inside its open transaction; with its journal."""
    if not catalog.is_there:
        return LiveState()
    reading = metastore_of(catalog.namespace).session.state()
    found = _read(reading, live_record(source))
    if "offset" not in found:
        return LiveState(commits=int(found.get("commits", 0)))
    pages = range(int(found["pages"])) if journal else ()
    lines = tuple(str(line) for page in pages for line in _read(reading, live_page(source, page)).get("lines", ()))
    told = tuple(found["tables"]), int(found["commits"]), bool(found.get("partial", False))
    return LiveState(found["offset"], lines, *told, dict(found.get("origins", {})))


def prepare(catalog: Catalog, source: str, kind: str, shown: str, into: str) -> None:
    """Make sure that the table of records is there, and has a row for the source as it is now.

    InvalidInput (13) if its offset is that of a source of another kind, or if its tables are others now.
    """
    row = {"source": source, "kind": kind, "shown": shown, "into": into}
    known = _row(catalog, source)
    if known == row:
        return
    if known is not None:
        _check_goes_on(catalog, live_state(catalog, source, False), known, row)
    catalog.create_namespace(layout.SOURCES[0], exist_ok=True)  # no file is written before there is a catalog

    def work(tx: Catalog) -> None:
        if SOURCES not in tx:
            tx.create_stream_table(SOURCES, SCHEMA, keys="source")
        tx[SOURCES].upsert([row], source=source)

    catalog.run(work, f"live source {source}")


def _row(catalog: Catalog, source: str) -> dict[str, Any] | None:
    if not catalog.is_there or SOURCES not in catalog:
        return None
    return next(iter(catalog[SOURCES].to_arrow(filter=f"source = {quoted(source)}").to_pylist()), None)


def _check_goes_on(catalog: Catalog, state: LiveState, before: dict[str, Any], row: dict[str, Any]) -> None:
    """Raise InvalidInput (13) if a source that has another kind or other tables now cannot go on at its offset."""
    if state.offset is None:
        return
    source, other = row["source"], "give the source another name, or run with --full-refresh of its tables"
    if before["kind"] != row["kind"]:
        raise InvalidInputError(
            f"The source {source!r} was {before['kind']} ({before['shown']}), and its offset is of that: {other}."
        )
    for table in state.tables if before["into"] != row["into"] else ():
        name = table_of(before["into"], table)
        new = table if name is None else row["into"].replace(TABLE, name)
        if new not in catalog:
            raise InvalidInputError(
                f"The rows of {source!r} went into {table}, and go into {new} now, which would lack those of before: "
                f"rename {table} too, or give the source another name."
            )


def keep(catalog: Catalog, source: str, state: LiveState, lines: tuple[str, ...] = ()) -> None:
    """Write the state of a source inside the open transaction of `catalog`, and add lines to its journal."""
    tx = metastore_of(catalog.namespace).session.opened().tx
    known = _read(tx, live_record(source))
    pages = int(known.get("pages", 0))
    if lines:
        last = list(_read(tx, live_page(source, pages - 1)).get("lines", ())) if pages else []
        is_full = sum(map(len, last)) > PAGE_BYTES
        pages += is_full or not pages
        _write(tx, live_page(source, pages - 1), {"lines": [*([] if is_full else last), *lines]})
    found = {"source": source, "offset": state.offset, "tables": list(state.tables), "commits": state.commits}
    found |= {"pages": pages, "partial": state.is_partial, "origins": dict(state.origins)}
    _write(tx, live_record(source), found)


def forget(catalog: Catalog, source: str) -> None:
    """Forget the offset of a source inside the open transaction of `catalog`: it is read from its beginning again."""
    tx = metastore_of(catalog.namespace).session.opened().tx
    known = _read(tx, live_record(source))
    for number in range(int(known.get("pages", 0))):
        _write(tx, live_page(source, number), {"lines": []})
    if known:
        _write(tx, live_record(source), {"source": source, "commits": int(known["commits"]) + 1})


def _read(reading: Reading, id: str) -> dict[str, Any]:
    try:
        return dict(reading.get_stream(layout.SOURCES, id).properties)
    except ABSENT:
        return {}


def _write(tx: Transaction, id: str, properties: dict[str, object]) -> None:
    try:
        tx.get_stream(layout.SOURCES, id)
    except TableNotFoundError:
        tx.create_stream(layout.SOURCES, RECORD, id=id)
    tx.update_stream(layout.SOURCES, id, properties)
