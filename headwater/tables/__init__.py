"""Lance tables: open, scan, write, row changes, partitions, history, compaction. Knows no catalog, no Spark."""
