"""Upkeep of a metastore: named snapshots, retention, garbage collection and verification."""
