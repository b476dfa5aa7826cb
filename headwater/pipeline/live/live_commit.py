"""The commit of a batch of a live source: rows of all its tables and the offset after them, or none of it."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.catalog import Catalog
from headwater.errors import ConcurrentModificationError
from headwater.pipeline.live.live_source import LiveBatch, LiveState
from headwater.pipeline.live.offsets import keep, live_state
from headwater.streams.log.landing import LandingReport
from headwater.wording import many


@dataclass(frozen=True)
class CommittedBatch:
    """The state of a source after a commit, and what landed, by table in the order of the batch."""

    state: LiveState
    landed: tuple[tuple[str, LandingReport], ...] = ()


def commit_batch(catalog: Catalog, source: str, before: LiveState, batch: LiveBatch) -> CommittedBatch:
    """Commit a batch that was read after `before`.

    ConcurrentModification (14) if the source has another state meanwhile: somebody else takes from it. Nothing of the
    batch is committed then.
    """

    def work(tx: Catalog) -> CommittedBatch | None:
        if live_state(tx, source, False).commits != before.commits:
            return None
        landed = tuple((part.table, part.land(tx, source)) for part in batch.parts)
        tables = tuple(dict.fromkeys((*before.tables, *(table for table, _ in landed))))
        state = LiveState(batch.offset, (), tables, before.commits + 1, batch.is_partial)
        keep(tx, source, state, batch.lines)
        return CommittedBatch(state, landed)

    names = ", ".join(dict.fromkeys(part.table for part in batch.parts))
    done = catalog.run(work, f"take {many(len(batch.parts), 'part')} of {source}{f' into {names}' if names else ''}")
    if done is None:
        raise ConcurrentModificationError(
            f"Another run has taken from the source {source!r} meanwhile: nothing was taken twice. Run one at a time."
        )
    return done
