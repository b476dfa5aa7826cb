"""From a root as users write it to a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headwater.errors import InvalidInputError
from headwater.store.local import LocalStore, is_file_uri, local_path
from headwater.store.object_stores import memory_store, remote_store
from headwater.store.seam import Store
from headwater.store.wrappers import PrefixedStore

REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_MEMORY: dict[str, Store] = {}


def is_local(uri: str) -> bool:
    """A plain path, absolute or relative, or a file URI."""
    return "://" not in uri or is_file_uri(uri)


def open_store(uri: str, options: Mapping[str, str] | None = None) -> Store:
    """The store at a local path, `file://`, `memory://name`, `s3://`, `gs://` or `az://` (nothing is written)."""
    if not uri:
        raise InvalidInputError("The root is empty: give a local path or a URI such as s3://bucket/prefix.")
    if is_local(uri):
        return LocalStore(local_path(uri))
    scheme = uri.split("://", 1)[0].lower()
    if scheme == "memory":
        return _memory(uri)
    if scheme in REMOTE_SCHEMES:
        return remote_store(uri, dict(options or {}))
    raise InvalidInputError(
        f"The scheme {scheme!r} of {uri!r} is not supported: use a path, file://, memory://, s3://, gs:// or az://."
    )


def is_there(uri: str, options: Mapping[str, str] | None = None) -> bool:
    """Whether a root holds anything, or is a local folder, which may be empty."""
    if is_local(uri):
        return Path(local_path(uri)).exists()
    found = open_store(uri, options).children()
    return bool(found.entries or found.folders)


def _memory(uri: str) -> Store:
    """Stores of one name in one process are one store, so that a catalog can be opened twice."""
    bucket, _, prefix = uri.removeprefix("memory://").strip("/").partition("/")
    store = _MEMORY.setdefault(bucket, memory_store())
    return PrefixedStore(store, prefix) if prefix else store
