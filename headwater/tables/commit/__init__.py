"""New versions of a Lance table: exact commits, row-level changes, compaction, and the history of versions."""
