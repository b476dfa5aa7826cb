"""Stream tables: a change log and its serving copy under one name (docs/streams.md).

StreamTable -> landing (batches, files, ledger) -> deltas of the `delta` stream
     |              ^ sources (rows, op, debezium, snapshot)
     +-> reading  -> fold (pure): published base + tail of the log
     +-> publishing -> serving copy: a Lance version and its position, in one transaction
"""
