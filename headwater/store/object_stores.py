"""Stores through obstore (memory, S3, GCS, Azure), and `open_store`, which opens any root by its path or URI.

Paths of local files: plain, or as URIs of the scheme `file`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

import obstore
from obstore import store as backends
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from headwater import errors
from headwater.errors import InvalidInputError
from headwater.store.local import LocalStore
from headwater.store.seam import (
    Abilities,
    Entry,
    KeyExistsError,
    KeyNotFoundError,
    Listing,
    PutMode,
    Store,
    check_key,
    check_prefix,
    side_by_side,
)
from headwater.store.wrappers import PrefixedStore

Answer = TypeVar("Answer")
SIDE_BY_SIDE = 32
CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "connect_timeout", "timeout", "user_agent", "proxy_url")


STATUS = "non-2xx status code: "
"""The beginning of a quoted response in messages of the storage library: status and reason, then the body."""
_REASON = re.compile(r"\d{3}(?: [A-Za-z-]{1,30}){0,4}", re.ASCII)


class ObjectStore:
    """An obstore backend as a Store."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.abilities = Abilities(read=self.read)

    def read(self, key: str, start: int, length: int) -> bytes:
        """Return a range of the bytes at a key; fewer if the object ends before."""
        ranged: Any = {"range": (start, start + length)}
        return _call(key, lambda: bytes(obstore.get(self.backend, check_key(key), options=ranged).bytes()))

    def get(self, key: str) -> bytes:
        return _call(key, lambda: bytes(obstore.get(self.backend, check_key(key)).bytes()))

    def head(self, key: str) -> Entry | None:
        try:
            return _entry(_call(key, lambda: obstore.head(self.backend, check_key(key))))
        except KeyNotFoundError:
            return None

    def put(self, key: str, data: bytes, mode: PutMode = PutMode.OVERWRITE, durable: bool = True) -> None:
        # A multipart upload has no precondition, so every put is one request.
        check_key(key)
        _call(key, lambda: obstore.put(self.backend, key, data, mode=mode.value, use_multipart=False))

    def put_all(self, items: Sequence[tuple[str, bytes]], durable: bool = True) -> None:
        if len(items) == 1:
            return self.put(*items[0])
        side_by_side(_pool(), lambda item: self.put(*item), items)
        return None

    def get_all(self, keys: Sequence[str]) -> Sequence[bytes | None]:
        return (
            side_by_side(_pool(), self._get_or_none, keys)
            if len(keys) > 1
            else [self._get_or_none(key) for key in keys]
        )

    def _get_or_none(self, key: str) -> bytes | None:
        try:
            return self.get(key)
        except KeyNotFoundError:
            return None

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        folder = check_prefix(prefix)
        below, offset = f"{folder}/" if folder else None, after or None
        pages = _call(prefix, lambda: list(obstore.list(self.backend, below, offset=offset, chunk_size=1000)))
        return iter(sorted((_entry(meta) for page in pages for meta in page), key=lambda entry: entry.key))

    def children(self, prefix: str = "") -> Listing:
        folder = check_prefix(prefix)
        answer = _call(prefix, lambda: obstore.list_with_delimiter(self.backend, f"{folder}/" if folder else None))
        entries = sorted((_entry(meta) for meta in answer["objects"]), key=lambda entry: entry.key)
        return Listing(tuple(entries), tuple(sorted(path.rsplit("/", 1)[-1] for path in answer["common_prefixes"])))

    def delete(self, key: str) -> None:
        try:
            _call(key, lambda: obstore.delete(self.backend, check_key(key)))
        except KeyNotFoundError:
            return

    def delete_tree(self, prefix: str) -> None:
        keys = [entry.key for entry in self.list(check_key(prefix.rstrip("/")))]
        for start in range(0, len(keys), 1000):
            chunk = keys[start : start + 1000]
            try:
                _call(prefix, lambda chunk=chunk: obstore.delete(self.backend, chunk))  # type: ignore[misc]
            except KeyNotFoundError:
                for key in chunk:
                    self.delete(key)

    def sync(self, keys: Sequence[str]) -> None:
        return None


@cache
def _pool() -> ThreadPoolExecutor:
    """The requests of one round go out side by side; obstore waits outside of the interpreter's lock."""
    return ThreadPoolExecutor(max_workers=SIDE_BY_SIDE, thread_name_prefix="headwater-store")


def memory_store() -> ObjectStore:
    """Return an empty store in this process's memory."""
    return ObjectStore(backends.MemoryStore())


def remote_store(uri: str, options: dict[str, str]) -> ObjectStore:
    """Open the store at an `s3://`, `gs://` or `az://` URI. `options`: pylance's storage options."""
    client = {key: _client_value(options[key]) for key in CLIENT_OPTIONS if key in options}
    config = {key: value for key, value in options.items() if key not in CLIENT_OPTIONS}
    try:
        open_backend: Callable[..., Any] = backends.from_url
        return ObjectStore(open_backend(uri, config=config, client_options=client or None))
    except BaseException as error:  # obstore panics on some settings, and a panic is no Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise errors.InvalidInputError(
            f"The storage at {uri!r} cannot be set up with the options {sorted(options)}: {_first_line(error)}"
        ) from None


def _client_value(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), value)


def _call(key: str, action: Callable[[], Answer]) -> Answer:
    """Run one request; say what went wrong in the catalog's own words."""
    try:
        return action()
    except (NotFoundError, FileNotFoundError):
        raise KeyNotFoundError(key) from None
    except (AlreadyExistsError, PreconditionError):
        raise KeyExistsError(key) from None
    except (PermissionDeniedError, UnauthenticatedError, PermissionError):
        raise errors.PermissionDeniedError(
            f"The storage does not permit access to {key!r}: check the storage.* credentials."
        ) from None
    except (BaseError, OSError) as error:
        raise errors.ServiceUnavailableError(
            f"The storage did not do its part at {key!r}: {_first_line(error)}"
        ) from None


def without_body(text: str) -> str:
    """Return a storage client's message without the response body: some storages repeat credentials in it."""
    at = text.find(STATUS)
    if at < 0:
        return text
    reason = _REASON.match(text, at + len(STATUS))
    return text[: reason.end() if reason else at + len(STATUS)]


def _first_line(error: BaseException) -> str:
    text = without_body(str(error).strip()[:2000]).splitlines()
    return re.sub(
        r"(?i)(secret|key|token|password)\S*\s*[=:]\s*\S+", r"\1=...", text[0][:300] if text else "no reason given"
    )


def _entry(meta: Any) -> Entry:
    return Entry(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000), meta.get("e_tag"))


REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_MEMORY: dict[str, Store] = {}


def is_local(uri: str) -> bool:
    """Return True for a plain path, absolute or relative, or a file URI."""
    return "://" not in uri or is_file_uri(uri)


def open_store(uri: str, options: Mapping[str, str] | None = None) -> Store:
    """Open the store at a local path, `file://`, `memory://name`, `s3://`, `gs://` or `az://`. Writes nothing."""
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
    """Return True if a root holds anything, or is a local folder, which may be empty."""
    if is_local(uri):
        return Path(local_path(uri)).exists()
    found = open_store(uri, options).children()
    return bool(found.entries or found.folders)


def _memory(uri: str) -> Store:
    """Return the memory store of a name, which is one store for the whole process."""
    bucket, _, prefix = uri.removeprefix("memory://").strip("/").partition("/")
    store = _MEMORY.setdefault(bucket, memory_store())
    return PrefixedStore(store, prefix) if prefix else store


_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})|%2[Ff]|%00")


def is_file_uri(text: str) -> bool:
    """Return True for a URI of the scheme `file`, in any case: `file:///x`, `file:/x`, `FILE://localhost/x`."""
    return text[:5].lower() == "file:"


def file_uri_path(uri: str) -> str:
    """Return the path of a file URI (RFC 3986 and 8089). InvalidInput (13) unless it is absolute and local."""
    rest = uri[5:]
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", "", rest)
    path = slash + path
    escaped = not _BAD_ESCAPE.search(path) and "?" not in path and "#" not in path
    try:
        decoded = unquote(path, errors="strict")
    except UnicodeDecodeError:
        decoded = ""
    if host.lower() not in ("", "localhost") or not decoded.startswith("/") or not escaped:
        raise InvalidInputError(
            f"{uri[:200]!r} is not a URI of a local file: write file:///absolute/path, with '%' and what else URIs do "
            "not take as it is percent-encoded (a space is %20)."
        )
    return decoded


def local_path(uri: str) -> str:
    """Return the absolute path of a plain path or a file URI (lance-catalog-early.md, "Directory Path")."""
    return os.path.abspath(file_uri_path(uri) if is_file_uri(uri) else os.path.expanduser(uri))
