"""Statements on stream tables (DDL and writes) and streaming queries into them: the driver commits what tasks wrote.

A statement is one transaction, and so is each batch of a streaming query. The record of the source `spark:<query>` in
the table's ledger has each batch by its number, written in the transaction that commits the batch. So a batch that
Spark replays is passed over, whatever became of Spark's own commit log. A column that the frame lacks is missing in its
rows and keeps its value; bad rows go to the quarantine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableNotFoundError,
    UnsupportedOperationError,
)
from headwater.metastore import Metastore, Snapshot, Transaction
from headwater.metastore.records.serving_copy import location_of
from headwater.names import ObjectId, format_name
from headwater.rest.remote_streams import create_remote
from headwater.spark.fresh import NEEDS_STORAGE, lake_of, opened, schema_of
from headwater.spark.protocol import (
    AddColumn,
    AnyTableChange,
    ColumnType,
    CommitEvents,
    CommitStaged,
    DropColumn,
    RemoveProperty,
    RenameColumn,
    SetProperty,
)
from headwater.spark.served_streams import connected, send_batch, send_created, send_statement, taken_rows
from headwater.spark.wire_values import SERVER, Fold, Json, NewStream, WireTable, is_server
from headwater.streams.definition import Definition, define, from_properties, to_properties
from headwater.streams.layout import LANCE
from headwater.streams.log.landing import APPEND, UPSERT, BatchOrigin, rows_so_far
from headwater.streams.log.prepared_landing import EvolvedError, PreparedLanding, prepare
from headwater.streams.log.source_ledger import Ledger, LedgerEntry
from headwater.streams.log.statements import Statement, changed, check_position, land_statement, prepare_rows
from headwater.streams.rows.input_rows import from_table
from headwater.streams.serving.serving_copy import Lake
from headwater.streams.sources.format_output import Taken
from headwater.streams.sources.intake import are_few, chunks, gathered, packed
from headwater.streams.stream_lookup import Stream, open_in, open_stream
from headwater.streams.table import create_stream_table
from headwater.types import arrow_type, spark_schema

FILE = "file://"
ATTEMPTS = 100
"""How often a statement that has read nothing is begun anew, when others land first."""


def write_events(
    table: WireTable, reader: pa.RecordBatchReader, given: Sequence[str] | None, deletes: bool = False
) -> list[Json]:
    """Write the rows of a task as files of the log, on an executor, and return what their commit needs.

    Few rows are returned as they are. A bad row is an error, here or when the driver writes it.

    `given`: the columns that the statement names; the others stay as they are, which is not NULL.
    """
    if table.is_served:
        return taken_rows(table, chunks(reader), given)
    found, stream, sofar = _opened(table)
    store, clock = found.metastore.store, found.metastore.clock
    made: list[Json] = []
    for rows in chunks(reader):
        names = stream.definition.by_name if given is None else given  # a changed row comes with derived columns
        chosen = rows.select([name for name in rows.schema.names if name in names])
        few = are_few(chosen)
        made.append(packed(chosen) if few else dict(prepare_rows(store, clock, stream, chosen, deletes, sofar)))
    return made


def _written(table: WireTable, parts: Sequence[Json], deletes: bool = False) -> list[Mapping[str, object]]:
    """Return what tasks wrote, on the driver, after writing the rows that they handed over."""
    found, stream, sofar = _opened(table)
    store, clock = found.metastore.store, found.metastore.clock
    return list(gathered(parts, lambda rows: prepare_rows(store, clock, stream, rows, deletes, sofar)))


def _opened(table: WireTable) -> tuple[Lake, Stream, int]:
    """Return a stream table as the statement found it, or as it will create it, and about how many rows it has."""
    fold, found = table.log, lake_of(table)
    if fold.new is None:
        snapshot = found.metastore.at(fold.slot)
        stream = open_stream(snapshot, table.id)
        return found, stream, rows_so_far(snapshot, stream)
    definition = from_properties(fold.new.properties)
    assert definition is not None
    return found, Stream(table.id, fold.new.version, fold.new.home, definition), 0


def commit_events(call: CommitEvents) -> int:
    """Commit on the driver what the tasks of a statement wrote, in one transaction; return the newest position.

    A statement that has read is tried once. One that has not goes on top of whatever is newest.
    """
    if call.table.is_served:
        return send_statement(call)
    found, stream, _ = _opened(call.table)
    position = call.table.log.position if call.has_read else None
    deleted = _written(call.table, call.deleted, deletes=True)
    statement = Statement(deleted, _written(call.table, call.upserted), _written(call.table, call.inserted), position)

    def work(tx: Transaction) -> None:
        if open_in(tx, stream.path).id != stream.id:
            raise changed(stream.name)
        check_reads(tx, found.uri, call.reads)
        land_statement(found, tx, stream.path, statement)

    if not statement.is_empty:
        attempts = 1 if call.has_read or call.reads else ATTEMPTS
        found.metastore.run(work, f"{call.command} {stream.name}", attempts=attempts)
    return found.metastore.now().last_position(stream.path)


def commit_created(call: CommitStaged) -> int:
    """CREATE TABLE ... AS SELECT: the table with its first rows, in one transaction or not at all."""
    if call.table.is_served:
        return send_created(call)
    found, stream, _ = _opened(call.table)
    assert call.table.log.new is not None
    key, rows = call.table.log.new.id, _written(call.table, call.fragments)

    def work(tx: Transaction) -> None:
        check_reads(tx, found.uri, call.reads)
        create_stream_table(tx, stream.path, stream.definition, key)
        if open_in(tx, stream.path).home != stream.home:  # another namespace has the name now
            raise changed(stream.name)
        land_statement(found, tx, stream.path, Statement(upserted=rows))

    attempts = 1 if call.reads else ATTEMPTS
    found.metastore.run(work, f"create stream table {stream.name} as select", attempts=attempts)
    return found.metastore.now().last_position(stream.path)


def check_reads(tx: Transaction, root: str, reads: Sequence[WireTable]) -> None:
    """Every table that a statement has read is as it was then, and the transaction relies on that. One that was made
    anew under the name, or moved there, is another: it has another id, and its files are in another folder."""
    for table in reads:
        name = format_name(table.id)
        try:
            if table.is_stream:
                stream = open_in(tx, table.id)
                if table.log.id not in ("", stream.id):
                    raise changed(name)
                check_position(tx, stream, table.log.position)
                continue
            copy, newest = tx.get_stream(table.id, format=LANCE), tx.newest_delta(table.id, format=LANCE)
        except (TableNotFoundError, NamespaceNotFoundError):
            raise changed(name) from None
        is_same = is_at(table.uri, root, location_of(copy.properties, copy.home))
        if not is_same or newest is None or newest.position != table.version:
            raise changed(name)


def is_at(uri: str, root: str, location: str) -> bool:
    """Return True if a table's address is a folder of the catalog; with another prefix, if it ends with that folder."""
    path, above = unquote(uri).removeprefix(FILE), f"{unquote(root).removeprefix(FILE).rstrip('/')}/"
    return path == above + location if path.startswith(above) else path.endswith(f"/{location}")


# The streaming sink ---------------------------------------------------------------------------------------------------


def prepare_batch(table: WireTable, query: str, reader: pa.RecordBatchReader) -> list[Json]:
    """Write the rows of a task as files of the log, on an executor; few rows are returned as they are."""
    if table.is_served:
        return [packed(rows) for rows in chunks(reader)]
    metastore = lake_of(table).metastore
    snapshot = metastore.now()
    return [
        packed(rows) if are_few(rows) else _as_log_files(metastore, snapshot, table, query, rows)
        for rows in chunks(reader)
    ]


def _as_log_files(metastore: Metastore, snapshot: Snapshot, table: WireTable, query: str, rows: pa.Table) -> Json:
    """Return rows as files of the log."""
    stream = open_stream(snapshot, table.id)
    definition, known = stream.definition, rows_so_far(snapshot, stream)
    taken, origin = Taken(from_table(rows)), BatchOrigin(_source(query))
    contract = _contract(definition)
    return prepare(metastore.store, metastore.clock, stream, taken, origin, definition.checks, known, contract)


def _contract(definition: Definition) -> str:
    """A query has one schema as long as it runs, so it never makes a table evolve: ALTER TABLE does."""
    return "discard" if definition.contract == "discard" else "freeze"


def land_batch(table: WireTable, query: str, batch: int, prepared: list[Json], truncate: bool) -> int:
    """Commit on the driver what the tasks of a batch wrote, once, in one transaction; return the newest position."""
    if truncate:
        raise InvalidInputError(
            f"{format_name(table.id)} is a stream table: its log cannot be replaced, so outputMode('complete') is "
            "refused. Use 'update' with a table that has the grouping columns as keys."
        )
    if table.is_served:
        return send_batch(table, _source(query), batch, prepared)
    metastore = lake_of(table).metastore
    before = metastore.now()
    stream = open_stream(before, table.id)
    verb = UPSERT if stream.definition.keys else APPEND
    source, token = _source(query), str(batch)
    landings: list[PreparedLanding] = []

    def work(tx: Transaction) -> None:
        opened = open_in(tx, stream.path)
        ledger = Ledger(tx, opened.path, opened.version, source)
        if ledger.token(token, token) is not None:
            return
        if not landings:  # once, however often the transaction is run
            for each in gathered(prepared, lambda rows: _as_log_files(metastore, before, table, query, rows)):
                first = landings[0] if landings else None
                landings.append(PreparedLanding(metastore, stream.path, each, verb, False, BatchOrigin(source), first))
        landed = [landing(tx) for landing in landings]
        counts = sum(each.rows for each in landed), sum(each.quarantined for each in landed)
        after = before.last_position(opened.path, version=opened.version)
        ledger.take_token(token, LedgerEntry(token, tx.id, after, *counts, time=metastore.clock.now_ms()))

    if prepared:
        try:
            metastore.run(work, f"batch {batch} of {source} into {stream.name}")
        except EvolvedError:
            raise ConcurrentModificationError(f"{stream.name} evolved while a batch was written: again.") from None
    return metastore.now().last_position(stream.path, version=stream.version)


def _source(query: str) -> str:
    return f"spark:{query}"


STREAM = "stream"
MARKS = ("keys", "sequence")
"""Properties in SQL that are more: what a stream table is made with."""
PROVIDERS = ("headwater", "lance", STREAM, "parquet", "orc", "csv", "json", "avro", "text")
"""What USING may say. Spark itself names its default format, one of the last six, where a statement says nothing."""


def check_provider(properties: dict[str, str]) -> bool:
    """Return True if a new table is to be a stream table; error 13 for a kind that is not known."""
    kind = properties.get("provider", "headwater").lower()
    if kind not in PROVIDERS:
        raise InvalidInputError(
            f"USING {kind} is not known here: leave it out, or say USING headwater or USING stream."
        )
    return kind == STREAM


def catalog_option(lake: str | None) -> str:
    if lake is None:
        raise UnsupportedOperationError(NEEDS_STORAGE)
    return lake


def catalog_at(lake: str | None) -> Catalog:
    """Return the catalog of a session: on storage, or on a server."""
    known = json.loads(catalog_option(lake))
    if SERVER in known:
        return Catalog(known.pop(SERVER), **known)
    storage = {f"storage.{key}": value for key, value in known["storage"].items()}
    author = {"author": known["author"]} if "author" in known else {}
    return Catalog(known["root"], impl="metastore", **author, **storage)


def create_stream(
    lake: str | None, id: list[str], schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, object]]
) -> None:
    catalog_at(lake).create_stream_table(id, *_described(schema, properties, partitions))


def _described(
    schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, object]]
) -> tuple[pa.Schema, str, str, list[dict[str, object]], dict[str, str]]:
    """`keys` and `sequence` are properties, 'a,b'; the others are those of docs/streams.md."""
    kept = dict(properties)
    keys, sequence = (kept.pop(name, "") for name in MARKS)
    return schema.remove_metadata(), keys, sequence, partitions, kept


def written_properties(definition: Definition) -> dict[str, str]:
    """Return the kind and TBLPROPERTIES of a stream table, as in CREATE TABLE."""
    marks = {"keys": ",".join(definition.keys), "sequence": ",".join(definition.sequence)}
    return {"provider": STREAM, **{name: text for name, text in marks.items() if text}, **definition.properties}


def stage_stream(
    lake: str | None, id: list[str], schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, object]]
) -> dict[str, object]:
    """Return a stream table that is not there yet, for tasks to write files of its log: the commit creates it with
    them.

    What would be refused then is refused now: a transaction creates it and is thrown away.
    """
    option = catalog_option(lake)
    definition = define(*_described(schema, properties, partitions))
    slot, new = _tried_afar(option, id, definition) if is_server(option) else _tried(option, id, definition)
    fold = Fold(option, slot, 0, 0, True, bool(definition.keys), new)
    table = WireTable(tuple(id), "", True, {}, fold=fold)
    shown = spark_schema(schema_of(definition))
    return {"table": msgspec.to_builtins(table), "arrow": "", "schema": shown, "partitioning": []}


def _tried(option: str, id: list[str], definition: Definition) -> tuple[int, NewStream]:
    metastore = opened(option).metastore
    tx, key = metastore.transaction(), metastore.clock.uuid()
    create_stream_table(tx, id, definition, key)
    stream = open_in(tx, id)
    tx.rollback()
    return tx.slot, NewStream(key, stream.home, stream.version, to_properties(definition))


def _tried_afar(option: str, id: list[str], definition: Definition) -> tuple[int, NewStream]:
    """At a server, where the table gets its id when it is created."""
    inside = connected(option).begin(f"try to create {format_name(id)}")
    try:
        create_remote(inside.stream_table(ObjectId(tuple(id)), lambda: None), definition)
    finally:
        inside.abort()
    return 0, NewStream("", "", "", to_properties(definition))


def alter_stream(lake: str | None, id: list[str], changes: Sequence[AnyTableChange]) -> None:
    """Columns added, renamed, dropped and widened, properties set; each change in turn."""
    stream = catalog_at(lake)[id]
    for change in changes:
        match change:
            case SetProperty(key=key) | RemoveProperty(key=key) if key in MARKS:
                raise UnsupportedOperationError(
                    f"{format_name(id)} is a stream table: its {key} stay as they were when it was created."
                )
            case SetProperty():
                stream.set_properties({change.key: change.value})
            case RemoveProperty():
                stream.set_properties({change.key: None})
            case AddColumn(path=[name], nullable=True, position=False):
                stream.evolve(add={name: arrow_type(change.type)})
            case RenameColumn(path=[name]):
                stream.evolve(rename={name: change.name})
            case ColumnType(path=[name]):
                stream.evolve(widen={name: arrow_type(change.type)})
            case DropColumn(path=[name]) if not change.if_exists or name in stream.definition.by_name:
                stream.evolve(drop=[name])
            case DropColumn(path=[_]):
                pass
            case _:
                raise UnsupportedOperationError(
                    f"{format_name(id)} is a stream table: its columns can be added at the end (NULL allowed), "
                    "renamed, widened and dropped, and its properties set."
                )
