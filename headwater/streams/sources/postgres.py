"""Tables of PostgreSQL as an exported snapshot has them: tasks read ranges of their blocks. Needs the extra `postgres`.

A range is read by one task on a connection of its own, which joins the snapshot. Every row that the snapshot sees is in
one block, so ranges of blocks have each row once. They need no key, and none is larger than the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headwater.decoding.files import read_texts
from headwater.errors import ServiceUnavailableError, UnsupportedOperationError
from headwater.imports import when_used
from headwater.streams.log.batches import Quarantined
from headwater.streams.log.landing import BatchOrigin
from headwater.streams.reading.position_views import PositionView
from headwater.streams.rows.column_casts import cast_array, cast_values
from headwater.streams.rows.input_rows import InputRows, as_json
from headwater.streams.serving.serving_copy import CatalogLocation
from headwater.streams.sources.format_output import Taken
from headwater.streams.sources.intake import Intake
from headwater.streams.stream_lookup import Stream
from headwater.work import Json

client = when_used("psycopg")
MISSING = "Copying in ranges needs the module psycopg: pip install 'headwater[postgres]', also where executors run."
TABLES = """
SELECT n.nspname, c.relname, c.oid::bigint, c.relfilenode::bigint, c.relkind = 'p' OR c.relispartition
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname <> 'information_schema'
AND n.nspname NOT LIKE 'pg\\_%' ORDER BY 1, 2
"""
"""The tables of a database, and True for partitions and what has some."""
LSN = "_lsn"
SCALARS: Mapping[str, Any] = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "uuid": pa.string(),
    "json": pa.string(),
    "jsonb": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
"""Types whose values have one reading, the same as Debezium's."""
IN_LISTS = frozenset(("int2", "int4", "int8", "text", "varchar", "uuid", "bool", "date"))
LOOSE = pa.decimal128(38, 9)
"""The type of a NUMERIC that tells no scale."""
DIGITS = 38
_JSON = msgspec.json.Decoder(float_hook=Decimal)


@dataclass(frozen=True)
class CopiedColumn:
    """A column of a table: its name, its Arrow type, and how it is asked for."""

    name: str
    kind: Any

    @property
    def sql(self) -> str:
        """The column as a text that `values` reads. Casts would cut the blanks of CHAR(n), so most have none."""
        name = quoted(self.name)
        if pa.types.is_binary(self.kind):
            return f"encode({name}, 'hex')"
        if pa.types.is_list(self.kind):
            return f"to_json({name})"
        return f"{name}::text" if pa.types.is_boolean(self.kind) else name

    def values(self, texts: Any) -> tuple[Any, Any]:
        """Return the values of texts, and where one does not fit."""
        if pa.types.is_binary(self.kind):
            found = [None if text is None else bytes.fromhex(text) for text in texts.to_pylist()]
            return pa.array(found, self.kind), np.zeros(len(found), bool)
        if pa.types.is_list(self.kind):
            return cast_values([None if text is None else _JSON.decode(text) for text in texts.to_pylist()], self.kind)
        return cast_array(texts, self.kind)


@dataclass(frozen=True)
class CopiedTable:
    """A table as a snapshot has it. `file`: the number of the file that its blocks are in."""

    schema: str
    name: str
    oid: int
    file: int
    columns: tuple[CopiedColumn, ...]
    keys: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"


@dataclass(frozen=True)
class BlockRange:
    """Blocks of a table, from `first` up to `end`, which is not of the range; None: up to the last."""

    table: CopiedTable
    first: int
    end: int | None

    @property
    def sql(self) -> str:
        columns = ", ".join(each.sql for each in self.table.columns)
        upper = "" if self.end is None else f" AND ctid < '({self.end},0)'"
        where = f"FROM ONLY {self.table.shown} WHERE ctid >= '({self.first},0)'{upper}"
        return f"COPY (SELECT {columns} {where}) TO STDOUT (FORMAT csv)"


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def column_of(name: str, type_name: str, modifier: int, is_list: bool, is_enum: bool) -> CopiedColumn | None:
    """Return a column by its type in PostgreSQL; None for a type that only Debezium can read. Pure.

    `type_name`: of a list that of its items. `modifier`: of NUMERIC, its digits and scale; -1: it has none.
    """
    if is_list:
        return CopiedColumn(name, pa.list_(SCALARS[type_name])) if type_name in IN_LISTS else None
    if type_name == "numeric":
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if modifier >= 0 and scale > precision:  # a scale below zero, or only digits behind the point
            return None
        return CopiedColumn(name, LOOSE if modifier < 0 else pa.decimal128(min(DIGITS, precision), scale))
    kind = pa.string() if is_enum else SCALARS.get(type_name)
    return None if kind is None else CopiedColumn(name, kind)


def block_ranges(table: CopiedTable, blocks: int, size: int, most: int) -> list[BlockRange]:
    """Divide a table into ranges. Pure.

    `blocks`: those that it has. `size`: the bytes of the table with its large values. `most`: the bytes of one range.
    """
    step = max(1, int(blocks * most / max(1, size)))
    firsts = range(0, max(1, blocks), step)
    ends = [*list(firsts)[1:], None]
    return [BlockRange(table, *each) for each in zip(firsts, ends, strict=True)]


# Reading --------------------------------------------------------------------------------------------------------------

STEADY = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=1 -c statement_timeout=0"
"""Settings of a connection, so that values have one text and nothing ends a long copy."""
IDLE = " -c idle_in_transaction_session_timeout=0 -c idle_session_timeout=0"


def is_installed() -> bool:
    """Return True if this Python has the client."""
    try:
        return client.Error is not None
    except ModuleNotFoundError:
        return False


def connect(settings: Mapping[str, str], **more: str) -> Any:
    """Open a connection without a transaction. ServiceUnavailable (17) with the server's words if it refuses."""
    try:
        how = {"connect_timeout": "30", "client_encoding": "utf8", "options": STEADY + IDLE, **settings, **more}
        return client.connect(autocommit=True, **how)
    except ModuleNotFoundError:  # an executor may lack it, where the driver has it
        raise UnsupportedOperationError(MISSING) from None
    except client.Error as error:
        raise failure(error) from None


def failure(error: object) -> ServiceUnavailableError:
    """Return an error of the client as one of ours, in one line."""
    return ServiceUnavailableError(f"PostgreSQL: {' '.join(str(error).split())[:500].rstrip('.')}.")


def join(connection: Any, snapshot: str) -> None:
    """Begin a transaction that sees what an exported snapshot sees."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")


def read_blocks(settings: Mapping[str, str], snapshot: str, wanted: BlockRange) -> pa.Table:
    """Return the rows of a range as the snapshot has them, each value as a text.

    ServiceUnavailable (17) if the table was rewritten since: its blocks are others then, or are empty to the snapshot.
    No lock is held between two ranges: a change of the table would wait for it, and the next range for that change.
    """
    table = wanted.table
    names = [each.name for each in table.columns]
    connection = connect(settings)
    try:
        join(connection, snapshot)
        with connection.cursor() as cursor, cursor.copy(wanted.sql) as copy:
            found = b"".join(copy)
        if connection.execute(f"SELECT pg_relation_filenode({table.oid})").fetchone()[0] != table.file:
            raise ServiceUnavailableError(
                f"{table.schema}.{table.name} was rewritten while it was copied (by TRUNCATE, VACUUM FULL, CLUSTER or "
                "ALTER TABLE): the next run copies all tables of the source again."
            )
        return read_texts(found, names)
    except client.Error as error:
        raise failure(error) from None
    finally:
        connection.close()


def taken_of(texts: pa.Table, columns: Iterable[CopiedColumn], constants: Mapping[str, object]) -> Taken:
    """Return rows as those of a first copy: older than every change. A value that does not fit is quarantined."""
    found: dict[str, Any] = {}
    bad: dict[int, str] = {}
    for each in columns:
        found[each.name], wrong = each.values(texts.column(each.name))
        bad |= dict.fromkeys(np.flatnonzero(wrong).tolist(), each.name)
    count = texts.num_rows
    found |= {name: pa.array([value] * count, pa.int64()) for name, value in constants.items()}
    rows = InputRows(found, count, reads=np.ones(count, bool))
    rejected = [Quarantined(as_json(texts.slice(at, 1).to_pylist()[0]), "bad_value", bad[at]) for at in sorted(bad)]
    return Taken(rows.take(np.setdiff1d(np.arange(count), list(bad))) if bad else rows, tuple(rejected))


def prepare_blocks(
    location: CatalogLocation,
    stream: Stream,
    intake: Intake,
    known: int,
    view: PositionView | None,
    settings: Mapping[str, str],
    snapshot: str,
    wanted: BlockRange,
) -> Json:
    """Read a range and write its rows as files of the log."""
    texts = read_blocks(settings, snapshot, wanted)
    constants = {LSN: 0} if LSN in stream.definition.by_name else {}
    taken = taken_of(texts, wanted.table.columns, constants)
    return intake.written(location.lake(), stream, taken, BatchOrigin(intake.source), known)
