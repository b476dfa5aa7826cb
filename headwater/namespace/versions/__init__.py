"""Table versions: kept by the storage, or by the catalog as an external manifest store (lance-objects.md)."""

from headwater.namespace.versions.batch import BatchCommit
from headwater.namespace.versions.maintenance import Cleaned, Maintenance, Optimized, VersionProblem
from headwater.namespace.versions.managed import ManagedVersions
from headwater.namespace.versions.operations import NewVersion, TableVersions
from headwater.namespace.versions.ranges import KeepPolicy

__all__ = [
    "BatchCommit",
    "Cleaned",
    "KeepPolicy",
    "Maintenance",
    "ManagedVersions",
    "NewVersion",
    "Optimized",
    "TableVersions",
    "VersionProblem",
]
