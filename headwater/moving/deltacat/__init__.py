"""Import of a DeltaCAT 2.x root: its names, schemas, deltas and history.

layout        names and fields of its files; pure
files         reads of its files, which may be hostile, and rows of its data files
transactions  its committed transactions, with the contents of the catalog after each
replay        commits each transaction again, to a catalog of ours
"""

from headwater.moving.deltacat.replay import ImportedRoot, import_deltacat

__all__ = ["ImportedRoot", "import_deltacat"]
