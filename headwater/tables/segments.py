"""A piece of an index that an executor built, as JSON: what comes back to a driver is read as data, never run."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any

from headwater.imports import lance

if TYPE_CHECKING:
    from lance.dataset import Index


Json = dict[str, Any]


def segment_to_json(segment: Index) -> Json:
    kind, details = segment.index_details or (None, b"")
    return {
        "uuid": segment.uuid,
        "name": segment.name,
        "fields": list(segment.fields),
        "dataset_version": segment.dataset_version,
        "fragment_ids": sorted(segment.fragment_ids),
        "index_version": segment.index_version,
        "created_at": segment.created_at.isoformat() if segment.created_at else None,
        "base_id": segment.base_id,
        "files": None if segment.files is None else [dataclasses.asdict(file) for file in segment.files],
        "index_details": None if kind is None else [kind, base64.b64encode(details).decode()],
        "covering_fields": list(segment.covering_fields),
    }


def segment_from_json(value: Json) -> Index:
    details = value["index_details"]
    return lance.dataset.Index(
        **{
            **value,
            "fragment_ids": set(value["fragment_ids"]),
            "created_at": dt.datetime.fromisoformat(value["created_at"]) if value["created_at"] else None,
            "files": None if value["files"] is None else [lance.dataset.IndexFile(**file) for file in value["files"]],
            "index_details": None if details is None else (details[0], base64.b64decode(details[1])),
        }
    )
