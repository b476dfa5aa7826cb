"""CREATE TABLE ... USING stream and ALTER TABLE of a stream table, as the catalog's own calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.names import ObjectId, format_name
from headwater.rest.remote_streams import create_remote
from headwater.spark.fresh import NEEDS_STORAGE, opened, schema_of
from headwater.spark.protocol import (
    AddColumn,
    AnyTableChange,
    ColumnType,
    DropColumn,
    RemoveProperty,
    RenameColumn,
    SetProperty,
)
from headwater.spark.served_streams import asked
from headwater.spark.wire_values import SERVER, Fold, NewStream, WireTable, is_server
from headwater.streams.definition import Definition, define, to_properties
from headwater.streams.stream_lookup import open_in
from headwater.streams.table import create_stream_table
from headwater.types import arrow_type, spark_schema

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
    """The catalog of a session: on storage, or on a server."""
    known = json.loads(catalog_option(lake))
    if SERVER in known:
        return Catalog(known.pop(SERVER), **known)
    storage = {f"storage.{key}": value for key, value in known["storage"].items()}
    author = {"author": known["author"]} if "author" in known else {}
    return Catalog(known["root"], impl="metastore", **author, **storage)


def create_stream(
    lake: str | None, id: list[str], schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, Any]]
) -> None:
    catalog_at(lake).create_stream_table(id, *_described(schema, properties, partitions))


def _described(
    schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, Any]]
) -> tuple[pa.Schema, str, str, list[dict[str, Any]], dict[str, str]]:
    """`keys` and `sequence` are properties, 'a,b'; the others are those of docs/streams.md."""
    kept = dict(properties)
    keys, sequence = (kept.pop(name, "") for name in MARKS)
    return schema.remove_metadata(), keys, sequence, partitions, kept


def written_properties(definition: Definition) -> dict[str, str]:
    """Return the kind and TBLPROPERTIES of a stream table, as in CREATE TABLE."""
    marks = {"keys": ",".join(definition.keys), "sequence": ",".join(definition.sequence)}
    return {"provider": STREAM, **{name: text for name, text in marks.items() if text}, **definition.properties}


def stage_stream(
    lake: str | None, id: list[str], schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, Any]]
) -> dict[str, Any]:
    """A stream table that is not there yet, for tasks to write files of its log: the commit creates it with them.

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
    inside = asked(option).begin(f"try to create {format_name(id)}")
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
