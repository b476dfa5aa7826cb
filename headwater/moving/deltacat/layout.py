"""The file layout of a DeltaCAT 2.x root, as the released package writes it. Pure.

    txn/success/<year>/<month>/<day>/<hour>/<minute>/<start>_<uuid>/<end>    a committed transaction
    <namespace>/<table>/<version>/<stream>/<partition>/<delta>/rev/.../<revision>_<operation>_<start>_<uuid>.mpk
    data/<partition>/<uuid>.pq                                               rows

Every path in these files is untrusted: one that leads out of the root is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from headwater.errors import CorruptFileError, InvalidInputError

SUCCESS = "txn/success/"
_REVISION = re.compile(r"(?P<ids>[^/]+(?:/[^/]+){0,5})/rev/(?:\d+/)*\d+_(?P<operation>[a-z]+)_\d+_[^/]+\.mpk")
_COMMITTED = re.compile(r"txn/success/(?:\d+/){5}(?P<id>\d+_[^/]+)/(?P<end>\d+)")


@dataclass(frozen=True)
class DeltacatTxn:
    """A committed transaction: its file is below `txn/success/`."""

    id: str
    end: int
    key: str

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.end // 1_000_000_000, UTC)


@dataclass(frozen=True)
class Revised:
    """A revision that a transaction wrote."""

    key: str
    ids: tuple[str, ...]
    deletes: bool


@dataclass(frozen=True)
class RowFile:
    """A file with rows of a delta."""

    key: str
    content_type: str
    encoding: str


def committed(key: str) -> DeltacatTxn | None:
    """Return the committed transaction of a key; None for other keys."""
    found = _COMMITTED.fullmatch(key)
    return DeltacatTxn(found["id"], int(found["end"]), key) if found else None


def decode(key: str, data: bytes) -> dict[str, Any]:
    """Decode a metadata file. CorruptFile names it."""
    try:
        found = msgspec.msgpack.decode(data, strict=False)
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(key, f"it is no MessagePack ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise CorruptFileError(key, "it holds no object")
    return found


def writes(record: Mapping[str, Any], key: str) -> list[Revised]:
    """Return the revisions in a transaction's record, in order."""
    found: list[Revised] = []
    for operation in _items(record.get("operations")):
        for path in _items(operation.get("metafile_write_paths") if isinstance(operation, Mapping) else None):
            found.append(_write(path, root_of(record), key))
    return found


def _write(path: Any, root: str, key: str) -> Revised:
    inside = inside_root(path, root, key)
    found = _REVISION.fullmatch(inside)
    if found is None:
        raise CorruptFileError(key, f"it names the revision {inside[:200]!r}, which has no such place")
    return Revised(inside, tuple(found["ids"].split("/")), found["operation"] == "delete")


def inside_root(path: Any, root: str, key: str) -> str:
    """Return a path of a record as a key. InvalidInput (13) unless it is relative, or below the original root."""
    text = path if isinstance(path, str) else ""
    if root and text.startswith(f"{root}/"):
        text = text.removeprefix(f"{root}/")
    parts = text.split("/")
    if not text or "://" in text or "\\" in text or "\0" in text or any(part in ("", ".", "..") for part in parts):
        raise InvalidInputError(f"{key} names {str(path)[:200]!r}, which is not inside this root: nothing is imported.")
    return text


def data_files(delta: Mapping[str, Any], root: str, key: str) -> tuple[tuple[RowFile, ...], tuple[str, ...]]:
    """Return the data files of a delta, and the problems of those that cannot be read."""
    kind = str(delta.get("type"))
    manifest = delta.get("manifest")
    entries = _items(manifest.get("entries") if isinstance(manifest, Mapping) else None)
    if kind not in ("add", "append"):
        return (), (f"{key}: a delta of type {kind!r} that was never compacted; DeltaCAT cannot read it either",)
    files: list[RowFile] = []
    problems: list[str] = []
    for entry in entries:
        meta = entry.get("meta") if isinstance(entry, Mapping) else None
        if not isinstance(meta, Mapping):
            raise CorruptFileError(key, "an entry of its manifest is not understood")
        if meta.get("entry_type", "data") != "data":
            problems.append(f"{key}: an entry of type {str(meta['entry_type'])[:40]!r}")
            continue
        url = entry.get("url", entry.get("uri"))
        encoding = str(meta.get("content_encoding") or "identity")
        files.append(RowFile(inside_root(url, root, key), str(meta.get("content_type")), encoding))
    return tuple(files), tuple(problems)


def root_of(record: Mapping[str, Any]) -> str:
    """Return the path of the root at the time of a transaction."""
    return str(record.get("catalog_root_normalized") or "").rstrip("/")


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
