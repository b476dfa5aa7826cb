"""The change log of a stream table: batches are checked, landed as deltas, quarantined and undone."""
