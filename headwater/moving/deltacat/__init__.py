"""A DeltaCAT 2.x root comes in: its names, schemas, deltas and history.

layout    names of its files, and what they say; pure
contents  what the catalog held after each of its transactions; pure
log       its committed transactions, in order
files     rows of its data files
replay    each transaction again, as one of ours
"""

from headwater.moving.deltacat.replay import ImportedRoot, import_deltacat

__all__ = ["ImportedRoot", "import_deltacat"]
