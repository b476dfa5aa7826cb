"""Rows to send, and what the fixtures are."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.rest.server import RunningServer

Serve = Callable[..., RunningServer]


@dataclass(frozen=True)
class Certificate:
    """Where a certificate and its key are."""

    cert: str
    key: str


def ipc(table: pa.Table, options: Any = None) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


PEOPLE = pa.table({"id": [1, 2, 3], "name": ["ann", "bob", "cid"]})


def make(model: Any, **fields: Any) -> Any:
    """A request from plain values, nested ones too."""
    return model.model_validate(fields)
