"""CREATE TABLE ... USING stream and ALTER TABLE of a stream table, as the catalog's own calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.errors import InvalidInputError, UnsupportedOperationError
from headwater.spark.protocol import (
    AddColumn,
    AnyChange,
    ColumnType,
    DropColumn,
    RemoveProperty,
    RenameColumn,
    SetProperty,
)
from headwater.types import arrow_type

STREAM = "stream"
PROVIDERS = ("headwater", "lance", STREAM, "parquet", "orc", "csv", "json", "avro", "text")
"""What USING may say. Spark itself names its default format, one of the last six, where a statement says nothing."""


def check_provider(properties: dict[str, str]) -> bool:
    """Whether a new table is to be a stream table; error 13 for a kind that is not known."""
    kind = properties.get("provider", "headwater").lower()
    if kind not in PROVIDERS:
        raise InvalidInputError(
            f"USING {kind} is not known here: leave it out, or say USING headwater or USING stream."
        )
    return kind == STREAM


def catalog_at(lake: str | None) -> Catalog:
    """The catalog of a session that reaches its storage."""
    if lake is None:
        raise UnsupportedOperationError(
            "Stream tables need a metastore catalog whose storage this session reaches: configure it with root=, not "
            "through a server."
        )
    known = json.loads(lake)
    storage = {f"storage.{key}": value for key, value in known["storage"].items()}
    return Catalog(known["root"], impl="metastore", **storage)


def create_stream(
    lake: str | None, id: list[str], schema: pa.Schema, properties: dict[str, str], partitions: list[dict[str, Any]]
) -> None:
    """`keys` and `sequence` are properties, 'a,b'; the others are those of docs/streams.md."""
    kept = dict(properties)
    keys, sequence = kept.pop("keys", ""), kept.pop("sequence", "")
    catalog_at(lake).create_stream_table(id, schema.remove_metadata(), keys, sequence, partitions, kept)


def alter_stream(lake: str | None, id: list[str], changes: Sequence[AnyChange]) -> None:
    """Columns added, renamed, dropped and widened, properties set; each change in turn."""
    stream = catalog_at(lake)[id]
    for change in changes:
        match change:
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
                    f"{'.'.join(id)} is a stream table: its columns can be added at the end (NULL allowed), renamed, "
                    "widened and dropped, and its properties set."
                )
