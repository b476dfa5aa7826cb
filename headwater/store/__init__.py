"""SEAM 1: bytes at keys, on a local directory, in memory, or on an object store."""

from headwater.store.local import LocalStore, file_uri_path, is_file_uri, local_path, storage_error
from headwater.store.object_stores import ObjectStore, memory_store
from headwater.store.opening import is_local, is_there, open_store
from headwater.store.ranged import RangedFile
from headwater.store.seam import (
    Abilities,
    Entry,
    KeyExistsError,
    KeyNotFoundError,
    Listing,
    PutMode,
    Store,
    claim,
    create,
    is_same_file,
    probe,
    read_part,
    write_with,
)
from headwater.store.wrappers import (
    CountingStore,
    Crash,
    CrashesAtStore,
    LosesAnswerStore,
    LyingStore,
    PlainStore,
    PrefixedStore,
    SlowStore,
    WrappedStore,
)

__all__ = [
    "Abilities",
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
    "PlainStore",
    "PrefixedStore",
    "PutMode",
    "RangedFile",
    "SlowStore",
    "Store",
    "WrappedStore",
    "claim",
    "create",
    "file_uri_path",
    "is_file_uri",
    "is_local",
    "is_same_file",
    "is_there",
    "local_path",
    "memory_store",
    "open_store",
    "probe",
    "read_part",
    "storage_error",
    "write_with",
]
