"""Records on disk: the sealed envelope, slots, revisions and deltas, all MessagePack through msgspec."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from headwater.errors import CorruptFileError, InvalidInputError, UnsupportedOperationError
from headwater.metastore.records.layout import FORMAT

MAGIC = b"HWMS"
SLOT, COLLECTED, SEGMENT, CATALOG, PINNED, PENDING_MARK = b"s", b"x", b"g", b"f", b"p", b"d"
LAYERED, LAYER = b"l", b"e"
FORMATS = {LAYERED: 2}
"""The format version of the kinds that came later: a Headwater that does not know them says so."""
HEADER = len(MAGIC) + 2 + 16
Value = TypeVar("Value")
encode = msgspec.msgpack.Encoder().encode


class DataFile(msgspec.Struct, frozen=True, gc=False):
    """A data file of a delta: its path, and how many rows and bytes it holds."""

    path: str
    rows: int = 0
    bytes: int = 0


class Revision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One revision of an object, as the index holds it. `parts` are those of its LocatorName, its name first."""

    slot: int
    number: int
    operation: str
    txn: str
    time: int
    parent: str
    parts: tuple[Any, ...]
    properties: dict[str, Any]
    aliases: tuple[str, ...] = ()
    link: str = ""

    @property
    def name(self) -> str:
        return str(self.parts[0])

    @property
    def alive(self) -> bool:
        return self.operation != "delete"


class Node(msgspec.Struct, array_like=True, gc=False):
    """An object with all revisions kept. `key` is unique in the catalog, `home` is its Immutable ID Directory."""

    key: str
    id: str
    kind: str
    home: str
    versions: list[Revision]


class Body(msgspec.Struct, frozen=True, gc=False):
    """The content of a Metadata Revision File."""

    format: int
    kind: str
    id: str
    parts: tuple[Any, ...]
    parent: str
    home: str
    aliases: tuple[str, ...]
    properties: dict[str, Any]
    revision: int
    operation: str
    txn: str
    time: int


class DeltaBody(msgspec.Struct, frozen=True, gc=False):
    """The content of a Delta's Metadata Revision File."""

    format: int
    kind: str
    id: str
    position: int
    type: str
    partition: str
    files: tuple[DataFile, ...]
    properties: dict[str, Any]
    revision: int
    operation: str
    txn: str
    time: int


class NewRevision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One new revision in a slot: the object, its directory (and `link`, if it was moved), the bytes of its file."""

    kind: str
    operation: str
    key: str
    home: str
    number: int
    path: tuple[str, ...]
    body: bytes
    link: str = ""


class Mapped(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One new Name Mapping File in a slot."""

    parent: str
    home: str
    digest: str
    number: int
    operation: str
    object_id: str


class Txn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One transaction in a slot."""

    id: str
    start: int
    message: str
    author: str
    changes: tuple[NewRevision, ...]
    mappings: tuple[Mapped, ...]


class Slot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit slot: every transaction in it is committed, in this order. The write-ahead record of their files."""

    id: str
    time: int
    published: int
    boundary: int
    transactions: tuple[Txn, ...]


class TxnChange(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Entry of a Transaction Log File for one new revision."""

    operation: str
    kind: str
    home: str
    revision: int
    path: tuple[str, ...]
    link: str = ""


class TxnMapping(msgspec.Struct, frozen=True, gc=False):
    """Entry of a Transaction Log File for one new Name Mapping File."""

    home: str
    digest: str
    number: int
    operation: str
    object_id: str


class TxnBody(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The content of a Transaction Log File. With the revision files it is enough to rebuild the slot."""

    format: int
    id: str
    start: int
    slot: int
    ordinal: int
    of: int
    time: int
    message: str
    author: str
    changes: tuple[TxnChange, ...]
    mappings: tuple[TxnMapping, ...]
    boundary: int = 0


class NameVersion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One Name Mapping File, as the index holds it."""

    slot: int
    number: int
    operation: str
    object_id: str
    txn: str


_slots = msgspec.msgpack.Decoder(Slot)
_bodies = msgspec.msgpack.Decoder(Body)
_deltas = msgspec.msgpack.Decoder(DeltaBody)
_txns = msgspec.msgpack.Decoder(TxnBody)


def seal(kind: bytes, payload: bytes) -> bytes:
    """Put private bytes into their envelope: magic, format, kind, checksum, payload."""
    return b"".join((MAGIC, bytes((FORMATS.get(kind, FORMAT),)), kind, checksum(payload), payload))


def unseal(key: str, data: bytes, kind: bytes) -> bytes:
    """Return the payload of an envelope; a named error for a damaged, foreign or newer file."""
    if data[:4] != MAGIC or len(data) < HEADER:
        raise CorruptFileError(key, "it is not a metastore file, or it was cut short")
    if data[4] != FORMATS.get(data[5:6], FORMAT):
        raise UnsupportedOperationError(
            f"The catalog file {key!r} has format version {data[4]}, this Headwater knows {FORMAT}: upgrade Headwater."
        )
    payload = data[HEADER:]
    if data[6:HEADER] != checksum(payload):
        raise CorruptFileError(key, "its checksum does not match its content")
    if data[5:6] != kind:
        raise CorruptFileError(key, "it is another kind of metastore file")
    return payload


def is_collected(data: bytes) -> bool:
    """Return a slot whose body garbage collection took; its number stays taken for ever."""
    return data[:4] == MAGIC and data[5:6] == COLLECTED


def decode_slot(key: str, data: bytes) -> Slot:
    return decode(_slots, key, unseal(key, data, SLOT))


def decode_body(key: str, data: bytes) -> Body:
    return decode(_bodies, key, data)


def decode_delta(key: str, data: bytes) -> DeltaBody:
    return decode(_deltas, key, data)


def decode_txn(key: str, data: bytes) -> TxnBody:
    return decode(_txns, key, data)


def decode(decoder: msgspec.msgpack.Decoder[Value], key: str, data: bytes) -> Value:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CorruptFileError(key, f"its content is not what it should be ({error})") from None


def body_of(node: Node, revision: Revision) -> bytes:
    """Return the exact bytes of a revision's file; the same for the writer, for repair and for `verify`."""
    return encode(
        Body(
            FORMAT,
            node.kind,
            node.id,
            revision.parts,
            revision.parent,
            node.home,
            revision.aliases,
            revision.properties,
            revision.number,
            revision.operation,
            revision.txn,
            revision.time,
        )
    )


def own_properties(properties: Mapping[str, object] | None) -> dict[str, object]:
    """Return a copy of properties that nobody else holds; InvalidInput (13) for what MessagePack cannot carry
    unchanged."""
    if not properties:
        return {}
    if not isinstance(properties, Mapping) or not all(isinstance(key, str) for key in properties):
        raise InvalidInputError("properties are a mapping from strings to plain values.")
    try:
        copy = msgspec.msgpack.decode(encode(dict(properties)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInputError(f"These properties cannot be stored: {error}.") from None
    if copy != dict(properties):
        raise InvalidInputError(
            "These properties cannot be stored unchanged: use text, numbers, booleans, None, lists and mappings."
        )
    return dict(copy)


def checksum(payload: bytes) -> bytes:
    """Return the BLAKE2b digest, 16 bytes."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def own_values(values: dict[str, object]) -> dict[str, object]:
    """Return a copy of the properties of a revision that its receiver may change."""
    return {key: _own(value) if isinstance(value, (dict, list)) else value for key, value in values.items()}


def _own(value: object) -> Any:
    if isinstance(value, dict):
        return own_values(value)
    return list(map(_own, value)) if isinstance(value, list) else value
