"""Questions of the front page and of the page of commits.

Both cost as much as they show. Figures are counted when a table is read (`kept_facts`), and of a large commit only the
first changes leave the metastore.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest
from itertools import pairwise

import msgspec
from lance_namespace import LanceNamespace

from headwater.metastore import Metastore
from headwater.rest.auth.object_rights import Projection
from headwater.rest.call import Call
from headwater.rest.page.kept_facts import KeptTable, Tables, commits_of, tables_of
from headwater.rest.page.overview_facts import (
    CatalogSize,
    CommitFact,
    Growth,
    LogFacts,
    OverviewFacts,
    TableState,
    TableUpkeep,
)
from headwater.rest.page.page_facts import holds
from headwater.streams.layout import QUARANTINE, RUNS
from headwater.verbs.verb import metastore_of

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SPANS = (SECOND, 10 * SECOND, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
MAX_SPANS = 40
"""Most spans of time in the drawing of commits."""
CHANGES_SHOWN = 20
COMMITS_PER_LINE = 4
"""Commits that the front page is told of for each that it shows: those that only note a run are left out."""


def log(namespace: LanceNamespace, call: Call) -> LogFacts:
    """Return those of `limit` commits up to one that hold `word`, as far as the caller may be told of them."""
    return _log(namespace, call, call.request.limit)


def _log(namespace: LanceNamespace, call: Call, limit: int) -> LogFacts:
    metastore, asked = metastore_of(namespace), call.request
    now, oldest = metastore.now(), metastore.boundary
    last = min(asked.until or now.slot, now.slot)
    first = max(oldest, last - limit)
    told, kept = Projection(call.asker, metastore), commits_of(metastore)
    commits = [
        _cut(commit)
        for slot in range(first + 1, last + 1)
        for commit in (_told(told, each) for each in kept.of(metastore, slot))
        if (commit.entry.changes or told.is_whole) and holds(asked.word, *_texts_of(commit))
    ]
    names = {change.path for commit in commits for change in commit.entry.changes}
    return LogFacts(commits, now.slot, first, oldest, {name for name in names if now.exists(name)})


def _told(told: Projection, commit: CommitFact) -> CommitFact:
    """Return a commit as a caller may be told of it; one with a scope is told of the first changes alone."""
    if told.is_whole:
        return commit
    entry = told.log_entry(commit.entry)
    return CommitFact(entry, len(entry.changes))


def _texts_of(commit: CommitFact) -> list[str]:
    entry = commit.entry
    return [entry.author, entry.message, *(" / ".join(change.path) for change in entry.changes)]


def _cut(commit: CommitFact) -> CommitFact:
    shown = commit.entry.changes[:CHANGES_SHOWN]
    return msgspec.structs.replace(commit, entry=msgspec.structs.replace(commit.entry, changes=shown))


def overview(namespace: LanceNamespace, call: Call) -> OverviewFacts:
    """Return the catalog as a whole, as far as the caller may be told: size, growth, what waits, the last commits."""
    metastore, most = metastore_of(namespace), call.request.limit
    told, tables = Projection(call.asker, metastore), tables_of(metastore)
    with tables.lock:
        tables.bring_up(metastore)
        size, unread = _size(tables), len(tables.unread)
        needy = list(tables.needy.items())
    seen = [table for key, table in needy if told.tells(table.path, key)]
    logs = [table.log for table in seen if table.log is not None]
    rejected = [log for log in logs if log.path[-1].endswith(QUARANTINE) and log.total]
    own = [log for log in logs if log.path != RUNS and not log.path[-1].endswith(QUARANTINE)]
    waiting, stale = [log for log in own if log.deltas], [log for log in own if log.stale]
    upkeep = _upkeep(seen)
    return OverviewFacts(
        size if told.is_whole else None,
        growth_of(metastore) if told.is_whole else None,
        unread,
        _largest(waiting, "rows", most),
        len(waiting),
        _largest(rejected, "total", most),
        len(rejected),
        _largest(stale, "stale_rows", most),
        len(stale),
        nlargest(most, upkeep, key=lambda one: one.small + one.worn),
        len(upkeep),
        RUNS if metastore.now().exists(RUNS) and told.tells(RUNS) else None,
        _log(namespace, call, most * COMMITS_PER_LINE),
    )


def _largest(found: Sequence[TableState], field: str, most: int) -> list[TableState]:
    return nlargest(most, found, key=lambda state: int(getattr(state, field)))


def _size(tables: Tables) -> CatalogSize:
    told = tables.counts
    return CatalogSize(
        told["namespace"], told["table"], told["stream"], told["rows"], told["bytes"], told["unmeasured"]
    )


def _upkeep(tables: Sequence[KeptTable]) -> list[TableUpkeep]:
    return [
        TableUpkeep(table.path, table.size.small, table.size.worn)
        for table in tables
        if table.size is not None and table.size.wants_upkeep
    ]


def growth_of(metastore: Metastore) -> Growth | None:
    """Return the commits that are kept, in spans of time that begin at whole minutes, hours or days; None without any.

    The metastore has the time of each commit in memory.
    """
    first, last = metastore.activity.span()
    span = next((each for each in SPANS if last // each - first // each < MAX_SPANS), SPANS[-1])
    starts = [number * span for number in range(first // span, last // span + 1)][-MAX_SPANS:]
    if not last or len(starts) < 2:
        return None
    slots = metastore.activity.slots_at([starts[0] - 1, *(start + span - 1 for start in starts)])
    return Growth(span, starts, [after - before for before, after in pairwise(slots)])
