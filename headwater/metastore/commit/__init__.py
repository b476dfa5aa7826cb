"""Commits of a metastore: drafts, their rules, group commit, the log of slots, and undo."""
