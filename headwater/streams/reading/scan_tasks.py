"""A fresh read in parts: what the tail touches, and the fragments of the base without it; or bucket by bucket."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from msgspec import structs

from headwater.metastore.commit.table_parts import partition_id
from headwater.streams.fold.events import Rules
from headwater.streams.log.log_files import read_log
from headwater.streams.log.stored_events import Share
from headwater.streams.reading.fresh_reads import base_names, check_columns, in_schema, output, shown_state
from headwater.streams.reading.position_views import PositionView
from headwater.streams.rows.row_keys import KeyIndex
from headwater.streams.serving.copy_rows import filtered
from headwater.streams.serving.serving_copy import Lake, open_version
from headwater.tables.expressions import check_sql
from headwater.tables.scan.prune import live_batches

READ_ROWS = 1 << 16
"""So many rows of a base are read and looked at at once."""
KEPT_KEYS = 1 << 22
"""The keys of a tail with at most so many events stay in memory for the next part."""


class TailKeys:
    """The keys of the tail that was asked for last: the parts of a read all ask for the same."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: tuple[object, ...] = ()
        self._index: KeyIndex | None = None

    def of(self, lake: Lake, view: PositionView) -> KeyIndex | None:
        """The keys that the tail has events of; None: it has none, or the table is without keys."""
        definition = view.stream.definition
        if not definition.keys or not view.tail:
            return None
        files = [file for delta in view.tail for file in delta.files]
        asked = (lake.uri, definition, *(file.path for file in files))
        with self._lock:
            if self._files == asked:
                return self._index
            events = read_log(definition, lake.store, view.tail, list(definition.keys), for_state=True).events
            found = KeyIndex([events.rows.column(name) for name in definition.keys]) if len(events) else None
            if len(events) <= KEPT_KEYS:
                self._files, self._index = asked, found
            return found


TAIL_KEYS = TailKeys()


def read_untouched(
    lake: Lake, view: PositionView, fragments: Sequence[int], columns: Sequence[str], filter: str | None = None
) -> Iterator[pa.Table]:
    """The rows of some fragments of the base that no event of the tail is about. With `read_touched` it is `read`.

    They come as they are read, at least one table, which may be empty.
    """
    definition, base = view.stream.definition, view.base
    assert base is not None
    text = check_sql("filter", filter)
    wanted = check_columns(definition, columns)
    names = list(dict.fromkeys((*(definition.shown if text is not None else wanted), *definition.keys)))
    rules = Rules(pa.schema([definition.shown[name] for name in names]), definition.keys)
    known = base_names(definition, base)
    dataset = open_version(lake, view.stream, base.version, base.manifest)
    there = [known[name] for name in names if name in known]
    parts = [dataset.get_fragment(id) for id in (() if view.truncates else fragments)]  # it is of every key
    index = TAIL_KEYS.of(lake, view)
    empty = True
    for batch in live_batches(dataset, parts, columns=there, with_row_id=not there, batch_size=READ_ROWS):
        rows = in_schema(pa.Table.from_batches([batch]), rules, known)
        if index is not None:
            touched = index.holds([rows.column(name) for name in definition.keys])
            rows = rows.take(np.flatnonzero(~touched)) if touched.any() else rows
        yield output(definition, rows if text is None else filtered(rows, text), wanted)
        empty = False
    if empty:
        yield output(definition, rules.schema.empty_table(), wanted)


def read_touched(
    lake: Lake, view: PositionView, columns: Sequence[str], filter: str | None = None, share: Share | None = None
) -> pa.Table:
    """The rows that events of the tail are about, as they are after the fold; those of a share of the keys if told."""
    definition = view.stream.definition
    text = check_sql("filter", filter)
    wanted = check_columns(definition, columns)
    table = shown_state(lake, view, list(definition.shown) if text is not None else wanted, True, share)
    return output(definition, table if text is None else filtered(table, text), wanted)


def read_bucket(
    lake: Lake,
    view: PositionView,
    key: tuple[object, ...],
    fragments: Sequence[int],
    columns: Sequence[str],
    filter: str | None = None,
) -> pa.Table:
    """The rows of one bucket of a table in buckets of its key: fragments of the base and events that are of it."""
    definition = view.stream.definition
    text = check_sql("filter", filter)
    wanted = check_columns(definition, columns)
    landed = partition_id(key)
    of_all = view.truncates or definition.rules.lateness is not None
    others = (structs.replace(each, files=()) for each in view.tail if each.partition != landed and of_all)
    mine = (each for each in view.tail if each.partition == landed)
    own = replace(view, tail=tuple(sorted((*mine, *others), key=lambda each: each.position)))
    shown = list(definition.shown) if text is not None else wanted
    table = shown_state(lake, own, shown, fragments=fragments)
    return output(definition, table if text is None else filtered(table, text), wanted)
