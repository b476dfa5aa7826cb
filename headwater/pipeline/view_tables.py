"""The stream table that a view is kept in: its columns, its keys, and what it was last made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.catalog.transactions import metastore_of
from headwater.errors import InvalidInputError
from headwater.metastore import Transaction
from headwater.names import parse_name
from headwater.pipeline.facts import INPUTS
from headwater.pipeline.file_values import naming_section
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.planning import sql_digest
from headwater.sql.spark_parser import SPARK
from headwater.streams.definition import Definition, define, to_properties, with_properties
from headwater.streams.log.landing import LandingReport
from headwater.streams.rows.column_types import common, may_cast
from headwater.streams.stream_lookup import drop_stream, open_in
from headwater.streams.table import create_stream_table

EMBEDDED, BY_SPARK = "embedded", "spark"
"""The engines that may run the SQL of a view."""
VIEW_SOURCE = "view"
"""The source that the changes of a view's table come from."""


def check_named(view: ViewSpec, columns: Sequence[str]) -> None:
    for name in view.keys:
        if name not in columns:
            raise InvalidInputError(
                f"The view {view.name} has no column {name!r} that its keys name: {', '.join(columns)}."
            )


def check_distinct(view: ViewSpec, rows: int, distinct: int) -> None:
    """Raise unless each key has one row: a snapshot with two would keep either."""
    if distinct != rows:
        raise InvalidInputError(
            f"The view {view.name} has {rows} rows and {distinct} different keys ({', '.join(view.keys)}): "
            "its keys must tell its rows apart."
        )


def check_keys(view: ViewSpec, rows: pa.Table) -> None:
    """The same of rows that are here."""
    keys = list(view.keys)
    check_distinct(view, rows.num_rows, rows.select(keys).group_by(keys).aggregate([]).num_rows)


class MadeView(NamedTuple):
    """A view's table, what landed in it, the position that this was compared with, and what ran its SQL."""

    stream: CatalogStream
    landed: LandingReport
    before: int
    engine: str


def land(catalog: Catalog, view: ViewSpec, rows: pa.Table, anew: bool = False, engine: str = EMBEDDED) -> MadeView:
    """Make the view's table hold these rows: only what differs becomes changes. It is created when it is not there."""
    check_named(view, rows.schema.names)
    check_keys(view, rows)
    stream = view_table(catalog, view, rows.schema, anew)
    before = stream.position
    with naming_section(f"The view {view.name}"):
        landed = stream.ingest(rows, "snapshot", VIEW_SOURCE, strict=True, allow_empty=True)
    return MadeView(stream, landed, before, engine)


def view_table(catalog: Catalog, view: ViewSpec, schema: pa.Schema, anew: bool = False) -> CatalogStream:
    """Return the table of a view with these very columns: created when it is not there, or `anew`."""
    if view.name not in catalog:
        catalog.create_stream_table(view.name, schema, keys=list(view.keys))
    stream = catalog[view.name]
    if not isinstance(stream, CatalogStream):
        raise InvalidInputError(f"{view.name} is a plain table that no pipeline made: give the view another name.")
    if anew:
        make_anew(catalog, view.name, define(schema, view.keys))
        return stream
    drop, add, widen = _evolved(view, stream.definition, schema)
    if drop or add or widen:
        stream.evolve(drop=drop, add=add, widen=widen)
    return stream


def make_anew(catalog: Catalog, name: str, definition: Definition) -> None:
    """Drop a stream table with what follows it, and create it, in one commit."""
    path = parse_name(name)

    def work(tx: Transaction) -> None:
        drop_stream(tx, path)
        create_stream_table(tx, path, definition)

    metastore_of(catalog.namespace).metastore.run(work, f"full refresh of {name}")


def _evolved(view: ViewSpec, known: Definition, schema: pa.Schema) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    """Return columns that the SQL gives no more, gives now, and gives wider. 13 if keys or a type cannot become so."""
    hint = f"Run with --full-refresh {view.name} to rebuild it."
    if known.keys != view.keys:
        raise InvalidInputError(f"The view {view.name} was made with other keys, {', '.join(known.keys)}. {hint}")
    drop = [column.name for column in known.columns if column.name not in schema.names]
    add = {field.name: field.type for field in schema if field.name not in known.by_name}
    widen = {}
    for field in schema:
        if field.name in add:
            continue
        old = known.by_name[field.name].type
        wide = common(old, field.type)
        if wide is not None and wide != old:
            widen[field.name] = wide
        if wide is None and (_loses(old, field.type) or not may_cast(field.type, old)):
            told = (
                f"The column {field.name!r} of the view {view.name} is {old}, and {field.type} by its SQL now. {hint}"
            )
            raise InvalidInputError(told)
    return drop, add, widen


def _loses(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if numbers would be cut to fit."""
    is_whole, is_float = pa.types.is_integer, pa.types.is_floating
    is_cut = is_whole(old) and (is_float(new) or pa.types.is_decimal(new))
    return bool(is_cut or (pa.types.is_decimal(old) and is_float(new)))


def remember(made: MadeView, view: ViewSpec, inputs: Mapping[str, list[object]]) -> None:
    """Record the inputs of a view, so that the next run knows whether anything is new.

    Not if another run has made it meanwhile: then its rows may be of either, and the next run makes it again.
    """
    at = made.landed.position if made.landed.rows else made.before
    record = {"sql": sql_digest(view), "tables": dict(inputs), "position": at, "engine": made.engine, "dialect": SPARK}
    text = json.dumps(record, sort_keys=True)

    def work(tx: Transaction) -> None:
        stream = open_in(tx, made.stream.path)
        tx.last_position(stream.path, version=stream.version)
        landed = {delta.txn for delta in tx.deltas(stream.path, made.before, version=stream.version)}
        if len(landed) == (1 if made.landed.rows else 0):
            changed = with_properties(stream.definition, {INPUTS: text})
            tx.update_table_version(stream.path, stream.version, to_properties(changed))

    made.stream.run(work, f"record the inputs of {view.name}")
