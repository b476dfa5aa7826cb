"""The Lance table engine: opens tables, scans, writes, commits, alters columns and builds indices.

It knows no catalog and no Spark. `handle` opens a table; `translate` turns pylance's errors into ours. Rows go the way
`write` (data files), `commit` (a new version), `scan` (parts and batches); `columns` changes schemas.
"""
