"""The commit of a batch of a live source: rows of all its tables and the offset after them, or none of it."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.catalog import Catalog
from headwater.errors import ConcurrentModificationError, InvalidInputError
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
        _check_there(tx, source, before, batch)
        origins = _origins(source, before, batch)
        landed = tuple((part.table, part.land(tx, source)) for part in batch.parts)
        tables = tuple(dict.fromkeys((*before.tables, *(table for table, _ in landed))))
        state = LiveState(batch.offset, (), tables, before.commits + 1, batch.is_partial, origins)
        keep(tx, source, state, batch.lines)
        return CommittedBatch(state, landed)

    names = ", ".join(dict.fromkeys(part.table for part in batch.parts))
    done = catalog.run(work, f"take {many(len(batch.parts), 'part')} of {source}{f' into {names}' if names else ''}")
    if done is None:
        raise ConcurrentModificationError(
            f"Another run has taken from the source {source!r} meanwhile: nothing was taken twice. Run one at a time."
        )
    return done


def _check_there(catalog: Catalog, source: str, before: LiveState, batch: LiveBatch) -> None:
    """Raise InvalidInput (13) if a table that the source has filled is gone: a new one would lack its earlier rows."""
    gone = [part.table for part in batch.parts if part.table in before.tables and not part.is_whole]
    gone = [table for table in dict.fromkeys(gone) if table not in catalog]
    if gone:
        raise InvalidInputError(
            f"The source {source!r} has filled {', '.join(gone)}, which was dropped or renamed since: a new table "
            "would lack the rows of before. Nothing was taken: restore the table or its name, or run with "
            f"--full-refresh and all tables of the source: {', '.join(before.tables)}."
        )


def _origins(source: str, before: LiveState, batch: LiveBatch) -> dict[str, str]:
    """Return where the rows of each table come from. InvalidInput (13) if a table would get those of two tables."""
    found = dict(before.origins)
    for part in batch.parts:
        if part.origin and found.setdefault(part.table, part.origin) != part.origin:
            raise InvalidInputError(
                f"The source {source!r} has {found[part.table]} and {part.origin}, and both go into {part.table}. "
                "Nothing was taken: leave one of them out, or read them by two sources."
            )
    return found
