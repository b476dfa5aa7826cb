"""The serving copy of a stream table: publishes, derived columns, compaction, history and verification."""
