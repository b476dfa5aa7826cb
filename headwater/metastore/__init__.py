"""The transactional metastore: the DeltaCAT storage model, usable on its own (docs/formats/metastore.md).

Metastore -> Transaction -> draft, edits (what it read, what it will change) -> commit (rules, groups) -> log (slots)
    |                                                                                                        |
    +-----> Snapshot (any slot) -> views -> index <------------------- folds --------------------------------+
                                                                       published layout <- publish <---------+
"""

from headwater.metastore.commit.transaction import Transaction
from headwater.metastore.metastore import Metastore
from headwater.metastore.records.disk_records import DataFile
from headwater.metastore.records.objects import (
    Changed,
    Collected,
    Delta,
    Diff,
    HistoryEntry,
    Locator,
    LogChange,
    LogEntry,
    Moved,
    NamedSnapshot,
    Object,
    PinnedTable,
    Problem,
    Removal,
    RevisionEntry,
    StreamDiff,
    Undone,
    UndoStep,
)
from headwater.metastore.state.snapshot import Reading, Snapshot

__all__ = [
    "Changed",
    "Collected",
    "DataFile",
    "Delta",
    "Diff",
    "HistoryEntry",
    "Locator",
    "LogChange",
    "LogEntry",
    "Metastore",
    "Moved",
    "NamedSnapshot",
    "Object",
    "PinnedTable",
    "Problem",
    "Reading",
    "Removal",
    "RevisionEntry",
    "Snapshot",
    "StreamDiff",
    "Transaction",
    "UndoStep",
    "Undone",
]
