"""Changes as JSON, for handing them to another process. Only the model's own values can be read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from headwater.model import (
    Add,
    Change,
    Known,
    Move,
    Namespace,
    Remove,
    Replace,
    RequireLocation,
    RequireTable,
    Table,
    Version,
)
from headwater.names import ObjectId

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Add, Replace, Remove, Move, RequireLocation, RequireTable, Namespace, Table, Version, Known, ObjectId)
}


def encode_changes(changes: Sequence[Sequence[Change]]) -> bytes:
    """Lists of changes, one per caller."""
    return msgspec.json.encode([[_plain(change) for change in group] for group in changes])


def decode_changes(data: bytes) -> list[list[Change]]:
    """The lists again, or ValueError."""
    try:
        return [[_value(change) for change in group] for group in msgspec.json.decode(data)]
    except (msgspec.DecodeError, TypeError, KeyError, AttributeError) as error:
        raise ValueError("these are no changes") from error


def _plain(value: Any) -> Any:
    if isinstance(value, ObjectId):
        return {"kind": "ObjectId", "names": list(value.names)}
    if is_dataclass(value):
        return {
            "kind": type(value).__name__,
            **{item.name: _plain(getattr(value, item.name)) for item in fields(value)},
        }
    return {"values": dict(value)} if isinstance(value, Mapping) else value


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "values" in plain:
        return plain["values"]
    if plain["kind"] == "ObjectId":
        return ObjectId(tuple(plain["names"]))
    return KINDS[plain["kind"]](**{name: _value(item) for name, item in plain.items() if name != "kind"})
