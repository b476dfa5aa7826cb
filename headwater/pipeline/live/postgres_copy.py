"""The first copy of large tables of PostgreSQL: tasks read them in one exported snapshot. The engine goes on after it.

The slot is made with the snapshot, so that the first change that it gives is the first one that the snapshot does not
see. This process holds the snapshot until all ranges are committed. A copy that is broken off is begun again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headwater.catalog import Catalog
from headwater.catalog.transactions import metastore_of
from headwater.clock import Clock
from headwater.errors import InvalidInputError, LanceNamespaceError, ServiceUnavailableError, UnsupportedOperationError
from headwater.pipeline.executors import ROW_BYTES, ingest_parts
from headwater.pipeline.live.debezium_reader import PLACES, PREFIX, DebeziumReader, slot_of, table_names
from headwater.pipeline.live.live_source import Json, LiveBatch, LiveContext, LiveReader
from headwater.pipeline.live.live_tables import RowsPart, fitted_table
from headwater.pipeline.live.source_specs import CONNECTORS, RANGES, DebeziumSpec
from headwater.references import follow
from headwater.streams.log.landing import LandingReport
from headwater.streams.reading.position_views import PositionView
from headwater.streams.sources import postgres
from headwater.streams.sources.debezium_envelopes import OFFERED
from headwater.streams.sources.intake import Intake
from headwater.streams.sources.postgres import (
    TABLES,
    BlockRange,
    CopiedColumn,
    CopiedTable,
    block_ranges,
    column_of,
    connect,
    quoted,
)
from headwater.streams.stream_lookup import Stream
from headwater.wording import many
from headwater.work import HERE, Runner, Task

if TYPE_CHECKING:
    from headwater.pipeline.grammar import TableSpec

MODULE = "headwater.streams.sources.postgres"
LARGE_BYTES = 1 << 28
"""Tables that are smaller all together are copied by the engine, unless the file says `copy = "ranges"`."""
RANGE_BYTES = 1 << 26
"""A task holds the rows of one range in memory."""
RANGES_AT_ONCE = 4
"""A batch has so many ranges for each core."""
SLOT_S = 10.0
SSL = {"database.sslmode": "sslmode", "database.sslrootcert": "sslrootcert"}
"""Options of the engine that change only how it connects, and their names for the client."""
COLUMNS = """
SELECT a.attname, coalesce(e.typname, t.typname), a.atttypmod, e.oid IS NOT NULL, coalesce(e.typtype, t.typtype) = 'e',
  a.attgenerated <> '', coalesce(array_position(i.indkey::int[], a.attnum::int), -1)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = {oid} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


class NotInRanges(Exception):
    """The tables cannot be copied in ranges; says why. The engine copies them."""


def opened_copy(spec: DebeziumSpec, context: LiveContext) -> LiveReader | None:
    """Return a reader that copies the tables in ranges before the engine follows them; None: the engine copies.

    InvalidInput (13) says why not, if the file asks for ranges.
    """
    catalog = metastore_of(context.catalog.namespace)
    slot = slot_of(str(catalog.properties.root), context.source)
    if not postgres.is_installed():
        if spec.copy == RANGES:
            raise UnsupportedOperationError(postgres.MISSING)
        return None
    try:
        return PostgresCopyReader(spec, context, SlotSnapshot(spec, slot, connection_of(spec), catalog.clock))
    except NotInRanges as why:
        if spec.copy == RANGES:
            raise InvalidInputError(
                f"The source {context.source!r} cannot be copied in ranges: {why}. Leave out copy, and Debezium's "
                "engine copies it."
            ) from None
    except LanceNamespaceError:
        if spec.copy == RANGES:
            raise
    return None  # the engine copies, or says in its own words what is wrong


def connection_of(spec: DebeziumSpec) -> dict[str, str]:
    """Return the settings of the client, with the secret. Raises NotInRanges for options that change what is read."""
    own = {"host": spec.host, "port": str(spec.port), "user": spec.user, "dbname": spec.database}
    if spec.password is not None:
        own["password"] = follow(spec.password, "password")
    for name, value in spec.options.items():
        if name not in SSL:
            raise NotInRanges(f"only Debezium knows its option {name}")
        own[SSL[name]] = follow(value, name)
    return own


class SlotSnapshot:
    """A new replication slot, the snapshot exported with it, and the tables as they are there.

    The slot stays when this is closed.
    """

    def __init__(self, spec: DebeziumSpec, slot: str, settings: Mapping[str, str], clock: Clock) -> None:
        self.settings = settings
        self._open: list[Any] = []
        try:
            database = self._database = self._connected()
            if database.info.server_version < 140000:
                raise NotInRanges("it needs PostgreSQL 14 or newer")
            tables = described(database, spec.tables)
            size = sum(int(one(database, f"SELECT pg_table_size({each.oid})")) for each in tables)
            if spec.copy != RANGES and size < LARGE_BYTES:
                raise NotInRanges("it is small")
            self.slot = spec.slot or slot
            self._free_slot(database, spec.slot is None, clock)
            self._publish(database, tables, spec.publication or slot, spec.publication is None)
            replication = self._connected(replication="database")
            made = replication.execute(f"CREATE_REPLICATION_SLOT {quoted(self.slot)} LOGICAL pgoutput").fetchone()
            self.snapshot = str(made[2])
            high, _, low = str(made[1]).partition("/")
            self.lsn = (int(high, 16) << 32) + int(low, 16)
            holder = self._connected()  # it reads no table: the lock would stay, and keep changes of the table waiting
            postgres.join(holder, self.snapshot)
            self.tables = described(holder, spec.tables)  # they may have changed before the snapshot
            if [each.oid for each in self.tables] != [each.oid for each in tables]:
                raise ServiceUnavailableError("Tables were made or dropped while the copy began: run again.")
        except postgres.client.Error as error:
            self.close()
            raise postgres.failure(error) from None
        except BaseException:
            self.close()
            raise

    def _connected(self, **more: str) -> Any:
        self._open.append(connect(self.settings, **more))
        return self._open[-1]

    def _free_slot(self, database: Any, is_own: bool, clock: Clock) -> None:
        """Drop the slot of a copy that was broken off. Raises NotInRanges for a slot of somebody else's."""
        ask = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        end = clock.monotonic() + SLOT_S
        while (found := database.execute(ask).fetchone()) is not None:
            if not is_own:
                raise NotInRanges(f"the slot {self.slot} is there already, and only a new one exports its snapshot")
            if found[0] is None or clock.monotonic() > end:  # a process that was killed: the server has not noticed yet
                database.execute(f"SELECT pg_drop_replication_slot('{self.slot}')")
                return
            clock.sleep(0.1)

    def _publish(self, database: Any, found: Sequence[CopiedTable], name: str, is_own: bool) -> None:
        """Make sure that the publication has the tables: the slot must find it when it begins."""
        tables = ", ".join(f"ONLY {each.shown}" for each in found)
        if database.execute("SELECT FROM pg_publication WHERE pubname = %s", [name]).fetchone() is None:
            database.execute(f"CREATE PUBLICATION {quoted(name)} FOR TABLE {tables}")
        elif is_own:
            database.execute(f"ALTER PUBLICATION {quoted(name)} SET TABLE {tables}")

    def ranges(self, table: CopiedTable) -> list[BlockRange]:
        """Return the ranges of a table; none if it has no rows."""
        postgres.join(self._database, self.snapshot)
        try:
            if not one(self._database, f"SELECT EXISTS (SELECT FROM ONLY {table.shown})"):
                return []
            size = int(one(self._database, f"SELECT pg_table_size({table.oid})"))
            blocks = f"SELECT pg_relation_size({table.oid}) / current_setting('block_size')::int"
            return block_ranges(table, int(one(self._database, blocks)), size, RANGE_BYTES)
        finally:
            self._database.execute("ROLLBACK")

    def close(self) -> None:
        for each in self._open:
            with suppress(postgres.client.Error):
                each.close()


def one(database: Any, sql: str) -> Any:
    return database.execute(sql).fetchone()[0]


def described(database: Any, patterns: Sequence[str]) -> list[CopiedTable]:
    """Return the tables that Debezium would read. Raises NotInRanges for those that only it can read."""
    found = []
    for schema, name, oid, file, is_partitioned in database.execute(TABLES).fetchall():
        if patterns and not any(_matches(each, f"{schema}.{name}") for each in patterns):
            continue
        if is_partitioned:
            raise NotInRanges(f"{schema}.{name} has partitions")
        columns, keys = list[CopiedColumn](), dict[int, str]()
        for column, type_name, modifier, is_list, is_enum, is_generated, key in database.execute(
            COLUMNS.format(oid=oid)
        ).fetchall():
            made = None if is_generated else column_of(column, type_name, modifier, is_list, is_enum)
            if made is None:
                kind = "generated" if is_generated else f"a {type_name}"
                raise NotInRanges(f"the column {column} of {schema}.{name} is {kind}, which only Debezium reads")
            if key >= 0:
                keys[key] = column
            if column not in OFFERED:
                columns.append(made)
        in_key = tuple(keys[place] for place in sorted(keys))
        found.append(CopiedTable(schema, name, oid, file, tuple(columns), in_key))
    if not found:
        raise NotInRanges("no table is to be read")
    return found


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.fullmatch(pattern.strip(), name, re.IGNORECASE) is not None
    except re.error:
        raise NotInRanges(f"only Debezium understands the pattern {pattern!r}") from None


# The reader -----------------------------------------------------------------------------------------------------------


class PostgresCopyReader:
    """Gives the ranges of all tables batch by batch, and then what the engine reads."""

    def __init__(self, spec: DebeziumSpec, context: LiveContext, snapshot: SlotSnapshot) -> None:
        self._spec, self._context, self._snapshot = spec, context, snapshot
        self._engine: DebeziumReader | None = None
        now = metastore_of(context.catalog.namespace).clock.now_ms()
        place: Json = {"lsn": snapshot.lsn, "lsn_proc": snapshot.lsn, "ts_usec": now * 1000}
        self._offset = [{"server": PREFIX}, place]
        try:
            names = table_names(context, [each.name for each in snapshot.tables])
            left = [each for table in snapshot.tables for each in snapshot.ranges(table)]
        except BaseException:
            snapshot.close()
            raise
        self._tables = dict(zip((each.name for each in snapshot.tables), names, strict=True))
        step = RANGES_AT_ONCE * context.runner.cores
        self._batches = [left[first : first + step] for first in range(0, len(left), step)] or [[]]
        context.say(f"{context.source}: copy {many(len(names), 'table')} in {many(len(left), 'range')}")

    @property
    def is_caught_up(self) -> bool:
        return self._engine is not None and self._engine.is_caught_up

    def take(self, wait_s: float) -> LiveBatch | None:
        """Return the next ranges of the copy, and after them what the engine read."""
        if self._engine is not None:
            return self._engine.take(wait_s)
        ranges, *more = self._batches
        parts: dict[int, list[BlockRange]] = {}
        for each in ranges:
            parts.setdefault(each.table.oid, []).append(each)
        return LiveBatch([self._part(each) for each in parts.values()], self._offset, (), bool(more))

    def _part(self, ranges: Sequence[BlockRange]) -> BlocksPart:
        table = ranges[0].table
        name = self._tables[table.name]
        spec = self._context.spec_of(name)
        columns = {each.name: each.kind for each in table.columns}
        own = CONNECTORS[self._spec.connector].sequence
        columns |= {name: PLACES[name] for name in own}
        sequence = spec.sequence or (own if spec.keys or table.keys else ())
        made = RowsPart(name, (), columns=columns, keys=table.keys, sequence=sequence, spec=spec)
        share = RANGE_BYTES // ROW_BYTES
        runner = HERE if self._context.runner.in_driver(share * len(ranges)) else self._context.runner
        return BlocksPart(name, made, tuple(ranges), self._snapshot.snapshot, runner, self._snapshot.settings)

    def acknowledge(self, batch: LiveBatch) -> None:
        """Go on after a batch. After the last range the snapshot is given up, and the engine begins where it was."""
        if self._engine is not None:
            self._engine.acknowledge(batch)
            return
        self._batches = self._batches[1:]
        if not self._batches:
            self._snapshot.close()
            state = replace(self._context.state, offset=self._offset)
            self._engine = DebeziumReader(self._spec, replace(self._context, state=state))

    def close(self) -> None:
        self._snapshot.close()
        if self._engine is not None:
            self._engine.close()


@dataclass(frozen=True)
class BlocksPart:
    """Ranges of one table, which tasks read when they land. `made`: the stream table, if it is not there yet."""

    table: str
    made: RowsPart
    ranges: tuple[BlockRange, ...]
    snapshot: str
    runner: Runner
    settings: Mapping[str, str] = field(repr=False)
    is_whole: bool = False

    @property
    def origin(self) -> str:
        return f"{self.ranges[0].table.schema}.{self.ranges[0].table.name}"

    def land(self, catalog: Catalog, source: str) -> LandingReport:
        """Land the rows inside the open transaction of `catalog`."""
        stream = fitted_table(catalog, self.made)
        spec: TableSpec | None = self.made.spec
        intake = Intake((), "rows", source, False, tuple(spec.checks) if spec is not None else (), {})
        at = stream.namespace.location()

        def prepare(
            ranges: Sequence[BlockRange], opened: Stream, intake: Intake, known: int, view: PositionView | None
        ) -> list[Json | None]:
            about = (at, opened, intake, known, view, self.settings, self.snapshot)
            tasks = [Task(f"{MODULE}:prepare_blocks", (*about, each)) for each in ranges]
            return self.runner.run(tasks, f"copy {many(len(ranges), 'range')} into {self.table}")

        return ingest_parts(stream, intake, self.ranges, prepare)
