"""The schemas of recorded versions as JSON, from their manifests. Commits fill the cache; a miss reads one manifest.

A manifest's digest identifies a version for good, so no entry is ever out of date. Versions with the same columns share
one schema. Its types are spelled as `namespace/data/describe.py` spells those of an open table.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headwater.imports import when_used
from headwater.lance_manifest import SCHEMA, SCHEMA_METADATA, manifest_message
from headwater.protobuf import as_bytes, as_number, pair, parse

if TYPE_CHECKING:
    from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

json_schemas = when_used("lance_namespace_urllib3_client.models.json_arrow_schema")
Json = dict[str, Any]

MAX_VERSIONS, MAX_FIELDS = 10_000, 20_000
"""Limits of the cache: digests of versions, and fields of all schemas together."""
_NAME, _ID, _PARENT, _TYPE, _NULLABLE, _METADATA = 2, 3, 4, 5, 6, 10
_NO_PARENT = 2**64 - 1
_RENAMED = {
    "halffloat": "float16", "float": "float32", "double": "float64", "string": "utf8", "large_string": "large_utf8",
}  # fmt: skip
_PLAIN = frozenset({
    "null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "binary", "large_binary",
    "date32", "date64", "time32", "time64", "timestamp", "duration",
})  # fmt: skip
_NESTED = {"struct": "struct", "list": "list", "list.struct": "list", "large_list": "large_list",
           "large_list.struct": "large_list", "map": "map"}  # fmt: skip


class SchemaCache:
    """The schemas of versions by the digest of their manifest. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: OrderedDict[str, bytes] = OrderedDict()
        self._schemas: OrderedDict[bytes, tuple[JsonArrowSchema, int]] = OrderedDict()
        self._fields = 0

    def find(self, digest: str) -> JsonArrowSchema | None:
        """Return the schema of a version, if it is known."""
        with self._lock:
            found = self._schemas.get(self._versions.get(digest, b""))
            return None if found is None else found[0]

    def learn(self, digest: str, data: bytes) -> JsonArrowSchema | None:
        """Return the schema of a manifest file, and keep it; None if it has a type that is not known here."""
        try:
            fields, metadata = _sections(data)
        except ValueError:
            return None
        key = _key(fields, metadata)
        with self._lock:
            known = self._schemas.get(key)
        if known is None:
            try:
                known = schema_of(fields, metadata), len(fields)
            except (ValueError, KeyError, RecursionError):
                return None
        self._keep(digest, key, known)
        return known[0]

    def _keep(self, digest: str, key: bytes, found: tuple[JsonArrowSchema, int]) -> None:
        with self._lock:
            self._fields += found[1] if key not in self._schemas else 0
            self._schemas[key] = found
            self._schemas.move_to_end(key)
            self._versions[digest] = key
            while self._fields > MAX_FIELDS and len(self._schemas) > 1:
                self._fields -= self._schemas.popitem(last=False)[1][1]
            while len(self._versions) > MAX_VERSIONS:
                self._versions.popitem(last=False)


def _sections(data: bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the messages of a manifest file that hold its fields, and those that hold the schema's metadata."""
    fields: list[bytes] = []
    metadata: list[bytes] = []
    for number, value, _ in parse(manifest_message(data)):
        if number == SCHEMA:
            fields.append(as_bytes(value))
        elif number == SCHEMA_METADATA:
            metadata.append(as_bytes(value))
    return fields, metadata


def _key(fields: Iterable[bytes], metadata: Iterable[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for kind, messages in ((b"f", fields), (b"m", metadata)):
        for message in messages:
            digest.update(kind + len(message).to_bytes(8) + message)
    return digest.digest()


def schema_of(fields: Iterable[bytes], metadata: Iterable[bytes]) -> JsonArrowSchema:
    """Return the schema of a manifest's messages. ValueError: it has a type that is not known here."""
    children: dict[int, list[Json]] = {_NO_PARENT: []}
    for message in reversed(list(fields)):  # children follow their parent
        found, parent, id = _field(message, children)
        children.pop(id, None)
        children.setdefault(parent, []).insert(0, found)
    made: JsonArrowSchema = json_schemas.JsonArrowSchema.model_validate(
        {"fields": children[_NO_PARENT], "metadata": dict(map(pair, metadata)) or None}
    )
    return made


def _field(message: bytes, children: dict[int, list[Json]]) -> tuple[Json, int, int]:
    name, kind, id, parent, nullable = "", "", 0, 0, False
    metadata: dict[str, str] = {}
    for number, value, _ in parse(message):
        if number == _NAME:
            name = as_bytes(value).decode()
        elif number == _TYPE:
            kind = as_bytes(value).decode()
        elif number == _ID:
            id = as_number(value)
        elif number == _PARENT:
            parent = as_number(value)
        elif number == _NULLABLE:
            nullable = bool(as_number(value))
        elif number == _METADATA:
            metadata.update([pair(as_bytes(value))])
    told = _type(kind, children.get(id, []))
    return {"name": name, "nullable": nullable, "type": told, "metadata": metadata or None}, parent, id


def _type(kind: str, children: list[Json]) -> Json:
    """Return a type in Lance's own spelling, such as `decimal:128:10:2`, as JSON has it."""
    if kind in _NESTED:
        return {"type": _NESTED[kind], "fields": children}
    name, *parts = kind.split(":")
    if name in _RENAMED or name in _PLAIN:
        return {"type": _RENAMED.get(name, name)}
    if name == "decimal":
        return {"type": f"decimal{int(parts[0])}", "length": int(parts[1]) * 1000 + int(parts[2])}
    if name == "fixed_size_binary":
        return {"type": name, "length": int(parts[0])}
    if name == "fixed_size_list":
        item = children or [{"name": "item", "nullable": True, "type": _type(":".join(parts[:-1]), [])}]
        return {"type": name, "length": int(parts[-1]), "fields": item}
    if name == "dict":
        return _type(parts[0], [])
    raise ValueError(f"the type {kind[:80]!r} is not known")
