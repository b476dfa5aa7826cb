"""The live rows of fragments, where rows were deleted: Lance reads them along, and they are left out here.

Lance left to itself filters every column of every batch of such a fragment, which takes several times as long as
reading it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from headwater.tables.fields import ROW_ID


def live_batches(dataset: Any, fragments: Sequence[Any] | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
    """The rows of some fragments (None: of all), batch by batch; `options` are those of a scan without filter or limit.

    An empty batch may be among them.
    """
    chosen = dataset.get_fragments() if fragments is None else list(fragments)
    if not any(each.metadata.num_deletions for each in chosen):
        yield from dataset.scanner(fragments=fragments, **options).to_batches()
        return
    wanted = bool(options.pop("with_row_id", False))
    scanner = dataset.scanner(fragments=fragments, with_row_id=True, include_deleted_rows=True, **options)
    for batch in scanner.to_batches():
        ids = batch.column(ROW_ID)
        live = batch.filter(ids.is_valid()) if ids.null_count else batch
        yield live if wanted else live.drop_columns([ROW_ID])
