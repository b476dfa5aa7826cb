"""Stream tables: a change log and its serving copy under one name (docs/streams.md).

StreamTable -> landing (batches, files, ledger) -> deltas of the `delta` stream
     |              ^ sources (rows, op, debezium, snapshot)
     +-> reading  -> fold (pure): published base + tail of the log
     +-> publishing -> serving copy: a Lance version and its position, in one transaction
"""

from headwater.streams.definition import Definition, define
from headwater.streams.log.landing import LandingReport
from headwater.streams.reading.position_views import Published
from headwater.streams.serving.publication import publish_tables
from headwater.streams.serving.serving_copy import Lake, lake
from headwater.streams.table import StreamTable, create_stream_table

__all__ = [
    "Definition",
    "Lake",
    "LandingReport",
    "Published",
    "StreamTable",
    "create_stream_table",
    "define",
    "lake",
    "publish_tables",
]
