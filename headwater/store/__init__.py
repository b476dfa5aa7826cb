"""SEAM 1: bytes at keys, on a local directory, in memory, or on an object store."""

from headwater.store.local import LocalStore, local_path, storage_error
from headwater.store.objects import ObjectStore, memory_store
from headwater.store.opening import is_local, is_there, open_store
from headwater.store.protocol import (
    Entry,
    KeyExistsError,
    KeyNotFoundError,
    Listing,
    PutMode,
    Store,
    create,
    probe,
)
from headwater.store.wrappers import (
    CountingStore,
    Crash,
    CrashesAtStore,
    LosesAnswerStore,
    LyingStore,
    PrefixedStore,
    SlowStore,
    WrappedStore,
)

__all__ = [
    "CountingStore",
    "Crash",
    "CrashesAtStore",
    "Entry",
    "KeyExistsError",
    "KeyNotFoundError",
    "Listing",
    "LocalStore",
    "LosesAnswerStore",
    "LyingStore",
    "ObjectStore",
    "PrefixedStore",
    "PutMode",
    "SlowStore",
    "Store",
    "WrappedStore",
    "create",
    "is_local",
    "is_there",
    "local_path",
    "memory_store",
    "open_store",
    "probe",
    "storage_error",
]
