"""Stream tables of a live source: created and evolved by the columns of the source, in the commit of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError
from headwater.pipeline.file_values import naming_section
from headwater.streams.definition import Definition, define
from headwater.streams.log.landing import BatchOrigin, LandingReport
from headwater.streams.rows.column_types import common, may_cast

if TYPE_CHECKING:
    from headwater.pipeline.grammar import TableSpec

EVOLVE = "evolve"


@dataclass(frozen=True)
class RowsPart:
    """Rows of one stream table, in any form and format that `ingest` takes.

    `columns`: the types of the source's columns by name. The table is created with them, and gets those that it lacks.
    `keys`, `sequence`: of a table that is created, unless the file gives others.
    """

    table: str
    data: object
    format: str = "rows"
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    spec: TableSpec | None = None
    origin: str = ""
    is_whole: bool = False

    def land(self, catalog: Catalog, source: str) -> LandingReport:
        """Land the rows inside the open transaction of `catalog`, with the change of the table that they need."""
        stream = fitted_table(catalog, self)
        checks = self.spec.checks if self.spec is not None else ()
        return stream.take(self.data, self.format, BatchOrigin(source), False, self.options, checks=checks)


def fitted_table(catalog: Catalog, part: RowsPart) -> CatalogStream:
    """Return the stream table of a part with the columns that its rows have: created, or evolved.

    A table whose contract is not `evolve` stays as it is, and its contract decides about the rows.
    """
    if part.table not in catalog:
        with naming_section(part.table):
            definition = definition_of(part)
        catalog.create_stream_table(part.table, definition)
    stream = catalog[part.table]
    if not isinstance(stream, CatalogStream):
        raise InvalidInputError(f"{part.table} is a plain table: a live source lands changes in stream tables.")
    known = stream.definition
    if known.contract == EVOLVE:
        add, widen = _evolved(part, known)
        if add or widen:
            with naming_section(part.table):
                stream.evolve(add=add, widen=widen)
    return stream


def definition_of(part: RowsPart) -> Definition:
    """Return the definition of a new table: columns of the source, with what the file says laid over."""
    spec = part.spec
    if spec is None:
        return define(_schema(part.columns, ()), part.keys, part.sequence)
    columns = {**part.columns, **{each.name: each.type for each in spec.schema or ()}}
    required = [each.name for each in spec.schema or () if not each.nullable]
    keys, sequence = spec.keys or part.keys, spec.sequence or part.sequence
    return define(_schema(columns, required), keys, sequence, (), spec.properties)


def _schema(columns: Mapping[str, Any], required: Any) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name not in required) for name, kind in columns.items()])


def _evolved(part: RowsPart, known: Definition) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns to add, and those to widen; InvalidInput (13) for a type that the table's cannot become."""
    add, widen = {}, {}
    for name, kind in part.columns.items():
        if name not in known.by_name:
            add[name] = kind
            continue
        old = known.by_name[name].type
        wide = common(old, kind)
        if wide is None and not may_cast(kind, old):
            raise InvalidInputError(
                f"The column {name!r} of {part.table} is {old}, and {kind} in the source now, which it cannot become. "
                f'Nothing was loaded: give its type in [table."{part.table}"], or run with --full-refresh.'
            )
        if wide is not None and wide != old:
            widen[name] = wide
    return add, widen
