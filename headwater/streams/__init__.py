"""Stream tables: a change log and its serving copy under one name (docs/streams.md).

StreamTable -> landing (batches, files, ledger) -> deltas of the `delta` stream
     |              ^ sources (rows, op, debezium, snapshot)
     +-> reading  -> fold (pure): published base + tail of the log
     +-> publishing -> serving copy: a Lance version and its position, in one transaction
"""

from typing import TYPE_CHECKING

from headwater.imports import exports

if TYPE_CHECKING:
    from headwater.streams.definition import Definition, define, fields_of, from_properties
    from headwater.streams.log.landing import LandingReport
    from headwater.streams.log.undo import undo_transaction
    from headwater.streams.reading.position_views import Published
    from headwater.streams.serving.publication import publish_tables
    from headwater.streams.serving.serving_copy import CatalogLocation, Lake, catalog_location, lake
    from headwater.streams.sources.source_files import natural_order
    from headwater.streams.stream_lookup import drop_stream, followers, rename_stream
    from headwater.streams.table import StreamTable, create_stream_table

__all__ = [
    "CatalogLocation",
    "Definition",
    "Lake",
    "LandingReport",
    "Published",
    "StreamTable",
    "catalog_location",
    "create_stream_table",
    "define",
    "drop_stream",
    "fields_of",
    "followers",
    "from_properties",
    "lake",
    "natural_order",
    "publish_tables",
    "rename_stream",
    "undo_transaction",
]

__getattr__ = exports(
    __name__,
    {
        "CatalogLocation": "headwater.streams.serving.serving_copy",
        "Definition": "headwater.streams.definition",
        "Lake": "headwater.streams.serving.serving_copy",
        "LandingReport": "headwater.streams.log.landing",
        "Published": "headwater.streams.reading.position_views",
        "StreamTable": "headwater.streams.table",
        "catalog_location": "headwater.streams.serving.serving_copy",
        "create_stream_table": "headwater.streams.table",
        "define": "headwater.streams.definition",
        "drop_stream": "headwater.streams.stream_lookup",
        "fields_of": "headwater.streams.definition",
        "followers": "headwater.streams.stream_lookup",
        "from_properties": "headwater.streams.definition",
        "lake": "headwater.streams.serving.serving_copy",
        "natural_order": "headwater.streams.sources.source_files",
        "publish_tables": "headwater.streams.serving.publication",
        "rename_stream": "headwater.streams.stream_lookup",
        "undo_transaction": "headwater.streams.log.undo",
    },
)
"""A catalog of tables without logs needs none of these modules."""
