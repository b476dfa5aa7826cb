"""The stream table that a view is kept in: its columns, its keys, and what it was last made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import InvalidInputError
from headwater.pipeline.facts import INPUTS
from headwater.pipeline.grammar import ViewSpec
from headwater.pipeline.planning import sql_digest

VIEW_SOURCE = "view"
"""The source that the changes of a view's table come from."""


def check_named(view: ViewSpec, columns: Sequence[str]) -> None:
    for name in view.keys:
        if name not in columns:
            raise InvalidInputError(
                f"The view {view.name} has no column {name!r} that its keys name: {', '.join(columns)}."
            )


def check_distinct(view: ViewSpec, rows: int, distinct: int) -> None:
    """One row for each key: a snapshot with two would keep either."""
    if distinct != rows:
        raise InvalidInputError(
            f"The view {view.name} has {rows} rows and {distinct} different keys ({', '.join(view.keys)}): "
            "its keys must tell its rows apart."
        )


def view_table(catalog: Catalog, view: ViewSpec, schema: pa.Schema) -> CatalogStream:
    """The table of a view, created with these columns when it is not there."""
    if view.name not in catalog:
        catalog.create_stream_table(view.name, schema, keys=list(view.keys))
    stream = catalog[view.name]
    if not isinstance(stream, CatalogStream):
        raise InvalidInputError(f"{view.name} is a plain table that no pipeline made: give the view another name.")
    return stream


def kept(kind: Any) -> Any:
    """A type that Lance keeps: DuckDB's sums of whole numbers are decimals without a fraction."""
    if pa.types.is_decimal(kind) and kind.precision == 38 and kind.scale == 0:
        return pa.int64()
    return kind


def remember(stream: CatalogStream, view: ViewSpec, inputs: Mapping[str, int]) -> None:
    """What the view was made of, so that the next run knows whether anything is new."""
    text = json.dumps({"sql": sql_digest(view), "tables": dict(inputs)}, sort_keys=True)
    stream.set_properties({INPUTS: text})
