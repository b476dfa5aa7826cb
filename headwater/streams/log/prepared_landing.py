"""Landing in two halves: files of the log are written where the data is, and committed by somebody else.

An executor prepares: it reads, shapes, checks and writes, and needs the store but no catalog. The driver commits what
comes back, which is small. A table that evolved in between, or was created again, takes nothing that was prepared
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.clock import Clock
from headwater.metastore import DataFile, Metastore
from headwater.store import Store
from headwater.streams.definition import Definition, from_properties, to_properties
from headwater.streams.fold.events import Events, Truncations, concat, decode_sequences
from headwater.streams.layout import TRUNCATES
from headwater.streams.log.batches import EventBatch, RejectedRows, shape, write_rejected
from headwater.streams.log.checks import Check, with_own
from headwater.streams.log.landing import (
    BatchOrigin,
    Landing,
    checked,
    rejected,
    sourced,
    truncating,
    write_batch,
    written_for,
)
from headwater.streams.log.log_files import LogFile
from headwater.streams.log.stored_events import narrowed, read_bytes, read_file
from headwater.streams.rows.input_rows import InputRows
from headwater.streams.sources.format_output import Taken
from headwater.streams.stream_lookup import Stream
from headwater.work import Json


class EvolvedError(Exception):
    """The table is not what the files were written for: prepare them again."""


def prepare(
    store: Store,
    clock: Clock,
    stream: Stream,
    taken: Taken,
    origin: BatchOrigin,
    checks: Sequence[Check],
    rows: int,
    contract: str | None = None,
    evolved: Definition | None = None,
) -> Json:
    """Write what was taken as files of the log, and return what the commit needs.

    Rows that make the table evolve are written with its new columns, and the commit changes the table. `evolved`: what
    other parts of the same batch make of the table. Rejected rows are written too: none of them is in the answer.
    """
    shaped = shape(evolved or stream.definition, taken.data, contract or stream.definition.contract)
    own = stream.definition.checks if contract is None else ()  # a table's own checks are of what is ingested
    batch, failed = checked(shaped, with_own(own, checks))
    bad = [*sourced(taken.bad, origin), *rejected(batch, taken.data, origin)]
    files = write_rejected(store, clock, stream.home, bad, batch.definition, checks) if bad else []
    written = write_batch(store, clock, stream, batch, rows) if len(batch.events) else iter(())
    cuts, known = batch.truncations, {column.id: column.type for column in stream.definition.columns}
    return {
        "cut": None if cuts is None else truncating(batch.definition, cuts, batch.events.rows),
        "of": written_for(stream, stream.definition),
        "evolved": to_properties(batch.definition) if batch.definition != stream.definition else None,
        "added": [column.name for column in batch.definition.columns if column.id not in known],
        "widened": [c.name for c in batch.definition.columns if known.get(c.id, c.type) != c.type],
        "digest": taken.digest,
        "rows": len(batch.events),
        "deletes": int(taken.data.delete_mask.sum()),
        "rejected": [each.to_json() for each in files],
        "files": [
            [values, [file.path, file.rows, file.bytes], [log.rows, log.properties]] for values, file, log in written
        ],
        "checks": failed,
        "discarded": batch.discarded,
    }


class PreparedLanding(Landing):
    """The commit of what was prepared. Raises `EvolvedError` where the table is another one now."""

    def __init__(
        self,
        metastore: Metastore,
        path: Sequence[str],
        prepared: Mapping[str, Any],
        verb: str,
        strict: bool,
        origin: BatchOrigin,
        joins: Landing | None = None,
    ) -> None:
        super().__init__(metastore, path, InputRows({}, 0), verb, None, strict, origin, joins=joins)
        self._unsynced = False
        self._prepared = prepared
        self._rejected = [RejectedRows.from_json(each) for each in prepared["rejected"]]
        self._failed = dict(prepared["checks"])
        self._of = tuple(prepared["of"])
        self._evolved = from_properties(prepared["evolved"]) if prepared["evolved"] is not None else None
        key = self._of if self._evolved is None else (self._of[0], self._evolved.schema_id)
        self._written = {key: [_written(each) for each in prepared["files"]]}

    def _shape(self, stream: Stream) -> EventBatch:
        is_evolved = stream.home == self._of[0] and stream.definition == self._evolved  # another part was first
        if written_for(stream, stream.definition) != self._of and not is_evolved:
            raise EvolvedError
        count = self._prepared["rows"]
        rows = Events(pa.table({"": pa.nulls(count)}), np.zeros(count, bool))  # they are in the files already
        definition = stream.definition if self._evolved is None else self._evolved
        told: dict[str, Any] = {name: tuple(self._prepared[name]) for name in ("added", "widened")}
        if self._prepared["cut"] is not None:
            cuts, places = decode_sequences(definition, self._prepared["cut"][TRUNCATES])
            told["truncations"] = Truncations(cuts, np.array(places), np.zeros(len(places), np.int64))
        return EventBatch(definition, rows, np.arange(count), discarded=self._prepared["discarded"], **told)

    def _cut(self, batch: EventBatch, cuts: Truncations) -> Json:
        return dict(self._prepared["cut"])

    def _measured(self, stream: Stream, batch: EventBatch) -> Events:
        rules, parts = narrowed(batch.definition, []), []
        for _, file, _ in self._written[written_for(stream, batch.definition)]:
            parts.append(read_file(batch.definition, rules, read_bytes(self._store, file), file.path)[0])
        return concat(rules, parts)


def _written(entry: Any) -> tuple[tuple[object, ...] | None, DataFile, LogFile]:
    values, file, (rows, properties) = entry
    return (None if values is None else tuple(values)), DataFile(*file), LogFile(b"", rows, properties)
