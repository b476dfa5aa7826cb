"""Columns of a Lance table: field paths, ADD / ALTER / DROP COLUMN, and backfills of new columns."""
