"""Runs of live sources: readers that are opened from the catalog's offset, and batches taken until they are caught up.

A run takes what there is and ends. A resident run keeps its readers open between two rounds, and takes in each round
what has come since. A reader that fails is closed; the next round opens it again, from the offset in the catalog.

The commit of a batch of a live source: rows of all its tables and the offset after them, or none of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType

from headwater.catalog import Catalog
from headwater.catalog.streams import CatalogStream
from headwater.errors import ConcurrentModificationError, InvalidInputError, LanceNamespaceError
from headwater.pipeline.grammar import Pipeline, Source
from headwater.pipeline.jobs import Report, summed
from headwater.pipeline.live.live_source import (
    LiveBatch,
    LiveContext,
    LiveReader,
    LiveSpec,
    LiveState,
    forget,
    keep,
    live_state,
    prepare,
)
from headwater.streams.log.landing import LandingReport
from headwater.streams.sources.formats import total
from headwater.wording import many
from headwater.work import HERE, Runner

LOOK_S = 0.5
"""A reader is asked so long for a batch before the run looks whether it is caught up, or is to end."""
ROUND_S, LEAST_S = 5.0, 0.1
"""A round of a resident run takes from one source as long as the last publish took, within these limits: publishing
takes half of the time at most, and rows wait for two publishes at most."""
Say = Callable[[str], None]
Failed = Callable[[str, LanceNamespaceError], None]


class LiveReaders:
    """The open readers of a pipeline's live sources, by name. Its block closes them."""

    def __init__(
        self, pipeline: Pipeline, catalog: Catalog, runner: Runner = HERE, say: Say = lambda text: None
    ) -> None:
        self._pipeline, self._catalog, self._runner, self._say = pipeline, catalog, runner, say
        self._open: dict[str, tuple[LiveReader, LiveState]] = {}
        self._round_s, self._taken_at = LEAST_S, 0.0

    def __enter__(self) -> LiveReaders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._open):
            self._close(name)

    def end_round(self) -> None:
        """End a round of a resident run: the next one takes as long as the publish of this one took."""
        self._round_s = min(ROUND_S, max(LEAST_S, time.perf_counter() - self._taken_at))

    def end_taking(self) -> None:
        """Note the moment from which on a round publishes."""
        self._taken_at = time.perf_counter()

    def take(self, source: Source, follow: bool = False, is_ended: Callable[[], bool] = lambda: False) -> Report:
        """Take from a source until it is caught up, and return a report with a part for each table.

        `follow`: take only what is there now, and keep the reader open.
        """
        assert source.live is not None
        began, landed = time.perf_counter(), dict[str, list[LandingReport]]()
        is_whole = False
        try:
            reader, state = self._open.get(source.name) or self._opened(source, source.live)
            while not is_ended():
                batch = reader.take(0.0 if follow and not state.is_partial else LOOK_S)
                if batch is not None:
                    done = commit_batch(self._catalog, source.name, state, batch)
                    state = done.state
                    self._open[source.name] = reader, state
                    reader.acknowledge(batch)
                    for table, report in done.landed:
                        landed.setdefault(table, []).append(report)
                is_over = batch is None or time.perf_counter() - began > self._round_s
                if not state.is_partial and (is_over if follow else reader.is_caught_up):
                    break
            is_whole = True
        finally:
            if not (is_whole and follow):
                self._close(source.name)
        parts = [_reported(table, total(reports)) for table, reports in landed.items()]
        return summed("ingest", parts, began) if parts else Report("ingest", source.into, seconds=0.0)

    def _opened(self, source: Source, spec: LiveSpec) -> tuple[LiveReader, LiveState]:
        prepare(self._catalog, source.name, spec.kind, spec.shown, source.into)
        state = live_state(self._catalog, source.name)
        if state.is_partial:
            self._say(f"{source.name}: its first copy was broken off and is begun again")
            begin_source_again(self._catalog, source.name, state.tables, keep_others=True)
            state = live_state(self._catalog, source.name)
        spec_of = self._pipeline.spec_of
        by = self._runner, self._say, str(self._pipeline.folder)
        context = LiveContext(source.name, source.into, state, self._catalog, spec_of, *by)
        opened = spec.opened(context), replace(state, journal=())
        self._open[source.name] = opened
        return opened

    def _close(self, name: str) -> None:
        found = self._open.pop(name, None)
        if found is not None:
            with suppress(LanceNamespaceError, OSError):
                found[0].close()


def _reported(table: str, done: LandingReport) -> Report:
    counts = Report("ingest", table, done.rows, quarantined=done.quarantined, position=done.position)
    return replace(counts, checks=done.checks, too_late=done.too_late)


def take_live(
    readers: LiveReaders,
    sources: Sequence[Source],
    failed: Failed,
    say: Say,
    follow: bool = False,
    is_ended: Callable[[], bool] = lambda: False,
) -> list[Report]:
    """Take from live sources, one after another. One that fails is reported to `failed`, and the others go on."""
    reports = []
    for source in sources:
        if is_ended():
            break
        about = f"take {source.name}"
        if not follow:
            say(f"{about}: {source.live.shown if source.live is not None else ''}")
        try:
            report = readers.take(source, follow, is_ended)
        except LanceNamespaceError as error:
            failed(about, error)
            continue
        if report.rows or report.quarantined or report.parts or not follow:
            reports.append(report)
    return reports


# Tables ---------------------------------------------------------------------------------------------------------------


def with_live_tables(pipeline: Pipeline, catalog: Catalog) -> Pipeline:
    """Return a pipeline that has the tables which its live sources have made, with the keys that those have."""
    if not pipeline.live or not catalog.is_there:
        return pipeline
    made = [name for source in pipeline.live for name in live_state(catalog, source.name, False).tables]
    specs = {table.name: table for table in pipeline.tables}
    for name in dict.fromkeys([*made, *specs]):
        if pipeline.is_live(name) and name not in catalog:
            specs.setdefault(name, pipeline.spec_of(name))  # it was dropped: it can be named to be made anew
        elif pipeline.is_live(name):
            table = catalog[name]
            if isinstance(table, CatalogStream):
                known = table.definition
                spec = pipeline.spec_of(name)
                specs[name] = replace(spec, keys=spec.keys or known.keys, sequence=spec.sequence or known.sequence)
    more = [name for name in specs if name not in pipeline.publish] if pipeline.publishes_all else []
    return replace(pipeline, tables=tuple(specs.values()), publish=(*pipeline.publish, *more))


def chosen(pipeline: Pipeline, select: Collection[str]) -> list[Source]:
    """Return the live sources that a run takes from: all, or those that feed a selected table."""
    return [source for source in pipeline.live if not select or any(map(source.feeds, select))]


def where_next(pipeline: Pipeline, catalog: Catalog, names: Collection[str]) -> dict[str, str]:
    """Return the live sources that feed these tables, or all, and where each goes on, for a plan."""
    found = {}
    for source in chosen(pipeline, names):
        state = live_state(catalog, source.name, False)
        shown = source.live.shown if source.live is not None else ""
        after = "from its beginning" if state.offset is None else f"changes after commit {state.commits}"
        found[source.name] = f"{shown}: {after}"
    return found


def begin_again(
    pipeline: Pipeline, catalog: Catalog, select: Sequence[str], refresh: Sequence[str]
) -> tuple[list[Source], list[str]]:
    """Drop the tables of live sources that are to be made anew, with the offsets, in one commit for each source.

    Return the sources that the run takes from, and the other names of `refresh`. A source has one offset: InvalidInput
    (13) if only some of its tables are named.
    """
    left = list(refresh)
    for source in pipeline.live:
        own = [name for name in refresh if source.feeds(name)]
        made = [name for name in live_state(catalog, source.name, False).tables if name in catalog]
        missing = [name for name in made if name not in own]
        if not own:
            continue
        if missing:
            raise InvalidInputError(
                f"The live source {source.name!r} has one offset for all its tables, so they are rebuilt together: "
                f"name {', '.join(missing)} in --full-refresh too."
            )

        begin_source_again(catalog, source.name, made)
        left = [name for name in left if name not in own]
    return chosen(pipeline, (*select, *refresh)), left


def begin_source_again(catalog: Catalog, source: str, tables: Sequence[str], keep_others: bool = False) -> None:
    """Drop tables of a live source and forget its offset, in one commit.

    `keep_others`: of a table that has rows from elsewhere take out only those of the source.
    """

    def work(tx: Catalog) -> None:
        for table in tables:
            if table not in tx:
                continue
            stream = tx[table]
            own, others = (
                _landed(stream, source) if keep_others and isinstance(stream, CatalogStream) else (True, False)
            )
            if not others:
                tx.drop_table(table)
            elif own:
                stream.undo(source=source)
        forget(tx, source)

    catalog.run(work, f"begin the source {source} again")


def _landed(stream: CatalogStream, source: str) -> tuple[bool, bool]:
    """Return True if a table has rows of a source, and True if it may have others: its log has, or is cut."""
    deltas = stream.deltas()
    voided = {position for delta in deltas for position in delta.properties.get("voids", ())}
    standing = [each for each in deltas if "voids" not in each.properties and each.position not in voided]
    own = [delta.properties.get("source") == source for delta in standing]
    return any(own), not deltas or deltas[0].position > 1 or not all(own)


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
            f"Another run has taken from the source {source!r} meanwhile: nothing was loaded twice. Run one at a time."
        )
    return done


def _check_there(catalog: Catalog, source: str, before: LiveState, batch: LiveBatch) -> None:
    """Raise InvalidInput (13) if a table that the source has filled is gone: a new one would lack its earlier rows."""
    gone = [part.table for part in batch.parts if part.table in before.tables and not part.is_whole]
    gone = [table for table in dict.fromkeys(gone) if table not in catalog]
    if gone:
        raise InvalidInputError(
            f"The source {source!r} has filled {', '.join(gone)}, which was dropped or renamed since: a new table "
            "would lack the rows of before. Nothing was loaded: restore the table or its name, or run with "
            f"--full-refresh and all tables of the source: {', '.join(before.tables)}."
        )


def _origins(source: str, before: LiveState, batch: LiveBatch) -> dict[str, str]:
    """Return where the rows of each table come from. InvalidInput (13) if a table would get those of two tables."""
    found = dict(before.origins)
    for part in batch.parts:
        if part.origin and found.setdefault(part.table, part.origin) != part.origin:
            raise InvalidInputError(
                f"The source {source!r} has {found[part.table]} and {part.origin}, and both go into {part.table}. "
                "Nothing was loaded: leave one of them out, or read them by two sources."
            )
    return found
